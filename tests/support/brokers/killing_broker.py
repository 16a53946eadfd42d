"""A broker process that kills itself before, in the middle of, or after one of its writes."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from support.brokers.broker_process import ROOT, BrokerProcess

from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.log.fs import File, FileSystem, InterposedFile
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records
from kbroker.transaction.state import TransactionRow, TransactionState
from kbroker.transaction.state_log import decode_row

TESTS = pathlib.Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
from support.brokers.killing_broker import serve
serve()
"""
EMPTY, ONGOING, KEPT, PREPARE, COMPLETE = 'Empty row', 'Ongoing row', 'kept row', 'Prepare row', 'Complete row'
RECORDS, MARKER = 'records', 'marker'
"""The kinds of rows, records and markers that a write can contain."""
KINDS = {
    TransactionState.EMPTY: EMPTY, TransactionState.ONGOING: ONGOING,
    TransactionState.PREPARE_COMMIT: PREPARE, TransactionState.PREPARE_ABORT: PREPARE,
    TransactionState.COMPLETE_COMMIT: COMPLETE, TransactionState.COMPLETE_ABORT: COMPLETE,
}
KILLED = 'killed at the point'
"""The last line that the broker prints."""


def kind_of(row: TransactionRow) -> str:
    return KEPT if row.is_kept and row.state is TransactionState.ONGOING else KINDS[row.state]


@dataclass(frozen=True)
class Point:
    """The write at which the broker kills itself: the write `number` of a kind to a partition, not counting rows of
    other transactional ids.
    """

    partition: str
    kind: str
    number: int
    moment: str
    """`before` the write, `torn` in the middle of it, or `after` it, before the write call returns."""

    def __str__(self) -> str:
        return f'{self.moment} {self.kind} {self.number} of {self.partition}'


class KillingBroker(BrokerProcess):
    """A `BrokerProcess`. If `point` is set, the next start starts a broker that kills itself at this point.

    It counts writes from the first row of `transactional_id`, or with `counts_at_once` from its start.
    """

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str]):
        super().__init__(directory, settings)
        self.point: Point | None = None
        self.transactional_id = ''
        self.counts_at_once = False

    def launch(self, arguments: list[str]) -> None:
        if self.point is not None:
            plan = json.dumps({'transactional_id': self.transactional_id, 'point': asdict(self.point),
                               'counts': self.counts_at_once})
            assert arguments[1:3] == ['-m', 'kbroker']
            arguments = [sys.executable, '-c', PROGRAM, str(ROOT), str(TESTS), plan, *arguments[3:]]
        super().launch(arguments)

    def wait_killed(self) -> None:
        """Wait until the broker has killed itself. Raise AssertionError if it ends in another way or does not end."""
        self._wait()
        self._check_killed()

    def start_until_killed(self) -> None:
        """Start the broker, and wait until it has killed itself, which may be before it is ready."""
        try:
            self.start()
        except AssertionError:
            self._check_killed()
        else:
            self.wait_killed()

    def _check_killed(self) -> None:
        assert self.lines[-1:] == [KILLED + '\n'], (str(self.point), self.lines[-20:])


def serve() -> None:
    """Run the command `kbroker` in this process. The first argument is the plan of the kill, and the others are those
    of kbroker.
    """
    from kbroker.daemon import broker, main
    _, _, plan, *sys.argv[1:] = sys.argv[1:]
    found = json.loads(plan)
    killer = Killer(found['transactional_id'], Point(**found['point']), found['counts'])
    broker.FileSystem = lambda: KillingFileSystem(killer)   # type: ignore[misc,assignment]
    main.main()


class Killer:
    """Counts the writes that match the point's partition and kind, and kills the process at the point."""

    def __init__(self, transactional_id: str, point: Point, counts: bool):
        self.transactional_id, self.point, self.counts = transactional_id, point, counts
        self.seen = 0

    def on_write(self, path: str, data: bytes, position: int) -> None:
        partition = os.path.basename(os.path.dirname(path))
        if not path.endswith('.log') or (not self.counts and not partition.startswith(TRANSACTION_STATE)):
            return
        if position + len(data) <= os.path.getsize(path):
            return      # a start writes again what it recovered
        kinds = self.kinds_in(partition, data)
        self.counts = self.counts or bool(kinds)
        if partition != self.point.partition or self.point.kind not in kinds:
            return
        self.seen += 1
        if self.seen == self.point.number:
            reached = {'before': 0, 'torn': len(data) // 2, 'after': len(data)}[self.point.moment]
            descriptor = os.open(path, os.O_WRONLY)
            assert os.pwrite(descriptor, data[:reached], position) == reached
            print(KILLED, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def kinds_in(self, partition: str, data: bytes) -> set[str]:
        """Return which kinds of rows, records and markers a write contains. Skip rows of other transactional ids."""
        kinds = set()
        for header, batch in iter_batches(data):
            if header.is_control:
                kinds.add(MARKER)
            elif not partition.startswith(TRANSACTION_STATE):
                kinds.add(RECORDS)
            else:
                rows = [decode_row(record.key, record.value) for record in decode_records(batch)]
                kinds |= {kind_of(row) for found, row in rows if found == self.transactional_id and row is not None}
        return kinds


class KillingFileSystem(FileSystem):
    def __init__(self, killer: Killer):
        self.killer = killer

    def open(self, path: str, create: bool = False) -> File:
        return KillingFile(self.killer, path, create)


class KillingFile(InterposedFile):
    def __init__(self, killer: Killer, path: str, create: bool):
        super().__init__(path, create)
        self.killer = killer

    def on_write(self, data: bytes, position: int) -> None:
        self.killer.on_write(self.path, data, position)
