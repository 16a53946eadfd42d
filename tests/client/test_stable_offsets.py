"""A client that looks up committed offsets waits while an open transaction contains newer offsets."""
import threading

import pytest

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode
from kbroker.client import Consumer, KafkaError, Producer
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.config import ClientConfig
from kbroker.client.stable_offsets import StableOffsets
from kbroker.client.transaction_manager import GroupMetadata

UNSTABLE = KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, 'unstable')
FIRST, SECOND = [('t', 0)], [('t', 1)]


class Asked:
    """A lookup that raises `error` until `answer` is set, and counts its calls."""

    def __init__(self, error=UNSTABLE):
        self.error, self.answer, self.count = error, None, 0

    def __call__(self):
        self.count += 1
        if self.answer is None:
            raise self.error
        return self.answer


@pytest.fixture
def stable(clock):
    return StableOffsets(ClientConfig.from_settings({
        'bootstrap.servers': 'h:1', 'retry.backoff.ms': '100', 'retry.backoff.max.ms': '300',
        'default.api.timeout.ms': '1000'}), clock)


def test_the_pauses_between_the_questions_grow(stable, clock):
    asked, times = Asked(), []
    began_ms = clock.monotonic_ms()
    for _ in range(900):
        before = asked.count
        assert stable.find(FIRST, asked) is None
        if asked.count > before:
            times.append(clock.monotonic_ms() - began_ms)
        clock.advance(1)
    assert times == [0, 100, 300, 600]
    asked.answer = 'found'
    assert stable.find(FIRST, asked) == 'found'


def test_the_wait_ends_with_the_error_and_the_next_one_has_its_own_time(stable, clock):
    asked = Asked()
    for wanted in (FIRST, FIRST):
        with pytest.raises(KafkaError, match='unstable'):
            while stable.find(wanted, asked) is None:
                clock.advance(1)
    assert asked.count == 10


def test_other_partitions_are_asked_for_at_once_and_have_the_whole_time(stable, clock):
    asked = Asked()
    assert stable.find(FIRST, asked) is None
    clock.advance(5000)
    assert stable.find(SECOND, asked) is None
    assert asked.count == 2 and stable.due_ms == clock.monotonic_ms() + 100


def test_another_error_is_raised_at_once(stable):
    with pytest.raises(KafkaError, match='lost'):
        stable.find(FIRST, Asked(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, 'lost')))


@pytest.fixture
def topic(shared_broker, request):
    """Create a topic with two records, and return its name."""
    name = request.node.name
    with Admin(shared_broker.address) as admin:
        admin.create_topics([NewTopic(name, 1)])
    with Producer(shared_broker.address) as producer:
        for value in (b'first', b'second'):
            producer.send(name, value)
    return name


def test_a_poll_returns_while_the_offsets_wait_for_a_transaction(shared_broker, topic):
    address = shared_broker.address
    with (Producer(address, transactional_id=topic) as writer,
          Consumer(address, group_id=topic, topics=[topic], isolation_level='read_committed',
                   auto_offset_reset='earliest', enable_auto_commit=False, retry_backoff_ms=1) as consumer):
        with writer.transaction() as transaction:
            transaction.send_offsets({(topic, 0): 1}, topic)
            while not consumer.assignment:
                assert consumer.poll(1) == []
            for _ in range(3):
                assert consumer.poll(1) == []
            assert consumer.assignment == {(topic, 0)} and consumer.position(topic, 0) is None
        found = []
        while not found:
            found = [record.value for batch in consumer.poll(60_000) for record in batch.records()]
        assert found == [b'second']


def test_a_wait_that_a_seek_has_ended_takes_no_time_of_the_next_one(shared_broker, topic):
    clock = ManualClock()
    with (Producer(shared_broker.address, transactional_id=topic) as writer,
          Consumer(shared_broker.address, group_id=topic, isolation_level='read_committed', enable_auto_commit=False,
                   clock=clock) as consumer,
          writer.transaction() as transaction):
        transaction.send_offsets({(topic, 0): 1}, topic)
        for _ in range(3):
            consumer.assign([(topic, 0)])
            assert consumer.poll(0) == [] and consumer.position(topic, 0) is None
            consumer.seek(topic, 0, 2)
            assert consumer.poll(0) == []
            clock.advance(consumer._cluster.config.default_api_timeout_ms)
            consumer.assign([])


def test_heartbeats_may_be_sent_between_two_questions(shared_broker, topic):
    visits = []

    def visit():
        with consumer._session.heartbeats.lock:
            visits.append('heartbeat')

    def sleep(_seconds):
        """Acquire the lock in a separate thread, as the heartbeat thread does. In the first pause, commit the writer's
        transaction."""
        thread = threading.Thread(target=visit, daemon=True)
        thread.start()
        thread.join(60)
        if len(visits) == 1:
            writer.commit_transaction()

    with (Producer(shared_broker.address, transactional_id=topic) as writer,
          Consumer(shared_broker.address, group_id=topic, isolation_level='read_committed', sleep=sleep) as consumer):
        writer.begin_transaction()
        writer.send_offsets_to_transaction({(topic, 0): 1}, GroupMetadata(topic))
        assert consumer.committed([(topic, 0)])[topic, 0].offset == 1
    assert visits
