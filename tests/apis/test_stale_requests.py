"""Late requests of clients without KIP-890. They arrive on a connection that the client has abandoned."""
import ctypes
import itertools
import sys
from types import SimpleNamespace

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, create_topics, error_codes
from support.messages.message_builder import batch_of, build
from support.worlds.transaction_coordinator import STATE_TOPIC, World, code_to

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.transaction.state import set_of

NONE, NOT_COORDINATOR = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'kbroker.durability': 'page-cache', 'group.initial.rebalance.delay.ms': '0'}
ORDERS = {'name': 'orders', 'partitions': [0]}
"""Names the topic whose partitions the tests add to a transaction."""
MOST_REFUSALS = 8


class Client:
    """A producer that sends each request on the connection that the test names, and repeats no request."""

    def __init__(self, broker, transactional_id='tx'):
        self.broker, self.transactional_id = broker, transactional_id
        self.sequences = itertools.count()
        self.init()

    def connect(self):
        return self.broker.connect()

    def init(self):
        answer = self.ask(self.connect(), 'InitProducerId', 4, transactional_id=self.transactional_id,
                          transaction_timeout_ms=60_000)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = itertools.count()

    def ask(self, connection, name, version, **fields):
        request = build(f'{name}Request', **fields)
        self.broker.begin(request, version, connection)
        return self.broker.answer_to(connection, request, version)

    def code(self, connection, name, version, **fields):
        """Return the one error code of the answer."""
        code, = error_codes(self.ask(connection, name, version, **fields)) - {0} or {0}
        return ErrorCode(code)

    def add(self, connection, version=3):
        answer = self.ask(connection, 'AddPartitionsToTxn', version,
                          v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.id,
                          v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=[ORDERS])
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def add_offsets(self, connection, group_id='group'):
        return self.code(connection, 'AddOffsetsToTxn', 3, transactional_id=self.transactional_id, producer_id=self.id,
                         producer_epoch=self.epoch, group_id=group_id)

    def commit_offset(self, connection, offset, version=3, group_id='group'):
        return self.code(connection, 'TxnOffsetCommit', version, transactional_id=self.transactional_id,
                         group_id=group_id, producer_id=self.id, producer_epoch=self.epoch,
                         generation_id_or_member_epoch=-1, topics=[
                             dict(name='orders', partitions=[dict(partition_index=0, committed_offset=offset)])])

    def produce(self, connection, version=11, sequence=None):
        records = batch_of(self.broker.clock.wall_ms(), b'value', producer_id=self.id, producer_epoch=self.epoch,
                           base_sequence=next(self.sequences) if sequence is None else sequence, transactional=True)
        return self.code(connection, 'Produce', version, transactional_id=self.transactional_id, acks=-1,
                         timeout_ms=1000, topic_data=[dict(
                             name='orders', partition_data=[dict(index=0, records=records)])])

    def end(self, connection, version=4, committed=True):
        return self.code(connection, 'EndTxn', version, transactional_id=self.transactional_id, producer_id=self.id,
                         producer_epoch=self.epoch, committed=committed)

    def committed_offset(self):
        fetched = self.ask(self.connect(), 'OffsetFetch', 1, group_id='group', topics=[
            dict(name='orders', partition_indexes=[0])])
        return fetched.topics[0].partitions[0].committed_offset

    def state(self):
        return self.broker.transactions.describe(self.transactional_id).state.title

    def run_transaction(self, connection):
        assert [self.add(connection), self.produce(connection), self.end(connection)] == [NONE] * 3


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker(tmp_path, SETTINGS) as broker:
        peer = InProcessPeer(broker)
        create_topics(peer, orders=1)
        peer.ask('FindCoordinator', key_type=1, coordinator_keys=['tx'])
        peer.ask('FindCoordinator', key_type=0, coordinator_keys=['group'])
        yield broker


@pytest.fixture
def staged(broker):
    """Return a client that ran a transaction on the connection `old`, ran transaction 1 on the connection `new`, and
    then began transaction 2 on `new`."""
    client = Client(broker)
    old, new = client.connect(), client.connect()
    client.run_transaction(old)
    client.run_transaction(new)
    assert [client.add(new), client.produce(new)] == [NONE, NONE]
    return SimpleNamespace(client=client, old=old, new=new, refused=lambda: refused(broker))


def refused(broker):
    return broker.transactions.store.stale_requests.refused


@pytest.mark.parametrize('committed', [True, False])
def test_a_late_end_of_transaction_1_does_not_end_transaction_2(staged, committed, caplog):
    assert staged.client.end(staged.old, committed=committed) is NOT_COORDINATOR
    assert staged.client.state() == 'Ongoing' and staged.refused() == 1
    assert caplog.messages[-1].startswith(f'tx: refused an EndTxn of producer {staged.client.id} epoch 0 on ')
    assert [staged.client.produce(staged.new), staged.client.end(staged.new)] == [NONE, NONE]


@pytest.mark.parametrize('send', [Client.add, Client.add_offsets], ids=['AddPartitionsToTxn', 'AddOffsetsToTxn'])
def test_a_late_addition_opens_no_transaction(staged, send):
    assert staged.client.end(staged.new) is NONE
    assert send(staged.client, staged.old) is NOT_COORDINATOR
    assert staged.client.state() == 'CompleteCommit' and staged.refused() == 1


def test_a_late_batch_with_the_next_sequence_number_does_not_join_transaction_2(staged, caplog):
    assert staged.client.produce(staged.old, sequence=3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert 'refused a batch of orders-0' in caplog.messages[-1] and staged.refused() == 1
    assert staged.client.produce(staged.new) is NONE


def test_a_late_batch_that_the_log_has_is_a_duplicate(staged):
    assert staged.client.produce(staged.old, sequence=1) is NONE
    assert staged.refused() == 0
    assert staged.client.produce(staged.new) is NONE


def test_late_offsets_do_not_replace_newer_ones(staged):
    client = staged.client
    for connection, offset in ((staged.old, 5), (staged.new, 8)):
        assert [client.add_offsets(staged.new), client.commit_offset(connection, offset)] == [NONE, NONE]
    assert client.commit_offset(staged.old, 5) is NOT_COORDINATOR
    assert client.end(staged.new) is NONE
    assert client.committed_offset() == 8 and staged.refused() == 1


def test_late_offsets_of_a_client_with_kip_890_do_not_replace_newer_ones_of_its_transaction(broker):
    """Each transaction has a separate epoch, but may send offsets several times. In a simulation, the late offset 5
    replaced the offset 8."""
    client = Client(broker)
    old, new = client.connect(), client.connect()
    assert [client.commit_offset(connection, offset, 5) for connection, offset in ((old, 5), (new, 5), (new, 8))] == [
        NONE, NONE, NONE]
    assert client.commit_offset(old, 5, 5) is NOT_COORDINATOR
    assert client.end(new, 5) is NONE
    assert client.committed_offset() == 8 and refused(broker) == 1


def test_the_offsets_of_each_group_have_their_own_connection(staged):
    for group_id, connection in (('group', staged.new), ('other', staged.old)):
        assert staged.client.add_offsets(staged.new, group_id) is NONE
        assert staged.client.commit_offset(connection, 1, group_id=group_id) is NONE
    assert staged.refused() == 0


def test_a_request_that_is_executed_before_its_repetition_is_executed_once(broker):
    client = Client(broker)
    old, new = client.connect(), client.connect()
    assert [client.add(old), client.produce(old), client.end(old), client.end(new)] == [NONE] * 4
    assert [client.add(old), client.add(new)] == [NOT_COORDINATOR, NONE]
    assert refused(broker) == 1 and client.state() == 'Ongoing'


def test_the_classes_of_requests_may_use_different_connections(broker):
    client = Client(broker)
    batches, rest = client.connect(), client.connect()
    for _ in range(2):
        assert [client.add(rest), client.produce(batches), client.end(rest)] == [NONE] * 3
    assert refused(broker) == 0


def test_a_new_epoch_begins_without_a_connection(staged):
    old = staged.old
    assert staged.client.end(staged.new) is NONE
    staged.client.init()
    staged.client.run_transaction(old)
    assert staged.refused() == 0


def test_a_client_that_uses_two_connections_is_refused_for_some_time_only(staged, caplog):
    client = staged.client
    assert {client.end(staged.old) for _ in range(MOST_REFUSALS)} == {NOT_COORDINATOR}
    assert 'Its client may use several connections' in caplog.messages[-1]
    assert client.end(staged.old) is NONE


def test_an_execution_between_them_starts_the_count_of_refusals_again(staged):
    client = staged.client
    for _ in range(2):
        for _ in range(MOST_REFUSALS - 1):
            assert client.produce(staged.old, sequence=9) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert client.produce(staged.new) is NONE
    assert client.produce(staged.old, sequence=9) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_of_tv2_is_left_alone(broker):
    client = Client(broker)
    old, new = client.connect(), client.connect()
    for connection in (new, old):
        assert [client.produce(connection, 12, 0), client.commit_offset(connection, 1, 5)] == [NONE, NONE]
        assert client.end(connection, 5) is NONE
        client.epoch += 1
    assert refused(broker) == 0


def test_nothing_is_refused_if_the_check_is_off(tmp_path):
    with InProcessBroker(tmp_path, {**SETTINGS, 'kbroker.transaction.stale.request.check.enable': 'false'}) as broker:
        peer = InProcessPeer(broker)
        create_topics(peer, orders=1)
        peer.ask('FindCoordinator', key_type=1, coordinator_keys=['tx'])
        client = Client(broker)
        old, new = client.connect(), client.connect()
        for connection in (new, old):
            client.run_transaction(connection)
        assert refused(broker) == 0


@pytest.fixture
def two_groups_at_most(broker):
    """Let the broker track at most two groups. Return two functions of a producer id and a group id. The first commits
    offsets on a new connection. The second returns whether the broker refuses offsets on an old connection."""
    stale_requests = broker.transactions.store.stale_requests
    stale_requests.most_groups = 2
    old, new = broker.connect(), broker.connect()

    def commit(producer_id, group_id, connection=new):
        stale_requests.check_offsets('tx', producer_id, 0, group_id, connection)
        assert stale_requests.groups_count <= stale_requests.most_groups

    def is_refused(producer_id, group_id):
        try:
            commit(producer_id, group_id, old)
        except KafkaError as error:
            return error.code is NOT_COORDINATOR
        return False

    return commit, is_refused


@pytest.mark.parametrize('pairs', [[(1, 'a'), (1, 'b'), (1, 'c')], [(1, 'a'), (2, 'a'), (3, 'a')]],
                         ids=['of one producer', 'of three'])
def test_the_group_that_was_not_used_for_the_longest_time_is_forgotten(two_groups_at_most, pairs):
    commit, is_refused = two_groups_at_most
    first, second, third = pairs
    commit(*first)
    commit(*second)
    commit(*first)
    commit(*third)
    assert [is_refused(*first), is_refused(*third), is_refused(*second)] == [True, True, False]


def test_a_new_group_of_another_producer_leaves_the_other_groups_of_a_producer_known(broker, two_groups_at_most):
    commit, is_refused = two_groups_at_most
    broker.transactions.store.stale_requests.most_groups = 3
    for pair in ((1, 'a'), (1, 'b'), (1, 'c'), (2, 'a')):
        commit(*pair)
    assert [is_refused(1, 'b'), is_refused(1, 'c')] == [True, True]


HASH_OFFSET = 3 * ctypes.sizeof(ctypes.c_ssize_t)
"""The position of the cached hash in a str of CPython, after the reference count, the type and the length."""


def with_hash_of(text, other):
    """Return a copy of `text` whose cached hash is the hash of `other`."""
    copy = text.encode().decode()
    hash(copy)
    ctypes.c_ssize_t.from_address(id(copy) + HASH_OFFSET).value = hash(other)
    assert (copy, hash(copy)) == (text, hash(other))
    return copy


def test_two_groups_with_one_hash_do_no_harm_to_a_client_with_one_connection(broker, two_groups_at_most):
    commit, is_refused = two_groups_at_most
    for _ in range(MOST_REFUSALS):
        commit(1, 'first')
        commit(1, with_hash_of('second', 'first'))
    stale_requests = broker.transactions.store.stale_requests
    assert (stale_requests.refused, stale_requests.groups_count) == (0, 1)
    for group_id in ('third', 'fourth'):
        commit(1, group_id)     # and the entry of both is forgotten
    assert not is_refused(1, 'first')


def test_two_groups_with_one_hash_cost_a_client_with_a_connection_for_each_some_refusals(two_groups_at_most):
    commit, is_refused = two_groups_at_most
    second = with_hash_of('second', 'first')
    commit(1, 'first')
    assert [is_refused(1, second) for _ in range(MOST_REFUSALS + 1)] == [True] * MOST_REFUSALS + [False]
    assert not is_refused(2, second), 'another producer has its own entry'
    assert not is_refused(1, 'other'), 'so has a group with another hash'


def test_no_group_id_is_kept(two_groups_at_most):
    """A group id may be long, so the broker keeps only its hash. If two groups of a producer have the same hash, they
    count as one group."""
    commit, is_refused = two_groups_at_most
    group_id = 'g' * 32_000
    references = sys.getrefcount(group_id)
    commit(1, group_id)
    assert sys.getrefcount(group_id) == references
    assert is_refused(1, group_id)


def test_an_addition_that_waited_is_judged_when_its_wait_ends():
    """The client abandons its connection while the addition waits for the end of transaction 1."""
    world = World(immediate=False)
    world.init()
    world.flush()
    old, new = (SimpleNamespace(connection_id=number) for number in (1, 2))
    assert world.add((1000, 0)) is None
    world.flush()
    world.end((1000, 0), True)
    world.flush(STATE_TOPIC)
    waited, repeated = [], []
    for connection, answers in ((new, repeated), (old, waited)):
        world.coordinator.add_partitions_in_turn('tx-1', 1000, 0, set_of([('audit', 0)]), connection, code_to(answers))
    assert waited == repeated == []
    world.run_until_idle()
    assert (repeated, waited) == ([NONE], [NOT_COORDINATOR])
    assert world.row().partitions == {('audit', 0)}
