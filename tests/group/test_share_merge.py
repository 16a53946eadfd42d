"""The batches of share states. Merged batches are compared with the results of a slow and simple implementation, and
encoded batches with those of the general codec."""
from __future__ import annotations

import random

import pytest
from reference import share_merge as reference

from kbroker.group.share.merge import encode_batches, merge_batches
from kbroker.group.share.rows import Changes, ShareKey, ShareState, snapshot_row, update_row
from kbroker.protocol import messages
from kbroker.protocol.rows import encode_row_value

KEY = ShareKey('g', bytes(range(16)), 3)


def some_batches(rng, most):
    found = []
    for _ in range(rng.randrange(most)):
        first = rng.randrange(40)
        found.append((first, first + rng.randrange(8), rng.choice([0, 2, 4]), rng.randrange(1, 4)))
    return found


@pytest.mark.parametrize('seed', range(300))
def test_batches_are_merged_as_the_slow_twin_merges_them(seed):
    rng = random.Random(seed)
    start_offset = rng.choice([0, 0, 5, 20, 60])
    old = reference.merge_batches((), some_batches(rng, 12), 0)
    new = some_batches(rng, 8)
    assert merge_batches(old, new, start_offset) == reference.merge_batches(old, new, start_offset)
    assert merge_batches((), old, 0) == old


def test_a_batch_that_does_not_change_is_not_copied():
    old = ((0, 4, 2, 1), (5, 5, 0, 1), (9, 9, 4, 2))
    merged = merge_batches(old, [(5, 5, 2, 3)], 0)
    assert merged[0] is old[0] and merged[2] is old[2]


def structs(row_class, batches):
    return [row_class.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
            for first, last, state, count in batches]


ALTERNATING = tuple((2 * number, 2 * number, 2 * (number % 2), 1) for number in range(200))


@pytest.mark.parametrize('count', [-1, 0, 7, 2**31 - 1])
@pytest.mark.parametrize('batches', [(), ((5, 2**40, 4, 300),), ALTERNATING])
def test_rows_are_those_of_the_codec(batches, count):
    snapshot, update = messages.ShareSnapshotValue, messages.ShareUpdateValue
    state = ShareState(3, 4, 5, 6, count, 7, batches, written_ms=8)
    assert snapshot_row(KEY, state)[1] == encode_row_value(snapshot(
        snapshot_epoch=3, state_epoch=4, leader_epoch=5, start_offset=6, delivery_complete_count=count,
        create_timestamp=7, write_timestamp=8, state_batches=structs(snapshot, batches)), 0)
    assert update_row(KEY, 3, Changes(4, 5, -1, count, batches))[1] == encode_row_value(update(
        snapshot_epoch=3, leader_epoch=5, start_offset=-1, delivery_complete_count=count,
        state_batches=structs(update, batches)), 0)
    assert snapshot_row(KEY, state)[1].endswith(encode_batches(batches, count))
