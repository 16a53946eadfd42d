"""The clock of a broker of the kit, together with kills, holds, copies, a clean stop, and members of groups."""
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import confluent_kafka
import pytest

from kbroker.client import Consumer, Producer
from kbroker.testing import Broker, BrokerError

TOPIC = 'payments'
MINUTE = timedelta(minutes=1)


@pytest.fixture
def kafka():
    with Broker() as kafka:
        kafka.create_topic(TOPIC)
        yield kafka


def open_transaction(kafka):
    """Return a producer whose transaction has a record, and times out after a minute."""
    producer = Producer(kafka.bootstrap_servers, transactional_id='t', transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(TOPIC, b'value')
    producer.flush()
    return producer


def test_a_broker_that_is_killed_during_an_advance_continues_from_the_deadline_that_it_had_reached(kafka):
    open_transaction(kafka)
    began = kafka.clock.now()
    with kafka.kill_at('transaction.marker'):       # the first step that follows from the time-out
        with pytest.raises(BrokerError):
            kafka.clock.advance(minutes=15)
        kafka.wait_until_dead()
    kafka.start()
    assert began + MINUTE <= kafka.clock.now() < began + 2 * MINUTE
    kafka.wait_for(lambda: not kafka.transactions())
    assert (kafka.values(TOPIC), kafka.last_stable_offset(TOPIC)) == ([], 2)


def test_a_transaction_that_is_decided_and_held_does_not_time_out(kafka):
    def pay():
        with Producer(kafka.bootstrap_servers, transactional_id='t') as producer, producer.transaction():
            producer.send(TOPIC, b'value')

    with ThreadPoolExecutor() as threads, kafka.hold('transaction.prepared') as held:
        payment = threads.submit(pay)
        held.wait()
        kafka.clock.advance(days=1)
        (transaction,) = kafka.transactions()
        assert transaction.state == 'PrepareCommit'
        held.release()
        payment.result()
    kafka.wait_for(lambda: not kafka.transactions())
    assert kafka.values(TOPIC) == [b'value']


def test_a_broker_with_a_stopped_clock_stops_cleanly_and_starts_again(kafka):
    kafka.clock.stop()
    kafka.send(TOPIC, b'value')
    stopped_at = kafka.clock.now()
    kafka.stop()
    kafka.start()
    assert (kafka.clock.now(), kafka.clock.is_stopped) == (stopped_at, True)
    assert kafka.values(TOPIC) == [b'value']


def test_a_copy_has_the_clock_of_the_original(kafka):
    kafka.clock.stop()
    kafka.clock.advance(days=3)
    with kafka.snapshot().open() as copy:
        assert (copy.clock.now(), copy.clock.is_stopped) == (kafka.clock.now(), True)


def test_members_of_groups_that_were_fenced_by_an_advance_join_again(kafka):
    theirs = confluent_kafka.Consumer({'bootstrap.servers': kafka.bootstrap_servers, 'group.id': 'theirs',
                                       'heartbeat.interval.ms': 200, 'session.timeout.ms': 10_000})
    theirs.subscribe([TOPIC])

    def members():
        """Let both clients work, and return the members of their groups."""
        ours.poll(100)
        theirs.poll(0.1)
        return {group.group_id: [member.member_id for member in group.members] for group in kafka.groups()}

    with Consumer(kafka.bootstrap_servers, group_id='ours', enable_auto_commit=False) as ours:
        ours.subscribe([TOPIC])
        before = kafka.wait_for(lambda: len(found := members()) == 2 and all(found.values()) and found)
        kafka.clock.advance(minutes=5)
        after = kafka.wait_for(lambda: all(found := members().values()) and found)
        assert not set(map(tuple, before.values())) & set(map(tuple, after))
    theirs.close()
