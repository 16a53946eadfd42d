"""Groups of ten thousand members: the first join costs as much as the last one, and no turn of the event loop takes
long. Times are processor times of this thread, so that the load of the machine does not change them.
"""
import pytest
from support.runner.attempts import assert_within
from support.worlds.group_coordinator import GROUP, Answer, Client, World, subscription
from support.worlds.measured_world import LONGEST_TURN_S, large_world

from kbroker.base.errors import ErrorCode
from kbroker.group.classic.group import MOST_MEMBERS
from kbroker.protocol.messages import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

MEMBERS = 10_000
ORDERS = subscription('orders')
GATHERED_MS = 7_000
"""The time in ms after which the first rebalance no longer waits for members."""


@pytest.fixture
def world():
    """Return a world in which the first rebalance of a group waits for members, and batches are large enough for the
    row of ten thousand members."""
    with large_world(group_initial_rebalance_delay_ms=3000) as found:
        yield found


def join_request(member_id='', metadata=ORDERS):
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type='consumer',
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name='range', metadata=metadata)],
    )


def send_join(world, request):
    answer = Answer()
    answer.attempt(
        lambda: world.turn(lambda: world.groups.join(request, 9, 'client', '/127.0.0.1', answer.completion()))
    )
    return answer


def join_all(world):
    """Let ten thousand clients request member ids and join. Return {member id: answer to the join}."""
    answers = {}
    for _ in range(MEMBERS):
        member_id = send_join(world, join_request()).value.member_id
        answers[member_id] = send_join(world, join_request(member_id))
    return answers


def formed(world):
    """Form the first generation of a group of ten thousand members. Return {member id: answer to the join}."""
    answers = join_all(world)
    world.advance(GATHERED_MS)
    assert {answer.value.generation_id for answer in answers.values()} == {1}
    return answers


def syncs_of(world, answers):
    generation = world.groups.describe(GROUP, 'classic').generation
    leader = world.groups.describe(GROUP, 'classic').leader_id
    requests = [
        SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=each.encode()[-8:])
                for each in answers
            ]
            if member_id == leader
            else [],
        )
        for member_id in answers
    ]
    syncs = {}
    for request in requests:
        answer = syncs[request.member_id] = Answer()
        world.turn(lambda request=request, answer=answer: world.groups.sync(request, answer.completion()))
    world.run_due()
    return syncs


def test_ten_thousand_members_join_sync_and_leave_and_no_turn_is_long(world):
    answers = formed(world)
    assert world.total_s < 2.0
    leader = world.groups.describe(GROUP, 'classic').leader_id
    assert {len(answer.value.members) for answer in answers.values()} == {0, MEMBERS}
    assert {member.member_id for member in answers[leader].value.members} == answers.keys()
    syncs = syncs_of(world, answers)
    assert all(sync.value.assignment == member_id.encode()[-8:] for member_id, sync in syncs.items())
    assert world.state() == 'Stable'
    request = LeaveGroupRequest(
        group_id=GROUP,
        members=[LeaveGroupRequest.MemberIdentity(member_id=member_id) for member_id in [*answers, *answers]],
    )
    response = world.finish(world.groups.leave(request))
    assert [member.error_code for member in response.members] == [0] * MEMBERS + [
        ErrorCode.UNKNOWN_MEMBER_ID
    ] * MEMBERS
    assert world.state() == 'Empty'
    assert_within(world.longest_turn_s, LONGEST_TURN_S)


def test_the_sessions_of_ten_thousand_members_end_at_one_time_and_no_turn_is_long(world):
    answers = formed(world)
    syncs_of(world, answers)
    world.advance(120_000)
    assert world.state() == 'Empty'
    assert_within(world.longest_turn_s, LONGEST_TURN_S)


def test_ten_thousand_members_that_do_not_join_again_are_removed_in_parts(world):
    answers = formed(world)
    survivor = next(iter(answers))
    syncs_of(world, answers)
    again = send_join(world, join_request(survivor, metadata=subscription('payments')))
    world.advance(60_000)
    assert [member.member_id for member in again.value.members] == [survivor]
    assert_within(world.longest_turn_s, LONGEST_TURN_S)


def test_a_rebalance_takes_ten_thousand_waiting_syncs_along(world):
    answers = formed(world)
    leader = world.groups.describe(GROUP, 'classic').leader_id
    syncs = []
    for member_id in answers:
        if member_id != leader:
            syncs.append(Answer())
            request = SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=member_id)
            world.turn(lambda request=request: world.groups.sync(request, syncs[-1].completion()))
    send_join(world, join_request(leader, metadata=subscription('payments')))
    world.run_due()
    assert {sync.code for sync in syncs} == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert_within(world.longest_turn_s, LONGEST_TURN_S)


def test_a_group_has_a_largest_size_of_its_own():
    world = World(group_initial_rebalance_delay_ms=3000)
    group = None
    for index in range(MOST_MEMBERS + 1):
        client = Client(world, f'c{index}', version=3)
        answer = client.join()
        group = group or world.groups.describe(GROUP, 'classic')
        if answer.came:
            break
    assert (index, answer.code) == (MOST_MEMBERS, ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert len(group.members) == MOST_MEMBERS
