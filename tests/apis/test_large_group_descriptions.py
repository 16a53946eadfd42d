"""The broker describes a group of many members in short parts, even if most members have no assignment."""
import pytest
from api_client import ApiClient
from support.worlds.stepwise_work import StepwiseWork

MEMBERS = 400
FEWEST_PARTS = 20
SUBTOPOLOGY = {
    'subtopology_id': '0', 'source_topics': ['orders'], 'source_topic_regex': [], 'repartition_sink_topics': [],
    'state_changelog_topics': [], 'repartition_source_topics': [], 'copartition_groups': []}
JOINS = {
    'Consumer': {'rebalance_timeout_ms': 1000, 'topic_partitions': [], 'subscribed_topic_names': ['orders']},
    'Share': {'subscribed_topic_names': ['orders']},
    'Streams': {'rebalance_timeout_ms': 1000, 'process_id': 'p', 'active_tasks': [], 'standby_tasks': [],
                'warmup_tasks': [], 'endpoint_information_epoch': 0, 'shutdown_application': False,
                'topology': {'epoch': 0, 'subtopologies': [SUBTOPOLOGY]}}}


@pytest.mark.parametrize('kind', JOINS)
def test_a_group_of_many_members_is_described_in_short_parts(start_node, kind):
    client = ApiClient(start_node(group_share_max_size=str(MEMBERS)))
    client.create_topic()
    client.ask('FindCoordinator', coordinator_keys=['g'])
    for number in range(MEMBERS):
        joined = client.ask(f'{kind}GroupHeartbeat', group_id='g', member_id=f'm{number}', member_epoch=0,
                            **JOINS[kind])
        assert joined.error_code == 0, joined.error_message
    work = client.broker.long_work = StepwiseWork(client.broker.timers)
    asked = client.begin(f'{kind}GroupDescribe', group_ids=['g'])
    parts = 0
    while not asked.is_answered:
        work.step()
        parts += 1
    (group,) = asked.answer.groups
    assert {member.member_id for member in group.members} == {f'm{number}' for number in range(MEMBERS)}
    assert parts > FEWEST_PARTS
    work.assert_parts_were_short()
