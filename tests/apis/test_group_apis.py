"""The group APIs over the wire: each request and each answer is encoded and decoded."""

from types import SimpleNamespace

import pytest
from support.brokers.in_process_broker import InProcessConnection, frame_of, read_answer
from support.messages.message_builder import build
from support.worlds.group_coordinator import GROUP, OFFSETS_TOPIC, World, subscription

from kbroker.apis import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)
from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.request import RequestCounts
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork
from kbroker.protocol import messages
from kbroker.security.audit import Audit
from kbroker.transaction.coordinator import TransactionCoordinator
from kbroker.transaction.producer_ids import ProducerIds

NAMES = {
    delete_groups: 'DeleteGroups',
    describe_groups: 'DescribeGroups',
    find_coordinator: 'FindCoordinator',
    heartbeat: 'Heartbeat',
    join_group: 'JoinGroup',
    leave_group: 'LeaveGroup',
    list_groups: 'ListGroups',
    offset_commit: 'OffsetCommit',
    offset_delete: 'OffsetDelete',
    offset_fetch: 'OffsetFetch',
    sync_group: 'SyncGroup',
    txn_offset_commit: 'TxnOffsetCommit',
}


LAST_VERSION_THAT_VERIFIES = 4
TXN_VERSION_WITH_IDS = 6


class Transactions(TransactionCoordinator):
    """A transaction coordinator that records its requests. It confirms every partition, or refuses each with `error` if
    the test has set `error`."""

    def __init__(self, world):
        super().__init__(
            world.config, world.clock, world.long_work, world.topics, ProducerIds(None, None), transaction_version=2
        )
        self.asked = []
        self.error = None

    def add_or_verify_offsets_partition(self, transactional_id, producer_id, producer_epoch, partition, version, *done):
        self.asked.append((transactional_id, producer_id, producer_epoch, partition, version))
        super().add_or_verify_offsets_partition(
            transactional_id, producer_id, producer_epoch, partition, min(version, LAST_VERSION_THAT_VERIFIES), *done
        )

    def verify_partitions(self, transactional_id, producer_id, producer_epoch, partitions):
        return dict.fromkeys(partitions, ErrorCode.NONE if self.error is None else self.error.code)


class AskedOnce(InProcessConnection):
    """A connection for one request. `came` is a list, which holds the answer once it has arrived."""

    def __init__(self, request, version):
        super().__init__(1)
        self._asked = request, version
        self.came = []

    def reply(self, sequence, segments):
        assert not self.came, 'answered twice'
        super().reply(sequence, segments)
        self.came.append(read_answer(*self._asked, self.replies[0]))


class Wire:
    """A connection to a broker that has groups."""

    def __init__(self, **settings):
        self.world = World(**settings)
        self.transactions = Transactions(self.world)
        self.node = SimpleNamespace(
            config=self.world.config,
            clock=self.world.clock,
            timers=self.world.timers,
            long_work=LongWork(self.world.timers),
            request_counts=RequestCounts(),
            topics=self.world.topics,
            groups=self.world.groups,
            transactions=self.transactions,
            metadata=SimpleNamespace(node_id=7),
            audit=Audit(), change_log=None,
            advertised_address=lambda listener_name: ('broker.example', 9092),
        )
        self.client_id = 'client'

    def ask(self, module, version, **fields):
        """Send a request. Return the answer, or None if the request is parked. Its answer then arrives in
        `self.came`."""
        name = NAMES[module]
        request = build(f'{name}Request', **fields)
        connection = AskedOnce(request, version)
        frame = frame_of(request, version, self.client_id)
        Dispatcher(self.node, [module.API]).handle(connection, 0, memoryview(bytearray(frame)))
        assert connection.closed is None, connection.closed
        self.came = connection.came
        return self.came[0] if self.came else None

    def topic_id(self, name):
        return self.world.topics.topic(name).topic_id

    def join(self, version=9, **fields):
        """Join as the only member of the group. Return the JoinGroup answer."""
        fields = {
            'group_id': GROUP,
            'session_timeout_ms': 10_000,
            'rebalance_timeout_ms': 30_000,
            'protocol_type': 'consumer',
            'protocols': [{'name': 'range', 'metadata': subscription('orders')}],
            **fields,
        }
        if version == 0:
            del fields['rebalance_timeout_ms']
        answer = self.ask(join_group, version, **fields)
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.ask(join_group, version, **fields | {'member_id': answer.member_id})
        if answer is None:
            came = self.came
            self.world.run_due()
            (answer,) = came
        return answer

    def sync(self, joined, version=5, **fields):
        given = {
            'group_id': GROUP,
            'generation_id': joined.generation_id,
            'member_id': joined.member_id,
            'assignments': [{'member_id': joined.member_id, 'assignment': b'all'}],
        }
        named = {'protocol_type': 'consumer', 'protocol_name': 'range'} if version >= 5 else {}
        return self.ask(sync_group, version, **given | named | fields)

    def commit(self, version, partitions, **fields):
        topics = [
            {**self.name(topic, version), 'partitions': [committed(partition, offset)]}
            for (topic, partition), offset in partitions.items()
        ]
        answer = self.ask(offset_commit, version, group_id=GROUP, topics=topics, **fields)
        return [topic.partitions[0].error_code for topic in answer.topics]

    def name(self, topic, version):
        if version < 10:
            return {'name': topic}
        return {'topic_id': self.topic_id(topic) if self.world.topics.topic(topic) else b'?' * 16}


def committed(partition, offset, metadata='m'):
    return {'partition_index': partition, 'committed_offset': offset, 'committed_metadata': metadata}


@pytest.fixture
def wire():
    return Wire()


@pytest.mark.parametrize('module', NAMES, ids=NAMES.values())
def test_every_version_that_is_served_is_in_the_table(module):
    first, last = getattr(messages, f'{NAMES[module]}Request').versions
    assert first <= module.API.min_version <= module.API.max_version <= last
    assert module.API.key == getattr(messages, f'{NAMES[module]}Request').api_key


@pytest.mark.parametrize('version', range(10))
def test_a_group_lives_and_ends_in_every_version(wire, version):
    joined = wire.join(version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name, joined.leader) == (
        0,
        1,
        'range',
        joined.member_id,
    )
    synced = wire.sync(joined, min(version, 5))
    assert (synced.error_code, synced.assignment) == (0, b'all')
    identity = {'group_id': GROUP, 'generation_id': 1, 'member_id': joined.member_id}
    assert wire.ask(heartbeat, min(version, 4), **identity).error_code == 0
    (described,) = wire.ask(describe_groups, min(version, 6), groups=[GROUP]).groups
    (member,) = described.members
    assert (described.group_state, described.protocol_type, described.protocol_data) == ('Stable', 'consumer', 'range')
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, 'client', '/127.0.0.1')
    assert (member.member_metadata, member.member_assignment) == (subscription('orders'), b'all')
    if min(version, 5) < 3:
        assert wire.ask(leave_group, min(version, 5), group_id=GROUP, member_id=joined.member_id).error_code == 0
    else:
        left = wire.ask(leave_group, min(version, 5), group_id=GROUP, members=[{'member_id': joined.member_id}])
        assert (left.error_code, [answer.error_code for answer in left.members]) == (0, [0])
    assert wire.world.state() == 'Empty'


@pytest.mark.parametrize('version', range(10))
def test_a_failed_join_has_an_answer_in_every_version(wire, version):
    answer = wire.join(version, session_timeout_ms=1)
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert answer.protocol_name == (None if version >= 7 else '')


def test_a_join_with_null_protocols_breaks_the_schema(wire):
    with pytest.raises(ValueError):
        wire.join(9, protocols=None)


def test_a_sync_of_version_5_must_name_its_protocol(wire):
    joined = wire.join()
    assert wire.sync(joined, 5, protocol_name=None).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_old_leave_of_an_unknown_member_fails_as_a_whole(wire):
    assert wire.ask(leave_group, 2, group_id=GROUP, member_id='m').error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize('version', range(2, 11))
def test_offsets_are_committed_and_fetched_in_every_version(wire, version):
    assert wire.commit(version, {('orders', 1): 5, ('payments', 0): 6}) == [0, 0]
    assert fetch(wire, min(version, 10), {'orders': [1, 2], 'payments': [0]}) == {
        ('orders', 1): (5, 0),
        ('orders', 2): (-1, 0),
        ('payments', 0): (6, 0),
    }


def fetch(wire, version, partitions, require_stable=False, group_id=GROUP):
    """Return {(topic, partition): (committed offset, error code)}."""
    topics = None if partitions is None else [
        {**wire.name(name, version), 'partition_indexes': indexes} for name, indexes in partitions.items()
    ]
    if version < 8:
        stable = {'require_stable': require_stable} if version >= 7 else {}
        group = wire.ask(offset_fetch, version, group_id=group_id, topics=topics, **stable)
    else:
        wanted = {'group_id': group_id, 'topics': topics}
        (group,) = wire.ask(offset_fetch, version, groups=[wanted], require_stable=require_stable).groups
        assert group.group_id == group_id
    assert group.error_code == 0
    names = {wire.topic_id(name): name for name in wire.world.topics.by_name}
    return {
        (names.get(topic.topic_id, '?') if version >= 10 else topic.name, partition.partition_index): (
            partition.committed_offset,
            partition.error_code,
        )
        for topic in group.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize('version', range(2, 11))
def test_all_offsets_of_a_group_are_fetched_at_once(wire, version):
    wire.commit(9, {('orders', 1): 5, ('payments', 0): 6})
    assert fetch(wire, version, None) == {('orders', 1): (5, 0), ('payments', 0): (6, 0)}


@pytest.mark.parametrize('version', range(1, 11))
def test_an_unknown_group_has_no_offsets_and_that_is_no_error(wire, version):
    assert fetch(wire, version, {'orders': [0]}, group_id='nowhere') == {('orders', 0): (-1, 0)}


@pytest.mark.parametrize('version', range(7, 11))
def test_a_client_that_requires_stable_offsets_has_to_retry(wire, version):
    wire.world.commit_transactional(('orders', 0), 5, 1000)
    assert fetch(wire, version, {'orders': [0]}, require_stable=True) == {
        ('orders', 0): (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    }
    assert fetch(wire, version, {'orders': [0]}) == {('orders', 0): (-1, 0)}


def test_topics_that_do_not_exist_are_refused_one_by_one(wire):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.commit(9, {('nothing', 0): 1, ('orders', 0): 2, ('orders', 4): 3, ('orders', -1): 4}) == [
        unknown,
        0,
        unknown,
        unknown,
    ]
    assert wire.commit(10, {('nothing', 0): 1, ('orders', 0): 2, ('orders', 4): 3}) == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        0,
        unknown,
    ]
    assert fetch(wire, 10, {'nothing': [0], 'orders': [0]}) == {
        ('?', 0): (-1, ErrorCode.UNKNOWN_TOPIC_ID),
        ('orders', 0): (2, 0),
    }
    assert wire.commit(9, {('nothing', 0): 1}) == [unknown]


def test_a_commit_refused_as_a_whole_says_so_for_each_partition(wire):
    assert (
        wire.commit(8, {('orders', 0): 1, ('orders', 1): 1}, generation_id_or_member_epoch=3)
        == [ErrorCode.ILLEGAL_GENERATION] * 2
    )
    assert wire.commit(9, {('orders', 0): 1}, generation_id_or_member_epoch=3) == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_a_commit_is_answered_when_it_is_durable():
    wire = Wire(immediate=False)
    topic = {'name': 'orders', 'partitions': [committed(0, 5, None)]}
    assert wire.ask(offset_commit, 8, group_id=GROUP, topics=[topic]) is None
    answers = wire.came
    assert fetch(wire, 8, {'orders': [0]}) == {('orders', 0): (-1, 0)}
    assert answers == []
    wire.world.flush()
    assert answers[0].topics[0].partitions[0].error_code == 0
    assert fetch(wire, 8, {'orders': [0]}) == {('orders', 0): (5, 0)}


def test_offsets_are_deleted_by_partition(wire):
    wire.commit(9, {('orders', 0): 1, ('payments', 0): 2})
    topics = [{'name': name, 'partitions': [{'partition_index': 0}]} for name in ('orders', 'nothing')]
    answer = wire.ask(offset_delete, 0, group_id=GROUP, topics=topics)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetch(wire, 9, None) == {('payments', 0): (2, 0)}
    assert wire.ask(offset_delete, 0, group_id='nowhere', topics=topics).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert wire.ask(offset_delete, 0, group_id='', topics=topics).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize('version', range(7))
def test_a_group_that_does_not_exist_is_described_as_dead(wire, version):
    (described,) = wire.ask(describe_groups, version, groups=['nowhere']).groups
    assert (described.group_id, described.group_state) == ('nowhere', 'Dead')
    assert described.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert described.error_message == ("found no group 'nowhere' of this type" if version >= 6 else None)


@pytest.mark.parametrize('version', range(3, 7))
def test_a_group_description_lists_the_authorized_operations_on_request(wire, version):
    wire.commit(9, {('orders', 0): 1})
    for asked, operations in ((True, 0b1101_0100_1000), (False, -(2**31))):
        answer = wire.ask(describe_groups, version, groups=[GROUP], include_authorized_operations=asked)
        assert answer.groups[0].authorized_operations == operations


@pytest.mark.parametrize('version', range(6))
def test_groups_are_listed_in_every_version(wire, version):
    wire.commit(9, {('orders', 0): 1})
    (listed,) = wire.ask(list_groups, version).groups
    assert (listed.group_id, listed.protocol_type) == (GROUP, '')
    assert listed.group_state == ('Empty' if version >= 4 else '')
    assert listed.group_type == ('classic' if version >= 5 else '')


@pytest.mark.parametrize(
    ('filters', 'found'),
    [
        ({'states_filter': ['empty']}, 1),
        ({'states_filter': ['Stable', 'Dead']}, 0),
        ({'types_filter': ['CLASSIC']}, 1),
        ({'types_filter': ['consumer']}, 0),
        ({'states_filter': ['EMPTY'], 'types_filter': ['consumer', 'classic']}, 1),
        ({'states_filter': ['no such state']}, 0),
    ],
)
def test_listed_groups_can_be_filtered(wire, filters, found):
    wire.commit(9, {('orders', 0): 1})
    assert len(wire.ask(list_groups, 5, **filters).groups) == found


@pytest.mark.parametrize('version', range(4))
def test_groups_are_deleted_one_by_one(wire, version):
    wire.commit(9, {('orders', 0): 1})
    answer = wire.ask(delete_groups, version, groups_names=[GROUP, 'nowhere'])
    assert [(result.group_id, result.error_code, result.error_message) for result in answer.results] == [
        (GROUP, 0, None),
        ('nowhere', ErrorCode.GROUP_ID_NOT_FOUND, None),
    ]
    assert wire.ask(delete_groups, version, groups_names=[]).results == []


@pytest.mark.parametrize('version', range(7))
@pytest.mark.parametrize('key_type', [0, 1])
def test_this_broker_coordinates_everything(wire, version, key_type):
    if version == 0 and key_type:
        return
    answer = wire.ask(find_coordinator, version, **coordinator_question(version, key_type))
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 7, 'broker.example', 9092)
    assert wire.world.topics.topic(OFFSETS_TOPIC if key_type == 0 else '__transaction_state') is not None


@pytest.mark.parametrize(('version', 'key_type'), [(1, 2), (3, -1), (4, 2), (6, 2), (6, 99)])
def test_coordinators_of_other_things_are_not_found_here(wire, version, key_type):
    answer = wire.ask(find_coordinator, version, **coordinator_question(version, key_type))
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.INVALID_REQUEST, -1, '', -1)


def coordinator_question(version, key_type):
    fields = {'key': 'k'} if version < 4 else {'coordinator_keys': ['k']}
    return fields | ({'key_type': key_type} if version >= 1 else {})


def test_without_the_offsets_topic_there_is_no_coordinator(wire):
    wire.world.topics.delete(OFFSETS_TOPIC)
    assert wire.join().error_code == ErrorCode.NOT_COORDINATOR
    assert wire.commit(9, {('orders', 0): 1}) == [ErrorCode.NOT_COORDINATOR]
    assert wire.ask(list_groups, 5).groups == []
    assert wire.ask(describe_groups, 5, groups=[GROUP]).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    wire.ask(find_coordinator, 4, coordinator_keys=[GROUP])
    assert wire.commit(9, {('orders', 0): 1}) == [0]


# Transactions


def commit_in_transaction(wire, version, **fields):
    given = {
        'transactional_id': 'tx-1',
        'group_id': GROUP,
        'producer_id': 1000,
        'producer_epoch': 3,
        'topics': [
            {**({'topic_id': topic_id} if version >= TXN_VERSION_WITH_IDS else {'name': name}),
             'partitions': [committed(0, 5)]}
            for name, topic_id in (('orders', wire.topic_id('orders')), ('nothing', b'\7' * 16))
        ],
    }
    answer = wire.ask(txn_offset_commit, version, **given | fields)
    return [topic.partitions[0].error_code for topic in answer.topics]


@pytest.mark.parametrize('version', range(7))
def test_offsets_of_a_transaction_are_verified_and_then_pending(wire, version):
    unknown = (ErrorCode.UNKNOWN_TOPIC_ID if version >= TXN_VERSION_WITH_IDS
               else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert commit_in_transaction(wire, version) == [0, unknown]
    assert wire.transactions.asked == [('tx-1', 1000, 3, 0, version)]
    assert fetch(wire, 9, {'orders': [0]}, require_stable=True) == {
        ('orders', 0): (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    }
    wire.world.end_transaction(1000, 3, commit=True)
    assert fetch(wire, 9, {'orders': [0]}, require_stable=True) == {('orders', 0): (5, 0)}


def test_a_transaction_that_is_open_in_the_partition_is_not_verified_again(wire):
    assert commit_in_transaction(wire, 4)[0] == 0
    wire.transactions.asked.clear()
    assert commit_in_transaction(wire, 4)[0] == 0
    assert wire.transactions.asked == []


@pytest.mark.parametrize(
    ('refusal', 'version', 'expected'),
    [
        (ErrorCode.INVALID_TXN_STATE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_ENOUGH_REPLICAS, 5, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NETWORK_EXCEPTION, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_the_transaction_coordinator_refuses_is_not_committed(wire, refusal, version, expected):
    wire.transactions.error = KafkaError(refusal)
    assert commit_in_transaction(wire, version)[0] == expected
    assert wire.world.partition.stored == []


def test_the_topics_of_a_transaction_are_answered_by_id(wire):
    """A partition that the topic does not have is refused alone, and so is metadata that is too long."""
    known, unknown = wire.topic_id('orders'), b'\7' * 16
    answer = wire.ask(
        txn_offset_commit, 6, transactional_id='tx-1', group_id=GROUP, producer_id=1000, producer_epoch=3, topics=[
            {'topic_id': known, 'partitions': [
                committed(0, 5), committed(99, 5), {**committed(1, 5), 'committed_metadata': 'm' * 5_000}]},
            {'topic_id': unknown, 'partitions': [committed(0, 5), committed(1, 5)]},
            {'topic_id': bytes(16), 'partitions': [committed(0, 5)]},
            {'topic_id': known, 'partitions': []},
        ])
    assert [(topic.name, topic.topic_id, [(partition.partition_index, partition.error_code)
                                          for partition in topic.partitions]) for topic in answer.topics] == [
        ('', known, [(0, 0), (99, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (1, ErrorCode.OFFSET_METADATA_TOO_LARGE)]),
        ('', unknown, [(0, ErrorCode.UNKNOWN_TOPIC_ID), (1, ErrorCode.UNKNOWN_TOPIC_ID)]),
        ('', bytes(16), [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
        ('', known, []),
    ]
    assert [partition.error_code for topic in wire.ask(
        txn_offset_commit, 6, transactional_id='tx-1', group_id='', producer_id=1000, producer_epoch=3,
        topics=[{'topic_id': known, 'partitions': [committed(0, 5)]}]).topics for partition in topic.partitions] == [
            ErrorCode.INVALID_GROUP_ID]


@pytest.mark.parametrize(('version', 'expected'), [
    (3, ErrorCode.ILLEGAL_GENERATION),
    (5, ErrorCode.ILLEGAL_GENERATION),
    (6, ErrorCode.GROUP_ID_NOT_FOUND),
])
def test_a_transaction_of_a_past_generation_is_refused(wire, version, expected):
    found = commit_in_transaction(wire, version, generation_id_or_member_epoch=1, member_id='m')
    assert found[0] == expected
    assert commit_in_transaction(wire, version, group_id='')[0] == ErrorCode.INVALID_GROUP_ID
    assert commit_in_transaction(wire, version, member_id='m')[0] == 0      # it has no generation


@pytest.mark.parametrize('version', [5, 6])
def test_a_transaction_of_a_past_generation_of_a_classic_group_is_refused(wire, version):
    joined = wire.join()
    wire.sync(joined)
    identity = {'member_id': joined.member_id, 'generation_id_or_member_epoch': joined.generation_id}
    assert commit_in_transaction(wire, version, **identity)[0] == 0
    for wrong, code in (({'generation_id_or_member_epoch': 9}, ErrorCode.ILLEGAL_GENERATION),
                        ({'member_id': 'stranger'}, ErrorCode.UNKNOWN_MEMBER_ID)):
        assert commit_in_transaction(wire, version, **identity | wrong)[0] == code


# Hostile input


@pytest.mark.parametrize('length', [249, 10_000, 32_767])
def test_huge_names_are_carried_or_refused_but_break_nothing(wire, length):
    joined = wire.join(
        9,
        group_id='g' * length,
        group_instance_id='i' * length,
        protocols=[{'name': 'p' * length, 'metadata': b''}],
    )
    assert joined.error_code == 0
    wire.client_id = 'c' * length
    synced = wire.sync(joined, 4, group_id='g' * length, group_instance_id='i' * length)
    assert synced.error_code in (0, ErrorCode.UNKNOWN_SERVER_ERROR)
    wire.world.restart()
    wire.world.groups.describe('g' * length, 'classic')


def test_metadata_that_is_no_subscription_joins_all_the_same(wire):
    joined = wire.join(9, protocols=[{'name': 'range', 'metadata': b'\xff' * 100}])
    assert wire.sync(joined).assignment == b'all'
    wire.world.restart()
    assert wire.world.state() == 'Stable'


def test_assignments_for_strangers_are_ignored(wire):
    joined = wire.join()
    strangers = [{'member_id': f's{index}', 'assignment': b'x'} for index in range(100)]
    assert wire.sync(joined, assignments=strangers).assignment == b''


def test_an_assignment_of_a_long_request_reaches_its_member(wire):
    """The request is decoded in slices, and its handler replies when the group's row is durable."""
    joined = wire.join()
    assignment = bytes(range(256)) * 500
    given = {'member_id': joined.member_id, 'assignment': assignment}
    assert wire.sync(joined, assignments=[given]) is None
    wire.world.run_due()
    (answer,) = wire.came
    assert (answer.error_code, answer.assignment) == (0, assignment)


def commit_of(count):
    partitions = [committed(index, index, '') for index in range(count)]
    return {'group_id': GROUP, 'topics': [{'name': 'orders', 'partitions': partitions}]}


def test_a_commit_of_thousands_of_partitions_is_made_in_several_turns(wire):
    assert wire.ask(offset_commit, 8, **commit_of(5_000)) is None
    wire.world.run_due()
    (answer,) = wire.came
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [0] * 4 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 4_996
    assert wire.world.offset(('orders', 3)) == 3


def test_a_commit_that_cannot_fit_into_a_batch_is_refused_before_it_is_made(wire):
    assert wire.ask(offset_commit, 8, **commit_of(100_000)) is None     # it is being decoded
    wire.world.run_due()
    (answer,) = wire.came
    assert {partition.error_code for partition in answer.topics[0].partitions} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert len(answer.topics[0].partitions) == 100_000
    assert wire.world.partition.stored == []
