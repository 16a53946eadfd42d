"""Calls with a time-out return in time, whichever peer does not answer. The next call continues unfinished operations.

In these tests, the broker withholds its answer until the test ends. A call that waited for the answer would run into
the test's own time limit, so no test reads a clock.
"""
import threading
from contextlib import closing
from itertools import pairwise

import pytest
from support.brokers.scripted_broker import ScriptedBroker, running, serving
from support.clients.raw_client import read_exactly
from support.proxies.tcp_proxy import TcpProxy

from kbroker.base.clock import ManualClock
from kbroker.base.errors import KafkaError
from kbroker.client import Admin, Consumer, Producer
from kbroker.client.admin import NewTopic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.config import ClientConfig
from kbroker.client.errors import ClientError
from kbroker.client.share_consumer import ShareConsumer
from kbroker.client.stream_settings import ShareConsumerSettings
from kbroker.client.time_limit import OPENING_MS, OutOfTime, TimeLimit
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

GROUP = {'auto_offset_reset': 'earliest', 'heartbeat_interval_ms': 100, 'session_timeout_ms': 6000}
ASSIGNORS = ['range', 'cooperative-sticky']


@pytest.fixture
def topic(shared_broker, request):
    name = request.node.name.replace('[', '.').replace(']', '')
    with Admin(shared_broker.address) as admin:
        assert admin.create_topics([NewTopic(name, 2)]) == {name: None}
    return name


def member(broker, topic, **options):
    return Consumer(broker.address, group_id=topic, topics=[topic], **GROUP | options)


# ---- rebalances

@pytest.mark.parametrize('assignor', ASSIGNORS)
def test_two_members_of_one_thread_share_a_topic(shared_broker, topic, assignor):
    """The join of the first member waits for the second one, which can join only after the first member's poll has
    returned."""
    with (member(shared_broker, topic, partition_assignment_strategy=assignor) as first,
          member(shared_broker, topic, partition_assignment_strategy=assignor) as second):
        while (len(first.assignment), len(second.assignment)) != (1, 1):
            assert first.poll(20) == second.poll(20) == []
        assert first.assignment | second.assignment == {(topic, 0), (topic, 1)}
        with Producer(shared_broker.address) as producer:
            for partition in (0, 1):
                producer.send(topic, b'%d' % partition, partition=partition)
        found = {}
        while len(found) < 2:
            for consumer in (first, second):
                found |= {record.value: consumer for batch in consumer.poll(20) for record in batch.records()}
        assert found[b'0'] is not found[b'1']


@pytest.mark.parametrize('assignor', ASSIGNORS)
def test_a_poll_returns_beside_a_member_that_never_polls_and_joins_when_it_does(shared_broker, topic, assignor):
    with (member(shared_broker, topic, partition_assignment_strategy=assignor) as busy,
          member(shared_broker, topic, partition_assignment_strategy=assignor) as other):
        while len(busy.assignment) < 2:
            busy.poll(20)
        for timeout_ms in (0, 1, 50):
            assert other.poll(timeout_ms) == []
        assert not other.assignment
        while (len(busy.assignment), len(other.assignment)) != (1, 1):
            busy.poll(20)
            other.poll(20)


def test_a_cooperative_member_reads_its_partitions_while_its_join_waits(shared_broker, topic):
    options = {'partition_assignment_strategy': 'cooperative-sticky'}
    with (member(shared_broker, topic, **options) as reader, member(shared_broker, topic, **options) as busy,
          Producer(shared_broker.address) as producer):
        while ((len(reader.assignment), len(busy.assignment)) != (1, 1)
               or any(each._session.member.must_join or each._session.member.is_joining for each in (reader, busy))):
            assert reader.poll(20) == busy.poll(20) == []
        third = member(shared_broker, topic, **options)
        while not reader._session.member.is_joining:        # it awaits `busy`, which does not poll
            assert third.poll(20) == reader.poll(20) == []
        (mine,) = reader.assignment
        producer.send(*mine[:1], b'meanwhile', partition=mine[1])
        producer.flush()
        found = []
        while not found:
            found = [record.value for batch in reader.poll(20) for record in batch.records()]
        assert found == [b'meanwhile'] and reader._session.member.is_joining
        third.close()


def test_a_member_whose_program_is_busy_does_not_keep_the_others_from_joining(shared_broker, topic):
    """A poll of the busy member has begun a join, and the heartbeat thread continues the join: SyncGroup needs no
    further poll."""
    with member(shared_broker, topic) as first, member(shared_broker, topic) as second:
        while len(first.assignment) < 2:
            first.poll(20)
        while not first._session.member.is_joining and len(first.assignment) == 2:
            second.poll(0)      # one call may not get as far as the join
            first.poll(0)
        while len(second.assignment) != 1:      # `first` does not poll
            second.poll(20)
        while len(first.assignment) != 1:
            first.poll(20)


def test_a_consumer_that_closes_in_a_join_leaves_the_group_at_once(shared_broker, topic):
    with member(shared_broker, topic) as busy:
        while len(busy.assignment) < 2:
            busy.poll(20)
        with member(shared_broker, topic) as other:
            while not other._session.member.is_joining:
                other.poll(1)
        with Admin(shared_broker.address) as admin:
            assert len(admin.describe_classic_groups([topic])[topic].members) == 1


def test_a_group_commits_and_looks_up_offsets_while_a_join_waits(shared_broker, topic):
    with member(shared_broker, topic) as busy, member(shared_broker, topic, enable_auto_commit=False) as other:
        while len(busy.assignment) < 2:
            busy.poll(20)
        busy.commit({(topic, 0): 5})
        while not other._session.member.is_joining:
            other.poll(1)
        assert other.committed([(topic, 0)])[topic, 0].offset == 5


def test_a_subscription_that_changes_in_a_join_is_that_of_the_next_one(shared_broker, topic):
    with Admin(shared_broker.address) as admin:
        admin.create_topics({f'{topic}-2': 1})
    with member(shared_broker, topic) as busy, member(shared_broker, topic) as other:
        while len(busy.assignment) < 2:
            busy.poll(20)
        while not other._session.member.is_joining:
            other.poll(1)
        other.subscribe([f'{topic}-2'])
        while other.assignment != {(f'{topic}-2', 0)}:
            busy.poll(20)
            other.poll(20)


# ---- brokers that do not answer

class LateAnswers(TcpProxy):
    """A proxy that holds back all answers, and later forwards them in order."""

    def __init__(self):
        self._may_pass = threading.Event()
        self._may_pass.set()
        self.keys = []
        super().__init__()

    def hold(self):
        self._may_pass.clear()

    def release(self):
        self._may_pass.set()

    def close(self):
        self.release()
        super().close()

    def to_broker(self, link):
        while True:
            head = read_exactly(link.client, 4)
            frame = read_exactly(link.client, int.from_bytes(head))
            self.keys.append(ApiKey(int.from_bytes(frame[:2])))
            link.broker.sendall(head + frame)

    def to_client(self, link):
        while True:
            head = read_exactly(link.broker, 4)
            frame = read_exactly(link.broker, int.from_bytes(head))
            self._may_pass.wait()
            link.client.sendall(head + frame)


@pytest.fixture
def late(start_broker):
    """Yield a proxy in front of a broker. The broker advertises the proxy's address, and has a topic with a record."""
    with closing(LateAnswers()) as proxy:
        broker = start_broker({'advertised.listeners': f'PLAINTEXT://{proxy.address}'})
        proxy.target = broker.address
        with Admin(proxy.address) as admin:
            admin.create_topics([NewTopic('t', 1)])
        with Producer(proxy.address) as producer:
            producer.send('t', b'a', partition=0)
        yield proxy


GROUPS = {'classic': GROUP, 'consumer': {'group_protocol': 'consumer', 'auto_offset_reset': 'earliest'}}


@pytest.mark.parametrize('protocol', GROUPS)
def test_a_poll_ends_at_each_step_whose_answer_is_late_and_the_next_ones_take_all_steps(late, protocol):
    """The proxy holds each answer until a poll has returned without it. The client sends no request twice."""
    consumer = Consumer(late.address, group_id=protocol, topics=['t'], enable_auto_commit=False, **GROUPS[protocol])
    late.keys.clear()
    found = []
    while not found:
        late.hold()
        for timeout_ms in (0, 3):
            found += consumer.poll(timeout_ms)
        late.release()
        found += consumer.poll(1)
    wanted = ApiKey.JOIN_GROUP if protocol == 'classic' else ApiKey.CONSUMER_GROUP_HEARTBEAT
    assert {wanted, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS,
            ApiKey.FETCH} <= set(late.keys)
    assert late.keys.count(ApiKey.FIND_COORDINATOR) == late.keys.count(ApiKey.LIST_OFFSETS) == 1
    assert [record.value for batch in found for record in batch.records()] == [b'a']
    consumer.close(timeout_ms=10_000)


def test_a_poll_of_a_share_consumer_ends_though_no_answer_arrives(late):
    with closing(Cluster(ClientConfig.load(late.address))) as cluster:
        cluster.refresh()
        consumer = ShareConsumer(cluster, ShareConsumerSettings('sharers'))
        consumer.subscribe(['t'])
        while not consumer.assignment:
            late.hold()
            assert consumer.poll(3) == []
            late.release()
            assert consumer.poll(1) == []
        late.hold()
        assert consumer.poll(3) == []
        late.release()
        consumer.close()


def test_a_share_consumer_closes_in_time_though_no_answer_arrives(late):
    """The acknowledgements that no leader has answered are reported."""
    refused = []
    with closing(Cluster(ClientConfig.load(late.address))) as cluster:
        consumer = ShareConsumer(cluster, ShareConsumerSettings('closing'),
                                 on_refused=lambda at, error: refused.append(at[1:]))
        consumer.subscribe(['t'])
        while not consumer._sessions:
            consumer.poll(50)
        with Producer(late.address) as producer:
            producer.send('t', b'b', partition=0)
        while not consumer.poll(50):
            pass
        late.hold()
        consumer.close(timeout_ms=50)
        assert set(refused) == {('t', 0)}
        with pytest.raises(ValueError, match='found -1 as timeout_ms, expected 0 or more'):
            consumer.close(timeout_ms=-1)
        late.release()
        assert cluster.refresh().topics, 'the limit was that of the close'


def repeated(call):
    """Repeat a call with a short time-out until it succeeds. Return its result."""
    while True:
        try:
            return call()
        except (ClientError, KafkaError):
            continue


def test_calls_without_a_time_out_end_with_default_api_timeout_ms(late):
    with (Consumer(late.address, group_id='g', default_api_timeout_ms=50) as consumer,
          Admin(late.address, default_api_timeout_ms=50) as admin):
        assert repeated(lambda: consumer.committed([('t', 0)])) == {}
        repeated(admin.list_groups)
        late.hold()
        for call in (lambda: consumer.committed([('t', 0)]), lambda: consumer.commit({('t', 0): 1}),
                     lambda: consumer.offsets_for_times({('t', 0): 1}), lambda: consumer.end_offsets([('t', 0)]),
                     lambda: admin.list_groups(), lambda: admin.describe_classic_groups(['g']),
                     lambda: admin.create_topics({'u': 1})):
            with pytest.raises(ClientError, match='has not answered'):
                call()
        late.release()


def test_the_calls_of_a_transaction_end_with_max_block_ms_and_may_be_repeated(late):
    with closing(Producer(late.address, transactional_id='x', max_block_ms=50)) as producer:
        repeated(producer.init_transactions)
        producer.begin_transaction()
        producer.send('t', b'b', partition=0)
        late.hold()
        for _ in range(3):
            with pytest.raises(ClientError, match=r'has not answered|not written yet within max\.block\.ms'):
                producer.commit_transaction()
        late.release()
        repeated(producer.commit_transaction)
        late.hold()
        other = Producer(late.address, transactional_id='y', max_block_ms=50)
        with pytest.raises(ClientError):
            other.init_transactions()
        late.release()
        other.close()
    with Consumer(late.address, isolation_level='read_committed') as consumer:
        consumer.assign([('t', 0)])
        consumer.seek('t', 0, 1)
        assert next(iter(consumer)).records()[0].value == b'b'


def test_an_address_that_does_not_answer_takes_a_second_of_a_poll_and_later_more():
    """A later poll cannot continue to open the same connection. After each attempt that ran out of time, the next
    attempt gets more time."""
    clock = ManualClock()
    with serving(lambda connection: connection.recv(1000) and connection.recv(1)) as port:
        cluster = Cluster(ClientConfig.load(f'127.0.0.1:{port}'), clock)
        given = []

        def at_least(ms, of=cluster.limit.at_least):
            given.append(ms)
            return of(1)        # no test waits for a second

        cluster.limit.at_least = at_least
        for _ in range(6):
            with cluster.within(0), pytest.raises(OutOfTime):
                cluster.any()
        assert given == [OPENING_MS, 2000, 4000, 8000, 10_000, 10_000]


def test_a_call_whose_time_is_over_leaves_the_other_addresses_to_the_next_one():
    """Clients of another test, whose broker is gone, may find the port of a server here. They count for nothing."""
    asked = []

    def silent(name):
        def serve(connection):
            if b'this-client' in connection.recv(1000):
                asked.append(name)
                connection.recv(1)
        return serve

    with serving(silent('a')) as first, serving(silent('b')) as second:
        cluster = Cluster(ClientConfig.load(f'127.0.0.1:{first},127.0.0.1:{second}', overrides={
            'client.id': 'this-client', 'request.timeout.ms': '100'}), ManualClock())
        for expected in (['a'], ['a', 'b']):
            with cluster.within(0), pytest.raises(OutOfTime):
                cluster.any()
            assert asked == expected


# ---- the time limit and the connection by themselves

def test_an_answer_that_was_late_is_that_of_the_next_equal_call():
    held, broker = threading.Event(), ScriptedBroker()
    answers = iter([messages.FindCoordinatorResponse(error_code=15), messages.FindCoordinatorResponse(error_code=16)])
    broker.answers['FindCoordinator'] = lambda request: held.wait(60) and next(answers)
    with running(broker), closing(Cluster(ClientConfig.load(f'127.0.0.1:{broker.port}'))) as cluster:
        connection, request = cluster.any(), messages.FindCoordinatorRequest(key='g')
        for _ in range(3):
            with cluster.within(1), pytest.raises(OutOfTime, match='has not answered FindCoordinator within the time'):
                connection.call(request, max_version=3)
        assert connection.has_unfinished_call and cluster.any() is connection
        held.set()
        assert connection.call(messages.FindCoordinatorRequest(key='g'), max_version=3).error_code == 15
        assert broker.asked.count('FindCoordinator') == 1


def test_another_call_does_not_get_the_answer_that_was_late():
    held, broker = threading.Event(), ScriptedBroker()
    broker.answers['FindCoordinator'] = lambda request: held.wait(60) and messages.FindCoordinatorResponse(
        error_code=int(request.key))
    with running(broker), closing(Cluster(ClientConfig.load(f'127.0.0.1:{broker.port}'))) as cluster:
        connection = cluster.any()
        with cluster.within(1), pytest.raises(OutOfTime):
            connection.call(messages.FindCoordinatorRequest(key='1'), max_version=3)
        held.set()
        assert connection.call(messages.FindCoordinatorRequest(key='2'), max_version=3).error_code == 2


def test_retries_that_a_call_cuts_short_go_on_in_the_next_until_default_api_timeout_ms():
    """A program that polls with short time-outs gets the error of an unavailable coordinator no earlier than any other
    program."""
    clock, slept, tries = ManualClock(), [], []

    def sleep(seconds):
        slept.append(seconds)
        clock.advance(round(seconds * 1000))

    def ask():
        tries.append(clock.monotonic_ms())
        clock.advance(1)
        cluster.coordinator(KeyType.GROUP, 'g')

    with running(ScriptedBroker()) as broker:
        broker.answers['FindCoordinator'] = lambda request: messages.FindCoordinatorResponse(coordinators=[
            messages.FindCoordinatorResponse.Coordinator(key='g', error_code=15)])
        cluster = Cluster(ClientConfig.load(f'127.0.0.1:{broker.port}', overrides={
            'default.api.timeout.ms': '1000'}), clock, sleep)
        cluster.refresh()
        cuts = 0
        with pytest.raises(KafkaError, match=r'COORDINATOR_NOT_AVAILABLE.*tried \d+ times in \d+ ms'):
            while True:
                try:
                    with cluster.within(30):
                        cluster.retrying(ask, 'finding')
                except OutOfTime:
                    cuts += 1
                assert cuts < 100
        assert cuts > 10
        assert min(later - earlier for earlier, later in pairwise(tries)) >= 80, 'a back-off each'
        cluster.close()


def test_the_end_of_a_cluster_is_no_time_out_of_a_call():
    clock = ManualClock()
    limit = TimeLimit(clock)
    limit.end_within(10)
    with limit.within(20):
        assert not limit.cuts(clock.monotonic_ms() + 1000)
        with limit.within(5):
            assert limit.cuts(clock.monotonic_ms() + 1000) and limit.left_ms(100) == 5
            with limit.suspended():
                assert not limit.is_bounded
    assert limit.left_ms(100) == 10 and not limit.is_bounded
