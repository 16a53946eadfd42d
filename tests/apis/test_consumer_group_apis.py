"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over the wire."""
import pytest
from api_client import ApiClient

from kbroker.apis.serving.heartbeat_calls import MOST_NAMES
from kbroker.base.errors import ErrorCode

JOIN = {'group_id': 'g', 'member_id': 'm', 'member_epoch': 0, 'rebalance_timeout_ms': 1000, 'topic_partitions': [],
        'subscribed_topic_names': ['orders']}
BEAT = {'group_id': 'g', 'member_id': 'm', 'member_epoch': 2}
OWNED = [{'topic_id': bytes(16), 'partitions': [0]}]


@pytest.fixture
def groups(client):
    """Return a client of a broker whose group coordinator is ready."""
    client.ask('FindCoordinator', coordinator_keys=['g'])
    return client


def heartbeat(client, version=1, **fields):
    return client.ask('ConsumerGroupHeartbeat', version, **fields)


def test_a_member_joins_lives_and_leaves(groups):
    topic_id = groups.broker.topics.topic('orders').topic_id
    joined = heartbeat(groups, **JOIN)
    assert (joined.error_code, joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == (0, 'm', 2, 500)
    assert [(topic.topic_id, topic.partitions) for topic in joined.assignment.topic_partitions] == [(topic_id, [0])]
    assert heartbeat(groups, **BEAT).assignment is None
    (group,) = groups.ask('ConsumerGroupDescribe', 1, group_ids=['g', 'g']).groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        'Stable', 2, 2, 'uniform')
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.member_type, member.subscribed_topic_regex) == ('m', 2, 1, '')
    for assignment in (member.assignment, member.target_assignment):
        assert [(topic.topic_name, topic.partitions) for topic in assignment.topic_partitions] == [('orders', [0])]
    (listed,) = groups.ask('ListGroups', 5, types_filter=['Consumer'], states_filter=['stable']).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type) == ('g', 'consumer', 'consumer')
    (classic,) = groups.ask('DescribeGroups', 6, groups=['g']).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, 'Dead')
    left = heartbeat(groups, **BEAT | {'member_epoch': -1})
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (0, -1, 0)


def test_an_answer_in_a_full_request_has_the_assignment(groups):
    heartbeat(groups, **JOIN)
    full = heartbeat(groups, **JOIN | {'member_epoch': 2})
    assert (full.error_code, len(full.assignment.topic_partitions)) == (0, 1)


def test_version_0_makes_the_member_id(groups):
    joined = heartbeat(groups, 0, **JOIN | {'member_id': ''})
    assert (joined.error_code, len(joined.member_id)) == (0, 22)
    assert heartbeat(groups, 0, **BEAT | {'member_id': joined.member_id}).error_code == 0


@pytest.mark.parametrize(('version', 'fields', 'code'), [
    (1, JOIN | {'member_id': ''}, ErrorCode.INVALID_REQUEST),
    (0, BEAT | {'member_id': ''}, ErrorCode.INVALID_REQUEST),
    (0, BEAT | {'member_id': '', 'member_epoch': -1}, ErrorCode.INVALID_REQUEST),
    (0, BEAT | {'member_id': '', 'member_epoch': -2, 'instance_id': 'i'}, ErrorCode.GROUP_ID_NOT_FOUND),
    (1, JOIN | {'group_id': ''}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'group_id': ' '}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'instance_id': ''}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'rack_id': ''}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'rebalance_timeout_ms': -1}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'topic_partitions': None}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'topic_partitions': OWNED}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'subscribed_topic_names': None}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'subscribed_topic_names': []}, ErrorCode.NONE),
    (1, JOIN | {'subscribed_topic_names': None, 'subscribed_topic_regex': ''}, ErrorCode.NONE),
    (1, JOIN | {'subscribed_topic_regex': '*'}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    (1, BEAT | {'member_epoch': -2}, ErrorCode.INVALID_REQUEST),
    (1, BEAT | {'member_epoch': -3}, ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'server_assignor': 'sticky'}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    (1, JOIN | {'server_assignor': ''}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    (1, JOIN | {'server_assignor': 'range'}, ErrorCode.NONE),
    (1, BEAT, ErrorCode.GROUP_ID_NOT_FOUND),
    (1, JOIN | {'subscribed_topic_names': [f't{number}' for number in range(MOST_NAMES + 1)]},
     ErrorCode.INVALID_REQUEST),
    (1, JOIN | {'subscribed_topic_names': [f't{number}' for number in range(1000)]}, ErrorCode.NONE),
])
def test_requests_are_checked_before_anything_changes(groups, version, fields, code):
    answer = heartbeat(groups, version, **fields)
    assert answer.error_code == code
    if code:
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms, answer.assignment) == (
            None, 0, 0, None)
        assert groups.ask('ListGroups', 5).groups == []


def test_a_group_that_does_not_exist_is_described_with_an_error(groups):
    (group,) = groups.ask('ConsumerGroupDescribe', 1, group_ids=['none']).groups
    assert (group.error_code, group.error_message, group.group_state) == (
        ErrorCode.GROUP_ID_NOT_FOUND, "found no group 'none' of this type", '')


def test_a_fetch_of_offsets_by_a_member_needs_its_epoch(groups):
    heartbeat(groups, **JOIN)
    for member_id, epoch, code in (('m', 2, 0), ('m', 1, ErrorCode.STALE_MEMBER_EPOCH),
                                   ('x', 2, ErrorCode.UNKNOWN_MEMBER_ID), (None, -1, 0)):
        wanted = {'group_id': 'g', 'member_id': member_id, 'member_epoch': epoch,
                  'topics': [{'name': 'orders', 'partition_indexes': [0]}]}
        (group,) = groups.ask('OffsetFetch', 9, groups=[wanted]).groups
        assert (group.error_code, len(group.topics)) == (code, 0 if code else 1)


@pytest.mark.parametrize('api', ['ConsumerGroupHeartbeat', 'ConsumerGroupDescribe'])
def test_without_its_protocol_a_kind_of_group_is_not_served(start_node, api):
    client = ApiClient(start_node(group_coordinator_rebalance_protocols='classic'))
    if api == 'ConsumerGroupHeartbeat':
        assert heartbeat(client, **JOIN).error_code == ErrorCode.UNSUPPORTED_VERSION
    else:
        (group,) = client.ask(api, 1, group_ids=['g']).groups
        assert group.error_code == ErrorCode.UNSUPPORTED_VERSION
