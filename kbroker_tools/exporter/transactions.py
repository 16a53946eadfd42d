"""Reads the open transactions of a cluster, and finds the hanging ones as `kbroker-transactions find-hanging` does."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.base.errors import ErrorCode
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.description_rows import transaction_listing_of, transaction_of
from kbroker.client.descriptions import ProducerInfo, TransactionInfo, TransactionListing
from kbroker.protocol import messages
from kbroker_tools.exporter.asking import Ask, Brokers, split
from kbroker_tools.exporter.facts import HangingTransaction
from kbroker_tools.stuck.hanging import find_hanging

OPEN_STATES = ('Ongoing', 'PrepareCommit', 'PrepareAbort')
IDS_AT_ONCE = 1_000
"""The most transactional ids in one request."""


def list_transactions(brokers: Brokers, states: Sequence[str] = (),
                      producer_ids: Sequence[int] = ()) -> tuple[list[TransactionListing], bool]:
    """Return the transactional ids with one of the states and one of the producer ids. Nothing given means all.

    Return also whether all brokers have answered.
    """
    request = messages.ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
    found, answered = list[TransactionListing](), 0
    for ask, answer in brokers.ask([Ask(node_id, request) for node_id in brokers.ids]):
        if answer.error_code:
            brokers.note_code('ListTransactions', answer.error_code, f'broker {ask.broker_id}')
            continue
        answered += 1
        found += [transaction_listing_of(ask.broker_id, row) for row in answer.transaction_states]
    return found, answered == len(brokers.ids)


def describe_transactions(brokers: Brokers, listings: Sequence[TransactionListing]) -> list[TransactionInfo]:
    """Return the states of the transactional ids. The broker that listed an id is its coordinator."""
    by_coordinator: dict[int, list[str]] = {}
    for listing in listings:
        by_coordinator.setdefault(listing.coordinator_id, []).append(listing.transactional_id)
    asks = [Ask(node_id, messages.DescribeTransactionsRequest(transactional_ids=list(part)))
            for node_id, names in by_coordinator.items() for part in split(names, IDS_AT_ONCE)]
    found = []
    for ask, answer in brokers.ask(asks):
        for row in answer.transaction_states:
            if not row.error_code:
                found.append(transaction_of(ask.broker_id, row))
            elif row.error_code not in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR):
                brokers.note_code('DescribeTransactions', row.error_code, f'transactional.id {row.transactional_id!r}')
    return found


def read_open_transactions(brokers: Brokers) -> list[TransactionInfo]:
    """Return the open transactions, the oldest first."""
    found = [each for each in describe_transactions(brokers, list_transactions(brokers, OPEN_STATES)[0])
             if each.state in OPEN_STATES]
    return sorted(found, key=lambda each: (each.start_timestamp_ms is None, each.start_timestamp_ms or 0,
                                           each.transactional_id))


class _Coordinators:
    """The coordinators, as the search for hanging transactions asks them."""

    def __init__(self, brokers: Brokers, producer_ids: Sequence[int], now_ms: int):
        self._brokers = brokers
        self._producer_ids = producer_ids
        self._now_ms = now_ms
        self._described: dict[str, TransactionInfo] = {}
        self.have_answered = True

    def now_ms(self) -> int:
        return self._now_ms

    def transactions(self) -> list[TransactionListing]:
        listings, self.have_answered = list_transactions(self._brokers, producer_ids=self._producer_ids)
        self._described = {each.transactional_id: each for each in describe_transactions(self._brokers, listings)}
        if len(self._described) < len(listings):
            self.have_answered = False
        return listings

    def transaction(self, transactional_id: str) -> TransactionInfo | None:
        return self._described.get(transactional_id)


def find_hanging_ones(brokers: Brokers, producers: Mapping[TopicPartition, Sequence[ProducerInfo]], now_ms: int,
                      max_timeout_ms: int) -> list[HangingTransaction]:
    """Return the hanging transactions among the open ones of `producers`.

    None is found while a coordinator does not answer: it may have the transaction that seems to hang.
    """
    old = sorted({each.producer_id for found in producers.values() for each in found
                  if each.transaction_first_offset is not None and now_ms - each.last_timestamp_ms > max_timeout_ms})
    if not old:
        return []
    coordinators = _Coordinators(brokers, old, now_ms)
    found = find_hanging(coordinators, list(producers), max_timeout_ms,
                         lambda some: {at: list(producers[at]) for at in some})
    return [HangingTransaction(*each) for each in found] if coordinators.have_answered else []
