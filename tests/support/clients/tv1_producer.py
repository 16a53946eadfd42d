"""A producer of the protocol before TV2. It sends the requests that a test chooses, valid or not.

With transaction.partition.verification.enable=false a broker accepts writes from it that leave a transaction hanging.
"""
from __future__ import annotations

import time
from typing import Any

from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import batch_of, build, error_codes

from kbroker.base.errors import ErrorCode
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

LIMIT_S = 120
PASSING = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR,
           ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE,
           ErrorCode.NOT_LEADER_OR_FOLLOWER}
"""Errors that a broker returns while it completes an earlier request."""


class SocketPeer:
    """A client of one broker over a socket. It repeats a request while the broker is busy."""

    def __init__(self, address: str):
        self._cluster = Cluster(ClientConfig.load(address, None))

    def __enter__(self) -> SocketPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ask(self, name: str, version: int | None = None, **fields: Any) -> Any:
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._cluster.any().call(build(f'{name}Request', **fields), max_version=version)
            if not error_codes(answer) & PASSING or time.monotonic() > deadline:
                return answer


class InProcessPeer:
    def __init__(self, broker: InProcessBroker):
        self.broker = broker

    def now_ms(self) -> int:
        return self.broker.clock.wall_ms()

    def ask(self, name: str, version: int | None = None, **fields: Any) -> Any:
        return self.broker.ask(build(f'{name}Request', **fields), version)


class Tv1Producer:
    def __init__(self, peer: Any, transactional_id: str, timeout_ms: int = 60_000):
        self.peer, self.transactional_id = peer, transactional_id
        peer.ask('FindCoordinator', key_type=1, coordinator_keys=[transactional_id])
        answer = sound(peer.ask('InitProducerId', 4, transactional_id=transactional_id,
                                transaction_timeout_ms=timeout_ms))
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences: dict[tuple[str, int], int] = {}

    def add(self, topic: str, *partitions: int) -> None:
        sound(self.peer.ask(
            'AddPartitionsToTxn', 3, v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id, v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[dict(name=topic, partitions=list(partitions or (0,)))]))

    def write(self, topic: str, partition: int = 0, *, age_ms: int = 0, sequence: int | None = None) -> None:
        at = (topic, partition)
        sequence = self.sequences.get(at, 0) if sequence is None else sequence
        records = batch_of(self.peer.now_ms() - age_ms, b'value', producer_id=self.producer_id,
                           producer_epoch=self.epoch, base_sequence=sequence, transactional=True)
        sound(self.peer.ask(
            'Produce', 11, transactional_id=self.transactional_id, acks=-1, timeout_ms=1000,
            topic_data=[dict(name=topic, partition_data=[dict(index=partition, records=records)])]))
        self.sequences[at] = sequence + 1

    def end(self, committed: bool = False) -> None:
        """End the transaction and wait until its markers are written."""
        sound(self.peer.ask('EndTxn', 4, transactional_id=self.transactional_id, producer_id=self.producer_id,
                            producer_epoch=self.epoch, committed=committed))
        deadline = time.monotonic() + LIMIT_S
        while not self.state().startswith('Complete'):
            assert time.monotonic() < deadline

    def state(self) -> str:
        answer = self.peer.ask('DescribeTransactions', transactional_ids=[self.transactional_id])
        return str(sound(answer).transaction_states[0].transaction_state)

    def stray_marker(self, topic: str) -> None:
        sound(self.peer.ask('WriteTxnMarkers', 1, markers=[dict(
            producer_id=self.producer_id, producer_epoch=self.epoch, transaction_result=False, coordinator_epoch=0,
            topics=[dict(name=topic, partition_indexes=[0])])]))


def create_topics(peer: Any, **partitions: int) -> None:
    """Create topics with these numbers of partitions, and wait until the broker accepts writes to them."""
    sound(peer.ask('CreateTopics', timeout_ms=30_000, topics=[
        dict(name=name, num_partitions=count, replication_factor=1) for name, count in partitions.items()]))
    for name, count in partitions.items():
        sound(peer.ask('ListOffsets', 9, replica_id=-1, topics=[dict(
            name=name, partitions=[dict(partition_index=index, timestamp=-1) for index in range(count)])]))


def sound(answer: Any) -> Any:
    """Return the answer. Raise AssertionError if it has an error code."""
    assert error_codes(answer) <= {ErrorCode.NONE}, answer
    return answer
