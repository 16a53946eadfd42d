"""Tests of reconciliation. Each row of the tables is one step of a member. In a row, `a1-3@10` means the partitions 1
to 3 of topic a, which the member got in epoch 10."""
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.streams_reconciliation import ROLES, next_tasks

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.group.assignors.sticky import Role
from kbroker.group.modern.reconcile import (
    FREE,
    Assigned,
    State,
    reconcile,
    reconcile_shared,
)
from kbroker.group.streams.reconciliation import reconcile_tasks

BOTH = frozenset({b'a', b'b'})
STABLE, UNREVOKED, UNRELEASED, UNKNOWN = State


def numbers(text):
    """Return {topic: {partition: epoch}} for a text of words: a1-3@10 means the partitions 1 to 3 of topic a with epoch
    10. A word without an epoch means epoch 10.
    """
    found = {}
    for word in text.split():
        partitions, _, epoch = word[1:].partition('@')
        for part in partitions.split(','):
            first, _, last = part.partition('-')
            for partition in range(int(first), int(last or first) + 1):
                found.setdefault(word[0].encode(), {})[partition] = int(epoch or 10)
    return found


def sets(text):
    return None if text is None else {topic: frozenset(partitions) for topic, partitions in numbers(text).items()}


def assigned(state, epoch, text, pending='', previous=0):
    return Assigned(state, epoch, previous, numbers(text), numbers(pending))


def step(before, epoch, target, owned, held, *, subscribed=BOTH, changed=False):
    """Run one reconciliation of a member, and return its new value. Other members, whose epoch is 10, hold the
    partitions in `held`."""
    holders = numbers(held)
    return run_to_end(reconcile(before, epoch, sets(target), lambda topic, number: holders.get(topic, {}).get(
        number, FREE), sets(owned), subscribed, changed))


EVERYTHING = 'a0-9 b0-9'
TRIMMED = assigned(UNREVOKED, 10, 'a2-3 b5-6', 'a1 b4')


@pytest.mark.parametrize(('before', 'epoch', 'target', 'owned', 'held', 'after'), [
    pytest.param(assigned(STABLE, 10, 'a1-3@10 b4-6@5'), 11, 'a1-3 b4-6', None, '',
                 assigned(STABLE, 11, 'a1-3@10 b4-6@5', previous=10), id='the same target at a later epoch'),
    pytest.param(assigned(STABLE, 10, 'a1-3 b4-6'), 11, 'a1-4 b4-7', None, '',
                 assigned(STABLE, 11, 'a1-3 a4@11 b4-6 b7@11', previous=10), id='free partitions are added'),
    pytest.param(assigned(STABLE, 10, 'a1-3 b4-6'), 11, 'a2-4 b5-7', None, '',
                 assigned(UNREVOKED, 10, 'a2-3 b5-6', 'a1 b4', previous=10), id='revocation comes before addition'),
    pytest.param(assigned(STABLE, 10, 'a1-3 b4-6'), 11, 'a1-4 b4-7', None, EVERYTHING,
                 assigned(UNRELEASED, 11, 'a1-3 b4-6', previous=10), id='held partitions are waited for'),
    pytest.param(assigned(STABLE, 10, 'a1-3 b4-6'), 11, 'a1-3 b4,5,7', '', 'b0-9',
                 assigned(UNRELEASED, 11, 'a1-3 b4-5', previous=10), id='nothing owned needs no revocation'),
    pytest.param(TRIMMED, 11, 'a2-3 b5-6', 'a2-3 b5-6', EVERYTHING,
                 assigned(STABLE, 11, 'a2-3 b5-6', previous=10), id='a confirmed revocation'),
    pytest.param(TRIMMED, 12, 'a3 b6', None, EVERYTHING, TRIMMED, id='no report confirms nothing'),
    pytest.param(TRIMMED, 12, 'a3 b6', 'a1-3 b5-6', EVERYTHING, TRIMMED, id='a1 is owned yet'),
    pytest.param(TRIMMED, 12, 'a3 b6', 'a2-3 b4-6', EVERYTHING, TRIMMED, id='b4 is owned yet'),
    pytest.param(TRIMMED, 12, 'a3 b6', 'a2-3 b5-6', EVERYTHING,
                 assigned(UNREVOKED, 10, 'a3 b6', 'a2 b5', previous=10), id='one revocation after the other'),
    pytest.param(assigned(UNREVOKED, 10, 'a2-3 b5-6', 'a4'), 12, 'a2-4 b5-7', 'a2-3 b5-6', 'a4',
                 assigned(STABLE, 12, 'a2-3 a4@12 b5-6 b7@12', previous=10), id='its own pending partition comes back'),
    pytest.param(assigned(UNRELEASED, 11, 'a2-3@11 b5-6@11'), 11, 'a2-4 b5-7', None, EVERYTHING,
                 assigned(UNRELEASED, 11, 'a2-3@11 b5-6@11', previous=11), id='still held'),
    pytest.param(assigned(UNRELEASED, 11, 'a2-3@11'), 11, 'a2-4', None, '',
                 assigned(STABLE, 11, 'a2-4@11', previous=11), id='released at last'),
    pytest.param(assigned(UNKNOWN, 11, 'a3@11 b6@11', 'a2 b5'), 12, 'a3 b6', '', EVERYTHING,
                 assigned(STABLE, 12, 'a3@11 b6@11', previous=11), id='an unknown state that owns nothing'),
    pytest.param(assigned(STABLE, 0, ''), 1, '', None, '', assigned(STABLE, 1, ''), id='nothing to have'),
])
def test_a_member_of_a_consumer_group_takes_one_step(before, epoch, target, owned, held, after):
    assert step(before, epoch, target, owned, held) == after


@pytest.mark.parametrize('owned', [None, 'a3'])
def test_a_member_in_an_unknown_state_is_fenced_while_it_may_own_something(owned):
    with pytest.raises(KafkaError) as found:
        step(assigned(UNKNOWN, 11, 'a3@11', 'a2'), 12, 'a3', owned, '')
    assert found.value.code is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(('before', 'owned', 'after'), [
    pytest.param(assigned(STABLE, 10, 'a1-3 b4-6'), 'a1-3 b4-6',
                 assigned(UNREVOKED, 10, 'b4-6', 'a1-3', previous=10), id='revoked'),
    pytest.param(assigned(STABLE, 10, 'a1-3 b4-6'), 'b4-6',
                 assigned(STABLE, 10, 'b4-6', previous=10), id='not owned any more'),
    pytest.param(assigned(UNREVOKED, 10, 'a1 b4-6', 'a2'), 'a1-2 b4-6',
                 assigned(UNREVOKED, 10, 'b4-6', 'a1-2', previous=10), id='with what is pending'),
    pytest.param(assigned(STABLE, 10, 'b4-6'), None, assigned(STABLE, 10, 'b4-6'), id='nothing to revoke'),
])
def test_a_changed_subscription_revokes_within_the_epoch(before, owned, after):
    assert step(before, 10, 'a1-3 b4-6', owned, '', subscribed={b'b'}, changed=True) == after


def test_a_changed_subscription_to_nothing_is_a_change_of_the_member():
    before = assigned(STABLE, 1, '')
    assert step(before, 1, '', '', '', subscribed=None, changed=True) == assigned(STABLE, 1, '', previous=1)
    assert step(before, 1, '', '', '', subscribed=frozenset(), changed=True) is before


def test_a_target_outside_the_subscription_counts_as_none():
    before = assigned(STABLE, 10, 'a1-3 b4-6')
    assert step(before, 11, 'a1-3 b4-6', 'a1-3 b4-6', '', subscribed={b'b'}) == assigned(
        UNREVOKED, 10, 'b4-6', 'a1-3', previous=10)


def test_a_member_that_has_its_target_stays_the_same_object():
    before = assigned(STABLE, 10, 'a1-3')
    assert step(before, 10, 'a1-3', None, '') is before


@pytest.mark.parametrize(('before', 'epoch', 'subscribed', 'changed', 'after'), [
    pytest.param(assigned(STABLE, 10, 'a1@0'), 11, BOTH, False, assigned(STABLE, 11, 'a2@0 b1@0', previous=10),
                 id='the target at once'),
    pytest.param(assigned(STABLE, 10, 'a1@0'), 11, {b'b'}, True, assigned(STABLE, 11, 'b1@0', previous=10),
                 id='within the subscription'),
    pytest.param(assigned(STABLE, 11, 'a2@0 b1@0', previous=3), 11, {b'b'}, True,
                 assigned(STABLE, 11, 'b1@0', previous=11), id='a smaller subscription'),
    pytest.param(assigned(STABLE, 11, 'a2@0', previous=3), 11, BOTH, True, assigned(STABLE, 11, 'a2@0', previous=3),
                 id='a larger subscription'),
    pytest.param(assigned(STABLE, 11, 'a2@0'), 11, set(), False, assigned(STABLE, 11, 'a2@0'), id='nothing new'),
])
def test_a_member_of_a_share_group_takes_its_target_at_once(before, epoch, subscribed, changed, after):
    assert run_to_end(reconcile_shared(before, epoch, sets('a2 b1'), subscribed, changed)) == after


ACTIVE, STANDBY, WARMUP = ((role, '0') for role in Role)


def tasks(before, epoch, target, owned, held=()):
    return run_to_end(reconcile_tasks(before, epoch, target, lambda key, number: (key, number) in held, owned))


def test_a_member_of_a_streams_group_revokes_tasks_of_any_role_first():
    before = Assigned(STABLE, 10, 9, {ACTIVE: {0: 10, 1: 10}, STANDBY: {2: 10}})
    target = {ACTIVE: frozenset({0, 3})}
    assert tasks(before, 11, target, None) == Assigned(
        UNREVOKED, 10, 10, {ACTIVE: {0: 10}}, {ACTIVE: {1: 10}, STANDBY: {2: 10}})


def test_an_active_task_becomes_a_standby_task_at_once_and_is_revoked():
    before = Assigned(STABLE, 10, 9, {ACTIVE: {0: 10, 1: 10}})
    target = {ACTIVE: frozenset({0}), STANDBY: frozenset({1})}
    assert tasks(before, 11, target, None) == Assigned(
        UNREVOKED, 10, 10, {ACTIVE: {0: 10}, STANDBY: {1: 11}}, {ACTIVE: {1: 10}})


@pytest.mark.parametrize(('has', 'wants'), [(STANDBY, WARMUP), (WARMUP, STANDBY)])
def test_a_copy_changes_between_standby_and_warm_up_without_a_revocation(has, wants):
    before = Assigned(STABLE, 10, 9, {has: {1: 10}})
    assert tasks(before, 11, {wants: frozenset({1})}, None) == Assigned(STABLE, 11, 10, {wants: {1: 11}})


@pytest.mark.parametrize('copy', [STANDBY, WARMUP])
def test_a_copy_that_becomes_active_is_kept_until_the_active_task_is_granted(copy):
    before = Assigned(STABLE, 10, 9, {copy: {1: 10}, ACTIVE: {0: 10}})
    target = {ACTIVE: frozenset({1})}
    revoking = Assigned(UNREVOKED, 10, 10, {copy: {1: 10}}, {ACTIVE: {0: 10}})
    assert tasks(before, 11, target, {ACTIVE: frozenset({0})}) == revoking
    assert tasks(revoking, 11, target, {}, {(ACTIVE, 1)}) == Assigned(UNRELEASED, 11, 10, {copy: {1: 10}})
    assert tasks(revoking, 11, target, {}) == Assigned(STABLE, 11, 10, {ACTIVE: {1: 11}})


TASKS = st.lists(st.sampled_from([*ROLES, None]), min_size=4, max_size=4).map(lambda roles: {
    role: frozenset(number for number, each in enumerate(roles) if each == role) for role in ROLES})
"""The tasks of one member by role. A member has a task in one role at most."""


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(TASKS, TASKS, TASKS, st.none() | TASKS)
def test_roles_change_as_in_the_formulas(has, wants, unreleased, owned):
    before = Assigned(STABLE, 10, 9, {(Role(role), '0'): dict.fromkeys(has[role], 10) for role in ROLES})

    def keyed(tasks):
        return None if tasks is None else {(Role(role), '0'): tasks[role] for role in ROLES}

    found = run_to_end(reconcile_tasks(before, 11, keyed(wants), lambda key, number: number in unreleased[key[0]],
                                       keyed(owned)))
    expected = next_tasks(has, wants, unreleased, owned)
    assert ({role: frozenset(found.assigned.get((Role(role), '0'), ())) for role in ROLES},
            {role: frozenset(found.pending.get((Role(role), '0'), ())) for role in ROLES}) == (
        expected.tasks, expected.revoked)
    if found.state is not UNREVOKED:
        assert found.state is (UNRELEASED if expected.waits else STABLE)


def test_a_task_waits_for_the_member_that_hinders_it():
    before = Assigned(UNREVOKED, 10, 10, {ACTIVE: {0: 10}}, {STANDBY: {2: 10}})
    target = {ACTIVE: frozenset({0, 2}), STANDBY: frozenset({1})}
    assert tasks(before, 12, target, {ACTIVE: frozenset({0})}, {(ACTIVE, 2)}) == Assigned(
        UNRELEASED, 12, 10, {ACTIVE: {0: 10}, STANDBY: {1: 12}})


def test_a_second_revocation_of_tasks_is_of_the_next_epoch():
    before = Assigned(UNREVOKED, 10, 10, {ACTIVE: {0: 10}}, {ACTIVE: {1: 10}})
    assert tasks(before, 12, {}, {ACTIVE: frozenset({1})}) is before
    assert tasks(before, 12, {}, {ACTIVE: frozenset({0})}) == Assigned(UNREVOKED, 11, 10, {}, {ACTIVE: {0: 10}})


TARGETS = st.fixed_dictionaries({b'a': st.frozensets(st.integers(0, 4)), b'b': st.frozensets(st.integers(0, 4))})


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(TARGETS, min_size=2, max_size=2), st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=12))
def test_no_two_members_have_a_partition_and_both_reach_their_targets(wishes, heartbeats):
    """Two members heartbeat in a random order, then alternately. A partition whose revocation is not confirmed still
    belongs to its member."""
    first = wishes[0]
    second = {topic: partitions - first.get(topic, frozenset()) for topic, partitions in wishes[1].items()}
    swapped = [(1, [first, second]), (2, [second, first])]
    members = [Assigned(), Assigned()]
    reports = [{}, {}]

    def heartbeat(index, epoch, targets, confirms):
        def owner(topic, partition):
            return next((other.epoch for other in members
                         if partition in {**other.assigned.get(topic, {}), **other.pending.get(topic, {})}), FREE)
        members[index] = run_to_end(reconcile(members[index], epoch, targets[index], owner,
                                              reports[index] if confirms else None, BOTH, False))
        if confirms:
            reports[index] = {topic: frozenset(found) for topic, found in members[index].assigned.items()}
        held = [{(topic, number) for part in (member.assigned, member.pending) for topic, found in part.items()
                 for number in found} for member in members]
        assert not held[0] & held[1]

    for epoch, targets in swapped:
        for index, confirms in heartbeats:
            heartbeat(index, epoch, targets, confirms)
        for index in (0, 1) * 4:
            heartbeat(index, epoch, targets, True)
        for member, target in zip(members, targets, strict=True):
            assert member.is_reconciled_to(epoch)
            assert {topic: set(found) for topic, found in member.assigned.items()} == {
                topic: set(found) for topic, found in target.items() if found}


def test_a_large_reconciliation_is_done_in_parts():
    many = frozenset(range(10_000))
    parts = sum(1 for _ in reconcile(Assigned(), 2, {b'a': many}, lambda topic, number: FREE, None, BOTH, False))
    assert parts > 100
