"""A share group with a dead-letter queue on an in-process broker (KIP-1191)."""
from __future__ import annotations

import itertools
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from support.brokers.in_process_broker import InProcessBroker, NotingConnection
from support.messages.message_builder import build

from kbroker.base.clock import ManualClock
from kbroker.group.share.dead_letter import Source, place_of
from kbroker.group.share.rows import ShareKey
from kbroker.log.fs import FileSystem
from kbroker.log.jobs import Job, run_inline
from kbroker.record.batch import encode_batch
from kbroker.record.records import Record, decode_records

GROUP, TOPIC, QUEUE = 'workers', 'jobs', 'dlq.jobs'
PARTITIONS, QUEUE_PARTITIONS = 3, 2
DELIVERY_LIMIT = 2
GAP, ACCEPT, RELEASE, REJECT = range(4)
TOPIC_RESOURCE, GROUP_RESOURCE = 2, 32
MOST_TURNS = 2_000
SETTINGS = {'share.coordinator.state.topic.num.partitions': '2', 'log.index.size.max.bytes': '4096'}
QUEUE_CONFIGS = {'errors.deadletterqueue.group.enable': 'true'}
GROUP_CONFIGS = {'errors.deadletterqueue.topic.name': QUEUE, 'share.delivery.count.limit': str(DELIVERY_LIMIT)}

Place = tuple[int, int]
"""Partition and offset of an original record."""


class Worker:
    """A worker thread that runs each job at once, unless a test holds it."""

    def __init__(self) -> None:
        self.is_held = False
        self.waiting: list[tuple[Job, Callable[[Any], None]]] = []

    def __call__(self, job: Job, done: Callable[[Any], None]) -> None:
        if self.is_held:
            self.waiting.append((job, done))
        else:
            run_inline(job, done)


class DeadLetterWorld:
    """A broker, the group GROUP, and one member of it. The member reads all partitions of TOPIC."""

    def __init__(self, directory: pathlib.Path, clock: ManualClock | None = None, fs: FileSystem | None = None,
                 settings: Mapping[str, str] | None = None, **options: Any):
        self.worker = Worker()
        self.broker = InProcessBroker(directory, {**SETTINGS, **(settings or {})}, clock=clock, fs=fs,
                                      search=self.worker, **options)
        self.connection = NotingConnection(7_000)
        self.epoch = 0
        self.held: dict[Place, int] = {}
        """The records that the member has acquired, with their delivery counts."""
        self._names = itertools.count()
        self.member = 'member'

    def __enter__(self) -> DeadLetterWorld:
        self.broker.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.broker.__exit__(*exception)

    def settle(self) -> None:
        """Run until no work is left."""
        self.broker.turn()
        for _ in range(MOST_TURNS):
            if not len(self.broker.long_work) and self.broker.timers.next_delay_ms() != 0:
                return
            self.broker.turn()
        raise AssertionError(f'{len(self.broker.long_work)} works do not end')

    def pass_time(self, ms: int) -> None:
        self.broker.clock.advance(ms)
        self.settle()

    def ask(self, name: str, version: int, connection: NotingConnection | None = None, **fields: Any) -> Any:
        request = build(f'{name}Request', **fields)
        connection = self.broker.begin(request, version, connection)
        self.settle()
        return self.broker.answer_to(connection, request, version)

    # ---- preparation

    def prepare(self, *, share_version: int = 2, queue: Mapping[str, str] | None = QUEUE_CONFIGS,
                group: Mapping[str, str] = GROUP_CONFIGS) -> None:
        """Create the topics, set the configs, and initialize the share states."""
        answer = self.ask('UpdateFeatures', 1, feature_updates=[
            {'feature': 'share.version', 'max_version_level': share_version, 'upgrade_type': 1}])
        assert answer.error_code == 0, answer
        self.create(TOPIC, PARTITIONS)
        if queue is not None:
            self.create(QUEUE, QUEUE_PARTITIONS, queue)
        self.configure(GROUP_RESOURCE, GROUP, group)
        self.initialize()

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        answer = self.ask('CreateTopics', 7, topics=[
            {'name': name, 'num_partitions': partitions, 'replication_factor': 1,
             'configs': [{'name': key, 'value': value} for key, value in (configs or {}).items()]}])
        assert answer.topics[0].error_code == 0, answer

    def configure(self, resource_type: int, name: str, configs: Mapping[str, str | None]) -> None:
        answer = self.ask('IncrementalAlterConfigs', 1, resources=[
            {'resource_type': resource_type, 'resource_name': name, 'configs': [
                {'name': key, 'config_operation': int(value is None), 'value': value}
                for key, value in configs.items()]}])
        assert answer.responses[0].error_code == 0, answer

    def initialize(self, start_offset: int = 0, state_epoch: int = 1) -> None:
        failed: list[Any] = []
        self.broker.share_states.initialize({self.key(index): start_offset for index in range(PARTITIONS)},
                                            state_epoch, failed.append)
        self.settle()
        assert failed == [{}]

    def key(self, partition: int) -> ShareKey:
        return ShareKey(GROUP, self.broker.topics.topic(TOPIC).topic_id, partition)

    def produce(self, partition: int, *records: tuple[bytes | None, bytes | None]) -> None:
        batch = bytes(encode_batch([(self.broker.clock.wall_ms(), key, value, [('h', b'x')])
                                    for key, value in records]))
        answer = self.ask('Produce', 12, acks=-1, timeout_ms=1000, topic_data=[
            {'name': TOPIC, 'partition_data': [{'index': partition, 'records': batch}]}])
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    # ---- the member

    def fetch(self, most: int = 100) -> dict[Place, int]:
        """Acquire records. Return those that the member now has, with their delivery counts."""
        topics = [{'topic_id': self.key(0).topic_id, 'partitions': [
            {'partition_index': index} for index in range(PARTITIONS)]}] if self.epoch == 0 else []
        answer = self.ask('ShareFetch', 2, self.connection, group_id=GROUP, member_id=self.member,
                          share_session_epoch=self.epoch, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20,
                          max_records=most, batch_size=most, share_acquire_mode=1, topics=topics)
        assert answer.error_code == 0, answer
        self.epoch += 1
        for topic in answer.responses:
            for partition in topic.partitions:
                assert partition.error_code == 0, partition
                for acquired in partition.acquired_records:
                    for offset in range(acquired.first_offset, acquired.last_offset + 1):
                        self.held[partition.partition_index, offset] = acquired.delivery_count
        return dict(self.held)

    def acknowledge(self, kinds: Mapping[Place, int], *, answered: Callable[[], None] = lambda: None) -> None:
        """Acknowledge records, each with a type. Call `answered` as soon as the broker answers without an error."""
        def on_answer(answer: Any) -> None:
            assert answer.error_code == 0, answer
            assert {each.error_code for topic in answer.responses for each in topic.partitions} <= {0}, answer
            answers.append(answer)
            answered()

        answers: list[Any] = []
        request = build('ShareAcknowledgeRequest', group_id=GROUP, member_id=self.member,
                        share_session_epoch=self.epoch, topics=[
                            {'topic_id': self.key(0).topic_id, 'partitions': acknowledgements(kinds)}])
        self.broker.begin_noted(request, 2, on_answer, self.connection)
        self.settle()
        self.connection.on_reply = lambda: None
        assert answers
        self.epoch += 1
        for place in kinds:
            self.held.pop(place, None)

    def reject(self, *places: Place, answered: Callable[[], None] = lambda: None) -> None:
        self.acknowledge(dict.fromkeys(places, REJECT), answered=answered)

    def hold_worker(self) -> Callable[[], None]:
        """Occupy the worker thread that builds dead letters. Return a function that frees it and runs what waits."""
        self.worker.is_held = True

        def free() -> None:
            self.worker.is_held = False
            waiting, self.worker.waiting = self.worker.waiting, []
            for job, done in waiting:
                run_inline(job, done)
            self.settle()

        return free

    def disconnect(self) -> None:
        """Close the member's connection. A new member takes its place."""
        self.broker.disconnect(self.connection)
        self.settle()
        self.connection = NotingConnection(7_001 + next(self._names))
        self.member = f'member {self.connection.connection_id}'
        self.epoch = 0
        self.held.clear()

    # ---- observations

    def dead_letters(self, queue: str = QUEUE) -> list[tuple[int, Record]]:
        """Return (partition, record) of all records of a queue, also of those that are not durable."""
        topic = self.broker.topics.topic(queue)
        return [] if topic is None else [
            (partition.partition, record) for partition in topic.partitions
            for header, batch in partition.batches() for record in decode_records(batch)]

    def places(self, queue: str = QUEUE) -> Counter[Place]:
        """Return the places of the original records for which a queue has dead letters, with the number of letters."""
        found: Counter[Place] = Counter()
        for partition, record in self.dead_letters(queue):
            place = place_of(record.headers)
            assert place is not None
            source, offset = place
            assert source == Source(TOPIC, source.partition, GROUP)
            assert partition == source.partition % len(self.broker.topics.topic(queue).partitions)
            found[source.partition, offset] += 1
        return found

    def start_offsets(self) -> list[int]:
        """Return the durable start offset of each share partition."""
        states = [self.broker.share_states.summary(self.key(index)) for index in range(PARTITIONS)]
        return [-2 if state is None else state.start_offset for state in states]

    def states(self, partition: int) -> dict[int, int]:
        """Return the durable states of the records of a share partition by offset."""
        state = self.broker.share_states.summary(self.key(partition))
        return {offset: state for first, last, state, _ in state.batches for offset in range(first, last + 1)}

    def archiving(self) -> set[Place]:
        """Return the records that wait for their dead letters, by the durable states."""
        return {(index, offset) for index in range(PARTITIONS) for offset, state in self.states(index).items()
                if state == 3}


def acknowledgements(kinds: Mapping[Place, int]) -> list[Any]:
    return [{'partition_index': index, 'acknowledgement_batches': [
        {'first_offset': offset, 'last_offset': offset, 'acknowledge_types': [kind]}
        for (partition, offset), kind in sorted(kinds.items()) if partition == index]}
        for index in sorted({partition for partition, _ in kinds})]


def once(places: Iterable[Place]) -> Counter[Place]:
    return Counter(places)
