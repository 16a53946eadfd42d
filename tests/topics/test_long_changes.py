"""The broker serves other clients during changes of thousands of partitions, and no part of a change holds the loop."""
import pathlib

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import build
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.log.producer_state import MOST_VERIFICATIONS
from kbroker.record.batch import encode_batch

MANY = 2_000
FEW = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1'}


class Client:
    """A client of a broker. The test runs the broker's long work part by part."""

    def __init__(self, broker):
        self.broker = broker

    def ask(self, api, version=None, **fields):
        """Send a request, and run long work until the broker responds. Serve a request of another client before each
        part. Return the response and the number of these other requests."""
        request = build(f'{api}Request', **fields)
        version = request.versions[1] if version is None else version
        connection = self.broker.begin(request, version)
        others = 0
        while not connection.replies:
            self.serve_other()
            others += 1
            self.broker.long_work.step()
            self.broker.end_tick()
        return self.broker.answer_to(connection, request, version), others

    def serve_other(self):
        request = build('ApiVersionsRequest', client_software_name='other', client_software_version='1')
        assert self.broker.begin(request, 4).replies

    def create(self, *names, partitions=1):
        answer, others = self.ask('CreateTopics', topics=[
            {'name': name, 'num_partitions': partitions, 'replication_factor': 1} for name in names])
        return {topic.error_code for topic in answer.topics}, others


@pytest.fixture
def broker(tmp_path):
    broker = InProcessBroker(tmp_path, FEW)
    broker.long_work = StepwiseWork(broker.timers)
    with broker:
        yield broker
        broker.long_work.assert_parts_were_short()


@pytest.fixture
def client(broker):
    return Client(broker)


def directories(broker, topic):
    return {path.name for path in pathlib.Path(broker.directory).glob(f'{topic}-*')}


def test_a_topic_of_many_partitions_is_created_between_the_turns_of_others(client, broker):
    """A CreateTopics request for 9,990 partitions once held the loop for half a second."""
    codes, others = client.create('orders', partitions=MANY)
    assert (codes, len(broker.topics.topic('orders').partitions)) == ({0}, MANY)
    assert others > MANY // 2


def test_a_metadata_request_that_creates_topics_lets_others_be_served(client):
    """A Metadata request that created 500 topics once held the loop for 4.4 s, because it wrote each topic to the disk
    separately."""
    answer, others = client.ask('Metadata', topics=[{'name': f'topic_{number}'} for number in range(500)],
                                allow_auto_topic_creation=True)
    assert {topic.error_code for topic in answer.topics} == {0} and len(answer.topics) == 500
    assert others > 500


def test_topics_are_deleted_between_the_turns_of_others(client, broker):
    """A DeleteTopics request for 9,000 partitions once held the loop for 1.7 s."""
    client.create('orders', partitions=MANY)
    broker.long_work.finish()
    answer, others = client.ask('DeleteTopics', topics=[{'name': 'orders'}])
    assert [result.error_code for result in answer.responses] == [0]
    assert others > MANY
    assert all(name.endswith('-delete') for name in directories(broker, 'orders'))


def test_thousands_of_topics_are_hidden_and_freed_in_parts(client, broker):
    """A DeleteTopics request for 9,000 topics once held the loop for 20 ms to remove them from the registry, and for
    another turn to free them."""
    names = [f'topic_{number}' for number in range(2 * MANY)]
    assert client.create(*names)[0] == {0}
    topics = broker.topics.topics()
    steps, found = broker.topics.delete_many(topics), set()
    for _ in steps:
        found.add(len(broker.topics.topics()))
    assert len(found) > len(names) // 100 and 0 in found
    assert broker.topics._leaving == set()


def test_a_topic_is_found_once_all_its_partitions_are_open_and_not_after_its_deletion(client, broker):
    request = build('CreateTopicsRequest', topics=[{'name': 'orders', 'num_partitions': 50, 'replication_factor': 1}])
    creation = broker.begin(request, 7)
    while 'orders' not in broker.metadata.image.topics:
        broker.long_work.step()
    assert broker.topics.topic('orders') is None and not creation.replies     # durable, but not all of it is open
    while not creation.replies:
        broker.long_work.step()
    assert len(broker.topics.topic('orders').partitions) == 50
    broker.long_work.finish()
    deletion = broker.begin(build('DeleteTopicsRequest', topics=[{'name': 'orders'}]), 6)
    while broker.topics.topic('orders') is not None:
        broker.long_work.step()
    assert 'orders' not in broker.metadata.image.topics and not deletion.replies
    assert 'orders-0' in directories(broker, 'orders')      # its directories are still to be renamed
    recreation = broker.begin(request, 7)       # waits for its turn
    broker.long_work.finish()
    assert broker.answer_to(recreation, request, 7).topics[0].error_code == 0
    assert {f'orders-{number}' for number in range(50)} <= directories(broker, 'orders')


def test_two_creations_of_one_name_do_not_meet(client, broker):
    request = build('CreateTopicsRequest', topics=[{'name': 'orders', 'num_partitions': 50, 'replication_factor': 1}])
    connections = [broker.begin(request, 7) for _ in range(2)]
    broker.long_work.finish()
    codes = [broker.answer_to(connection, request, 7).topics[0].error_code for connection in connections]
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]


def test_producer_ids_and_internal_topics_are_made_while_a_large_topic_is_being_prepared(client, broker):
    request = build('CreateTopicsRequest', topics=[{'name': 'orders', 'num_partitions': 500, 'replication_factor': 1}])
    creation = broker.begin(request, 7)
    broker.long_work.step()
    first = broker.metadata.at_once(broker.metadata.allocate_producer_id_block())
    broker.topics.ensure_internal('__consumer_offsets')
    broker.long_work.finish()
    assert broker.answer_to(creation, request, 7).topics[0].error_code == 0
    image = broker.metadata.image
    assert set(image.topics) == {'orders', '__consumer_offsets'} and image.next_producer_id == first.stop
    broker.crash()
    with InProcessBroker(broker.directory, FEW) as again:       # the log says the same
        assert set(again.metadata.image.topics) == {'orders', '__consumer_offsets'}
        assert len(again.topics.topic('orders').partitions) == 500
        assert again.metadata.image.next_producer_id == first.stop


@pytest.mark.parametrize('steps', [1, 40, 120, 400])
def test_a_crash_within_a_creation_or_a_deletion_leaves_a_topic_or_none(tmp_path, steps):
    """If the broker is killed after any part of the change, the metadata log has either the whole topic or nothing of
    it. The next start completes the change."""
    for request in (build('CreateTopicsRequest', topics=[{'name': 'orders', 'num_partitions': 100,
                                                          'replication_factor': 1}]),
                    build('DeleteTopicsRequest', topics=[{'name': 'orders'}])):
        broker = InProcessBroker(tmp_path, FEW)
        broker.long_work = StepwiseWork(broker.timers)
        with broker:
            connection = broker.begin(request, request.versions[1])
            for _ in range(steps):
                if len(broker.long_work):
                    broker.long_work.step()
            is_there, is_answered = 'orders' in broker.metadata.image.topics, bool(connection.replies)
            broker.crash()
        with InProcessBroker(tmp_path, FEW) as broker:
            topic = broker.topics.topic('orders')
            assert (topic is not None) == is_there
            assert topic is None or len(topic.partitions) == 100
            if is_answered:
                assert is_there == (type(request).__name__ == 'CreateTopicsRequest')
            if topic is None and 'Create' in type(request).__name__:
                broker.topics.create('orders', 100, {})


def test_a_topic_made_again_has_nothing_of_the_checkpoints_of_the_old_one(tmp_path):
    """The start after a crash must not apply the recovery point of a deleted topic to a new topic with the same
    name."""
    with InProcessBroker(tmp_path, FEW) as broker:
        broker.topics.create('orders', 40, {'segment.bytes': '1048576'})
        log = broker.logs.logs['orders', 7]
        broker.topics.get('orders', 7).append_batch(encode_batch([(0, b'k', b'v')]), Origin.CLIENT)
        broker.turn()
        log.roll()
        broker.topics.get('orders', 7).append_batch(encode_batch([(0, b'k', b'v')]), Origin.CLIENT)
        broker.turn()
        assert broker.logs.recovery_points.write()
        checkpoint = tmp_path / 'recovery-point-offset-checkpoint'
        assert 'orders 7 1\n' in checkpoint.read_text()
        request = build('DeleteTopicsRequest', topics=[{'name': 'orders'}])
        assert broker.ask(request).responses[0].error_code == 0
        request = build('CreateTopicsRequest', topics=[{'name': 'orders', 'num_partitions': 40,
                                                        'replication_factor': 1}])
        assert broker.ask(request).topics[0].error_code == 0
        assert 'orders 7 1\n' not in checkpoint.read_text()
        broker.crash()


def test_changed_configs_reach_ten_thousand_logs_in_parts(client, broker):
    client.create('orders', partitions=MANY)
    resource = {'resource_type': 4, 'resource_name': '', 'configs': [
        {'name': 'log.retention.ms', 'config_operation': 0, 'value': '12345'}]}
    answer, others = client.ask('IncrementalAlterConfigs', resources=[resource])
    assert answer.responses[0].error_code == 0
    assert others > MANY // 100
    assert {log.config.retention_ms for log in broker.logs.logs.values()} == {12345}


def test_no_more_partitions_are_taken_than_the_bound(client, broker):
    broker.topics.most_partitions = len(broker.logs.logs) + 10
    assert client.create('orders', partitions=11)[0] == {ErrorCode.POLICY_VIOLATION}
    assert client.create('orders', partitions=8)[0] == {0}
    answer, _ = client.ask('CreatePartitions', topics=[{'name': 'orders', 'count': 11, 'assignments': None}])
    assert answer.results[0].error_code == ErrorCode.POLICY_VIOLATION
    answer, _ = client.ask('CreatePartitions', topics=[{'name': 'orders', 'count': 10, 'assignments': None}])
    assert answer.results[0].error_code == 0


def produced(number):
    return encode_batch([(0, b'k', b'v')], producer_id=number, producer_epoch=0, base_sequence=0)


def test_producers_without_end_are_refused_at_the_bound(client, broker):
    """When a log has the maximum number of producers, it refuses new producers. It keeps the state of its known
    producers, and still recognises their duplicates."""
    client.create('orders', partitions=2)
    first, second = broker.topics.topic('orders').partitions
    state = broker.logs.logs['orders', 0].producer_state
    state.most_producers = 3
    broker.logs.producer_room.most = 4
    for number in range(3):
        first.append_batch(produced(number), Origin.CLIENT)
    with pytest.raises(KafkaError, match='found 3 producers in this partition and 3 in all') as refused:
        first.append_batch(produced(3), Origin.CLIENT)
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert first.append_batch(produced(1), Origin.CLIENT).is_duplicate
    second.append_batch(produced(7), Origin.CLIENT)
    with pytest.raises(KafkaError, match='and 4 in all'):
        second.append_batch(produced(8), Origin.CLIENT)
    answer, _ = client.ask('WriteTxnMarkers', 1, markers=[
        {'producer_id': 9, 'producer_epoch': 0, 'coordinator_epoch': 0, 'transaction_result': True,
         'topics': [{'name': 'orders', 'partition_indexes': [1]}]}])
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION
    client.ask('DeleteTopics', topics=[{'name': 'orders'}])
    assert broker.logs.producer_room.held == 0


def test_many_producers_expire_in_parts(client, broker):
    client.create('orders')
    partition, = broker.topics.topic('orders').partitions
    for number in range(2_000):
        partition.append_batch(produced(number), Origin.CLIENT)
    broker.turn()
    broker.clock.advance(2 * 86_400_000)
    broker.logs.remove_expired_producers()
    parts = 0
    while broker.logs.producer_room.held:
        broker.long_work.step()
        parts += 1
    assert parts >= 3


def test_verifications_that_no_append_follows_make_room_for_later_ones(client, broker):
    client.create('orders')
    partition, = broker.topics.topic('orders').partitions
    guards = [partition.start_verification(number, 0, 0, True, 0) for number in range(MOST_VERIFICATIONS + 1)]
    verifications = broker.logs.logs['orders', 0].producer_state.verifications
    assert len(verifications) == MOST_VERIFICATIONS
    assert 0 not in verifications and verifications[MOST_VERIFICATIONS] is guards[-1]


@pytest.mark.parametrize('api', ['CreateTopics', 'DeleteTopics', 'CreatePartitions'])
def test_a_request_for_more_than_a_batch_holds_is_refused_as_in_kafka(client, api):
    names = [f't{number}' for number in range(10_001)]
    elements = {'CreateTopics': [{'name': name, 'num_partitions': 1, 'replication_factor': 1} for name in names],
                'DeleteTopics': [{'name': name} for name in names],
                'CreatePartitions': [{'name': name, 'count': 2} for name in names]}[api]
    answer, _ = client.ask(api, topics=elements)
    results = answer.topics if api == 'CreateTopics' else answer.responses if api == 'DeleteTopics' else answer.results
    expected = ErrorCode.POLICY_VIOLATION if api == 'CreateTopics' else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {result.error_code for result in results} == {expected} and len(results) == 10_001
