"""Properties of random histories of groups: a restart restores the state that clients see, and each request is answered
exactly once."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.worlds.group_coordinator import Client, World

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.classic.states import GroupState
from kbroker.group.offsets.table import OFFSET_BYTES

PARTITIONS = st.sampled_from([('orders', 0), ('orders', 1), ('payments', 0)])
GROUPS = st.sampled_from(['g1', 'g2'])
PRODUCERS = st.sampled_from([1000, 2000])
CLIENTS = st.integers(0, 3)


class GroupsOnDisk(RuleBasedStateMachine):
    """A Hypothesis state machine with two groups, four clients (one of them a static member) and two producers. Flushes
    happen at random times."""

    @initialize()
    def begin(self):
        self.world = World(immediate=False)
        self.clients = [
            Client(self.world, f'c{index}', group_id=f'g{1 + index // 3}', instance='i' if index == 2 else None)
            for index in range(4)
        ]
        self.joins = [None] * 4

    @rule(index=CLIENTS)
    def join(self, index):
        self.joins[index] = self.clients[index].join()
        if self.joins[index].came and self.joins[index].code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.clients[index].member_id = ''

    @rule(index=CLIENTS)
    def sync(self, index):
        client, answer = self.clients[index], self.joins[index]
        if answer is None or not answer.came or answer.code is not ErrorCode.NONE:
            return
        client.joined(answer)
        client.sync(
            {member.member_id: f'{member.member_id}@{client.generation}'.encode() for member in answer.value.members}
        )

    @rule(index=CLIENTS)
    def leave(self, index):
        try:
            self.clients[index].leave()
        except KafkaError as refused:
            assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    @rule(index=CLIENTS)
    def heartbeat(self, index):
        self.clients[index].heartbeat()

    @rule(index=CLIENTS)
    def forget_member_id(self, index):
        self.clients[index].member_id = ''

    @rule(partition=PARTITIONS, offset=st.integers(0, 99), index=CLIENTS)
    def commit_as_member(self, partition, offset, index):
        client = self.clients[index]
        self.world.commit(partition, offset, group_id=client.group_id, **client.identity)

    @rule(partition=PARTITIONS, offset=st.integers(0, 99), group_id=GROUPS, retention_ms=st.sampled_from([-1, 1000]))
    def commit(self, partition, offset, group_id, retention_ms):
        self.world.commit(partition, offset, group_id=group_id, retention_ms=retention_ms)

    @rule(partition=PARTITIONS, offset=st.integers(0, 99), group_id=GROUPS, producer_id=PRODUCERS)
    def commit_transactional(self, partition, offset, group_id, producer_id):
        self.world.commit_transactional(partition, offset, producer_id, group_id=group_id)

    @rule(producer_id=PRODUCERS, commit=st.booleans())
    def end_transaction(self, producer_id, commit):
        self.world.end_transaction(producer_id, commit=commit)

    @rule(group_id=GROUPS)
    def delete_group(self, group_id):
        errors = []
        self.world.groups.delete_group(group_id, Callback(lambda error, result: errors.append(error)))
        assert {error.code for error in errors if error} <= {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP}

    @rule(ms=st.sampled_from([0, 1, 3000, 10_000, 60_000, 700_000_000]))
    def time_passes(self, ms):
        self.world.advance(ms) if ms < 100_000 else self.world.clock.advance(ms)

    @rule()
    def sweep(self):
        self.world.groups.sweep()

    @rule()
    def flush(self):
        self.world.flush()

    @rule()
    def restart(self):
        self.world.restart()
        self.joins = [None] * 4

    @invariant()
    def a_restart_shows_what_was_durable(self):
        if self.world.partition.high_watermark != self.world.partition.log_end_offset:
            return
        world = self.world
        offsets = {
            group_id: [world.fetched_all(group_id, require_stable=stable) for stable in (False, True)]
            for group_id in ('g1', 'g2')
        }
        unchanging = {
            group_id: seen
            for group_id, seen in world.sees().items()
            if seen[0] is GroupState.STABLE or (seen[0] is GroupState.EMPTY and seen[1])
        }
        copy = World(immediate=False)
        copy.topics.take_over(world.topics)
        copy.restart()
        assert {
            group_id: [copy.fetched_all(group_id, require_stable=stable) for stable in (False, True)]
            for group_id in ('g1', 'g2')
        } == offsets
        after = copy.sees()
        for group_id, seen in unchanging.items():
            assert without_times(after[group_id]) == without_times(seen)

    @invariant()
    def the_memory_is_that_of_the_groups_and_offsets(self):
        shards = [part.shard for part in self.world.groups._parts]
        groups = sum(group.held_bytes for shard in shards for group in shard.groups.values())
        offsets = sum(len(table) for shard in shards for table in shard.offsets.tables())
        assert shards[0].memory.held_bytes == groups + offsets * OFFSET_BYTES

    @invariant()
    def groups_are_consistent(self):
        for part in self.world.groups._parts:
            for group in part.shard.groups.values():
                assert group.static_member_ids == {
                    member.group_instance_id: member.member_id for member in group.members.values() if member.is_static
                }
                assert all(member.member_id == key for key, member in group.members.items())
                assert group.parked.unsynced_member_ids <= group.members.keys()
                assert group.parked.joined_count == sum(
                    member.join_done is not None for member in group.members.values())
                names = [name for member in group.members.values() for name, _ in member.protocols]
                assert all(group.assignors.is_common(name) == (names.count(name) == len(group.members))
                           for name in names)
                assert (group.leader_id in group.members) == bool(group.members)
                assert not group.members or group.state not in (GroupState.EMPTY, GroupState.DEAD)
                assert group.members or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
                if group.state is GroupState.STABLE:
                    assert not any(member.sync_done for member in group.members.values())
                if group.state is not GroupState.PREPARING_REBALANCE:
                    assert not any(member.join_done for member in group.members.values())


def without_times(seen):
    state, generation, protocol_type, protocol_name, leader_id, _, members, *_ = seen
    return state, generation, protocol_type, protocol_name, leader_id, members


TestGroupsOnDisk = GroupsOnDisk.TestCase
TestGroupsOnDisk.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
