"""A history in memory. It consists of columns of integers, so that millions of operations fit in memory and can be
checked in one pass."""
from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kbroker_tools.verify.lines import FOREIGN, FORMAT, NOT_ACKNOWLEDGED, OUTCOMES, READ_COMMITTED, Outcome

NONE = -1


class HistoryError(Exception):
    """A line is not a valid line of a history."""


class Producer(NamedTuple):
    """One instance of a producer. `ready` is the time at which it had claimed its transactional id. A fenced producer
    and its successor are two instances."""

    transactional_id: str | None
    client: str
    begin: int
    ready: int


class Reader(NamedTuple):
    isolation: str
    client: str
    is_final: bool

    @property
    def is_committed(self) -> bool:
        return self.isolation == READ_COMMITTED


class Chunk(NamedTuple):
    """The records of one partition in one poll, in the order in which the client returned them."""

    partition: int
    offsets: array[int]
    numbers: array[int]


class Poll(NamedTuple):
    reader: int
    transaction: int
    begin: int
    end: int
    seek: list[int]
    chunks: list[Chunk]


class Delivery(NamedTuple):
    """The records of one partition that a member of a share group received in one poll."""

    sharer: int
    since: int
    end: int
    chunk: Chunk
    delivery_count: int
    """The number of times that the group has delivered these records, including this delivery."""


class Settlement(NamedTuple):
    """The records that a member of a share group accepted or rejected. `settled` is a flat sequence: the
    partition and the offset of the first record, those of the second record, and so on."""

    sharer: int
    begin: int
    end: int
    is_confirmed: bool
    settled: array[int]


class Shared(NamedTuple):
    """A share group at the end of a run. `limit` is the most deliveries of a record. `starts` maps each partition to
    the start offset of the group."""

    group: str
    limit: int
    starts: dict[int, int]


class Stable(NamedTuple):
    partition: int
    stable: int
    high: int


class Fault(NamedTuple):
    name: str
    begin: int
    end: int
    detail: str


def _column() -> array[int]:
    return array('q')


@dataclass
class Transactions:
    """The transactions, as columns whose index is the number of the transaction."""

    producer: array[int] = field(default_factory=_column)
    begin: array[int] = field(default_factory=_column)
    commit: array[int] = field(default_factory=_column)
    """The time at which the commit was requested. NONE if no commit was requested."""
    end: array[int] = field(default_factory=_column)
    outcome: array[int] = field(default_factory=_column)
    writes: array[int] = field(default_factory=_column)
    """The number of records that the transaction wrote."""

    def __len__(self) -> int:
        return len(self.producer)

    def grow(self, size: int) -> None:
        """Add the transactions that were open when the run ended, until there are `size` transactions. They have no
        end."""
        missing = size - len(self)
        if missing > 0:
            for column in (self.producer, self.begin, self.commit, self.end):
                column.extend([NONE] * missing)
            self.outcome.extend([Outcome.UNKNOWN] * missing)
            self.writes.extend([0] * missing)


@dataclass
class Writes:
    """The records, as columns whose index is the number of the record."""

    transaction: array[int] = field(default_factory=_column)
    producer: array[int] = field(default_factory=_column)
    partition: array[int] = field(default_factory=_column)
    """The partition of the record. NONE if no line has the number of the record."""
    offset: array[int] = field(default_factory=_column)
    sent: array[int] = field(default_factory=_column)
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each record that a transform wrote: the partition and offset of its input record."""

    def __len__(self) -> int:
        return len(self.partition)

    def grow(self, size: int) -> None:
        missing = size - len(self)
        if missing > 0:
            for column in (self.transaction, self.producer, self.partition, self.sent):
                column.extend([NONE] * missing)
            self.offset.extend([NOT_ACKNOWLEDGED] * missing)


@dataclass
class History:
    """All operations of the clients of a run, and the results that the clients received."""

    partitions: list[str] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)
    producers: dict[int, Producer] = field(default_factory=dict)
    readers: dict[int, Reader] = field(default_factory=dict)
    transactions: Transactions = field(default_factory=Transactions)
    writes: Writes = field(default_factory=Writes)
    polls: list[Poll] = field(default_factory=list)
    ends: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Maps (reader, partition) to (offset that a final reader reached, offset that it had to reach)."""
    stable: list[Stable] = field(default_factory=list)
    committed: dict[str, dict[int, int]] = field(default_factory=dict)
    """Maps each group to the offsets, by partition, that it had committed at the end of the run."""
    unstable: list[str] = field(default_factory=list)
    """The groups whose offsets are held by an open transaction at the end of the run."""
    consumed: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    sharers: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Maps each member of a share group to (group, client)."""
    deliveries: list[Delivery] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    is_finished: bool = False
    records_read: int = 0

    @property
    def operations(self) -> int:
        """Return the number of operations: records that were written, records that were read, and ends of
        transactions."""
        return len(self.writes) + self.records_read + len(self.transactions)

    @property
    def end(self) -> int:
        """Return the latest time in the history."""
        times = [poll.end for poll in self.polls[-1:]] + [fault.end for fault in self.faults]
        return max([*times, *self.transactions.end[-1000:], 0])


def load(path: Path) -> History:
    """Read a history from a file. Raise HistoryError if a line is not valid, and OSError if the file cannot be read."""
    with path.open(encoding='utf-8', errors='replace') as lines:
        return read(lines)


def read(lines: Iterable[str]) -> History:
    """Build a history from its lines. Raise HistoryError, which names the line, if a line is not valid."""
    history = History()
    add = {'start': _add_start, 'producer': _add_producer, 'transaction': _add_transaction, 'sends': _add_sends,
           'reader': _add_reader, 'poll': _add_poll, 'end': _add_end, 'stable': _add_stable,
           'committed': _add_committed, 'unstable': _add_unstable, 'sharer': _add_sharer,
           'deliveries': _add_deliveries, 'outcomes': _add_outcomes, 'shared': _add_shared, 'fault': _add_fault,
           'finish': _add_finish}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            add[row['type']](history, row)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise HistoryError(f'line {number}: found {line[:80]!r}, expected a line of a history '
                               f'({error!r})') from error
    return history


def _add_start(history: History, row: dict[str, Any]) -> None:
    if row['format'] != FORMAT:
        raise ValueError(f'found format {row["format"]}, expected {FORMAT}')
    history.partitions = row['partitions']
    history.run = row['run']


def _add_producer(history: History, row: dict[str, Any]) -> None:
    history.producers[row['producer']] = Producer(row['transactional_id'], row['client'], row['begin'], row['end'])


def _add_transaction(history: History, row: dict[str, Any]) -> None:
    number, columns = row['transaction'], history.transactions
    columns.grow(number + 1)
    columns.producer[number] = row['producer']
    columns.begin[number] = row['begin']
    columns.commit[number] = NONE if row['commit'] is None else row['commit']
    columns.end[number] = row['end']
    columns.outcome[number] = OUTCOMES[row['outcome']]
    columns.writes[number] = len(row['writes']) // 4
    _add_writes(history, number, row['producer'], row['writes'])
    if 'sources' in row:
        sources = row['sources']
        history.writes.sources.update(zip(sources[::3], zip(sources[1::3], sources[2::3], strict=True), strict=True))
    if 'consumed' in row:
        history.consumed[number] = row['group'], row['consumed']


def _add_sends(history: History, row: dict[str, Any]) -> None:
    _add_writes(history, NONE, row['producer'], row['writes'])


def _add_writes(history: History, transaction: int, producer: int, flat: list[int]) -> None:
    columns = history.writes
    for index in range(0, len(flat), 4):
        number, partition, offset, sent = flat[index:index + 4]
        if number >= len(columns):
            columns.grow(number + 1)
        if columns.partition[number] != NONE or number < 0 or not 0 <= partition < len(history.partitions):
            raise ValueError(f'found record {number} of partition {partition}, expected a new number and a partition')
        columns.transaction[number] = transaction
        columns.producer[number] = producer
        columns.partition[number] = partition
        columns.offset[number] = offset
        columns.sent[number] = sent


def _add_reader(history: History, row: dict[str, Any]) -> None:
    history.readers[row['reader']] = Reader(row['isolation'], row['client'], row['is_final'])


def _chunk(history: History, partition: int, offsets: list[int], numbers: list[int]) -> Chunk:
    if len(offsets) != len(numbers):
        raise ValueError('found other numbers of offsets and records, expected as many')
    history.records_read += len(offsets)
    return Chunk(partition, array('q', offsets), array('q', numbers))


def _add_poll(history: History, row: dict[str, Any]) -> None:
    chunks = [_chunk(history, *read) for read in row['reads']]
    if row['reader'] not in history.readers:
        raise ValueError(f'found reader {row["reader"]}, expected one with a line before')
    transaction = row['transaction']
    history.polls.append(Poll(row['reader'], NONE if transaction is None else transaction, row['begin'], row['end'],
                              row['seek'], chunks))


def _add_end(history: History, row: dict[str, Any]) -> None:
    ends = row['ends']
    for partition, reached, expected in zip(ends[::3], ends[1::3], ends[2::3], strict=True):
        history.ends[row['reader'], partition] = reached, expected


def _add_stable(history: History, row: dict[str, Any]) -> None:
    history.stable.append(Stable(row['partition'], row['stable'], row['high']))


def _add_committed(history: History, row: dict[str, Any]) -> None:
    offsets = row['offsets']
    history.committed[row['group']] = dict(zip(offsets[::2], offsets[1::2], strict=True))


def _add_unstable(history: History, row: dict[str, Any]) -> None:
    history.unstable.append(row['group'])


def _add_sharer(history: History, row: dict[str, Any]) -> None:
    history.sharers[row['sharer']] = row['group'], row['client']


def _add_deliveries(history: History, row: dict[str, Any]) -> None:
    for *read, count in row['reads']:
        history.deliveries.append(Delivery(row['sharer'], row['since'], row['end'], _chunk(history, *read), count))


def _add_outcomes(history: History, row: dict[str, Any]) -> None:
    history.settlements.append(Settlement(row['sharer'], row['begin'], row['end'], row['is_confirmed'],
                                          array('q', row['settled'])))


def _add_shared(history: History, row: dict[str, Any]) -> None:
    starts = row['starts']
    history.shared.append(Shared(row['group'], row['limit'], dict(zip(starts[::2], starts[1::2], strict=True))))


def _add_fault(history: History, row: dict[str, Any]) -> None:
    history.faults.append(Fault(row['fault'], row['begin'], row['end'], row['detail']))


def _add_finish(history: History, row: dict[str, Any]) -> None:
    history.is_finished = True


def is_foreign(history: History, number: int) -> bool:
    """Return True if no producer of the run has sent the record."""
    return number <= FOREIGN or number >= len(history.writes) or history.writes.partition[number] == NONE
