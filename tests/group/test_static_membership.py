"""Static members (KIP-345). A static member is identified by its group.instance.id; its member id may change."""

from support.worlds.group_coordinator import GROUP, Client, World, stable_group, subscription

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import LeaveGroupRequest


def test_a_static_member_joins_without_getting_its_id_first(world):
    client = Client(world, instance='i1')
    answer = client.join_once()
    world.run_due()
    assert answer.value.member_id.startswith('i1-')


def test_a_static_follower_comes_back_without_a_rebalance(world):
    leader, _ = stable_group(world, Client(world, 'a', instance='i1'), Client(world, 'b', instance='i2'))
    back = Client(world, 'b', instance='i2')
    answer = back.join()
    back.joined(answer)
    assert (answer.value.generation_id, answer.value.members, answer.value.skip_assignment) == (
        leader.generation,
        [],
        False,
    )
    assert answer.value.leader == leader.member_id
    assert world.state() == 'Stable'
    assert back.sync().value.assignment == b'b'
    assert leader.heartbeat() is ErrorCode.NONE


def test_a_static_leader_comes_back_and_must_not_assign(world):
    stable_group(world, Client(world, 'a', instance='i1'), Client(world, 'b', instance='i2'))
    back = Client(world, 'a', instance='i1', version=9)
    answer = back.join()
    assert answer.value.skip_assignment and len(answer.value.members) == 2
    assert answer.value.leader == answer.value.member_id


def test_a_static_leader_of_an_old_version_believes_that_another_leads(world):
    leader, _ = stable_group(world, Client(world, 'a', instance='i1'), Client(world, 'b', instance='i2'))
    answer = Client(world, 'a', instance='i1', version=8).join()
    assert (answer.value.leader, answer.value.members, answer.value.skip_assignment) == (leader.member_id, [], False)
    assert answer.value.member_id != leader.member_id


def test_the_old_self_of_a_static_member_is_fenced(world):
    (old,) = stable_group(world, Client(world, 'a', instance='i1'))
    Client(world, 'a', instance='i1').join()
    assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert old.join().code is old.sync().code is old.leave() is ErrorCode.FENCED_INSTANCE_ID
    assert world.commit(('orders', 0), 1, **old.identity).code is ErrorCode.FENCED_INSTANCE_ID


def test_a_parked_join_of_the_old_self_is_fenced(world):
    first, second = stable_group(world, Client(world, 'a', instance='i1'), Client(world, 'b', instance='i2'))
    parked = first.join()
    Client(world, 'a', instance='i1').join()
    assert parked.code is ErrorCode.FENCED_INSTANCE_ID
    assert second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_with_another_assignor_makes_everyone_rebalance(world):
    metadata = subscription('orders')
    stable_group(world, Client(world, 'a', instance='i1', protocols=[('range', metadata), ('sticky', metadata)]))
    back = Client(world, 'a', instance='i1', protocols=[('sticky', metadata), ('range', metadata)])
    answer = back.join()
    assert (answer.value.generation_id, answer.value.protocol_name) == (2, 'sticky')


def test_a_static_member_that_returns_during_sync_makes_everyone_rebalance(world):
    first, second = stable_group(world, Client(world, 'a', instance='i1'), Client(world, 'b', instance='i2'))
    joins = [first.join(), second.join()]
    first.joined(joins[0]), second.joined(joins[1])
    parked = second.sync()
    assert not Client(world, 'a', instance='i1').join().came
    assert parked.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.state() == 'PreparingRebalance'


def test_the_new_self_is_answered_when_its_id_is_durable():
    world = World(immediate=False)
    stable_group(world, Client(world, 'a', instance='i1'))
    answer = Client(world, 'a', instance='i1').join()
    assert not answer.came
    world.flush()
    assert answer.code is ErrorCode.NONE
    before = world.sees()
    world.restart()
    assert world.sees() == before


def test_a_new_self_that_is_replaced_before_it_is_durable_is_fenced():
    world = World(immediate=False)
    stable_group(world, Client(world, 'a', instance='i1'))
    second, third = Client(world, 'a', instance='i1').join(), Client(world, 'a', instance='i1').join()
    world.flush()
    assert second.code is ErrorCode.FENCED_INSTANCE_ID
    assert third.value.member_id in world.groups.describe(GROUP, 'classic').members


def test_a_new_self_that_a_rebalance_overtook_joins_again():
    world = World(immediate=False)
    stable_group(world, Client(world, 'a', instance='i1'))
    back = Client(world, 'a', instance='i1')
    overtaken = back.join()
    Client(world, 'b').join()
    world.flush()
    assert overtaken.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert back.join().value.generation_id == 2


def test_a_new_self_that_cannot_be_stored_changes_nothing(world):
    (old,) = stable_group(world, Client(world, 'a', instance='i1'))
    world.partition.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert Client(world, 'a', instance='i1').join().code is ErrorCode.NOT_COORDINATOR
    assert old.heartbeat() is ErrorCode.NONE
    assert world.groups.describe(GROUP, 'classic').leader_id == old.member_id


def test_static_members_are_kept_through_a_rebalance_until_their_session_ends(world):
    _, second = stable_group(world, Client(world, 'a', instance='i1', session_timeout_ms=60_000), Client(world, 'b'))
    second.protocols = [('range', subscription('payments'))]
    answer = second.join()
    world.advance(30_000)
    assert len(world.groups.describe(GROUP, 'classic').members) == 2
    assert answer.came


def test_an_administrator_removes_a_static_member_by_its_instance_id(world):
    stable_group(world, Client(world, 'a', instance='i1'))
    request = LeaveGroupRequest(
        group_id=GROUP,
        members=[
            LeaveGroupRequest.MemberIdentity(member_id='', group_instance_id='i1'),
            LeaveGroupRequest.MemberIdentity(member_id='', group_instance_id='i2'),
            LeaveGroupRequest.MemberIdentity(member_id='', group_instance_id=None),
        ],
    )
    response = world.finish(world.groups.leave(request))
    assert [member.error_code for member in response.members] == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert world.state() == 'Empty'


def test_static_members_survive_a_restart(world):
    (client,) = stable_group(world, Client(world, 'a', instance='i1'))
    world.restart()
    assert client.heartbeat() is ErrorCode.NONE
    back = Client(world, 'a', instance='i1')
    back.joined(back.join())
    assert back.generation == client.generation
