"""Streams groups with twenty thousand tasks: no turn of the event loop takes long, because the work is divided into
parts. Times are processor times of this thread, so that the load of the machine does not change them.
"""
import pytest
from support.runner.attempts import assert_within
from support.worlds.measured_world import LONGEST_TURN_S, large_world
from support.worlds.streams_groups import StreamsClient, active_tasks, streams_group, topology

from kbroker.protocol.messages import StreamsGroupHeartbeatRequest

TASKS = 20_000


@pytest.fixture
def world():
    """Return a world whose assignment interval is 0, so that every heartbeat may compute new targets."""
    with large_world(group_streams_assignment_interval_ms=0, group_streams_min_assignment_interval_ms=0,
                     group_streams_initial_rebalance_delay_ms=0, group_streams_num_standby_replicas=1) as found:
        found.topics.create('t', TASKS)
        found.topics.create('log', TASKS)
        yield found


def test_no_turn_of_a_group_with_twenty_thousand_tasks_is_long(world):
    declared = topology(changelogs=('log',))
    a, b = (StreamsClient(world, name, declared=declared) for name in 'ab')
    assert active_tasks(a.join()) == {'0': set(range(TASKS))}
    b.join()
    kept = active_tasks(a.heartbeat({'0': set(range(TASKS))}))
    assert len(kept['0']) == TASKS // 2
    a.heartbeat(kept)
    b.heartbeat({})
    assert {len(target['active', '0']) for target in streams_group(world).targets.values()} == {TASKS // 2}
    assert_within(world.longest_turn_s, LONGEST_TURN_S)


def test_no_turn_is_long_when_members_have_reported_the_offsets_of_twenty_thousand_tasks(world):
    declared = topology(changelogs=('log',))
    a, b = (StreamsClient(world, name, declared=declared) for name in 'ab')
    a.join()
    offsets = [StreamsGroupHeartbeatRequest.TaskOffset(subtopology_id='0', partition=number, offset=number)
               for number in range(TASKS)]
    a.heartbeat(task_offsets=offsets, task_end_offsets=offsets)
    b.join(task_offsets=offsets, task_end_offsets=offsets)
    assert len(streams_group(world).task_offsets['b'].end_offsets['0']) == TASKS
    kept = active_tasks(a.heartbeat({'0': set(range(TASKS))}))
    a.heartbeat(kept)
    a.leave()
    b.heartbeat({})
    assert active_tasks(b.heartbeat()) is None and len(streams_group(world).targets['b']['active', '0']) == TASKS
    assert_within(world.longest_turn_s, LONGEST_TURN_S)
