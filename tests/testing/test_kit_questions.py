"""Questions about what a broker contains."""
import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Consumer, Producer
from kbroker.testing import Broker, BrokerError, FoundRecord, PartitionOffsets

AUTHORIZER = 'org.apache.kafka.metadata.authorizer.StandardAuthorizer'


@pytest.fixture(scope='module')
def kafka():
    with Broker(control=False) as broker:
        yield broker


def test_records_of_open_and_aborted_transactions_are_told_apart(kafka):
    kafka.create_topic('outcomes', partitions=2)
    with Producer(kafka.bootstrap_servers, transactional_id='outcomes') as producer:
        with producer.transaction():
            producer.send('outcomes', b'committed', partition=0)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send('outcomes', b'aborted', partition=0)
            producer.flush()
            raise ZeroDivisionError
        producer.begin_transaction()
        producer.send('outcomes', b'open', partition=0)
        producer.flush()
        kafka.send('outcomes', b'after', partition=0)
        kafka.send('outcomes', b'other', partition=1)
        found = {record.value: record.outcome for record in kafka.records('outcomes', 'read_uncommitted')}
        assert found == {b'committed': 'visible', b'aborted': 'aborted', b'open': 'undecided', b'after': 'undecided',
                         b'other': 'visible'}
        assert kafka.values('outcomes') == [b'committed', b'other']
        assert kafka.offsets('outcomes') == {0: PartitionOffsets(0, 6, 4), 1: PartitionOffsets(0, 1, 1)}
        assert kafka.last_stable_offset('outcomes') == 4
        assert [(each.transactional_id, each.state) for each in kafka.transactions()] == [('outcomes', 'Ongoing')]
        producer.abort_transaction()


def test_a_record_has_all_of_its_parts(kafka):
    kafka.create_topic('parts')
    kafka.send('parts', None, key=b'k', headers=[('a', b'1'), ('a', None)])
    (record,) = kafka.records('parts')
    assert record == FoundRecord('parts', 0, 0, record.timestamp_ms, b'k', None, (('a', b'1'), ('a', None)))


@pytest.mark.parametrize('protocol', ['classic', 'consumer'])
def test_a_group_is_described_with_its_members_and_offsets(kafka, protocol):
    kafka.create_topic(protocol)
    kafka.send(protocol, b'1')
    with Consumer(kafka.bootstrap_servers, group_id=protocol, group_protocol=protocol, topics=[protocol],
                  auto_offset_reset='earliest') as consumer:
        assert consumer.poll(60_000)
        consumer.commit()
        (group,) = [each for each in kafka.groups() if each.group_id == protocol]
        assert (group.group_type, len(group.members)) == (protocol, 1)
        assert kafka.committed(protocol) == {(protocol, 0): 1}


def test_a_topic_that_does_not_exist_is_an_error_of_kafka(kafka):
    with pytest.raises(KafkaError) as raised:
        kafka.values('nothing')
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_kit_has_a_listener_of_its_own_on_a_secured_broker():
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_app="secret";'
    with Broker(control=False, listeners={'APP': 'SASL_PLAINTEXT'}, settings={
            'authorizer.class.name': AUTHORIZER, 'super.users': 'User:admin',
            'listener.name.app.sasl.enabled.mechanisms': 'PLAIN',
            'listener.name.app.plain.sasl.jaas.config': login}) as kafka:
        kafka.create_topic('payments')
        kafka.send('payments', b'10')
        assert kafka.values('payments') == [b'10']
        with (Producer(kafka.bootstrap_servers, security_protocol='SASL_PLAINTEXT', sasl_mechanism='PLAIN',
                       sasl_username='app', sasl_password='secret') as producer,
              pytest.raises(KafkaError, match='TOPIC_AUTHORIZATION_FAILED')):
            producer.send('payments', b'20')
            producer.flush()


def test_a_directory_that_was_kept_and_a_copy_of_it_can_be_opened(tmp_path):
    with Broker(control=False) as kafka:
        kafka.create_topic('payments')
        kafka.send('payments', b'10')
        kafka.close(keep_as=tmp_path / 'kept')
    with Broker(control=False, copy_of=tmp_path / 'kept') as copy:
        copy.send('payments', b'20')
        assert copy.values('payments') == [b'10', b'20']
    with Broker(control=False, data_dir=tmp_path / 'kept') as again:
        assert again.values('payments') == [b'10']


def test_a_directory_and_a_copy_of_another_are_one_clear_error(tmp_path):
    with pytest.raises(BrokerError, match='expected one of them'):
        Broker(data_dir=tmp_path, copy_of=tmp_path)


def test_a_copy_needs_the_directory_of_a_broker_that_does_not_run(kafka, tmp_path):
    with pytest.raises(BrokerError, match=r'found no meta\.properties in .*, expected a log directory'):
        Broker(copy_of=tmp_path)
    with pytest.raises(BrokerError, match=r'found a running broker on this directory, .*snapshot\(\)') as raised:
        Broker(copy_of=kafka.data_dir)
    assert 'Traceback' not in str(raised.value)


def test_a_directory_that_the_test_gave_is_not_moved(tmp_path):
    with Broker(control=False, data_dir=tmp_path / 'data') as broker:
        with pytest.raises(BrokerError, match='which stays'):
            broker.close(keep_as=tmp_path / 'elsewhere')
        assert broker.is_running
