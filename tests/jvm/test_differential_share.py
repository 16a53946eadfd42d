"""Apache Kafka 4.3 and kbroker get the same share fetches and acknowledgements.

Each script has its own topic and group, whose state begins at offset 0. The answers and the rows in
`__share_group_state` agree, except for DIFFERENCES. Values that a broker chooses are not compared.

Covers KIP-932, KIP-1206 and KIP-1222.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from raw_peer import RawPeer
from share_histories import ACCEPT, GAP, GROUP_RESOURCE, REJECT, RELEASE, RENEW, values
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.clients.raw_client import RawClient
from support.kafka.apache_kafka import KafkaProcess
from support.kafka.shown_metadata import await_shown_metadata
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode
from kbroker.base.internal_topics import SHARE_GROUP_STATE
from kbroker.group.share.rows import ShareKey
from kbroker.protocol.messages import ShareUpdateKey, ShareUpdateValue
from kbroker.protocol.rows import decode_row_key, decode_row_value
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

SETTINGS = {'share.coordinator.state.topic.num.partitions': '1', 'offsets.topic.num.partitions': '1'}
WAIT_MS = 400
LIMIT_S = 120

DIFFERENCES = {
    'deleted_records': 'Apache Kafka answers a fetch below the log start with nothing; kbroker goes on from there',
    'soft_limits': 'with whole batches, Apache Kafka takes together again what it has delivered together, whatever '
                   'MaxRecords says; kbroker goes on to the end of the batch of the log',
}


class Peer(RawPeer):
    """One broker, as a script uses it."""

    def __init__(self, address: str, name: str, topic_id: bytes):
        super().__init__(address, name)
        self.name, self.topic_id = name, topic_id
        self.members: dict[str, Member] = {}
        self.seen: list[Any] = []

    def member(self, name: str) -> Member:
        if name not in self.members:
            self.members[name] = Member(self, name)
        return self.members[name]

    def produce(self, *values: bytes) -> None:
        answer = self.ask('Produce', 12, acks=-1, timeout_ms=5000, topic_data=[
            {'name': self.name, 'partition_data': [
                {'index': 0, 'records': batch_of(int(time.time() * 1000), *values)}]}])
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def alter(self, **configs: str) -> None:
        answer = self.ask('IncrementalAlterConfigs', 1, resources=[
            {'resource_type': GROUP_RESOURCE, 'resource_name': self.name, 'configs': [
                {'name': name.replace('_', '.'), 'config_operation': 0, 'value': value}
                for name, value in configs.items()]}])
        assert answer.responses[0].error_code == 0, answer
        await_shown_metadata(self.address)

    def delete_records(self, offset: int) -> None:
        answer = self.ask('DeleteRecords', 2, timeout_ms=5000, topics=[
            {'name': self.name, 'partitions': [{'partition_index': 0, 'offset': offset}]}])
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def rows(self) -> Iterator[Any]:
        """Yield each update of the group's state: the start offset, the number of finished records, and the batches."""
        for record in self._states():
            key = decode_row_key(SHARE_GROUP_STATE, record.key)
            if isinstance(key, ShareUpdateKey) and key.group_id == self.name:
                value = decode_row_value(ShareUpdateValue, record.value)
                if value.state_batches:
                    yield (value.start_offset, value.delivery_complete_count,
                           [(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                            for batch in value.state_batches])

    def _states(self) -> Iterator[Any]:
        """Yield the records of the only partition of `__share_group_state`."""
        offset = 0
        while True:
            answer = self.ask('Fetch', 12, replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=[
                {'topic': SHARE_GROUP_STATE, 'partitions': [
                    {'partition': 0, 'fetch_offset': offset, 'partition_max_bytes': 1 << 24}]}])
            records = answer.responses[0].partitions[0].records
            if not records:
                return
            for header, batch in iter_batches(records):
                yield from decode_records(batch)
                offset = header.last_offset + 1

    def close(self) -> None:
        """Close all connections."""
        for member in self.members.values():
            member.client.close()
        super().close()


class Member:
    """A member with its own connection. It notes each answer in the peer's `seen`."""

    def __init__(self, peer: Peer, name: str):
        self.peer, self.name = peer, name
        self.client = RawClient.at(peer.address)
        self.epoch = 0

    def fetch(self, *said: tuple[int, ...], version: int = 2, epoch: int | None = None, **fields: Any) -> None:
        epoch = self.epoch if epoch is None else epoch
        topics = fields.pop('topics', None)
        if topics is None:
            topics = [{'topic_id': self.peer.topic_id, 'partitions': [
                {'partition_index': 0, 'acknowledgement_batches': batches(said)}]}] if epoch == 0 or said else []
        options = {'max_wait_ms': WAIT_MS, 'min_bytes': 1, 'max_bytes': 1 << 20, 'max_records': 500, 'batch_size': 500}
        answer = self.client.ask(build(
            'ShareFetchRequest', group_id=self.peer.name, member_id=self.name, share_session_epoch=epoch,
            topics=topics, **(options | fields)), version)
        self.epoch += answer.error_code == 0
        self.peer.seen.append((
            'fetch', self.name, ErrorCode(answer.error_code).name, answer.acquisition_lock_timeout_ms,
            [(partition.partition_index, ErrorCode(partition.error_code).name,
              ErrorCode(partition.acknowledge_error_code).name, values(partition.records),
              [(each.first_offset, each.last_offset, each.delivery_count) for each in partition.acquired_records])
             for topic in answer.responses for partition in topic.partitions]))

    def say(self, *said: tuple[int, ...], version: int = 2, epoch: int | None = None, partition: int = 0,
            **fields: Any) -> None:
        topics = [{'topic_id': self.peer.topic_id, 'partitions': [
            {'partition_index': partition, 'acknowledgement_batches': batches(said)}]}] if said else []
        answer = self.client.ask(build(
            'ShareAcknowledgeRequest', group_id=self.peer.name, member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch, topics=topics, **fields), version)
        self.epoch += answer.error_code == 0
        self.peer.seen.append((
            'acknowledge', self.name, ErrorCode(answer.error_code).name, answer.acquisition_lock_timeout_ms,
            [(partition.partition_index, ErrorCode(partition.error_code).name)
             for topic in answer.responses for partition in topic.partitions]))


def batches(said: tuple[tuple[int, ...], ...]) -> list[dict[str, Any]]:
    return [{'first_offset': first, 'last_offset': last, 'acknowledge_types': list(types)}
            for first, last, *types in said]


# ---- the scripts

def each_type(peer: Peer) -> None:
    for number in range(3):
        peer.produce(b'a%d' % number, b'b%d' % number)
    m1, m2 = peer.member('m1'), peer.member('m2')
    m1.fetch()
    m1.say((0, 0, ACCEPT))
    m1.say((1, 2, RELEASE), (3, 3, REJECT))
    m2.fetch()
    m1.say((4, 5, ACCEPT, GAP))
    m2.say((1, 2, ACCEPT))


def riding_acknowledgements(peer: Peer) -> None:
    peer.produce(b'a', b'b')
    m1 = peer.member('m1')
    m1.fetch()
    peer.produce(b'c')
    m1.fetch((0, 1, ACCEPT))
    m1.fetch((2, 2, ACCEPT), epoch=-1)


def whole_batches(peer: Peer) -> None:
    for number in range(6):
        peer.produce(b'a%d' % number, b'b%d' % number)
    peer.member('m1').fetch(max_records=3, batch_size=1)
    peer.member('m2').fetch(max_records=5, batch_size=3)
    peer.member('m3').fetch(version=1)


def record_limit(peer: Peer) -> None:
    peer.produce(b'a', b'b', b'c', b'd', b'e')
    peer.member('m1').fetch(max_records=2, share_acquire_mode=1)
    peer.member('m2').fetch(max_records=2, share_acquire_mode=1)
    peer.member('m1').say((0, 1, ACCEPT))
    peer.member('m3').fetch(max_records=100, share_acquire_mode=1)
    peer.member('m4').fetch(share_acquire_mode=7)


def malformed_acknowledgements(peer: Peer) -> None:
    peer.produce(b'a', b'b', b'c')
    m1, m2 = peer.member('m1'), peer.member('m2')
    m1.fetch()
    m2.fetch()
    for said in [((1, 0, ACCEPT),), ((0, 1, ACCEPT, ACCEPT, ACCEPT),), ((0, 1, 5),), ((0, 1),), ((0, 1, RENEW),),
                 ((1, 1, ACCEPT), (0, 0, ACCEPT)), ((0, 3, ACCEPT),), ((5, 6, ACCEPT),), ((0, 0, -1),)]:
        m1.say(*said)
    m1.say((0, 0, 4), version=1)
    m2.say((0, 0, ACCEPT))
    m1.say((0, 0, ACCEPT), partition=9)
    m1.say((0, 2, ACCEPT))
    m1.say((0, 2, ACCEPT))
    m1.say((0, 0, RELEASE))


def no_bytes(peer: Peer) -> None:
    m1 = peer.member('m1')
    m1.fetch(max_bytes=0, max_wait_ms=0)
    m1.fetch(max_bytes=0)
    m1.fetch(max_bytes=0, min_bytes=0)
    peer.produce(b'a', b'b')
    m1.fetch(max_bytes=0)
    m1.fetch(max_bytes=-1)
    m1.fetch(max_bytes=0, min_bytes=0, max_records=0, max_wait_ms=0)
    m1.fetch(max_bytes=1)
    m1.fetch((0, 0, ACCEPT), max_bytes=0)
    m1.say((1, 1, RELEASE))
    m1.fetch((1, 1, RELEASE), max_bytes=0)
    m1.fetch(max_bytes=0, epoch=-1)


def session_epochs(peer: Peer) -> None:
    m1 = peer.member('m1')
    m1.fetch(epoch=3, max_wait_ms=0)
    m1.say(epoch=-1)
    m1.fetch((0, 0, ACCEPT), max_wait_ms=0)
    m1.fetch()
    m1.fetch(epoch=5, max_wait_ms=0)
    m1.say(epoch=0)
    m1.say(epoch=7)
    m1.say()
    m1.fetch(max_wait_ms=0)
    m1.fetch(epoch=-1, max_wait_ms=0)
    m1.fetch(max_wait_ms=0)
    peer.member('').fetch(epoch=0)


def ended_sessions(peer: Peer) -> None:
    peer.produce(b'a', b'b', b'c')
    m1, m2 = peer.member('m1'), peer.member('m2')
    m2.fetch(max_records=1, share_acquire_mode=1)
    m1.fetch()
    m1.say((1, 1, ACCEPT), epoch=-1)
    m2.fetch()


def bad_records(peer: Peer) -> None:
    peer.produce(*(b'%d' % number for number in range(8)))
    m1 = peer.member('m1')
    for _ in range(7):
        m1.fetch()
        for _, _, _, _, partitions in list(peer.seen[-1:]):
            for *_, acquired in partitions:
                m1.say(*((first, last, RELEASE) for first, last, _ in acquired))


def a_higher_delivery_limit(peer: Peer) -> None:
    peer.alter(share_delivery_count_limit='10')
    peer.produce(*(b'%d' % number for number in range(20)))
    m1 = peer.member('m1')
    for _ in range(11):
        m1.fetch()
        for *_, partitions in list(peer.seen[-1:]):
            for *_, acquired in partitions:
                m1.say(*((first, last, RELEASE) for first, last, _ in acquired))


def renewed_locks(peer: Peer) -> None:
    peer.produce(b'a', b'b')
    m1 = peer.member('m1')
    m1.fetch()
    m1.say((0, 0, RENEW), is_renew_ack=True)
    m1.say((0, 1, RENEW, ACCEPT), is_renew_ack=True)
    nothing = {'max_bytes': 0, 'min_bytes': 0, 'max_records': 0, 'max_wait_ms': 0}
    m1.fetch((0, 0, RENEW), is_renew_ack=True, **nothing)
    m1.fetch((0, 0, RENEW), is_renew_ack=True)
    m1.say((1, 1, RENEW), is_renew_ack=True)


def renewal_that_is_off(peer: Peer) -> None:
    peer.alter(share_renew_acknowledge_enable='false')
    peer.produce(b'a')
    m1 = peer.member('m1')
    m1.fetch()
    m1.say((0, 0, RENEW), is_renew_ack=True)
    m1.say((0, 0, ACCEPT), is_renew_ack=True)


def deleted_records(peer: Peer) -> None:
    for value in (b'a', b'b', b'c', b'd'):
        peer.produce(value)
    m1, m2 = peer.member('m1'), peer.member('m2')
    m1.fetch(max_records=1)
    peer.delete_records(2)
    m2.fetch()
    m1.say((0, 0, ACCEPT))
    m2.say((2, 3, ACCEPT))


def few_record_locks(peer: Peer) -> None:
    peer.alter(share_partition_max_record_locks='100')
    for number in range(6):
        peer.produce(*(b'%d' % number for _ in range(30)))
    m1, m2 = peer.member('m1'), peer.member('m2')
    m1.fetch()
    m2.fetch(max_wait_ms=100)
    m1.say((40, 49, RELEASE))
    m2.fetch(max_wait_ms=100)
    m1.say((0, 39, ACCEPT))
    m2.fetch(max_wait_ms=100)


def soft_limits(peer: Peer) -> None:
    peer.produce(b'a', b'b')
    peer.produce(b'c', b'd')
    m1 = peer.member('m1')
    m1.fetch()
    m1.say((0, 3, RELEASE))
    peer.member('m2').fetch(max_records=1)


def unknown_topics(peer: Peer) -> None:
    m1 = peer.member('m1')
    m1.fetch(topics=[{'topic_id': bytes(15) + b'x', 'partitions': [{'partition_index': 0}]}])


def unknown_partitions(peer: Peer) -> None:
    peer.member('m1').fetch(topics=[{'topic_id': peer.topic_id, 'partitions': [{'partition_index': 5}]}])


def first_answers(peer: Peer) -> None:
    peer.member('m1').fetch()
    peer.member('m2').fetch(max_wait_ms=0)
    peer.member('m3').fetch()
    peer.member('m3').fetch()
    peer.produce(b'a')
    peer.member('m4').fetch()
    peer.member('m5').fetch(max_wait_ms=0)
    peer.member('m6').fetch()


def a_transaction(peer: Peer, producer: Any, *values: bytes, committed: bool) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(peer.name, value, partition=0)
    producer.flush(LIMIT_S)
    if committed:
        producer.commit_transaction(LIMIT_S)
    else:
        producer.abort_transaction(LIMIT_S)


def await_stable(peer: Peer, end_offset: int) -> None:
    """Wait until the last stable offset is `end_offset`. The broker may answer EndTxn before it writes the markers."""
    answer = peer.ask_until(
        lambda answer: answer.topics[0].partitions[0].offset == end_offset, 'ListOffsets', 7, replica_id=-1,
        isolation_level=1, topics=[{'name': peer.name, 'partitions': [{'partition_index': 0, 'timestamp': -1}]}])
    assert answer.topics[0].partitions[0].offset == end_offset, answer


def read_committed(peer: Peer) -> None:
    peer.alter(share_isolation_level='read_committed')
    producer = confluent_kafka.Producer({'bootstrap.servers': peer.address, 'transactional.id': peer.name,
                                         'linger.ms': 100})
    producer.init_transactions(LIMIT_S)
    m1, m2 = peer.member('m1'), peer.member('m2')
    a_transaction(peer, producer, b'a', b'b', committed=True)
    a_transaction(peer, producer, b'c', b'd', committed=False)
    a_transaction(peer, producer, b'e', committed=True)
    await_stable(peer, 8)
    m1.fetch()
    m1.say((0, 2, ACCEPT, ACCEPT, GAP))
    m1.say((6, 7, RELEASE))
    m2.fetch()
    m2.say((6, 7, ACCEPT))
    a_transaction(peer, producer, b'f', committed=False)
    await_stable(peer, 10)
    m2.fetch()


SCRIPTS: list[Callable[[Peer], None]] = [
    each_type, riding_acknowledgements, whole_batches, record_limit, malformed_acknowledgements, no_bytes,
    session_epochs, ended_sessions, bad_records, a_higher_delivery_limit, renewed_locks, renewal_that_is_off,
    deleted_records, few_record_locks, soft_limits, first_answers, read_committed, unknown_topics, unknown_partitions]


# ---- the brokers

@pytest.fixture(scope='module')
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, bytes]]]:
    """(address of Apache Kafka, {topic of a script: topic id})."""
    with KafkaProcess(tmp_path_factory.mktemp('kafka') / 'data', SETTINGS) as process:
        with RawClient.at(process.address) as client:
            ids = create_topics(lambda request, version: client.ask(request, version))
            for name in ids:
                deadline = time.monotonic() + LIMIT_S
                while not alter_start(client, name):
                    assert time.monotonic() < deadline, f'the state of {name} cannot be initialized'
                    time.sleep(0.1)     # Kafka notifies no client when its coordinators are ready
        yield process.address, ids


def alter_start(client: RawClient, name: str) -> bool:
    """Initialize the state of a script's group at offset 0. Return whether the coordinator was ready."""
    client.ask(build('FindCoordinatorRequest', key_type=0, coordinator_keys=[name]), 4)
    answer = client.ask(build('AlterShareGroupOffsetsRequest', group_id=name, topics=[
        {'topic_name': name, 'partitions': [{'partition_index': 0, 'start_offset': 0}]}]), 0)
    return answer.error_code == 0 and all(partition.error_code == 0 for topic in answer.responses
                                          for partition in topic.partitions)


@pytest.fixture(scope='module')
def kbroker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, bytes]]]:
    directory = tmp_path_factory.mktemp('kbroker') / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        ids = create_topics(broker.ask)
        failed: list[Any] = []
        broker.share_states.initialize({ShareKey(name, topic_id, 0): 0 for name, topic_id in ids.items()}, 1,
                                       failed.append)
        broker.turn()
        broker.turn()
        assert failed == [{}]
    with BrokerProcess(directory, SETTINGS) as process:
        yield process.address, ids
        process.stop()


def create_topics(ask: Callable[[Any, int], Any]) -> dict[str, bytes]:
    answer = ask(build('CreateTopicsRequest', timeout_ms=20000, topics=[
        {'name': script.__name__, 'num_partitions': 1, 'replication_factor': 1} for script in SCRIPTS]), 7)
    assert all(topic.error_code == 0 for topic in answer.topics), answer
    return {topic.name: topic.topic_id for topic in answer.topics}


def run(script: Callable[[Peer], None], broker: tuple[str, dict[str, bytes]]) -> list[Any]:
    address, ids = broker
    peer = Peer(address, script.__name__, ids[script.__name__])
    try:
        script(peer)
        return [*peer.seen, *peer.rows()]
    finally:
        peer.close()


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.__name__)
def test_the_answers_are_those_of_apache_kafka(script, kafka, kbroker):
    expected, found = run(script, kafka), run(script, kbroker)
    if script.__name__ in DIFFERENCES:
        assert found != expected, 'this difference is gone'
    else:
        assert found == expected
