"""The checks of a history. They are pure functions. Each record is read a constant number of times."""
from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass

from kbroker_tools.verify.anomalies import Collector, Evidence, Kind
from kbroker_tools.verify.audit import Audit, FinalLog, audit
from kbroker_tools.verify.cycles import Cycles, check_cycles
from kbroker_tools.verify.history import NONE, History, is_foreign
from kbroker_tools.verify.lines import ACKNOWLEDGED_WITHOUT_OFFSET, NOT_ACKNOWLEDGED, Outcome
from kbroker_tools.verify.poll_checks import check_polls
from kbroker_tools.verify.share_checks import check_share_groups
from kbroker_tools.verify.wording import Wording


@dataclass
class Verdict:
    """The result of all checks. `cycles` describes the cycles with write dependencies, which Kafka permits."""

    found: Collector
    cycles: Cycles
    is_finished: bool
    """False if the run was interrupted. The absence of a record then proves nothing."""
    idle_clients: tuple[str, ...] = ()
    """The clients of which no record was acknowledged. The checks say nothing about these clients."""

    @property
    def is_conclusive(self) -> bool:
        return self.is_finished and not self.idle_clients


def check(history: History) -> Verdict:
    """Search a history for anomalies of every kind. Return the verdict."""
    found, ends = Collector(), audit(history)
    words = Wording(history)
    checks = _Checks(history, ends, found, words)
    checks.run()
    check_polls(history, ends, found, words)
    check_share_groups(history, ends, found, words)
    return Verdict(found, check_cycles(history, ends, found, words), history.is_finished, _idle_clients(history))


def _idle_clients(history: History) -> tuple[str, ...]:
    writes = history.writes
    active = {producer for producer, offset in zip(writes.producer, writes.offset, strict=True)
              if offset != NOT_ACKNOWLEDGED}
    clients = {instance.client for instance in history.producers.values()}
    clients |= {reader.client for reader in history.readers.values() if not reader.is_final}
    return tuple(sorted(clients - {history.producers[number].client for number in active & history.producers.keys()}))


class _Checks:
    """The checks that compare records and transactions with the final logs."""

    def __init__(self, history: History, ends: Audit, found: Collector, words: Wording):
        self._history = history
        self._ends = ends
        self._found = found
        self._words = words
        self._everywhere = array('q', [NONE]) * len(history.writes)
        """The offset of each record, by its number, in the log that the read_uncommitted reader received."""
        self._visible = array('q', [NONE]) * len(history.writes)
        """The offset of each record, by its number, in the log that the read_committed reader received."""
        self._visible_of = array('q', [0]) * len(history.transactions)
        """The number of records of each transaction that the read_committed reader received."""

    def run(self) -> None:
        for partition in range(len(self._history.partitions)):
            self._check_log(partition)
        self._check_writes()
        self._check_transactions()
        self._check_zombies()
        self._check_transforms()
        self._check_ends()

    # ---- logs

    def _check_log(self, partition: int) -> None:
        everything, committed = self._ends.everything[partition], self._ends.committed[partition]
        self._place(partition, everything, self._everywhere)
        self._place(partition, committed, self._visible)
        transaction_of, outcomes = self._history.writes.transaction, self._history.transactions.outcome
        commits, visible_of, size = self._history.transactions.commit, self._visible_of, len(self._history.writes)
        for rank, number in enumerate(committed.numbers):
            transaction = transaction_of[number] if 0 <= number < size else NONE
            if transaction == NONE:
                continue
            visible_of[transaction] += 1
            if outcomes[transaction] == Outcome.ABORTED or commits[transaction] == NONE:
                self._found.add(Kind.ABORTED_READ, Evidence(
                    f'{self._words.record(number)} is visible at offset {committed.offsets[rank]}; '
                    f'{self._words.transaction(transaction)}', (transaction,)),
                    self._history.transactions.writes[transaction])
        if everything.is_complete and everything.numbers != committed.numbers:
            self._compare(partition, everything, committed)

    def _place(self, partition: int, log: FinalLog, offset_of: array[int]) -> None:
        """Store the offset of each record in `offset_of`. Report a record that occurs twice, or in a partition to which
        it was not sent."""
        partition_of, size = self._history.writes.partition, len(self._history.writes)
        for rank, number in enumerate(log.numbers):
            if not 0 <= number < size or partition_of[number] != partition:
                if self._history.is_finished and offset_of is self._everywhere:
                    self._found.add(Kind.FOREIGN_RECORD, Evidence(
                        f'{self._words.partition(partition)} has {self._foreign(number)} at offset '
                        f'{log.offsets[rank]}'))
            elif offset_of[number] == NONE:
                offset_of[number] = log.offsets[rank]
            elif offset_of is self._everywhere or self._everywhere[number] == NONE:
                self._found.add(Kind.DUPLICATE, Evidence(
                    f'{self._words.record(number)} is at offsets {offset_of[number]} and {log.offsets[rank]}',
                    self._words.transactions_of(number)))

    def _foreign(self, number: int) -> str:
        return 'a foreign record' if is_foreign(self._history, number) else self._words.record(number)

    def _compare(self, partition: int, everything: FinalLog, committed: FinalLog) -> None:
        """Report each offset at which the two isolation levels show different records."""
        rank, offsets, numbers, size = 0, everything.offsets, everything.numbers, len(everything.offsets)
        for offset, number in zip(committed.offsets, committed.numbers, strict=True):
            while rank < size and offsets[rank] < offset:
                rank += 1
            if rank == size or offsets[rank] != offset:
                self._found.add(Kind.OFFSET_CONFLICT, Evidence(
                    f'{self._words.partition(partition)}: read_committed shows {self._foreign(number)} at offset '
                    f'{offset}, where read_uncommitted shows none'))
            elif numbers[rank] != number:
                self._found.add(Kind.OFFSET_CONFLICT, Evidence(
                    f'{self._words.partition(partition)}: offset {offset} has {self._foreign(numbers[rank])} for '
                    f'read_uncommitted and {self._foreign(number)} for read_committed'))

    # ---- writes

    def _check_writes(self) -> None:
        writes, transactions = self._history.writes, self._history.transactions
        everything = [log.is_complete for log in self._ends.everything]
        last_sent: dict[tuple[int, int], int] = {}
        everywhere = self._everywhere
        for number, (partition, offset, producer) in enumerate(
                zip(writes.partition, writes.offset, writes.producer, strict=True)):
            if partition == NONE:
                continue
            place = everywhere[number]
            if offset >= 0:
                if place not in (offset, NONE):
                    self._found.add(Kind.OFFSET_CONFLICT, Evidence(
                        f'{self._words.record(number)} was acknowledged at offset {offset} and is at offset {place}',
                        self._words.transactions_of(number)))
                before = last_sent.get((producer, partition), NONE)
                if before != NONE and writes.offset[before] >= offset:
                    self._found.add(Kind.NON_MONOTONIC_SEND, Evidence(
                        f'{self._words.record(before)} got offset {writes.offset[before]}, and the later '
                        f'{self._words.record(number)} offset {offset}', self._words.transactions_of(before, number)))
                last_sent[producer, partition] = number
            if place == NONE and everything[partition]:
                transaction = writes.transaction[number]
                is_committed = transaction != NONE and transactions.outcome[transaction] == Outcome.COMMITTED
                if is_committed or offset != NOT_ACKNOWLEDGED:
                    self._report_lost(number, transaction, offset)

    def _report_lost(self, number: int, transaction: int, offset: int) -> None:
        promise = ('was acknowledged' if offset == ACKNOWLEDGED_WITHOUT_OFFSET else
                   f'was acknowledged at offset {offset}' if offset >= 0 else 'was committed')
        after = '' if transaction == NONE else f'; {self._words.transaction(transaction)}'
        size = 1 if transaction == NONE else self._history.transactions.writes[transaction]
        self._found.add(Kind.LOST_WRITE, Evidence(
            f'{self._words.record(number)} {promise} and is not in the log{after}',
            self._words.transactions_of(number)), size)

    def _check_transactions(self) -> None:
        """Compare the number of visible records of each transaction with the number of records that it wrote. Report
        missing ones."""
        transactions, visible_of = self._history.transactions, self._visible_of
        suspects = {transaction for transaction, (outcome, writes, visible)
                    in enumerate(zip(transactions.outcome, transactions.writes, visible_of, strict=True))
                    if visible < writes and (visible or outcome == Outcome.COMMITTED)}
        if not suspects:
            return
        hidden: dict[int, list[int]] = {transaction: [] for transaction in suspects}
        for number, transaction in enumerate(self._history.writes.transaction):
            if transaction in suspects and self._visible[number] == NONE:
                hidden[transaction].append(number)
        for transaction in sorted(suspects):
            missing = [number for number in hidden[transaction] if self._is_readable(number)]
            if missing:
                self._report_hidden(transaction, missing)

    def _is_readable(self, number: int) -> bool:
        """Return whether the final read_committed reader has read beyond the offset of a record."""
        partition, place = self._history.writes.partition[number], self._everywhere[number]
        if place == NONE and not self._ends.everything[partition].is_complete:
            place = self._history.writes.offset[number]
            if place < 0:       # unknown: the record may be after the last one that was read
                return self._ends.committed[partition].is_complete
        return place < self._ends.committed[partition].end

    def _report_hidden(self, transaction: int, missing: list[int]) -> None:
        transactions = self._history.transactions
        outcome, writes = transactions.outcome[transaction], transactions.writes[transaction]
        first = missing[0]
        if self._visible_of[transaction]:
            self._found.add(Kind.TORN, Evidence(
                f'{self._words.transaction(transaction)}; {self._visible_of[transaction]} of its {writes} records are '
                f'visible, and {self._words.record(first)} is not', (transaction,)), writes)
        if outcome == Outcome.COMMITTED:
            for number in missing:
                if self._everywhere[number] != NONE:    # _check_writes reports records that are in no log
                    self._found.add(Kind.LOST_WRITE, Evidence(
                        f'{self._words.record(number)} is in the log at offset {self._everywhere[number]}, but '
                        f'read_committed does not show it; {self._words.transaction(transaction)}',
                        (transaction,)), writes)

    # ---- fencing

    def _check_zombies(self) -> None:
        fenced_at = self._fenced_at()
        if not fenced_at:
            return
        writes, transactions = self._history.writes, self._history.transactions
        for number, (producer, sent) in enumerate(zip(writes.producer, writes.sent, strict=True)):
            if producer in fenced_at and sent > fenced_at[producer] and self._everywhere[number] != NONE:
                self._found.add(Kind.ZOMBIE, Evidence(
                    f'{self._words.record(number)} was sent at {self._words.time(sent)} and is in the log at offset '
                    f'{self._everywhere[number]}; {self._words.producer(producer)} was fenced before '
                    f'{self._words.time(fenced_at[producer])}', self._words.transactions_of(number), sent))
        for transaction, (producer, commit, outcome) in enumerate(
                zip(transactions.producer, transactions.commit, transactions.outcome, strict=True)):
            is_empty = transactions.writes[transaction] == 0    # clients send no request for an empty commit
            if (outcome == Outcome.COMMITTED and not is_empty and producer in fenced_at
                    and commit > fenced_at[producer]):
                self._found.add(Kind.ZOMBIE, Evidence(
                    f'{self._words.transaction(transaction)}, and {self._words.producer(producer)} was fenced before '
                    f'{self._words.time(fenced_at[producer])}', (transaction,), commit))

    def _fenced_at(self) -> dict[int, int]:
        """Return {producer: time} for each fenced producer. The time is when its transactional id was first claimed by
        a later producer."""
        instances: dict[str, list[int]] = {}
        for number, producer in self._history.producers.items():
            if producer.transactional_id is not None:
                instances.setdefault(producer.transactional_id, []).append(number)
        fenced_at = {}
        producers = self._history.producers
        for numbers in instances.values():
            numbers.sort(key=lambda number: producers[number].begin)
            begins = [producers[number].begin for number in numbers]
            earliest = [0] * len(numbers)       # the first `ready` of an instance and all later instances
            for place in range(len(numbers) - 1, -1, -1):
                ready = producers[numbers[place]].ready
                earliest[place] = min(ready, earliest[place + 1]) if place + 1 < len(numbers) else ready
            for number in numbers:
                later = bisect_right(begins, producers[number].ready)
                if later < len(numbers):
                    fenced_at[number] = earliest[later]
        return fenced_at

    # ---- transforms

    def _check_transforms(self) -> None:
        """Compare the committed offsets of each group in each input partition with the visible output records."""
        ends = {(group, partition): offset for group, offsets in self._history.committed.items()
                for partition, offset in offsets.items()}
        outputs: dict[tuple[str, int], dict[int, int]] = {place: {} for place in ends}
        consumed, transaction_of = self._history.consumed, self._history.writes.transaction
        for number, (partition, offset) in self._history.writes.sources.items():
            place = consumed[transaction_of[number]][0], partition
            if self._visible[number] == NONE or place not in ends:
                continue
            first = outputs[place].setdefault(offset, number)
            if first != number:
                self._found.add(Kind.DUPLICATE, Evidence(
                    f'the input {self._words.partition(partition)} offset {offset} was transformed twice by group '
                    f'{place[0]!r}: to {self._words.record(first)} and to {self._words.record(number)}',
                    self._words.transactions_of(first, number)), 2)
            if offset >= ends[place]:
                self._found.add(Kind.OUTPUT_WITHOUT_OFFSET, Evidence(
                    f'{self._words.record(number)} is the output of {self._words.partition(partition)} offset '
                    f'{offset}, and group {place[0]!r} has committed offset {ends[place]}',
                    self._words.transactions_of(number)))
        if self._history.is_finished and all(log.is_complete for log in self._ends.committed):
            for (group, partition), end in ends.items():
                self._check_outputs(partition, group, end, outputs[group, partition])

    def _check_outputs(self, partition: int, group: str, end: int, outputs: dict[int, int]) -> None:
        log = self._ends.committed[partition]
        for offset in log.offsets:
            if offset >= end:
                break
            if offset not in outputs:
                is_first = Kind.OFFSET_WITHOUT_OUTPUT not in self._found
                self._found.add(Kind.OFFSET_WITHOUT_OUTPUT, Evidence(
                    f'group {group!r} has committed offset {end} of {self._words.partition(partition)}, and the input '
                    f'at offset {offset} has no visible output',
                    self._committers(group, partition, offset) if is_first else ()))

    def _committers(self, group: str, partition: int, offset: int) -> tuple[int, ...]:
        """Return the transactions that committed this offset of an input partition. Only the newest transaction
        determines the committed offset."""
        return tuple(transaction for transaction, (committer, ranges) in self._history.consumed.items()
                     for input_partition, begin, end in zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True)
                     if committer == group and input_partition == partition and begin <= offset < end)[-3:]

    # ---- ends

    def _check_ends(self) -> None:
        for partition, stable, high in self._history.stable:
            if stable < high:
                self._found.add(Kind.STABLE_OFFSET, Evidence(
                    f'{self._words.partition(partition)}: the last stable offset is {stable} and the high watermark '
                    f'{high} after every transaction has ended or timed out'))
        for group in self._history.unstable:
            self._found.add(Kind.STABLE_OFFSET, Evidence(
                f'a transaction still holds offsets of group {group!r} after every transaction has ended or timed out'))
        for (reader, partition), (reached, expected) in self._history.ends.items():
            if reached < expected:
                self._found.add(Kind.UNREADABLE, Evidence(
                    f'{self._words.reader(reader)} reached offset {reached} of {self._words.partition(partition)}, '
                    f'whose end is {expected}'))
