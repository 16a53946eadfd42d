"""StreamsGroupHeartbeat over the wire: refused topologies, and internal topics that cannot be created.
StreamsGroupDescribe returns the number of partitions of each internal topic.
"""
import pytest
from api_client import ApiClient

from kbroker.base.errors import ErrorCode
from kbroker.group.streams.topology import Status

TASKS = {'active_tasks': [], 'standby_tasks': [], 'warmup_tasks': []}
JOIN = {'group_id': 'g', 'member_id': 'm', 'member_epoch': 0, 'rebalance_timeout_ms': 1000, 'process_id': 'p', **TASKS}
BEAT = {'group_id': 'g', 'member_id': 'm', 'member_epoch': 2}
INVALID = ErrorCode.STREAMS_INVALID_TOPOLOGY


def part(**fields):
    """Return a subtopology that reads the topic `orders`."""
    return {'subtopology_id': '0', 'source_topics': ['orders'], 'source_topic_regex': [], 'repartition_sink_topics': [],
            'state_changelog_topics': [], 'repartition_source_topics': [], 'copartition_groups': [], **fields}


def internal(name, partitions=0, replication_factor=0, **configs):
    return {'name': name, 'partitions': partitions, 'replication_factor': replication_factor, 'topic_configs': [
        {'key': key.replace('_', '.'), 'value': value} for key, value in configs.items()]}


def together(*indexes, repartition=()):
    return {'source_topics': list(indexes), 'source_topic_regex': [], 'repartition_source_topics': list(repartition)}


class Heart:
    """A callable that sends a heartbeat of a streams group. `client` sends other requests."""

    def __init__(self, client):
        self.client = client

    def __call__(self, version=1, **fields):
        return self.client.ask('StreamsGroupHeartbeat', version, **{
            'endpoint_information_epoch': 0, 'shutdown_application': False, **fields})


@pytest.fixture
def beat(start_node):
    """Return a function that starts a broker with the given settings, and returns a Heart for its group."""
    def start(**settings):
        client = ApiClient(start_node(group_streams_initial_rebalance_delay_ms='0',
                                      group_streams_assignment_interval_ms='0',
                                      group_streams_min_assignment_interval_ms='0', **settings))
        client.create_topic()
        client.ask('FindCoordinator', coordinator_keys=['g'])
        return Heart(client)
    return start


def topology(*parts):
    return {'epoch': 0, 'subtopologies': list(parts)}


@pytest.mark.parametrize(('parts', 'code'), [
    pytest.param([part(source_topic_regex=['x.*'])], ErrorCode.INVALID_REQUEST, id='an expression'),
    pytest.param([part(), part()], INVALID, id='one id twice'),
    pytest.param([part(source_topics=[])], INVALID, id='no source'),
    pytest.param([part(source_topics=['__consumer_offsets'])], INVALID, id='an internal topic of Kafka'),
    pytest.param([part(source_topics=['a b'])], INVALID, id='an invalid name'),
    pytest.param([part(state_changelog_topics=[internal('log', 2)])], INVALID, id='a changelog with a number'),
    pytest.param([part(repartition_source_topics=[internal('r', -1)])], INVALID, id='a negative number'),
    pytest.param([part(repartition_source_topics=[internal('r')])], INVALID, id='a number that cannot be found'),
    pytest.param([part(repartition_source_topics=[internal('r', 100_001)])], INVALID, id='too many tasks'),
    pytest.param([part(copartition_groups=[together(1)])], INVALID, id='a source that is not there'),
    pytest.param([part(copartition_groups=[together(-1)])], INVALID, id='a source before the first one'),
    pytest.param([part(copartition_groups=[together(0, repartition=[0])])], INVALID, id='no such repartition topic'),
    pytest.param([part(subtopology_id=str(number)) for number in range(2_501)], INVALID, id='too many subtopologies'),
])
def test_a_malformed_topology_is_refused_and_changes_nothing(beat, parts, code):
    send = beat()
    assert send(**JOIN, topology=topology(*parts)).error_code == code
    assert send(**BEAT).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize('fields', [
    pytest.param({'instance_id': ' '}, id='a blank instance id'),
    pytest.param({'member_epoch': -2}, id='a member without an instance id that leaves temporarily'),
    pytest.param({'member_epoch': -3, 'instance_id': 'i'}, id='an epoch below -2'),
    pytest.param({'warmup_tasks': []}, id='tasks of one role'),
    pytest.param({'task_offsets': [{'subtopology_id': '0', 'partition': 0, 'offset': 1}] * 2}, id='an offset twice'),
    pytest.param({'task_end_offsets': [{'subtopology_id': '0', 'partition': number, 'offset': 1}
                                       for number in range(100_001)]}, id='too many offsets'),
])
def test_fields_that_contradict_each_other_are_refused(beat, fields):
    send = beat()
    send(**JOIN, topology=topology(part()))
    assert send(**{**BEAT, **fields}).error_code == ErrorCode.INVALID_REQUEST


def test_a_static_member_may_leave_temporarily_and_report_warm_up_tasks_and_offsets(beat):
    send = beat()
    offsets = [{'subtopology_id': '0', 'partition': 0, 'offset': 7}]
    static = {'instance_id': 'i', 'task_offsets': offsets, 'task_end_offsets': offsets}
    assert send(**JOIN, **static, topology=topology(part())).error_code == ErrorCode.NONE
    warm = {**TASKS, 'warmup_tasks': [{'subtopology_id': '0', 'partitions': [0]}]}
    assert send(**BEAT, **static, **warm).error_code == ErrorCode.NONE
    member, = send.client.ask('StreamsGroupDescribe', 1, group_ids=['g'], include_authorized_operations=False,
                              include_topology_description=False).groups[0].members
    assert [(each.subtopology_id, each.partition, each.offset) for each in (
        *member.task_offsets, *member.task_end_offsets)] == [('0', 0, 7)] * 2
    away = send(**{**BEAT, 'member_epoch': -2}, instance_id='i')
    assert (away.error_code, away.member_epoch) == (ErrorCode.NONE, -2)


def statuses(answer):
    assert answer.error_code == 0, answer.error_message
    return {status.status_code: status.status_detail for status in answer.status}


@pytest.mark.parametrize(('topic', 'reason'), [
    pytest.param(internal('log', cleanup_policy='nonsense'), 'cleanup.policy', id='a value that is invalid'),
    pytest.param(internal('log', no_such='1'), 'no.such', id='a config that does not exist'),
    pytest.param(internal('log', 0, 3), 'replication factor 3', id='more replicas than brokers'),
])
def test_a_creation_that_fails_is_reported_with_the_next_heartbeat_and_tried_again(beat, topic, reason):
    send = beat(kbroker_replication_factor_accept='strict')
    missing = 'Internal topics are missing: log'
    joined = send(**JOIN, topology=topology(part(state_changelog_topics=[topic])))
    assert statuses(joined) == {Status.MISSING_INTERNAL_TOPICS: missing}
    for _ in range(2):
        detail = statuses(send(**BEAT))[Status.MISSING_INTERNAL_TOPICS]
        assert detail.startswith(f'{missing}; Creation failed: log (') and reason in detail


@pytest.mark.parametrize(('version', 'lag'), [(0, -1), (1, 10_000)])
def test_an_answer_has_the_interval_of_task_offsets_and_the_lag_that_a_warm_task_may_have(beat, version, lag):
    send = beat()
    for fields in {**JOIN, 'topology': topology(part())}, BEAT:
        answer = send(version, **fields)
        assert (answer.error_code, answer.task_offset_interval_ms, answer.acceptable_recovery_lag) == (0, 60_000, lag)
        assert (answer.acceptable_recovery_lag_legacy, answer.topology_description_required) == (0, False)
    for epoch in (9, -1):
        answer = send(version, **{**BEAT, 'member_epoch': epoch})
        assert (answer.task_offset_interval_ms, answer.acceptable_recovery_lag) == (0, -1)


def test_missing_internal_topics_are_created_with_their_configs(beat):
    send = beat()
    log = internal('log', cleanup_policy='compact')
    joined = send(**JOIN, topology=topology(part(state_changelog_topics=[log])))
    assert Status.MISSING_INTERNAL_TOPICS in statuses(joined)
    answer = send(**BEAT)
    assert statuses(answer) == {}
    assert [(tasks.subtopology_id, tasks.partitions) for tasks in answer.active_tasks] == [('0', [0])]


def test_the_number_of_a_changelog_is_described_although_the_topic_was_deleted_since(beat):
    send = beat()

    def described_number():
        answer = send.client.ask('StreamsGroupDescribe', 0, group_ids=['g'], include_authorized_operations=False)
        return answer.groups[0].topology.subtopologies[0].state_changelog_topics[0].partitions

    send.client.create_topic('wide', 3)
    logged = part(source_topics=['wide'], state_changelog_topics=[internal('log')])
    send(**JOIN, topology=topology(logged))
    assert statuses(send(**BEAT)) == {}
    assert described_number() == 3
    deleted = send.client.ask('DeleteTopics', topics=[{'name': 'log'}], timeout_ms=1000)
    assert deleted.responses[0].error_code == 0
    assert described_number() == 3


@pytest.mark.parametrize(('version', 'is_asked', 'status', 'assignor'), [
    (0, False, 0, None), (1, False, 0, 'sticky'), (1, True, 1, 'sticky')])
def test_a_description_says_that_no_topology_description_is_stored(beat, version, is_asked, status, assignor):
    send = beat()
    send(**JOIN, topology=topology(part()))
    there, missing = send.client.ask('StreamsGroupDescribe', version, group_ids=['g', 'none'],
                                     include_authorized_operations=False, include_topology_description=is_asked).groups
    assert (there.error_code, there.topology_description, there.topology_description_status,
            there.assignor_name) == (ErrorCode.NONE, None, status, assignor)
    assert (missing.error_code, missing.topology_description, missing.topology_description_status,
            missing.assignor_name) == (ErrorCode.GROUP_ID_NOT_FOUND, None, 0, None)


def test_a_group_whose_internal_topic_has_another_number_of_partitions_waits(beat):
    send = beat()
    taken = part(repartition_source_topics=[internal('orders', 2)], source_topics=[])
    assert Status.INCORRECTLY_PARTITIONED_TOPICS in statuses(send(**JOIN, topology=topology(taken)))
