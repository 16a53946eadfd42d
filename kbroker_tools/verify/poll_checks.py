"""The checks of polls. Each reader must receive the records of the final log in the order of the log, without a gap.

Most polls return a run of records that is equal to a run of the final log. One comparison of arrays shows this. Only
the remaining polls are checked record by record.
"""
from __future__ import annotations

from array import array
from dataclasses import dataclass

from kbroker_tools.verify.anomalies import Collector, Evidence, Kind
from kbroker_tools.verify.audit import Audit, FinalLog
from kbroker_tools.verify.history import NONE, Chunk, History, Poll, is_foreign
from kbroker_tools.verify.lines import Outcome
from kbroker_tools.verify.wording import Wording


@dataclass(slots=True)
class _Place:
    """The position of a reader in a partition. `rank` is the index of the record that must come next in the final log,
    and `offset` is the lowest offset that the record may have."""

    rank: int
    offset: int


def check_polls(history: History, ends: Audit, found: Collector, words: Wording) -> None:
    """Check all polls, in the order in which they ended."""
    checks = _PollChecks(history, ends, found, words)
    for poll in sorted(history.polls, key=lambda poll: poll.end):
        checks.check(poll)


class _PollChecks:
    def __init__(self, history: History, ends: Audit, found: Collector, words: Wording):
        self._history = history
        self._ends = ends
        self._found = found
        self._words = words
        self._places: dict[tuple[int, int], _Place] = {}
        self._examined = [0] * len(history.partitions)
        """For each partition: the number of records in the committed log whose first read was compared with the request
        to commit them."""

    def check(self, poll: Poll) -> None:
        is_committed = self._history.readers[poll.reader].is_committed
        logs = self._ends.seen_by(is_committed)
        for partition, offset in zip(poll.seek[::2], poll.seek[1::2], strict=True):
            self._places[poll.reader, partition] = _Place(logs[partition].rank(offset), offset)
        in_poll: set[int] = set()
        for chunk in poll.chunks:
            if chunk.offsets:
                self._check_chunk(poll, chunk, logs[chunk.partition], chunk.partition in in_poll)
                in_poll.add(chunk.partition)

    def _check_chunk(self, poll: Poll, chunk: Chunk, log: FinalLog, continues: bool) -> None:
        is_committed = log is self._ends.committed[chunk.partition]
        place = self._places.get((poll.reader, chunk.partition))
        if place is None:       # if no position was set, the reader may begin anywhere
            place = _Place(log.rank(chunk.offsets[0]), chunk.offsets[0])
            self._places[poll.reader, chunk.partition] = place
        begin, end = place.rank, place.rank + len(chunk.offsets)
        if log.offsets[begin:end] == chunk.offsets and log.numbers[begin:end] == chunk.numbers:
            place.rank, place.offset = end, chunk.offsets[-1] + 1
            if is_committed:
                self._compare_with_commits(poll, chunk.partition, log.numbers, begin, end)
            return
        for index, (offset, number) in enumerate(zip(chunk.offsets, chunk.numbers, strict=True)):
            self._check_record(poll, chunk.partition, log, place, (offset, number, continues or index > 0))

    def _check_record(self, poll: Poll, partition: int, log: FinalLog, place: _Place,
                      record: tuple[int, int, bool]) -> None:
        """Check one record: its offset, its number, and whether it follows the previous record of the reader without a
        gap."""
        offset, number, is_internal = record
        where = f'{self._words.reader(poll.reader)} at {self._words.partition(partition)}'
        transactions = () if is_foreign(self._history, number) else self._words.transactions_of(number)
        if offset < place.offset:
            self._found.add(Kind.NON_MONOTONIC_POLL, Evidence(
                f'{where} got offset {offset} after {place.offset - 1} at {self._words.time(poll.end)}', transactions,
                poll.end))
        rank = log.rank(offset)
        is_there = rank < len(log.offsets) and log.offsets[rank] == offset
        if rank > place.rank and offset >= place.offset:
            skipped = log.numbers[place.rank]
            self._found.add(Kind.INTERNAL_SKIP if is_internal else Kind.EXTERNAL_SKIP, Evidence(
                f'{where} got offset {offset} at {self._words.time(poll.end)} and skipped {rank - place.rank} records, '
                f'the first at offset {log.offsets[place.rank]}',
                () if is_foreign(self._history, skipped) else self._words.transactions_of(skipped), poll.end),
                rank - place.rank)
        if is_there and log.numbers[rank] != number:
            self._found.add(Kind.OFFSET_CONFLICT, Evidence(
                f'{where} got {self._name(number)} at offset {offset}, where the final log has '
                f'{self._name(log.numbers[rank])}', transactions, poll.end))
        elif not is_there:
            self._check_vanished(poll, partition, offset, number, where)
        elif log is self._ends.committed[partition]:
            self._compare_with_commits(poll, partition, log.numbers, rank, rank + 1)
        place.rank, place.offset = rank + is_there, offset + 1

    def _name(self, number: int) -> str:
        return 'a foreign record' if is_foreign(self._history, number) else self._words.record(number)

    def _check_vanished(self, poll: Poll, partition: int, offset: int, number: int, where: str) -> None:
        """Report a record that a reader received, although the final log does not show it to readers with the same
        isolation level."""
        everything = self._ends.everything[partition]
        transactions = () if is_foreign(self._history, number) else self._words.transactions_of(number)
        is_committed = self._history.readers[poll.reader].is_committed
        if is_committed and transactions:
            self._compare_with_commit(poll, partition, number)
        if not everything.is_complete or (is_committed and offset >= self._ends.committed[partition].end):
            return
        if is_foreign(self._history, number):
            if self._history.is_finished:
                self._found.add(Kind.FOREIGN_RECORD, Evidence(f'{where} got a foreign record at offset {offset}', (),
                                                              poll.end))
            return
        got = f'{where} got {self._words.record(number)} at offset {offset} and {self._words.time(poll.end)}'
        if everything.number_at(offset) != number:
            self._found.add(Kind.LOST_WRITE, Evidence(f'{got}, and it is not in the log at the end', transactions,
                                                      poll.end))
        if is_committed and transactions:
            transaction = transactions[0]
            if self._history.transactions.outcome[transaction] != Outcome.COMMITTED:
                self._found.add(Kind.ABORTED_READ, Evidence(f'{got}; {self._words.transaction(transaction)}',
                                                            transactions, poll.end),
                                self._history.transactions.writes[transaction])

    def _compare_with_commits(self, poll: Poll, partition: int, numbers: array[int], begin: int, end: int) -> None:
        """Report records that were read before their commit was requested. Only the first read of each record is
        compared, because later reads prove no more."""
        examined = self._examined[partition]
        if end <= examined:
            return
        if begin <= examined:
            begin, self._examined[partition] = examined, end
        transaction_of, commits = self._history.writes.transaction, self._history.transactions.commit
        size, at = len(transaction_of), poll.end
        for rank in range(begin, end):
            number = numbers[rank]
            if 0 <= number < size:
                transaction = transaction_of[number]
                if transaction != NONE and commits[transaction] > at:
                    self._compare_with_commit(poll, partition, number)

    def _compare_with_commit(self, poll: Poll, partition: int, number: int) -> None:
        transaction = self._history.writes.transaction[number]
        commit = self._history.transactions.commit[transaction]
        if commit > poll.end:
            self._found.add(Kind.PRECOMMITTED_READ, Evidence(
                f'{self._words.reader(poll.reader)} got {self._words.record(number)} at {self._words.time(poll.end)}; '
                f'the commit of transaction {transaction} was requested at {self._words.time(commit)}',
                (transaction,), poll.end), self._history.transactions.writes[transaction])
