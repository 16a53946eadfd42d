"""The checks of share groups. Each visible record must be delivered until it is settled, and must not be delivered
afterwards.

A record is settled when a member has accepted or rejected it. A delivery after that is an anomaly only if the poll was
requested after the settlement was confirmed, because the response to a poll may be late. If the response to a
settlement was lost, it is unknown whether the record is settled.
"""
from __future__ import annotations

from kbroker_tools.verify.anomalies import Collector, Evidence, Kind
from kbroker_tools.verify.audit import Audit
from kbroker_tools.verify.history import NONE, Delivery, History, Shared, is_foreign
from kbroker_tools.verify.lines import Outcome
from kbroker_tools.verify.wording import Wording

Place = tuple[str, int, int]
"""(group, partition, offset) of a record."""


def check_share_groups(history: History, ends: Audit, found: Collector, words: Wording) -> None:
    """Check all deliveries, then the state of each share group at the end of the run."""
    checks = _ShareChecks(history, ends, found, words)
    for delivery in history.deliveries:
        checks.check_delivery(delivery)
    for shared in history.shared:
        checks.check_end(shared)


class _ShareChecks:
    def __init__(self, history: History, ends: Audit, found: Collector, words: Wording):
        self._history = history
        self._ends = ends
        self._found = found
        self._words = words
        self._confirmed_at: dict[Place, int] = {}
        """The first time at which a member received the confirmation that the record is settled."""
        self._requested: set[Place] = set()
        """The records that a member tried to settle without a confirmation. They may be settled."""
        self._counts: dict[Place, int] = {}
        """The highest delivery count of each record that a member received."""
        for settlement in history.settlements:
            group = history.sharers[settlement.sharer][0]
            for place in zip(settlement.settled[::2], settlement.settled[1::2], strict=True):
                if settlement.is_confirmed:
                    self._confirmed_at.setdefault((group, *place), settlement.end)
                else:
                    self._requested.add((group, *place))

    def check_delivery(self, delivery: Delivery) -> None:
        group, partition = self._history.sharers[delivery.sharer][0], delivery.chunk.partition
        for offset, number in zip(delivery.chunk.offsets, delivery.chunk.numbers, strict=True):
            place = group, partition, offset
            self._counts[place] = max(delivery.delivery_count, self._counts.get(place, 0))
            confirmed_at = self._confirmed_at.get(place, NONE)
            if NONE < confirmed_at < delivery.since:
                self._found.add(Kind.REDELIVERED, Evidence(
                    f'{self._got(delivery, offset)} for the time {delivery.delivery_count}; it was settled before '
                    f'{self._words.time(confirmed_at)}', (), delivery.end))
            if self._ends.committed[partition].number_at(offset) == number:
                self._compare_with_commit(delivery, offset, number)
            else:
                self._check_hidden(delivery, offset, number)

    def _got(self, delivery: Delivery, offset: int) -> str:
        group, client = self._history.sharers[delivery.sharer]
        return (f'member {delivery.sharer} of share group {group!r} ({client}) got offset {offset} of '
                f'{self._words.partition(delivery.chunk.partition)} at {self._words.time(delivery.end)}')

    def _compare_with_commit(self, delivery: Delivery, offset: int, number: int) -> None:
        transactions = self._words.transactions_of(number)
        if transactions and self._history.transactions.commit[transactions[0]] > delivery.end:
            self._found.add(Kind.PRECOMMITTED_READ, Evidence(
                f'{self._got(delivery, offset)}; the commit of transaction {transactions[0]} was requested at '
                f'{self._words.time(self._history.transactions.commit[transactions[0]])}', transactions, delivery.end))

    def _check_hidden(self, delivery: Delivery, offset: int, number: int) -> None:
        """Report a delivered record that the final log does not show to a read_committed reader."""
        partition = delivery.chunk.partition
        everything, committed = self._ends.everything[partition], self._ends.committed[partition]
        if not everything.is_complete or not self._history.is_finished or offset >= committed.end:
            return
        if is_foreign(self._history, number):
            self._found.add(Kind.FOREIGN_RECORD, Evidence(f'{self._got(delivery, offset)}, a foreign record'))
            return
        transactions = self._words.transactions_of(number)
        if everything.number_at(offset) != number:
            self._found.add(Kind.OFFSET_CONFLICT, Evidence(
                f'{self._got(delivery, offset)} as {self._words.record(number)}, which the final log does not have '
                'there', transactions, delivery.end))
        elif transactions and self._history.transactions.outcome[transactions[0]] != Outcome.COMMITTED:
            self._found.add(Kind.ABORTED_READ, Evidence(
                f'{self._got(delivery, offset)}; {self._words.transaction(transactions[0])}', transactions,
                delivery.end))

    def check_end(self, shared: Shared) -> None:
        """Check that each visible record was settled, or was delivered as often as the group allows."""
        for partition, start in shared.starts.items():
            log = self._ends.committed[partition]
            for offset, number in zip(log.offsets, log.numbers, strict=True):
                place = shared.group, partition, offset
                if place in self._confirmed_at or place in self._requested:
                    continue
                count = self._counts.get(place, 0)
                if count < shared.limit:
                    self._found.add(Kind.PASSED_OVER if offset < start else Kind.UNREADABLE, Evidence(
                        f'share group {shared.group!r} stands at offset {start} of {self._words.partition(partition)}; '
                        f'offset {offset} is not settled, and the members saw {count} of at most {shared.limit} '
                        'deliveries', () if is_foreign(self._history, number) else self._words.transactions_of(number)))
