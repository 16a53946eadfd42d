"""The kinds of anomalies, and a collector that keeps the smallest evidence of each kind."""
from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """A kind of anomaly. It names the promise of Kafka's protocol that the broker broke."""

    LOST_WRITE = 'lost write', 'an acknowledged or committed record is not in the log at the end'
    DUPLICATE = 'duplicate', 'one record is in the log twice, or one input was transformed twice by a group'
    ABORTED_READ = 'aborted read', 'a read_committed reader got a record whose transaction was not committed'
    TORN = 'torn transaction', 'some records of a transaction are visible and others are not'
    PRECOMMITTED_READ = 'precommitted read', 'a read_committed reader got a record before its commit was requested'
    OFFSET_CONFLICT = 'inconsistent offset', 'one offset has two records, or a record is not at its acknowledged offset'
    OFFSET_WITHOUT_OUTPUT = 'offset without output', 'the offset of an input was committed without its output'
    OUTPUT_WITHOUT_OFFSET = 'output without offset', 'an output is visible and the offset of its input is not committed'
    INTERNAL_SKIP = 'internal poll skip', 'one poll left out a record between two others'
    EXTERNAL_SKIP = 'external poll skip', 'a poll began behind the record that follows the last poll'
    NON_MONOTONIC_POLL = 'non-monotonic poll', 'a reader went back to a smaller offset'
    NON_MONOTONIC_SEND = 'non-monotonic send', 'a later record of a producer got a smaller offset'
    READ_CYCLE = 'circular reads (G1c)', 'transactions read records of each other'
    STABLE_OFFSET = 'stable offset stands still', 'partitions or offsets wait for a transaction that never ends'
    ZOMBIE = 'zombie that wrote', 'a fenced producer wrote or committed'
    REDELIVERED = 'redelivered record', 'a share group delivered a record whose acceptance or rejection was confirmed'
    PASSED_OVER = 'record passed over', 'a share group went past a record that no member had accepted or rejected'
    FOREIGN_RECORD = 'foreign record', 'a record is in a partition to which no producer of the run sent it'
    UNREADABLE = 'unreadable end', 'a reader could not reach the end of a partition after the faults'

    def __init__(self, title: str, meaning: str):
        self.title = title
        self.meaning = meaning


@dataclass(frozen=True)
class Evidence:
    """One occurrence of an anomaly. It has a sentence, and the transactions and the time that the timeline marks."""

    text: str
    transactions: tuple[int, ...] = ()
    time: int | None = None


@dataclass
class Found:
    """The occurrences of one kind of anomaly: their number, and the smallest evidence."""

    count: int = 0
    size: int = 0
    evidence: Evidence = field(default_factory=lambda: Evidence(''))


class Collector:
    """A counter of anomalies by kind. Of each kind, it keeps the evidence of the smallest occurrence. If several have
    the same size, it keeps the first one."""

    def __init__(self) -> None:
        self._found: dict[Kind, Found] = {}

    def add(self, kind: Kind, evidence: Evidence, size: int = 1) -> None:
        """Count an occurrence of an anomaly. `size` is the number of records or transactions in its evidence."""
        found = self._found.setdefault(kind, Found())
        found.count += 1
        if found.count == 1 or size < found.size:
            found.size, found.evidence = size, evidence

    def __iter__(self) -> Iterator[tuple[Kind, Found]]:
        """Yield (kind, occurrences) for each kind that occurred, in the order of the enumeration."""
        return ((kind, self._found[kind]) for kind in Kind if kind in self._found)

    def __contains__(self, kind: Kind) -> bool:
        return kind in self._found

    def __len__(self) -> int:
        return len(self._found)
