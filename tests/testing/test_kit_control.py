"""Holds, faults, steps and the clock of a broker, as a test uses them."""
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from kbroker.client import Consumer, KafkaError, Producer
from kbroker.testing import Broker, BrokerError, NotReachedError


@pytest.fixture(scope='module')
def shared():
    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka(shared):
    shared.start()
    shared.reset()
    return shared


@pytest.fixture
def in_thread():
    """Run a function in a thread, and return its future. The threads end with the test."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def pay(kafka, value):
    """Commit a transaction with one record. The client repeats its requests while the broker is away."""
    with Producer(kafka.bootstrap_servers, transactional_id='app') as producer, producer.transaction():
        producer.send('payments', value)


def test_a_payment_survives_a_crash_between_the_decision_and_its_markers(in_thread):
    with Broker() as kafka:
        kafka.create_topic('payments', partitions=3)
        with kafka.hold('transaction.prepared', transactional_id='app') as held:
            paying = in_thread(lambda: pay(kafka, b'10'))
            held.wait()
            (step,) = held.steps
            assert (step.point, step.transactional_id) == ('transaction.prepared', 'app')
            assert [each.transactional_id for each in kafka.transactions()] == ['app']
            assert kafka.values('payments') == []
            kafka.kill()
        kafka.start()
        paying.result()
        assert kafka.wait_for(lambda: kafka.values('payments')) == [b'10']
        kafka.clock.advance(minutes=15)
        assert kafka.transactions() == []


def test_a_commit_is_visible_once_it_is_acknowledged_although_its_markers_come_later(kafka):
    kafka.create_topic('payments')
    with kafka.delay('transaction.marker', 200):
        pay(kafka, b'10')
        assert kafka.values('payments') == [b'10']
        assert kafka.last_stable_offset('payments') == 2


def test_the_kit_asks_its_questions_while_all_requests_are_held(kafka):
    with kafka.hold('request'):
        kafka.create_topic('payments')
        assert kafka.values('payments') == []
        assert kafka.steps() == []


def test_leaving_the_block_of_a_hold_lets_all_go_on(kafka, in_thread):
    kafka.create_topic('payments')
    with kafka.hold('append.written', topic='payments') as held:
        sending = in_thread(lambda: kafka.send('payments', b'1'))
        held.wait()
        assert kafka.values('payments', 'read_uncommitted') == []
    sending.result()
    assert kafka.values('payments') == [b'1']
    assert held.matched == 1


def test_a_hold_that_is_released_holds_what_comes_later(kafka, in_thread):
    kafka.create_topic('payments')
    with kafka.hold('append.written', topic='payments') as held:
        for number in (1, 2):
            sending = in_thread(lambda number=number: kafka.send('payments', b'%d' % number))
            held.wait(matched=number)
            held.release()
            sending.result()
    assert kafka.values('payments') == [b'1', b'2']


def test_a_wait_that_fails_says_what_was_there(kafka):
    kafka.create_topic('payments')
    kafka.send('payments', b'1')
    with kafka.hold('append.written', topic='orders') as held, pytest.raises(NotReachedError) as raised:
        held.wait(timeout_s=0.01)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("hold('append.written', topic='orders') matched 0 steps within 0.01 s, expected 1")
    assert any('append.durable topic=payments partition=0' in line for line in lines)


def test_a_request_fails_with_the_error_of_a_fault_and_its_client_repeats_it(kafka):
    kafka.create_topic('payments')
    fault = kafka.fail('request', 'NOT_LEADER_OR_FOLLOWER', api='Produce', topic='payments', times=1)
    with Producer(kafka.bootstrap_servers, client_id='app') as producer:
        producer.send('payments', b'1')
        producer.flush()
    fault.wait()
    assert kafka.values('payments') == [b'1']
    assert [step.api for step in kafka.steps() if step.point == 'request'].count('Produce') == 2


def test_an_acknowledgement_that_is_lost_after_the_effect_writes_no_second_record(kafka):
    kafka.create_topic('payments')
    lost = kafka.drop('reply', api='Produce', occurrence=1)
    with Producer(kafka.bootstrap_servers, client_id='app') as producer:
        producer.send('payments', b'1')
        producer.flush()
    assert lost.matched == 1
    assert kafka.values('payments') == [b'1']


def test_a_broker_is_killed_at_a_step(in_thread):
    with Broker() as kafka:
        kafka.create_topic('payments')
        kafka.kill_at('append.durable', topic='payments')
        paying = in_thread(lambda: pay(kafka, b'10'))
        kafka.wait_until_dead()
        kafka.start()
        paying.result()
        assert kafka.wait_for(lambda: kafka.values('payments')) == [b'10']
        kafka.check()


def test_a_fault_that_never_fired_is_reported_with_its_description(kafka):
    kafka.delay('request', 50, api='Fetch', topic='payments')
    assert kafka.unmatched() == ["delay('request', delay_ms=50, api='Fetch', topic='payments')"]
    with pytest.raises(NotReachedError, match=r"delay\('request'"):
        kafka.check()


def test_a_wrong_name_of_a_point_is_one_sentence_with_the_nearest_name(kafka):
    with pytest.raises(BrokerError, match=r'transaction\.prepared'):
        kafka.hold('transaction.prepare')
    assert kafka.unmatched() == []


def test_time_passes_at_once_and_a_transaction_times_out(kafka):
    kafka.create_topic('payments')
    with Producer(kafka.bootstrap_servers, transactional_id='app', transaction_timeout_ms=60_000) as producer:
        producer.begin_transaction()
        producer.send('payments', b'10')
        producer.flush()
        before = kafka.clock.now()
        kafka.clock.advance(minutes=15)
        assert kafka.clock.now() - before >= timedelta(minutes=15)
        assert kafka.transactions() == []
        assert kafka.records('payments', 'read_uncommitted')[0].outcome == 'aborted'
        with pytest.raises(Exception):      # noqa: B017 - each client has its own error for a fenced producer
            producer.commit_transaction()


def test_a_stopped_clock_moves_only_by_the_test(kafka):
    kafka.clock.stop()
    assert kafka.clock.is_stopped
    later = kafka.clock.now() + timedelta(hours=1)
    kafka.clock.set(later)
    assert kafka.clock.now() == later
    with pytest.raises(BrokerError, match='backwards'):
        kafka.clock.set(later - timedelta(minutes=1))
    kafka.clock.run()
    assert not kafka.clock.is_stopped


def test_the_clock_goes_on_after_a_restart():
    with Broker() as kafka:
        kafka.clock.stop()
        kafka.clock.advance(days=2)
        before = kafka.clock.now()
        kafka.kill()
        kafka.start()
        assert kafka.clock.now() == before


def test_wait_for_looks_again_at_each_step(kafka, in_thread):
    kafka.create_topic('payments')
    in_thread(lambda: kafka.send('payments', b'1'))
    assert kafka.wait_for(lambda: kafka.values('payments')) == [b'1']


def test_wait_for_reports_the_last_result(kafka):
    def fails():
        assert kafka.topics() == ['payments']

    with pytest.raises(NotReachedError, match=r"AssertionError.*payments"):
        kafka.wait_for(fails, timeout_s=0.01)


def test_a_broker_without_a_control_port_says_how_to_get_one():
    with Broker(control=False) as kafka, pytest.raises(BrokerError, match='control=True'):
        kafka.hold('request')


def test_steps_of_a_killed_broker_can_still_be_read():
    with Broker() as kafka:
        kafka.create_topic('payments')
        kafka.send('payments', b'1')
        kafka.kill()
        assert 'append.durable' in [step.point for step in kafka.steps()]
        kafka.start()
        assert 'append.durable' not in [step.point for step in kafka.steps() if step.topic == 'payments']


def test_threads_and_forks_use_the_control_port_at_the_same_time(kafka):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: kafka.clock.is_stopped, range(50)))) == 1
    pid = os.fork()
    if not pid:
        try:
            assert kafka.steps() == []
            os._exit(0)
        finally:
            os._exit(1)
    assert kafka.steps() == []
    assert os.waitpid(pid, 0)[1] == 0


def test_a_paused_broker_answers_after_it_is_resumed(kafka, in_thread):
    kafka.create_topic('payments')
    kafka.pause()
    sending = in_thread(lambda: kafka.send('payments', b'1'))
    kafka.resume()
    sending.result()
    assert kafka.values('payments') == [b'1']


def test_a_reset_broker_is_empty(kafka):
    for number in range(20):
        kafka.create_topic(f'topic-{number}')
    pay_topic = 'topic-1'
    with Producer(kafka.bootstrap_servers, transactional_id='app') as producer, producer.transaction():
        for number in range(20):
            producer.send(f'topic-{number}', b'1')
    with Consumer(kafka.bootstrap_servers, group_id='app', topics=[pay_topic],
                  auto_offset_reset='earliest') as consumer:
        assert consumer.poll(30_000)
        consumer.commit()
    kafka.hold('request', client_id='other')
    assert kafka.groups()
    kafka.reset()
    assert (kafka.topics(), kafka.groups(), kafka.transactions(), kafka.unmatched()) == ([], [], [], [])
    assert kafka.steps() == []
    kafka.create_topic(pay_topic)
    assert kafka.values(pay_topic) == []


def test_a_transaction_and_a_group_that_are_open_do_not_outlive_a_reset(kafka):
    kafka.create_topic('payments')
    producer = Producer(kafka.bootstrap_servers, transactional_id='app')
    consumer = Consumer(kafka.bootstrap_servers, group_id='app', topics=['payments'])
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send('payments', b'1')
        producer.flush()
        kafka.wait_for(lambda: consumer.poll(1) or kafka.groups())      # a poll takes one step of a join
        kafka.reset()
        assert (kafka.topics(), kafka.groups(), kafka.transactions()) == ([], [], [])
        kafka.create_topic('payments')
        kafka.send('payments', b'2')
        assert kafka.values('payments') == [b'2']
    finally:
        with suppress(KafkaError, RuntimeError):    # the broker no longer knows the producer
            producer.close()
        consumer.close(commits=False)


def test_a_snapshot_opens_as_a_new_broker_with_the_same_history(kafka):
    kafka.create_topic('payments')
    kafka.send('payments', b'1')
    seeded = kafka.snapshot()
    kafka.send('payments', b'2')
    with seeded.open() as first, seeded.open() as second:
        first.send('payments', b'3')
        assert first.values('payments') == [b'1', b'3']
        assert second.values('payments') == [b'1']
        assert len({kafka.bootstrap_servers, first.bootstrap_servers, second.bootstrap_servers}) == 3
    assert kafka.values('payments') == [b'1', b'2']


def test_a_snapshot_in_the_middle_of_a_transaction_can_end_in_either_way(kafka):
    kafka.create_topic('payments')
    with Producer(kafka.bootstrap_servers, transactional_id='app') as producer:
        producer.begin_transaction()
        producer.send('payments', b'1')
        producer.flush()
        seeded = kafka.snapshot()
        producer.commit_transaction()
    with seeded.open() as copy:
        assert [each.state for each in copy.transactions()] == ['Ongoing']
        copy.clock.advance(minutes=15)
        assert copy.values('payments') == []
        assert copy.records('payments', 'read_uncommitted')[0].outcome == 'aborted'


def test_a_broker_that_holds_something_refuses_a_snapshot_and_names_the_hold(kafka, in_thread):
    kafka.create_topic('payments')
    with kafka.hold('append.durable', topic='payments') as held:
        in_thread(lambda: kafka.send('payments', b'1'))
        held.wait()
        with pytest.raises(BrokerError, match=r'hold at append\.durable'):
            kafka.snapshot()
    kafka.snapshot()


def test_a_paused_broker_can_be_killed_and_started_again():
    with Broker() as kafka:
        kafka.create_topic('payments')
        kafka.pause()
        kafka.kill()
        kafka.start()
        assert kafka.topics() == ['payments']


@pytest.mark.parametrize('point', ['write', 'sync'])
def test_a_disk_that_fails_takes_the_log_directory_offline_until_the_next_start(point):
    with Broker() as kafka:
        kafka.create_topic('payments')
        kafka.send('payments', b'1')
        fault = kafka.fail(point, topic='payments')
        with (Producer(kafka.bootstrap_servers, request_timeout_ms=1000, delivery_timeout_ms=1000) as producer,
              pytest.raises((KafkaError, OSError))):
            producer.send('payments', b'2')
            producer.flush()
        fault.wait()
        kafka.kill()
        kafka.start()
        assert kafka.values('payments')[0] == b'1'
        assert kafka.unmatched() == []
