"""Members of a share, a consumer and a streams group on an in-process broker, and the promises that its answers make.

The promise about a record of a share group is the set of delivery counts that its next delivery may have. After an
answer to an acknowledgement, the set has one count. It has two after a request without an answer, and after an expired
lock. An acquisition does not change the set, because the broker does not store it.
"""
from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.brokers.in_process_broker import InProcessBroker, NotingConnection
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode
from kbroker.protocol.codec import encode

SHARE, CONSUMER, STREAMS = 'workers', 'readers', 'pipeline'
TOPIC, PARTITIONS = 'jobs', 3
DELIVERY_LIMIT = 3
LOCK_MS = 30_000
ACCEPT, RELEASE, REJECT = 1, 2, 3
GROUP_RESOURCE = 32
JOIN, LEAVE, CLOSE_SESSION = 0, -1, -1
NEVER = 0
"""A delivery count that means that the record is not delivered again."""
MOST_TURNS = 500
STEP_MS, TURN_MS = 5, 20
NOT_YET = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
NO_TASKS: dict[str, Any] = {'active_tasks': [], 'standby_tasks': [], 'warmup_tasks': []}
TOPOLOGY = {'epoch': 0, 'subtopologies': [
    {'subtopology_id': '0', 'source_topics': [TOPIC], 'source_topic_regex': [], 'repartition_sink_topics': [],
     'state_changelog_topics': [], 'repartition_source_topics': [], 'copartition_groups': []}]}

Place = tuple[int, int]
"""Partition and offset."""
Step = tuple[Any, ...]
"""A step: the name of a method of Members, and its arguments."""


@dataclass
class GroupPromises:
    """The counts that the next delivery of each record may have, and the partitions with an unanswered Produce."""

    counts: dict[Place, set[int]] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    """The entries of `Members.observe` that the answer of the current step has promised."""

    def may_become(self, place: Place, count: int) -> None:
        self.counts[place].add(count)

    def is_delivered(self, place: Place, count: int) -> None:
        """Check that a delivery has one of the allowed counts. Its count shows which of the possible states is durable.
        """
        if place not in self.counts:
            assert place[0] in self.doubtful, f'{place} was never produced'
            self.counts[place] = {1}
        assert count in self.counts[place], f'{place} came with count {count}, expected {self.counts[place]}'
        self.counts[place] = {count}


def count_after(kind: int, count: int) -> int:
    """Return the delivery count that the next delivery has if the delivery with `count` is acknowledged with the type
    `kind`.
    """
    return count + 1 if kind == RELEASE and count < DELIVERY_LIMIT else NEVER


@dataclass
class Sharer:
    """The share session of a member, and the delivery counts of the records that the member has acquired."""

    connection: NotingConnection
    epoch: int = 0
    held: dict[Place, int] = field(default_factory=dict)


class Members:
    """The members of all groups. Each step runs until the broker has no work left."""

    def __init__(self, broker: InProcessBroker, promises: GroupPromises, topic_id: bytes, rng: random.Random):
        self.broker, self.promises, self.topic_id, self.rng = broker, promises, topic_id, rng
        self._connection_ids = itertools.count(1000)
        self.sharers: dict[str, Sharer] = defaultdict(
            lambda: Sharer(NotingConnection(next(self._connection_ids))))
        self.epochs: dict[tuple[str, str], int] = {}
        """Maps (group, member id) to the member epoch."""
        self._owned: dict[str, list[int]] = defaultdict(list)

    def do(self, step: Step) -> None:
        self.broker.clock.advance(STEP_MS)
        self.promises.answered.clear()
        name, *arguments = step
        getattr(self, name)(*arguments)
        self.settle()

    def settle(self) -> None:
        self.broker.turn()
        for _ in range(MOST_TURNS):
            if not len(self.broker.long_work):
                return
            self.broker.turn()
        raise AssertionError(f'{len(self.broker.long_work)} works do not end')

    def ask(self, name: str, version: int, noted: Callable[[Any], None] = lambda answer: None,
            connection: NotingConnection | None = None, **fields: Any) -> Any:
        """Send a request and return the answer. Call `noted` with the answer as soon as the broker sends it, which may
        be before the tick ends.
        """
        answers: list[Any] = []

        def on_answer(answer: Any) -> None:
            answers.append(answer)
            noted(answer)

        self.broker.begin_noted(build(f'{name}Request', **fields), version, on_answer,
                                connection or NotingConnection(next(self._connection_ids)))
        for _ in range(MOST_TURNS):
            self.settle()
            if answers:
                return answers[0]
            self.broker.clock.advance(TURN_MS)
        raise AssertionError(f'{name} is never answered')

    # ---- records

    def produce(self, partition: int, count: int) -> None:
        def noted(answer: Any) -> None:
            data = answer.responses[0].partition_responses[0]
            assert data.error_code == ErrorCode.NONE, data
            for offset in range(data.base_offset, data.base_offset + count):
                self.promises.counts[partition, offset] = {1}
            self.promises.doubtful.discard(partition)

        self.promises.doubtful.add(partition)
        records = batch_of(self.broker.clock.wall_ms(), *[b'value'] * count)
        self.ask('Produce', 12, noted, acks=-1, timeout_ms=1000, topic_data=[
            {'name': TOPIC, 'partition_data': [{'index': partition, 'records': records}]}])

    # ---- the share group

    def find_coordinator(self) -> None:
        """Make the broker create `__consumer_offsets`."""
        self.ask('FindCoordinator', 4, key_type=0, coordinator_keys=[SHARE])

    def join_share_group(self, name: str) -> None:
        self._heartbeat('ShareGroupHeartbeat', 1, SHARE, name, subscribed_topic_names=[TOPIC])

    def stay_in_share_group(self, name: str) -> None:
        self._heartbeat('ShareGroupHeartbeat', 1, SHARE, name)

    def leave_share_group(self, name: str) -> None:
        self._heartbeat('ShareGroupHeartbeat', 1, SHARE, name, epoch=LEAVE)

    def fetch(self, name: str, most: int) -> None:
        """Acquire at most `most` records. Acknowledge some of the records that the member already has."""
        sharer = self.sharers[name]
        chosen = self._choose(sharer)
        named = range(PARTITIONS) if sharer.epoch == 0 else sorted({partition for partition, _ in chosen})
        partitions = [{'partition_index': index, 'acknowledgement_batches': batches_of(chosen, index)}
                      for index in named]
        answer = self._of_session('ShareFetch', sharer, name, chosen, partitions, max_wait_ms=0, min_bytes=1,
                                  max_bytes=1 << 20, max_records=most, batch_size=most, share_acquire_mode=1)
        for topic in answer.responses:
            for partition in topic.partitions:
                assert (partition.error_code, partition.acknowledge_error_code) == (0, 0), partition
                for acquired in partition.acquired_records:
                    for offset in range(acquired.first_offset, acquired.last_offset + 1):
                        place = partition.partition_index, offset
                        self.promises.is_delivered(place, acquired.delivery_count)
                        sharer.held[place] = acquired.delivery_count

    def acknowledge(self, name: str, *kinds: int) -> None:
        """Acknowledge all records that the member holds. The types in `kinds` are used in turn. Without types, choose
        records and types at random.
        """
        sharer = self.sharers[name]
        chosen = self._choose(sharer)
        if kinds:
            chosen = dict(zip(sorted(sharer.held), itertools.cycle(kinds)))
        if chosen:
            self._of_session('ShareAcknowledge', sharer, name, chosen, acknowledgements(chosen))

    def close_session(self, name: str) -> None:
        """Acknowledge some records, and end the session, which releases the member's other records."""
        sharer = self.sharers.pop(name, None)
        if sharer is None or sharer.epoch == 0:
            return
        chosen = self._choose(sharer)
        self._may_be_released(sharer, chosen)
        sharer.epoch = CLOSE_SESSION
        self._of_session('ShareAcknowledge', sharer, name, chosen, acknowledgements(chosen))

    def disconnect(self, name: str) -> None:
        sharer = self.sharers.pop(name, None)
        if sharer is not None:
            self._may_be_released(sharer)
            self.broker.disconnect(sharer.connection)

    def let_locks_end(self) -> None:
        for sharer in self.sharers.values():
            self._may_be_released(sharer)
            sharer.held.clear()
        self.broker.clock.advance(LOCK_MS + 1)

    def take_everything(self, name: str) -> set[Place]:
        """Fetch and accept records until none is left. Return the places of the delivered records."""
        self.find_coordinator()
        self.join_share_group(name)
        found: set[Place] = set()
        empty = 0
        while empty < 2:
            self.fetch(name, 100)
            held = set(self.sharers[name].held)
            found |= held
            empty = 0 if held else empty + 1
            self.acknowledge(name, ACCEPT)
        return found

    def _choose(self, sharer: Sharer) -> dict[Place, int]:
        """Choose types for some of the records that a member holds."""
        return {place: self.rng.choice([ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT])
                for place in sorted(sharer.held) if self.rng.random() < 0.6}

    def _may_be_released(self, sharer: Sharer, chosen: Any = ()) -> None:
        for place, count in sharer.held.items():
            if place not in chosen:
                self.promises.may_become(place, count_after(RELEASE, count))

    def _of_session(self, api: str, sharer: Sharer, name: str, chosen: dict[Place, int], partitions: list[Any],
                    **fields: Any) -> Any:
        """Send a request of a share session with the acknowledgements in `chosen`. Note what the answer promises when
        the broker sends it.
        """
        after = {place: count_after(kind, sharer.held[place]) for place, kind in chosen.items()}
        for place, count in after.items():
            self.promises.may_become(place, count)

        def noted(answer: Any) -> None:
            assert answer.error_code == ErrorCode.NONE, answer
            assert not any(partition.error_code for topic in answer.responses for partition in topic.partitions), answer
            for place, count in after.items():
                self.promises.counts[place] = {count}
                del sharer.held[place]
            sharer.epoch += 1

        topics = [{'topic_id': self.topic_id, 'partitions': partitions}] if partitions else []
        return self.ask(api, 2, noted, sharer.connection, group_id=SHARE, member_id=name,
                        share_session_epoch=sharer.epoch, topics=topics, **fields)

    # ---- the consumer group and the streams group

    def join_consumer_group(self, name: str) -> None:
        self._heartbeat('ConsumerGroupHeartbeat', 1, CONSUMER, name, subscribed_topic_names=[TOPIC],
                        rebalance_timeout_ms=60_000, topic_partitions=[])

    def stay_in_consumer_group(self, name: str) -> None:
        answer = self._heartbeat('ConsumerGroupHeartbeat', 1, CONSUMER, name, topic_partitions=[
            {'topic_id': self.topic_id, 'partitions': self._owned[name]}] if self._owned[name] else [])
        if answer.assignment is not None:
            self._owned[name] = [index for topic in answer.assignment.topic_partitions for index in topic.partitions]

    def leave_consumer_group(self, name: str) -> None:
        self._heartbeat('ConsumerGroupHeartbeat', 1, CONSUMER, name, epoch=LEAVE)
        self._owned.pop(name, None)

    def commit(self, name: str, partition: int, offset: int) -> None:
        def noted(answer: Any) -> None:
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE, answer
            self.promises.answered.add('offsets')

        self.ask('OffsetCommit', 9, noted, group_id=CONSUMER, member_id=name,
                 generation_id_or_member_epoch=self.epochs[CONSUMER, name], topics=[
                     {'name': TOPIC, 'partitions': [{'partition_index': partition, 'committed_offset': offset}]}])

    def join_streams_group(self, name: str) -> None:
        self._heartbeat('StreamsGroupHeartbeat', 0, STREAMS, name, endpoint_information_epoch=0,
                        shutdown_application=False, rebalance_timeout_ms=60_000, process_id=f'process of {name}',
                        topology=TOPOLOGY, **NO_TASKS)

    def stay_in_streams_group(self, name: str) -> None:
        owned = self._owned[f'streams {name}']
        tasks = [{'subtopology_id': '0', 'partitions': owned}] if owned else []
        answer = self._heartbeat('StreamsGroupHeartbeat', 0, STREAMS, name, endpoint_information_epoch=0,
                                 shutdown_application=False, **NO_TASKS | {'active_tasks': tasks})
        if answer.active_tasks is not None:
            self._owned[f'streams {name}'] = [index for task in answer.active_tasks for index in task.partitions]

    def leave_streams_group(self, name: str) -> None:
        self._heartbeat('StreamsGroupHeartbeat', 0, STREAMS, name, epoch=LEAVE, endpoint_information_epoch=0,
                        shutdown_application=False)
        self._owned.pop(f'streams {name}', None)

    def _heartbeat(self, api: str, version: int, group: str, name: str, *, epoch: int | None = None,
                   **fields: Any) -> Any:
        """Repeat a heartbeat until the coordinator is available, and adopt the epoch of the answer. The answer promises
        the state of the group that its description shows. For a share group, the description also changes later,
        because the broker assigns share partitions when their state is initialized.
        """
        def noted(answer: Any) -> None:
            if answer.error_code == ErrorCode.NONE and group != SHARE:
                self.promises.answered.add(group)

        for _ in range(MOST_TURNS):
            answer = self.ask(api, version, noted, group_id=group, member_id=name,
                              member_epoch=self.epochs.get((group, name), JOIN) if epoch is None else epoch, **fields)
            if answer.error_code not in NOT_YET:
                break
            self.broker.clock.advance(TURN_MS)
        assert answer.error_code == ErrorCode.NONE, answer
        self.epochs[group, name] = answer.member_epoch
        if epoch == LEAVE:
            del self.epochs[group, name]
        return answer

    # ---- observations

    def observe(self) -> dict[str, Any]:
        """Return the broker's descriptions of the groups. A step changes an entry by one batch, except for a start
        offset, which several batches may change.
        """
        found: dict[str, Any] = {}
        for kind, version, group in ('Share', 1, SHARE), ('Consumer', 1, CONSUMER), ('Streams', 0, STREAMS):
            answer = self.ask(f'{kind}GroupDescribe', version, group_ids=[group])
            answer.groups[0].members.sort(key=lambda member: member.member_id)
            found[group] = encode(answer, version)
        committed = self.ask('OffsetFetch', 9, groups=[{'group_id': CONSUMER, 'topics': None}], require_stable=True)
        found['offsets'] = sorted((partition.partition_index, partition.committed_offset)
                                  for topic in committed.groups[0].topics for partition in topic.partitions)
        starts = self.ask('DescribeShareGroupOffsets', 1, groups=[
            {'group_id': SHARE, 'topics': [{'topic_name': TOPIC, 'partitions': list(range(PARTITIONS))}]}])
        for topic in starts.groups[0].topics:
            for partition in topic.partitions:
                found[f'start {partition.partition_index}'] = partition.start_offset
        return found


def batches_of(chosen: dict[Place, int], index: int) -> list[dict[str, Any]]:
    return [{'first_offset': offset, 'last_offset': offset, 'acknowledge_types': [kind]}
            for (partition, offset), kind in sorted(chosen.items()) if partition == index]


def acknowledgements(chosen: dict[Place, int]) -> list[dict[str, Any]]:
    return [{'partition_index': index, 'acknowledgement_batches': batches_of(chosen, index)}
            for index in sorted({partition for partition, _ in chosen})]


def prepare(broker: InProcessBroker) -> bytes:
    """Create the topic and the config of the share group. Return the id of the topic."""
    created = broker.ask(build('CreateTopicsRequest', topics=[
        {'name': TOPIC, 'num_partitions': PARTITIONS, 'replication_factor': 1}]))
    configs = {'share.delivery.count.limit': str(DELIVERY_LIMIT), 'share.auto.offset.reset': 'earliest'}
    altered = broker.ask(build('IncrementalAlterConfigsRequest', resources=[
        {'resource_type': GROUP_RESOURCE, 'resource_name': SHARE, 'configs': [
            {'name': name, 'config_operation': 0, 'value': value} for name, value in configs.items()]}]))
    assert altered.responses[0].error_code == ErrorCode.NONE, altered
    topic_id: bytes = created.topics[0].topic_id
    return topic_id
