"""The nemesis. It causes faults of the network and of the broker's process, one after the other, in random order."""
from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.proxy.relay import MUTE_ANSWERS, MUTE_REQUESTS, Proxy
from kbroker_tools.verify.broker_command import BrokerCommand
from kbroker_tools.verify.recorder import Recorder

NETWORK_FAULTS = ('cut', 'delay', 'hold', 'half-open')
PROCESS_FAULTS = ('kill', 'pause', 'clock')
FAULTS = NETWORK_FAULTS + PROCESS_FAULTS

HELD = (ApiKey.END_TXN, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE)
"""The types of requests that may arrive during a later transaction of the same producer."""
_END_TXN_WEIGHT = (3, 1, 1, 1)
HOLD_LIMIT_S = 3
LOOK_AGAIN_S = 0.02
LONGEST_CLOCK_JUMP_S = 60


class Nemesis:
    """A source of faults until the run stops. Each fault is removed before the next one begins."""

    def __init__(self, names: tuple[str, ...], recorder: Recorder, rng: random.Random, proxy: Proxy,
                 broker: BrokerCommand | None, clock_file: Path | None):
        self._names = names
        self._recorder = recorder
        self._rng = rng
        self._proxy = proxy
        self._broker = broker
        self._clock_file = clock_file
        self._faults: dict[str, Callable[[threading.Event], str]] = {
            'cut': self._cut, 'delay': self._delay, 'hold': self._hold, 'half-open': self._half_open,
            'kill': self._kill, 'pause': self._pause, 'clock': self._clock}

    def run(self, stop: threading.Event, pause_s: tuple[float, float]) -> None:
        """Cause faults until the run stops, with a random pause after each. At the end, remove the last fault."""
        try:
            while self._names and not stop.wait(self._rng.uniform(*pause_s)):
                name, begin = self._rng.choice(self._names), self._recorder.now()
                detail = self._faults[name](stop)
                self._recorder.fault(name, begin, detail)
        finally:
            self._proxy.delay_s = None
            self._proxy.release()

    def _cut(self, stop: threading.Event) -> str:
        share = self._rng.choice((0.3, 1.0))
        self._proxy.cut(share)
        return f'{share:.0%} of the connections'

    def _delay(self, stop: threading.Event) -> str:
        longest = self._rng.choice((0.02, 0.2, 0.8))
        self._proxy.delay_s = 0.0, longest
        stop.wait(self._rng.uniform(0.5, 3))
        self._proxy.delay_s = None
        return f'up to {longest} s a frame'

    def _hold(self, stop: threading.Event) -> str:
        """Hold a request back until its client may have begun the next transaction."""
        before = self._proxy.counts['held']
        key = self._rng.choices(HELD, _END_TXN_WEIGHT)[0]
        self._proxy.hold(key)
        for _ in range(round(HOLD_LIMIT_S / LOOK_AGAIN_S)):
            if self._proxy.counts['held'] > before or stop.wait(LOOK_AGAIN_S):
                break
        self._proxy.hold()
        stop.wait(self._rng.uniform(0.02, 0.6))
        self._proxy.release()
        return f'{key.name}, {self._proxy.counts["held"] - before} held'

    def _half_open(self, stop: threading.Event) -> str:
        direction, share = self._rng.choice((MUTE_REQUESTS, MUTE_ANSWERS)), self._rng.choice((0.3, 1.0))
        self._proxy.mute(direction, share)
        stop.wait(self._rng.uniform(0.2, 6))
        self._proxy.cut(1.0)
        return f'no {direction} on {share:.0%} of the connections'

    def _kill(self, stop: threading.Event) -> str:
        assert self._broker is not None
        self._broker.kill()
        stop.wait(self._rng.uniform(0, 1))
        self._broker.start()
        return 'SIGKILL, and a new start'

    def _pause(self, stop: threading.Event) -> str:
        assert self._broker is not None
        self._broker.pause()
        try:
            stop.wait(self._rng.uniform(0.1, 6))
        finally:
            self._broker.resume()
        return 'SIGSTOP, SIGCONT'

    def _clock(self, stop: threading.Event) -> str:
        assert self._clock_file is not None
        jump = self._rng.randint(-LONGEST_CLOCK_JUMP_S, LONGEST_CLOCK_JUMP_S)
        self._clock_file.write_text(f'{jump:+d}\n')
        stop.wait(self._rng.uniform(0.5, 3))
        self._clock_file.write_text('+0\n')
        return f'{jump:+d} s'
