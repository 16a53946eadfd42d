"""The requests whose cost the gates bound. A broker in this process and a broker behind a socket get the same requests.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from support.brokers.in_process_broker import read_answer
from support.messages.message_builder import batch_of

from kbroker.protocol.messages import (
    AddPartitionsToTxnRequest,
    ConsumerGroupHeartbeatRequest,
    CreateTopicsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    ProduceRequest,
    ShareGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequest,
    TxnOffsetCommitRequest,
)

Ask = Callable[[Any, int], Any]
"""The type of a function that sends a request in a version and returns the response."""
Requests = list[tuple[Any, int]]
"""Requests, each with its version."""

BATCHES = {300: (1, 220), 16_384: (140, 105)}
"""Maps the approximate size of a batch in bytes to (number of records, size of a record in bytes)."""
GROUP = 'gate'
NO_EPOCH = -1
SETTINGS = {'kbroker.durability': 'page-cache', 'transaction.state.log.num.partitions': '1',
            'offsets.topic.num.partitions': '1', 'group.share.assignment.interval.ms': '0',
            'group.streams.initial.rebalance.delay.ms': '0'}


class Work:
    """The topics and producers of one broker, and requests for them."""

    def __init__(self, ask: Ask, now_ms: int):
        self._ask, self._now_ms = ask, now_ms
        self._transactional_ids = 0
        topics = [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                  for name in ('produced', 'fetched', 'transacted')]
        assert_sound(ask(CreateTopicsRequest(timeout_ms=10_000, topics=topics), 7))
        for key_type in (0, 1):  # creates the coordinators' topics
            assert_sound(ask(FindCoordinatorRequest(key='gate', key_type=key_type), 3))

    def produce(self, count: int, size_bytes: int) -> Requests:
        return [(self._produce('produced', size_bytes), 12)] * count

    def fetch(self, count: int, size_bytes: int) -> Requests:
        """Return fetches from the beginning of a partition that has more than `size_bytes`."""
        self._fill(2 * size_bytes)
        return [self._fetch(0, size_bytes)] * count

    def fetch_on(self, count: int, size_bytes: int) -> Requests:
        """Return fetches in the middle of a partition. Each request continues at the end of the previous one."""
        end_offset = self._fill((count + 20) * size_bytes)
        each = self._whole_batches(size_bytes)
        return [self._fetch(end_offset - (count + 10 - number) * each, size_bytes) for number in range(count)]

    def fetch_last(self, count: int, size_bytes: int) -> Requests:
        """Return fetches of the last `size_bytes` of a partition."""
        end_offset = self._fill(2 * size_bytes)
        return [self._fetch(end_offset - self._whole_batches(size_bytes), size_bytes)] * count

    def _whole_batches(self, size_bytes: int) -> int:
        """Return the number of offsets in the whole batches that fit `size_bytes`."""
        request = self._produce('fetched', 16_384)
        return BATCHES[16_384][0] * (size_bytes // len(request.topic_data[0].partition_data[0].records))

    def _fill(self, size_bytes: int) -> int:
        """Append `size_bytes` to the partition. Return its end offset."""
        for _ in range(size_bytes // 16_384):
            found = self._ask(self._produce('fetched', 16_384), 12)
            assert_sound(found)
        return found.responses[0].partition_responses[0].base_offset + BATCHES[16_384][0]

    def _fetch(self, offset: int, size_bytes: int) -> tuple[Any, int]:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size_bytes)
        topic = FetchRequest.FetchTopic(topic='fetched', partitions=[partition])
        return FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=[topic]), 12

    def begin_transactions(self, count: int) -> Requests:
        """Return requests that begin transactions with Produce, as TV2 does. Each request is from a different producer.
        """
        return [(self._transactional_produce(*producer), 12) for producer in self._producers(count)]

    def add_partitions(self, count: int) -> Requests:
        """Return requests that begin transactions with AddPartitionsToTxn, as clients did before TV2."""
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name='transacted', partitions=[0])]
        return [(AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id, v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch, v3_and_below_topics=topics), 3)
            for transactional_id, producer_id, producer_epoch in self._producers(count)]

    def end_transactions(self, count: int) -> Requests:
        """Open transactions of one record each. Return the requests that commit them."""
        requests = []
        for transactional_id, producer_id, producer_epoch in self._producers(count):
            assert_sound(self._ask(self._transactional_produce(transactional_id, producer_id, producer_epoch), 12))
            requests.append((EndTxnRequest(transactional_id=transactional_id, producer_id=producer_id,
                                           producer_epoch=producer_epoch, committed=True), 5))
        return requests

    def commit_offsets(self, count: int) -> Requests:
        """Return commits of one partition's offset for a group without members."""
        request = OffsetCommitRequest
        return [(request(group_id=GROUP, topics=[request.OffsetCommitRequestTopic(name='transacted', partitions=[
            request.OffsetCommitRequestPartition(committed_offset=number)])]), 9) for number in range(count)]

    def commit_offsets_in_transactions(self, count: int) -> Requests:
        """Begin transactions with Produce, as TV2 does. Return a commit of one partition's offset for each transaction.
        """
        request = TxnOffsetCommitRequest
        requests = []
        for number, (transactional_id, producer_id, producer_epoch) in enumerate(self._producers(count)):
            assert_sound(self._ask(self._transactional_produce(transactional_id, producer_id, producer_epoch), 12))
            requests.append((request(
                transactional_id=transactional_id, group_id=GROUP, producer_id=producer_id,
                producer_epoch=producer_epoch, topics=[request.TxnOffsetCommitRequestTopic(
                    name='transacted', partitions=[request.TxnOffsetCommitRequestPartition(
                        committed_offset=number)])]), 5))
        return requests

    def heartbeats_of_a_consumer(self, count: int) -> Requests:
        """Return heartbeats of a member of a stable consumer group."""
        request = ConsumerGroupHeartbeatRequest
        join = request(group_id='gate-consumers', member_id='member', rebalance_timeout_ms=60_000,
                       subscribed_topic_names=['produced'], topic_partitions=[])
        return [(request(group_id='gate-consumers', member_id='member', member_epoch=self._settled(join)), 1)] * count

    def heartbeats_of_a_share_consumer(self, count: int) -> Requests:
        """Return heartbeats of a member of a stable share group."""
        request = ShareGroupHeartbeatRequest
        join = request(group_id='gate-shares', member_id='member', subscribed_topic_names=['produced'])
        return [(request(group_id='gate-shares', member_id='member', member_epoch=self._settled(join)), 1)] * count

    def heartbeats_of_a_streams_member(self, count: int) -> Requests:
        """Return heartbeats of a member of a stable streams group."""
        request = StreamsGroupHeartbeatRequest
        topology = request.Topology(epoch=0, subtopologies=[request.Subtopology(
            subtopology_id='0', source_topics=['produced'], source_topic_regex=[], state_changelog_topics=[],
            repartition_sink_topics=[], repartition_source_topics=[], copartition_groups=[])])
        join = request(group_id='gate-streams', member_id='member', rebalance_timeout_ms=60_000, process_id='process',
                       topology=topology, active_tasks=[], standby_tasks=[], warmup_tasks=[])
        return [(request(group_id='gate-streams', member_id='member', member_epoch=self._settled(join)), 1)] * count

    def _settled(self, join: Any) -> int:
        """Let a member join, and heartbeat until its epoch no longer changes. Return the epoch."""
        found = self._ask(join, 1)
        epoch = NO_EPOCH
        while epoch != found.member_epoch:
            assert_sound(found)
            epoch = found.member_epoch
            found = self._ask(type(join)(group_id=join.group_id, member_id=join.member_id, member_epoch=epoch), 1)
        return epoch

    def _producers(self, count: int) -> Iterator[tuple[str, int, int]]:
        for _ in range(count):
            self._transactional_ids += 1
            transactional_id = f'gate-{self._transactional_ids}'
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
            found = self._ask(request, 5)
            assert_sound(found)
            yield transactional_id, found.producer_id, found.producer_epoch

    def _transactional_produce(self, transactional_id: str, producer_id: int, producer_epoch: int) -> ProduceRequest:
        return self._produce('transacted', 300, transactional_id, producer_id=producer_id,
                             producer_epoch=producer_epoch, base_sequence=0, transactional=True)

    def _produce(self, topic: str, size_bytes: int, transactional_id: str | None = None,
                 **batch_options: Any) -> ProduceRequest:
        records, value_bytes = BATCHES[size_bytes]
        batch = batch_of(self._now_ms, *[b'v' * value_bytes] * records, **batch_options)
        partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
        return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[
            ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])])


WORKS: dict[str, Callable[[Work, int], Requests]] = {
    'Produce of 300 B': lambda work, count: work.produce(count, 300),
    'Produce of 16 KiB': lambda work, count: work.produce(count, 16_384),
    'Fetch of 64 KiB': lambda work, count: work.fetch(count, 65_536),
    'Fetch of 64 KiB behind the last one': lambda work, count: work.fetch_on(count, 65_536),
    'Fetch of the last 64 KiB': lambda work, count: work.fetch_last(count, 65_536),
    'first Produce of a transaction': Work.begin_transactions,
    'AddPartitionsToTxn of one partition': Work.add_partitions,
    'EndTxn of one record': Work.end_transactions,
    'OffsetCommit of one partition': Work.commit_offsets,
    'idle heartbeat of a consumer': Work.heartbeats_of_a_consumer,
    'idle heartbeat of a share consumer': Work.heartbeats_of_a_share_consumer,
    'idle heartbeat of a streams member': Work.heartbeats_of_a_streams_member,
    'TxnOffsetCommit of one partition': Work.commit_offsets_in_transactions,
}


def assert_answered(request: Any, version: int, reply: bytes) -> None:
    assert_sound(read_answer(request, version, reply))


def assert_sound(response: Any) -> None:
    assert set(re.findall(r'error_code=(-?\d+)', repr(response))) == {'0'}, response
