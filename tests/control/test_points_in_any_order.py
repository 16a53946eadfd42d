"""Whatever a test holds, releases, disconnects and deletes, in any order: in the end each operation has ended."""
import tempfile

from apis.api_client import TransactionalClient
from controlled_broker import SECOND_MS, ControlledBroker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.base.errors import ErrorCode
from kbroker.control.points import POINTS

HOLDING = sorted(name for name, point in POINTS.items() if 'hold' in point.actions)
TOPICS = ('orders', 'bills')
STEPS = st.lists(st.one_of(
    st.tuples(st.just('hold'), st.sampled_from(HOLDING), st.sampled_from(['hold', 'delay']), st.integers(0, 3)),
    st.tuples(st.sampled_from(['release', 'remove']), st.integers(0, 9)),
    st.tuples(st.just('produce'), st.sampled_from(TOPICS), st.integers(0, 2)),
    st.tuples(st.just('commit'), st.integers(0, 2), st.sampled_from(TOPICS)),
    st.tuples(st.just('offsets'), st.booleans()),
    st.tuples(st.just('join'), st.sampled_from(['m', 'n'])),
    st.tuples(st.just('disconnect'), st.integers(0, 9)),
    st.tuples(st.just('delete'), st.sampled_from(TOPICS)),
    st.tuples(st.just('advance'), st.sampled_from([1, 20, SECOND_MS, 70 * SECOND_MS])),
), min_size=4, max_size=14)


class Story:
    """A broker, and the requests that were sent to it."""

    def __init__(self, broker):
        self.broker = broker
        self.client = broker.client
        self.sent = []
        self.rules = []
        self.create()
        for key_type, name in ((0, 'g'), (1, 'tx-0')):
            self.client.ask('FindCoordinator', coordinator_keys=[name], key_type=key_type)

    def create(self):
        """Create the topics that were deleted. A topic may wait for a point, so the answers do not matter here."""
        for topic in TOPICS:
            if self.broker.topics.topic(topic) is None:
                self.client.begin('CreateTopics', topics=[
                    {'name': topic, 'num_partitions': 3, 'replication_factor': 1}])
        self.client.settle()

    def hold(self, point, action, times):
        spec = {'point': point, 'action': action, 'select': {'times': times} if times else {}}
        self.rules.append(self.broker.rules.add(spec | ({'delay_ms': 30} if action == 'delay' else {})))

    def release(self, number):
        if self.rules:
            self.broker.rules.release(self.rules[number % len(self.rules)].id)

    def remove(self, number):
        if self.rules:
            self.broker.rules.remove(self.rules.pop(number % len(self.rules)).id)

    def produce(self, topic, partition):
        self.sent.append(self.client.begin_produce(self.client.batch(), topic=topic, partition=partition))

    def commit(self, number, topic):
        """Send the requests of a transaction that has a partition of the topic, whether or not they are answered."""
        name = f'tx-{number}'
        held = {rule.id: rule for rule in self.rules}
        self.sent.append(self.client.begin('InitProducerId', 4, transactional_id=name, transaction_timeout_ms=60_000))
        self.client.settle()
        if not self.sent[-1].is_answered or self.sent[-1].answer.error_code or len(held) > 5:
            return
        producer_id, epoch = self.sent[-1].answer.producer_id, self.sent[-1].answer.producer_epoch
        fields = {'transactional_id': name, 'producer_id': producer_id, 'producer_epoch': epoch}
        self.sent.append(self.client.begin('AddPartitionsToTxn', 3, v3_and_below_transactional_id=name,
                                           v3_and_below_producer_id=producer_id, v3_and_below_producer_epoch=epoch,
                                           v3_and_below_topics=[{'name': topic, 'partitions': [0, 1]}]))
        self.client.settle()
        self.sent.append(self.client.begin('EndTxn', 4, committed=True, **fields))

    def offsets(self, is_classic):
        self.sent.append(self.client.begin(
            'OffsetCommit', 8, group_id='g' if is_classic else 'consumers', generation_id_or_member_epoch=-1, topics=[
                {'name': 'orders', 'partitions': [{'partition_index': 0, 'committed_offset': 5}]}]))

    def join(self, member_id):
        self.sent.append(self.client.begin(
            'ConsumerGroupHeartbeat', 0, group_id='consumers', member_id=member_id, member_epoch=0,
            rebalance_timeout_ms=60_000, subscribed_topic_names=['orders'], topic_partitions=[]))
        self.sent.append(self.client.begin(
            'JoinGroup', 3, group_id='g', session_timeout_ms=30_000, rebalance_timeout_ms=60_000, member_id='',
            protocol_type='consumer', protocols=[{'name': 'range', 'metadata': b'm'}]))

    def disconnect(self, number):
        if self.sent:
            self.broker.disconnect(self.sent.pop(number % len(self.sent)).connection)

    def delete(self, topic):
        self.sent.append(self.client.begin('DeleteTopics', 5, topic_names=[topic]))
        self.client.settle()
        self.create()

    def advance(self, time_ms):
        self.broker.clock.advance(time_ms)

    def end(self):
        """Remove all rules, and let all time-outs pass."""
        self.broker.rules.clear()
        for _ in range(8):
            self.client.settle()
            self.broker.clock.advance(40 * SECOND_MS)
        self.client.settle()
        self.create()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_each_operation_ends_when_no_rule_is_left(steps):
    with tempfile.TemporaryDirectory() as directory, ControlledBroker(directory) as broker:
        story = Story(broker)
        for name, *values in steps:
            getattr(story, name)(*values)
            story.client.settle()
        story.end()
        assert not broker.rules.waiting
        assert all(each.is_answered for each in story.sent)
        assert not broker.transactions.ender.steps.waiting
        producer = TransactionalClient(broker, 'another')
        assert producer.add_partition('orders', 0) == ErrorCode.NONE
        assert broker.begin_commit(producer).answer.error_code == ErrorCode.NONE
        for topic in TOPICS:
            assert broker.stable_offset(topic) == broker.end_offset(topic)
