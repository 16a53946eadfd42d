"""An application in two-phase commit (KIP-939) that sends each request once, on one connection.

The application ends when its connection breaks. The external system has stored the token and the decision, so a new
instance can continue.
"""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from support.clients.raw_client import RawClient
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode

LIMIT_S = 120
TOPIC = 'orders'
"""The topic of the records. It has two partitions."""
OFFSET = 5
"""The offset that the transaction commits. The group has the name of the application."""
BUSY = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""The errors that a broker returns while it completes an earlier request."""


@dataclass
class TwoPhaseApplication:
    """One transaction, and the facts that the external system has stored about it."""

    name: str
    """The name of the application: it is the transactional id, the value of the records, and the group of the offset.
    """
    is_to_commit: bool
    keeps: int
    """The number of successive clients that keep the transaction before it ends."""
    pair: tuple[int, int] = (-1, -1)
    """The (producer id, epoch) of the current client."""
    producer: tuple[int, int] = (-1, -1)
    """The (producer id, epoch) with which the transaction began."""
    token: str | None = None

    @property
    def is_committed(self) -> bool:
        return self.token is not None and self.is_to_commit

    @property
    def decided(self) -> str | None:
        """The token of the transaction if it is to be committed, or None."""
        return self.token if self.is_to_commit else None

    def write(self, client: RawClient) -> None:
        """Write the transaction and prepare it."""
        self.initialize(client, keeps=False)
        self.producer = self.pair
        for partition in (0, 1):
            batch = batch_of(time.time_ns() // 1_000_000, self.name.encode(), producer_id=self.pair[0],
                             producer_epoch=self.pair[1], base_sequence=0, transactional=True)
            ask(client, 'Produce', 12, transactional_id=self.name, acks=-1, timeout_ms=1000, topic_data=[
                dict(name=TOPIC, partition_data=[dict(index=partition, records=batch)])])
        ask(client, 'TxnOffsetCommit', 5, transactional_id=self.name, group_id=self.name, producer_id=self.pair[0],
            producer_epoch=self.pair[1], topics=[dict(name=TOPIC, partitions=[
                dict(partition_index=0, committed_offset=OFFSET)])])
        self.token = f'{self.pair[0]}:{self.pair[1]}'

    def initialize(self, client: RawClient, keeps: bool) -> str:
        """Initialise a client. Return the token of the transaction that it finds."""
        answer = ask(client, 'InitProducerId', 6, transactional_id=self.name, transaction_timeout_ms=60_000,
                     producer_id=-1, producer_epoch=-1, enable2_pc=True, keep_prepared_txn=keeps)
        self.pair = answer.producer_id, answer.producer_epoch
        return f'{answer.ongoing_txn_producer_id}:{answer.ongoing_txn_producer_epoch}'

    def end(self, client: RawClient) -> None:
        ask(client, 'EndTxn', 5, transactional_id=self.name, producer_id=self.pair[0], producer_epoch=self.pair[1],
            committed=self.is_to_commit)

    def run(self, client: RawClient) -> None:
        """Write the transaction, prepare it, keep it, and end it as decided."""
        self.write(client)
        for _ in range(self.keeps):
            assert self.initialize(client, keeps=True) == self.token
        self.end(client)

    def recover(self, client: RawClient) -> None:
        """End the transaction if the external system has no decision about it."""
        if self.initialize(client, keeps=True) == self.token:
            self.end(client)


def ask(client: RawClient, name: str, version: int, **fields: Any) -> Any:
    """Send a request, and repeat it while the broker is busy. Return the answer. Raise AssertionError if it has an
    error.
    """
    deadline = time.monotonic() + LIMIT_S
    while True:
        answer = client.ask(build(f'{name}Request', **fields), version)
        codes = set(codes_in(answer))
        if not codes & BUSY:
            assert codes == {ErrorCode.NONE}, answer
            return answer
        assert time.monotonic() < deadline, answer


def codes_in(answer: Any) -> list[int]:
    if hasattr(answer, 'error_code'):
        return [answer.error_code]
    topics = getattr(answer, 'responses', None) or answer.topics
    return [partition.error_code for topic in topics
            for partition in getattr(topic, 'partition_responses', None) or topic.partitions]


def find_coordinators(client: RawClient) -> None:
    """Send FindCoordinator requests until the internal topics exist."""
    deadline = time.monotonic() + LIMIT_S
    for key_type in (0, 1):
        request = build('FindCoordinatorRequest', coordinator_keys=['any'], key_type=key_type)
        while (answer := client.ask(request, 6)).coordinators[0].error_code:
            assert time.monotonic() < deadline, answer
