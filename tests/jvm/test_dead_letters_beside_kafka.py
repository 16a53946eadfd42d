"""Share groups with dead-letter queues on Apache Kafka 4.4 and on kbroker: the dead letters, the answers to members and
the final states of the records agree. New partitions start at the same offsets.

Batches are not compared: Kafka's depend on its requests in flight.

Covers KIP-1191.
"""
from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_peer import RawPeer
from share_histories import (
    ACCEPT,
    GAP,
    GROUP_RESOURCE,
    REJECT,
    RELEASE,
    SETTINGS,
    Configure,
    Disconnect,
    Fetch,
    PartitionSide,
    Produce,
    Said,
    Say,
    codes,
)
from support.brokers.broker_process import BrokerProcess
from support.clients.raw_client import RawClient
from support.kafka.apache_kafka import KafkaProcess
from support.kafka.beside_kafka import at_once, repeated, running
from support.kafka.shown_metadata import await_shown_metadata
from support.messages.message_builder import build

from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

RELEASE_OF_KAFKA = '4.4'
QUEUE_PARTITIONS = 3
NUMBERS = itertools.count()
ARCHIVING = 3
FINISHED = 2, 4
BROKER = {**SETTINGS, 'errors.deadletterqueue.auto.create.topics.enable': 'true', 'num.partitions': '2'}
REJECT_ALL = (Say('A', (Said(REJECT, 0, 0, 50),)),)
LIMIT_2 = Configure('share.delivery.count.limit', '2')
COPY = Configure('errors.deadletterqueue.copy.record.enable', 'true')
EACH_KIND = [
    Say('A', (Said(REJECT, 0, 0, 2),)), Say('A', (Said(ACCEPT, 0, 0, 1),)), Say('A', (Said(GAP, 0, 0, 1),)),
    Fetch('A', (Said(REJECT, 0, 0, 1),)), Say('A', (Said(RELEASE, 0, 0, 2),)), Fetch('A'),
    Say('A', (Said(RELEASE, 0, 0, 1),)), Say('A', (Said(REJECT, 0, 0, 3, 0, True),))]

STORIES: dict[str, tuple[Mapping[str, str] | None, list[Any]]] = {
    'each kind': ({}, [LIMIT_2, Produce(12), Fetch('A'), *EACH_KIND]),
    'copied': ({}, [COPY, Produce(3), Produce(4), Fetch('A'), *REJECT_ALL, *REJECT_ALL]),
    'closed session': ({}, [LIMIT_2, Produce(5), Fetch('A'), Disconnect('A'), Fetch('B'),
                            Say('B', (Said(ACCEPT, 0, 1, 1),)), Disconnect('B')]),
    'not enabled': (None, [Produce(5), Fetch('A'), *REJECT_ALL]),
    'compacted': ({'cleanup_policy': 'compact'}, [Produce(5), Fetch('A'), *REJECT_ALL]),
    'log append time': ({'message_timestamp_type': 'LogAppendTime', 'compression_type': 'gzip'},
                        [COPY, Produce(5), Fetch('A'), *REJECT_ALL]),
    'small batches': ({'max_message_bytes': '600'}, [COPY, Produce(9), Fetch('A'), *REJECT_ALL]),
    'too small batches': ({'max_message_bytes': '200'}, [Produce(2), Fetch('A'), *REJECT_ALL]),
}
"""Maps a name to the configs of the queue's topic and the operations. None stands for a topic that does not allow dead
letters."""


@pytest.fixture(scope='module')
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    directory = tmp_path_factory.mktemp('brokers')
    with running(KafkaProcess(directory / 'kafka', BROKER, RELEASE_OF_KAFKA),
                 BrokerProcess(directory / 'kbroker', BROKER)) as brokers:
        for broker in brokers:
            with RawClient.at(broker.address) as client:
                answer = client.ask(build('UpdateFeaturesRequest', timeout_ms=30_000, feature_updates=[
                    {'feature': 'share.version', 'max_version_level': 2, 'upgrade_type': 1}]), 1)
                assert answer.error_code == 0, answer
            await_shown_metadata(broker.address)
        yield [broker.address for broker in brokers]


class QueueSide(PartitionSide):
    """One broker in a story. The group has the name of its topic, and a dead-letter queue."""

    def create_queue(self, configs: Mapping[str, str] | None) -> None:
        wanted = {} if configs is None else {'errors_deadletterqueue_group_enable': 'true', **configs}
        self.peer.create_topic(self.queue, QUEUE_PARTITIONS, **wanted)

    @property
    def queue(self) -> str:
        return f'dlq.{self.name}'

    def name_queue(self, name: str) -> None:
        answer = self.ask('IncrementalAlterConfigs', 1, resources=[{
            'resource_type': GROUP_RESOURCE, 'resource_name': self.name,
            'configs': [{'name': 'errors.deadletterqueue.topic.name', 'config_operation': 0, 'value': name}]}])
        assert answer.responses[0].error_code == 0, answer
        await_shown_metadata(self.address)

    def settle(self) -> None:
        """Wait until no record waits for a dead letter. Its row may be written long after the answer to the request
        that rejects the record. Then it would look like the row of a connection that closes."""
        def is_settled() -> bool:
            state = self.state()
            return state is None or all(batch[2] != ARCHIVING for batch in state[2])

        self.wait_until(is_settled)

    def settled_state(self) -> Any:
        """Return the final state of the share partition when no record waits for a dead letter.

        These are the first offset that is not finished, and the batches from there on. The stored start offset depends
        on the number of rows.
        """
        self.wait_until(lambda: self.state() is not None)
        self.settle()
        start_offset, _, batches = self.state()
        while batches and batches[0][0] == start_offset and batches[0][2] in FINISHED:
            start_offset = batches.pop(0)[1] + 1
        return start_offset, batches

    def dead_letters(self) -> list[Any]:
        """Return (partition, key, value, headers) of all records of the queue."""
        topic, = self.ask('Metadata', 9, topics=[{'name': self.queue}], allow_auto_topic_creation=False).topics
        found = []
        for partition in sorted(each.partition_index for each in topic.partitions):
            answer = self.ask('Fetch', 12, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[
                {'topic': self.queue, 'partitions': [
                    {'partition': partition, 'fetch_offset': 0, 'partition_max_bytes': 1 << 24}]}])
            for header, batch in iter_batches(answer.responses[0].partitions[0].records or b''):
                assert header.producer_id == -1
                found += [(partition, record.key, record.value, record.headers) for record in decode_records(batch)]
        return sorted(found, key=lambda each: int(dict(each[3])['__dlq.errors.offset']))


def told(side: QueueSide, history: list[Any]) -> dict[str, Any]:
    """Run the operations. Return the answers, the final state and the dead letters."""
    answers = [operation.run(side) for operation in history]
    return {'answers': answers, 'state': side.settled_state(), 'dead letters': side.dead_letters()}


@pytest.mark.parametrize('name', STORIES)
def test_the_dead_letters_of_kbroker_and_kafka_agree(addresses, name):
    configs, history = STORIES[name]
    group = name.replace(' ', '-')

    def run(address: str) -> dict[str, Any]:
        side = QueueSide(address, group)
        side.create_queue(configs)
        side.name_queue(side.queue)
        found = told(side, history)
        side.close()
        return found

    kafka, ours = at_once(run, addresses)
    assert ours == kafka
    assert bool(kafka['dead letters']) == (name not in {'not enabled', 'compacted', 'too small batches'})


KINDS = st.sampled_from([ACCEPT, RELEASE, RELEASE, REJECT, REJECT, GAP])
SAID = st.builds(Said, KINDS, st.integers(0, 3), st.integers(0, 20), st.sampled_from([1, 1, 2, 5, 30]), st.just(0),
                 st.booleans())
SLOTS = st.sampled_from('AAB')
OPERATIONS = st.one_of(
    *[st.builds(Fetch, SLOTS, st.lists(SAID, max_size=1).map(tuple))] * 3,
    *[st.builds(Say, SLOTS, st.lists(SAID, max_size=3).map(tuple))] * 4,
    st.builds(Disconnect, SLOTS), st.builds(Produce, st.integers(1, 12)))


@repeated(5)
@given(st.sampled_from([(LIMIT_2,), (LIMIT_2, COPY), (COPY,)]),
       st.lists(st.builds(Produce, st.integers(1, 30)), min_size=1, max_size=5),
       st.lists(OPERATIONS, min_size=8, max_size=25))
def test_the_dead_letters_of_random_histories_agree(addresses, configured, produced, operations):
    name = f'random-{next(NUMBERS)}'

    def run(address: str) -> dict[str, Any]:
        side = QueueSide(address, name)
        side.create_queue({})
        side.name_queue(side.queue)
        found = told(side, [*configured, *produced, *operations])
        side.close()
        return found

    kafka, ours = at_once(run, addresses)
    assert ours == kafka


def test_both_brokers_create_the_queue(addresses):
    def run(address: str) -> Any:
        side = QueueSide(address, 'created')
        side.name_queue(side.queue)
        found = told(side, [Produce(3), Fetch('A'), *REJECT_ALL])
        topic, = side.ask('DescribeConfigs', 4, resources=[{'resource_type': 2, 'resource_name': side.queue,
                                                            'configuration_keys': None}]).results
        found['configs'] = {config.name: config.value for config in topic.configs if config.config_source == 1}
        side.close()
        return found

    kafka, ours = at_once(run, addresses)
    assert ours == kafka
    assert len(kafka['dead letters']) == 3 and kafka['configs'] != {}


class Member:
    """A member of a share group that has the name of its topic."""

    def __init__(self, address: str, name: str):
        self.peer, self.name, self.epoch = RawPeer(address, name), name, 0
        self.member_id = str(uuid.uuid4())

    def starts(self, partitions: int) -> list[Any]:
        """Send heartbeats until all partitions are assigned. Return their start offsets."""
        while True:
            answer = self.peer.prepare_until(
                lambda answer: answer.error_code == 0, 'ShareGroupHeartbeat', 1, group_id=self.name,
                member_id=self.member_id, member_epoch=self.epoch, subscribed_topic_names=[self.name])
            self.epoch = answer.member_epoch
            assigned = [] if answer.assignment is None else answer.assignment.topic_partitions
            if sum(len(topic.partitions) for topic in assigned) == partitions:
                break
            self.peer.wait_for_a_record()
        group, = self.peer.ask('DescribeShareGroupOffsets', 1, groups=[{'group_id': self.name, 'topics': [
            {'topic_name': self.name, 'partitions': list(range(partitions))}]}]).groups
        return sorted((partition.partition_index, partition.start_offset)
                      for topic in group.topics for partition in topic.partitions)


def test_partitions_that_are_added_to_a_known_topic_start_at_0_on_both_brokers(addresses):
    def grow(address: str) -> Any:
        member = Member(address, 'grown')
        member.peer.create_topic()
        member.peer.prepare('FindCoordinator', coordinator_keys=['grown'], key_type=0)
        before = member.starts(1)
        member.peer.ask('CreatePartitions', 3, topics=[{'name': 'grown', 'count': 3, 'assignments': None}],
                        timeout_ms=30_000, validate_only=False)
        await_shown_metadata(address)
        return before, member.starts(3)

    def alter(address: str) -> Any:
        member = Member(address, 'altered')
        member.peer.create_topic(partitions=3)
        member.peer.prepare('FindCoordinator', coordinator_keys=['altered'], key_type=0)
        member.peer.prepare_until(lambda answer: set(codes(answer)) == {'NONE'}, 'AlterShareGroupOffsets', 0,
                                  group_id='altered', topics=[{'topic_name': 'altered', 'partitions': [
                                      {'partition_index': 1, 'start_offset': 7}]}])
        return member.starts(3)

    kafka, ours = at_once(grow, addresses)
    assert ours == kafka == ([(0, -1)], [(0, -1), (1, 0), (2, 0)])
    kafka, ours = at_once(alter, addresses)
    assert ours == kafka == [(0, 0), (1, 7), (2, 0)]


@pytest.mark.parametrize('queue', ['other.queue', 'bad name!', ''])
def test_both_brokers_archive_records_without_a_queue(addresses, queue):
    def run(address: str) -> Any:
        side = QueueSide(address, f'without-{len(queue)}')
        side.name_queue(queue)
        answers = [operation.run(side) for operation in [Produce(3), Fetch('A'), *REJECT_ALL]]
        found = answers, side.settled_state()
        side.close()
        return found

    kafka, ours = at_once(run, addresses)
    assert ours == kafka
