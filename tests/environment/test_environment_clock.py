"""The wall clock of a running broker jumps by hours, while its monotonic clock runs steadily."""
from contextlib import closing

import pytest
from support.brokers.confined_broker import BrokerClock, ConfinedBroker, until
from support.brokers.secured_broker import SecuredSettings, unsecured_token
from support.clients.committed_records import committed_records

from kbroker.client import Admin, Consumer, KafkaError, Producer, ProducerFencedError
from kbroker.client.admin import EARLIEST, NewTopic

APPEND_TIME = {'message.timestamp.type': 'LogAppendTime'}


@pytest.fixture(scope='module')
def plan(tmp_path_factory):
    return SecuredSettings(tmp_path_factory.mktemp('plan'), ('PLAINTEXT', 'SASL_PLAINTEXT'))


@pytest.fixture(scope='module')
def started(plan, tmp_path_factory):
    """Start a broker whose wall clock the tests can set. Return both."""
    directory = tmp_path_factory.mktemp('clock')
    clock = BrokerClock(directory / 'clock')
    with ConfinedBroker(directory / 'data', plan.settings | {
        'log.retention.check.interval.ms': '200', 'offsets.topic.num.partitions': '1',
        'transaction.state.log.num.partitions': '1'}, clock.starter) as broker:
        yield broker, clock


@pytest.fixture
def broker(started):
    return started[0]


@pytest.fixture
def clock(started):
    """Set the broker's clock to the time of the machine, and return it."""
    started[1].set(0)
    return started[1]


@pytest.fixture
def address(plan, broker):
    return plan.addresses['PLAINTEXT']


@pytest.fixture
def admin(address):
    with Admin(address) as admin:
        yield admin


def create(admin, name, partitions=1, **configs):
    assert admin.create_topics([NewTopic(name, partitions, 1, configs={
        key.replace('_', '.'): value for key, value in configs.items()})])[name] is None


def open_transaction(address, name, topic):
    producer = Producer(address, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b'open')
    producer.flush()
    return producer


def write(producer, topic, value):
    with producer.transaction():
        producer.send(topic, value)


def values_in(admin, topic):
    return [record.value for _, record in committed_records(admin, topic)]


def state_of(admin, name):
    return admin.describe_transactions([name])[name].state


def member(address, group, topics):
    consumer = Consumer(address, group_id=group, group_protocol='consumer', auto_offset_reset='earliest')
    consumer.subscribe(topics)
    return consumer


def test_a_jump_forward_ends_transactions_and_records_that_are_now_too_old_and_no_membership(address, admin, clock):
    create(admin, 'forward')
    create(admin, 'kept-for-an-hour', retention_ms='3600000')
    with closing(open_transaction(address, 'late', 'forward')) as late, Producer(address) as plain, \
            member(address, 'members', ['forward']) as consumer:
        plain.send('kept-for-an-hour', b'old')
        plain.send('forward', b'before')
        plain.flush()
        until(lambda: sum(len(batch) for batch in consumer.poll(200)), 'the member gets the partition')
        [before] = admin.describe_consumer_groups(['members']).values()
        clock.set(2)
        until(lambda: state_of(admin, 'late') == 'CompleteAbort', 'the transaction has timed out')
        with pytest.raises(ProducerFencedError, match='or the transaction timed out'):
            late.commit_transaction()
        until(lambda: admin.list_offsets({('kept-for-an-hour', 0): EARLIEST})['kept-for-an-hour', 0].offset == 1,
              'retention removes the record')
        with Producer(address, transactional_id='late') as again:
            write(again, 'forward', b'after')
        until(lambda: sum(len(batch) for batch in consumer.poll(200)), 'the member reads on')
        [after] = admin.describe_consumer_groups(['members']).values()
        assert [each.member_id for each in after.members] == [each.member_id for each in before.members]
    assert values_in(admin, 'forward') == [b'before', b'after']


def test_a_jump_into_the_past_holds_up_neither_transactions_nor_groups(address, admin, clock, broker):
    create(admin, 'past', 2, **APPEND_TIME)
    create(admin, 'stamped')
    with closing(open_transaction(address, 'x', 'past')) as producer, member(address, 'old', ['past']) as first, \
            member(address, 'old', ['past']) as second:
        until(lambda: first.poll(100) is not None and len(first.assignment) == 2, 'the first member has all')
        clock.set(-3)
        producer.commit_transaction()
        write(producer, 'past', b'later')
        until(lambda: (first.poll(50), second.poll(50)) and len(second.assignment) == 1,
              'a new member gets its share, although the last assignment is in the future')
    with Producer(address) as ahead, pytest.raises(KafkaError, match='INVALID_TIMESTAMP'):
        ahead.send('stamped', b'x')
        ahead.flush()
    with closing(open_transaction(address, 'y', 'past')):
        broker.kill9()
        broker.start()
        assert state_of(admin, 'y') == 'Ongoing'
        clock.set(0)
        until(lambda: state_of(admin, 'y') == 'CompleteAbort', 'the transaction has timed out')
    found = [record.value for _, record in committed_records(admin, 'past', 2)]
    assert sorted(found) == [b'later', b'open']


def test_a_token_is_valid_by_the_clock_of_the_broker(plan, broker, clock, tmp_path):
    file = tmp_path / 'token'
    file.write_text(unsecured_token('alice', lifetime_s=3600))
    settings = {'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'OAUTHBEARER',
                'sasl.oauthbearer.token.endpoint.url': file.as_uri()}

    def refusal():
        try:
            with Admin(plan.addresses['SASL_PLAINTEXT'], settings) as admin:
                admin.cluster.refresh(())
        except KafkaError as error:
            return str(error)
        return ''

    with Admin(plan.addresses['SASL_PLAINTEXT'], settings) as logged_in:
        logged_in.cluster.refresh(())
        for hours in (2, -3):
            clock.set(hours)
            assert 'invalid_token' in refusal()
            logged_in.cluster.refresh(())       # a session ends by the monotonic clock
        clock.set(0)
        assert refusal() == ''
