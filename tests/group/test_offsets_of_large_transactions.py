"""Transactions with tens of thousands of offsets. A marker ends a transaction in one step; then its offsets are applied
in parts.

A fetch always sees either all offsets of a transaction or none of them. Times are processor times of this thread.
"""
import gc
import random
import time

import pytest
from support.runner.attempts import assert_within
from support.worlds.group_coordinator import GROUP, Answer, World

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode
from kbroker.group.commits import Commit, NewOffset
from kbroker.group.offsets.table import OFFSET_BYTES
from kbroker.group.shard import TransactionalProducer

MANY = 50_000
SEVERAL_PARTS = 450
OFFSETS_OF_A_REQUEST = 10_000
LONGEST_TURN_S = 0.010


@pytest.fixture
def world():
    """Return a world in which a slice of the loop does only one part of long work."""
    return World(slice_us=0)


def names(count, topic='orders'):
    return [(topic, index) for index in range(count)]


def commit(world, partitions, offset, producer_id=None, group_id=GROUP):
    """Commit `offset` for each partition. If `producer_id` is not None, commit it in this producer's transaction."""
    for start in range(0, len(partitions), OFFSETS_OF_A_REQUEST):
        part = partitions[start:start + OFFSETS_OF_A_REQUEST]
        answer = Answer()
        offsets = Commit(group_id, {partition: NewOffset(offset) for partition in part})
        if producer_id is None:
            world.groups.commit(offsets, 8, answer.completion())
        else:
            guard = world.verification(group_id, producer_id)
            world.groups.commit_transactional(offsets, 5, TransactionalProducer(producer_id, 0, guard),
                                              answer.completion())
        assert set(answer.value.values()) == {ErrorCode.NONE}


def seen(world, partitions, group_id=GROUP, *, require_stable=True):
    """Fetch the offsets of the partitions. Return the set of (error, offset) in the results."""
    found = world.groups.fetch_offsets(group_id, partitions, require_stable)
    return {(fetched.error, fetched.offset) for fetched in found.values()}


def slices(world):
    """Run the long work that applies offsets, part by part. Yield before the first part, between two parts, and after
    the last part."""
    while True:
        yield
        if not len(world.long_work):
            return
        world.long_work.run_slice()


def offsets_in_memory(world):
    shard, = [part.shard for part in world.groups._parts]
    groups = sum(group.held_bytes for group in shard.groups.values())
    return (shard.memory.held_bytes - groups) / OFFSET_BYTES


@pytest.mark.parametrize('committed', [True, False])
def test_the_end_of_a_transaction_with_fifty_thousand_offsets_takes_no_long_turn(committed):
    """A previous version of the broker applied all offsets in the turn of the loop in which it read the marker."""
    world = World(message_max_bytes=4 * 1024 * 1024)
    commit(world, names(MANY), 1)
    commit(world, names(MANY), 2, producer_id=1000)
    turns = []

    def turn(operation):
        began = time.thread_time()
        operation()
        turns.append(time.thread_time() - began)

    gc.collect()
    gc.disable()
    try:
        turn(lambda: world.end_transaction(1000, commit=committed))
        assert len(world.long_work)
        assert seen(world, names(MANY)) == {(ErrorCode.NONE, 2 if committed else 1)}
        while len(world.long_work):
            turn(world.long_work.run_slice)
    finally:
        gc.enable()
    assert seen(world, names(MANY)) == {(ErrorCode.NONE, 2 if committed else 1)}
    assert_within(max(turns), LONGEST_TURN_S)


@pytest.mark.parametrize('committed', [True, False])
def test_a_fetch_sees_all_offsets_of_a_transaction_or_none_whatever_part_is_applied(world, committed):
    some, others = names(SEVERAL_PARTS)[::2], names(SEVERAL_PARTS)[1::2]
    commit(world, some, 1)
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    assert seen(world, some, require_stable=False) == {(ErrorCode.NONE, 1)}
    assert seen(world, some) == seen(world, others) == {(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)}
    world.end_transaction(1000, commit=committed)
    assert len(world.long_work)
    for _ in slices(world):
        assert seen(world, some) == {(ErrorCode.NONE, 2 if committed else 1)}
        assert seen(world, others) == {(ErrorCode.NONE, 2 if committed else -1)}
        assert len(world.fetched_all()) == (SEVERAL_PARTS if committed else len(some))
    assert offsets_in_memory(world) == (SEVERAL_PARTS if committed else len(some))


@pytest.mark.parametrize('first', [True, False])
@pytest.mark.parametrize('second', [True, False])
def test_a_second_transaction_ends_while_the_first_is_being_applied(world, first, second):
    """Both transactions are from the same producer and have offsets for the same partitions."""
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    world.end_transaction(1000, commit=first)
    commit(world, names(SEVERAL_PARTS), 3, producer_id=1000)
    assert seen(world, names(SEVERAL_PARTS)) == {(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)}
    assert seen(world, names(SEVERAL_PARTS), require_stable=False) == {(ErrorCode.NONE, 2 if first else -1)}
    world.end_transaction(1000, commit=second)
    expected = 3 if second else 2 if first else -1
    for _ in slices(world):
        assert seen(world, names(SEVERAL_PARTS)) == {(ErrorCode.NONE, expected)}
    assert offsets_in_memory(world) == (0 if expected < 0 else SEVERAL_PARTS)


def test_the_last_row_counts_though_its_transaction_ended_first(world):
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    commit(world, names(SEVERAL_PARTS), 3, producer_id=2000)
    world.end_transaction(2000, commit=True)
    world.end_transaction(1000, commit=True)
    for _ in slices(world):
        assert seen(world, names(SEVERAL_PARTS)) == {(ErrorCode.NONE, 3)}


def test_a_commit_outside_the_transaction_counts_while_it_is_being_applied(world):
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    world.end_transaction(1000, commit=True)
    commit(world, names(SEVERAL_PARTS)[:300], 3)
    for _ in slices(world):
        assert seen(world, names(SEVERAL_PARTS)[:300]) == {(ErrorCode.NONE, 3)}
        assert seen(world, names(SEVERAL_PARTS)[300:]) == {(ErrorCode.NONE, 2)}
    assert offsets_in_memory(world) == SEVERAL_PARTS


def test_a_tombstone_takes_an_offset_that_is_being_applied(world):
    """The tombstone is after the transaction's marker in the log, so it deletes the transaction's offset."""
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    world.end_transaction(1000, commit=True)
    world.groups.delete_offsets(GROUP, names(SEVERAL_PARTS)[:300], Callback(lambda error, result: None))
    for _ in slices(world):
        pass
    assert seen(world, names(SEVERAL_PARTS)[:300]) == {(ErrorCode.NONE, -1)}
    assert seen(world, names(SEVERAL_PARTS)[300:]) == {(ErrorCode.NONE, 2)}
    assert offsets_in_memory(world) == SEVERAL_PARTS - 300
    before = world.sees()
    world.restart()
    assert world.sees() == before


def test_a_group_is_deleted_while_its_offsets_are_being_applied(world):
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    world.end_transaction(1000, commit=True)
    answers = []
    world.groups.delete_group(GROUP, Callback(lambda error, result: answers.append(error)))
    for _ in slices(world):
        pass
    assert answers == [None] and world.state() == 'none' and offsets_in_memory(world) == 0
    world.restart()
    assert world.state() == 'none' and world.fetched_all() == {}


def test_a_topic_is_deleted_while_its_offsets_are_being_applied(world):
    commit(world, [*names(SEVERAL_PARTS), ('payments', 1)], 2, producer_id=1000)
    world.end_transaction(1000, commit=True)
    world.topics.delete('orders')
    for _ in slices(world):
        pass
    assert list(world.fetched_all()) == [('payments', 1)]
    assert offsets_in_memory(world) == 1


@pytest.mark.parametrize('days', [6, 8])
def test_offsets_expire_while_they_are_being_applied_if_they_are_due(world, days):
    """With the default settings, offsets expire after seven days."""
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    world.clock.advance(days * 86_400_000)
    world.end_transaction(1000, commit=True)
    world.groups.sweep()
    for _ in slices(world):
        pass
    world.groups.sweep()
    world.long_work.finish()
    kept = SEVERAL_PARTS if days < 7 else 0
    assert len(world.fetched_all()) == offsets_in_memory(world) == kept
    assert world.state() == ('Empty' if kept else 'none')


def test_a_restart_applies_what_the_log_says(world):
    commit(world, names(SEVERAL_PARTS), 2, producer_id=1000)
    commit(world, names(SEVERAL_PARTS), 3, producer_id=2000)
    world.end_transaction(1000, commit=True)
    world.end_transaction(2000, commit=False)
    before = world.sees()
    world.restart()
    assert world.sees() == before and offsets_in_memory(world) == SEVERAL_PARTS


@pytest.mark.parametrize('seed', range(20))
def test_no_order_of_applying_shows_anything_but_the_log(seed):
    """Random histories run in two worlds: one applies offsets in parts, the other without a pause. A fetch returns the
    same offsets in both."""
    rng = random.Random(seed)
    slow, prompt = World(slice_us=0), World()
    open_ids = set()
    for world in (slow, prompt):
        commit(world, names(1), 0)
    for _ in range(60):
        action = rng.randrange(6)
        producer_id = rng.choice([1000, 2000, 3000])
        partitions = rng.sample(names(SEVERAL_PARTS), rng.choice([1, 150, 400]))
        offset = rng.randrange(1000)
        committed = rng.random() < 0.7
        for world in (slow, prompt):
            if action < 2:
                commit(world, partitions, offset, producer_id)
            elif action == 2:
                commit(world, partitions, offset)
            elif action == 3 and producer_id in open_ids:
                world.end_transaction(producer_id, commit=committed)
            elif action == 4:
                world.groups.delete_offsets(GROUP, partitions[:100], Callback(lambda error, result: None))
            world.clock.advance(1)
        if action < 2:
            open_ids.add(producer_id)
        elif action == 3:
            open_ids.discard(producer_id)
        slow.long_work.run_slice()
        prompt.long_work.finish()
        for stable in (False, True):
            assert (slow.groups.fetch_offsets(GROUP, names(SEVERAL_PARTS), stable)
                    == prompt.groups.fetch_offsets(GROUP, names(SEVERAL_PARTS), stable))
    slow.long_work.finish()
    assert slow.fetched_all() == prompt.fetched_all() and offsets_in_memory(slow) == offsets_in_memory(prompt)
