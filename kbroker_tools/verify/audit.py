"""The logs at the end of a run, as the final readers received them from each partition."""
from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from kbroker_tools.verify.history import History


@dataclass
class FinalLog:
    """The records of one partition, in the order in which a final reader received them. The reader received all records
    below the offset `end`.

    `is_complete` is True if `end` is the end of the partition. A transaction that never ends hides all later records
    from a read_committed reader, whose log is then incomplete.
    """

    offsets: array[int] = field(default_factory=lambda: array('q'))
    numbers: array[int] = field(default_factory=lambda: array('q'))
    end: int = 0
    is_complete: bool = False

    def rank(self, offset: int) -> int:
        """Return the index of the first record at or above this offset."""
        return bisect_left(self.offsets, offset)

    def number_at(self, offset: int) -> int | None:
        rank = self.rank(offset)
        return self.numbers[rank] if rank < len(self.offsets) and self.offsets[rank] == offset else None


@dataclass
class Audit:
    """The final logs of all partitions. `everything` has them as a read_uncommitted reader received them, and
    `committed` as a read_committed reader did."""

    everything: list[FinalLog]
    committed: list[FinalLog]

    def seen_by(self, is_committed: bool) -> list[FinalLog]:
        return self.committed if is_committed else self.everything


def audit(history: History) -> Audit:
    """Collect the final logs from a history. If an isolation level has several final readers, the first one counts."""
    views = {}
    for is_committed in (False, True):
        reader = next((number for number, reader in sorted(history.readers.items())
                       if reader.is_final and reader.is_committed == is_committed), None)
        views[is_committed] = _logs(history, reader)
    return Audit(views[False], views[True])


def _logs(history: History, reader: int | None) -> list[FinalLog]:
    logs = [FinalLog() for _ in history.partitions]
    if reader is None:
        return logs
    for poll in history.polls:
        if poll.reader == reader:
            for partition, offsets, numbers in poll.chunks:
                log = logs[partition]
                if offsets and (not log.offsets or offsets[0] > log.offsets[-1]):
                    log.offsets.extend(offsets)
                    log.numbers.extend(numbers)
    is_hidden = {row.partition for row in history.stable
                 if row.stable < row.high and history.readers[reader].is_committed}
    for partition, log in enumerate(logs):
        log.end, expected = history.ends.get((reader, partition), (0, 1))
        log.is_complete = log.end >= expected and partition not in is_hidden
    return logs
