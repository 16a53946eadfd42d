"""A broker process that counts its objects on SIGUSR2. The operating system and `kbroker status` report other counts.
"""
from __future__ import annotations

import datetime  # noqa: F401 - its import leaves 157 functions in cycles, which no count may find
import gc
import logging
import os
import pathlib
import queue
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.brokers.broker_process import ROOT, BrokerProcess

from kbroker.daemon.status import read_status

TESTS = pathlib.Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
from support.brokers.counted_broker import serve
serve()
"""
COUNT_LIMIT_S = 120

logger = logging.getLogger('kbroker.count')


@dataclass(frozen=True)
class Count:
    """The sizes of a broker process."""

    resident_kb: int
    descriptors: int
    threads: int
    blocks: int
    """The blocks that Python has allocated: about one for each object and each small buffer."""
    objects: Mapping[str, int]
    """The objects that the garbage collector tracks, by type: timers, waiters, groups, transactions and so on."""
    garbage: Mapping[str, int]
    """The objects that only reference cycles kept alive, by type."""
    ledger: Mapping[str, int]
    """The structures that a client can grow, as `kbroker status` reports them."""


class CountedBroker(BrokerProcess):
    """A `BrokerProcess` with one more signal handler. Otherwise it runs the code of a released broker."""

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str]):
        super().__init__(directory, settings)
        self._counts: queue.Queue[dict[str, Any]] = queue.Queue()

    def launch(self, arguments: list[str]) -> None:
        assert arguments[1:3] == ['-m', 'kbroker']
        super().launch([sys.executable, '-c', PROGRAM, str(ROOT), str(TESTS), *arguments[3:]])

    def is_ready_line(self, line: str) -> bool:
        entry: dict[str, Any] = self._entry(line)
        if entry.get('event') == 'count':
            self._counts.put(entry)
        return super().is_ready_line(line)

    def count(self) -> Count:
        """Make the broker collect garbage and count its objects. Then read the sizes that the operating system and
        `kbroker status` report.
        """
        os.kill(self.pid, signal.SIGUSR2)
        found = self._counts.get(timeout=COUNT_LIMIT_S)
        process = pathlib.Path(f'/proc/{self.pid}')
        status = dict(line.split(':', 1) for line in (process / 'status').read_text().splitlines())
        return Count(int(status['VmRSS'].split()[0]), len(list((process / 'fd').iterdir())), int(status['Threads']),
                     found['blocks'], found['objects'], found['garbage'], self.ledger())

    def ledger(self) -> dict[str, int]:
        return {line['what']: line['now'] for line in read_status(str(self.directory))['ledger']}


def serve() -> None:
    """Run the command `kbroker` in this process, with the signal handler that counts."""
    from kbroker.daemon import broker, main

    class Counting(broker.Broker):
        def start(self) -> None:
            super().start()
            self.reactor.on_signal(signal.SIGUSR2, log_count)

    broker.Broker = Counting    # type: ignore[misc]
    del sys.argv[1:3]
    main.main()


def log_count() -> None:
    """Free the objects that only reference cycles keep alive, and log the counts of the remaining objects."""
    gc.unfreeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    garbage = Counter(map(type_name, gc.garbage))
    gc.garbage.clear()
    gc.collect()
    gc.unfreeze()       # the broker exempts what a search has left
    objects = Counter(map(type_name, gc.get_objects()))
    logger.info('%d objects, %d were garbage', objects.total(), garbage.total(), extra={
        'event': 'count', 'objects': dict(objects), 'garbage': dict(garbage), 'blocks': sys.getallocatedblocks()})
    gc.freeze()
    gc.collect()        # as `exempting_the_old` of kbroker.base.garbage


def type_name(each: object) -> str:
    return f'{type(each).__module__}.{type(each).__name__}'
