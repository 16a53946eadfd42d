"""A broker with sockets and threads in the test's process, whose clock the test controls.

The loop runs in a thread of its own. The clock is stopped from the start, so time passes only by `advance`.
"""
from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from support.clients.raw_client import RawClient
from support.messages.message_builder import build

from kbroker.control.clock import ClockControl, ClockFile, open_clock
from kbroker.daemon.broker import Broker
from kbroker.log.fs import FileSystem
from kbroker.settings.config import Config

LIMIT_S = 60
LOOK_S = 1


class ClockedBroker:
    """The broker as a context manager, which stops it cleanly at the end."""

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str] | None = None):
        fs = FileSystem()
        self.directory = directory
        self.clock = open_clock(fs, str(directory))
        self.clock.stop()
        self.broker = Broker(Config({'log.dirs': str(directory), 'listeners': 'PLAINTEXT://127.0.0.1:0',
                                     **(settings or {})}), self.clock)
        self.node = self.broker.node
        self.control = ClockControl(
            self.clock, self.broker.reactor,
            (self.broker.sync_threads, self.broker.cleaning_worker, self.broker.reading_worker,
             self.broker.validating_worker, self.broker.searching_worker, self.broker.login_worker,
             self.broker.token_worker), lambda: self.broker.server.traffic.received_bytes,
            ClockFile(fs, str(directory)))
        self._thread = threading.Thread(target=self.broker.run)

    def __enter__(self) -> ClockedBroker:
        self.broker.start()
        self.broker.reactor.at_tick_end.append(self.control.end_tick)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        def stop() -> None:
            self.control.close()
            self.broker.stop()

        self.broker.reactor.call_soon_threadsafe(stop)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    @property
    def address(self) -> str:
        return self.broker.address

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Call a function on the loop, and return its result."""
        return self._await(lambda done: done(None, call()))

    def work(self, steps: Any) -> Any:
        """Run a generator as long work of the broker. Return its result, or raise its exception."""
        return self._await(lambda done: self.node.long_work.start(steps, done))

    def advance(self, ms: int) -> int:
        """Advance the clock, and return the number of deadlines that have passed."""
        deadlines: int = self.work(self.control.advance_ms(ms))
        return deadlines

    def connect(self) -> RawClient:
        return RawClient.at(self.address, LIMIT_S)

    def ask(self, api: str, version: int | None = None, **fields: Any) -> Any:
        """Send a request on a connection of its own, and return the answer."""
        request = build(f'{api}Request', **fields)
        with self.connect() as client:
            return client.ask(request, request.versions[1] if version is None else version)

    def _await(self, begin: Callable[[Callable[[Any, Any], None]], None]) -> Any:
        over, outcome = threading.Event(), []

        def done(error: Exception | None, result: Any) -> None:
            outcome.append((error, result))
            over.set()

        self.broker.reactor.call_soon_threadsafe(lambda: begin(done))
        while not over.wait(LOOK_S):
            assert self._thread.is_alive(), 'the loop has ended'
        error, result = outcome[0]
        if error is not None:
            raise error
        return result
