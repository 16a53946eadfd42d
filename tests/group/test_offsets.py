"""Committed offsets: when they become visible, which members may commit, deletion, and expiry. Covers KIP-211.
"""

import pytest
from support.worlds.group_coordinator import GROUP, Answer, Client, World, stable_group, subscription

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.commits import Commit, NewOffset
from kbroker.group.offset_operations import FetchedOffset

ORDERS = ('orders', 0)
PAYMENTS = ('payments', 1)
DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS


def forget(world, *partitions):
    results = []
    world.groups.delete_offsets(GROUP, list(partitions), Callback(lambda error, result: results.append(result)))
    return results[0] if results else None


def delete_group(world, group_id=GROUP):
    """Delete the group. Return a list to which the result is appended when the deletion ends: None, or an error
    code."""
    answers = []
    world.groups.delete_group(group_id, Callback(lambda error, result: answers.append(error and error.code)))
    return answers


def test_a_commit_is_not_visible_before_it_is_durable():
    world = World(immediate=False)
    answer = world.commit(ORDERS, 5)
    assert not answer.came
    assert world.offset(ORDERS) == -1
    world.flush()
    assert answer.code is ErrorCode.NONE
    assert world.offset(ORDERS) == 5


def test_an_expiring_commit_says_the_same_before_and_after_a_restart():
    """The row of an offset with an expiry time has no leader epoch, so a fetch after a restart returns none. A fetch
    before the restart must not return a leader epoch either."""
    world = World()
    answer = Answer()
    world.groups.commit(Commit(GROUP, {ORDERS: NewOffset(5, 9)}, retention_ms=1000), 4, answer.completion())
    assert answer.code is ErrorCode.NONE
    before = world.fetched(ORDERS)
    world.restart()
    assert world.fetched(ORDERS) == before == FetchedOffset(ErrorCode.NONE, 5, -1, '')


def test_a_commit_that_was_not_durable_is_gone_after_a_crash():
    world = World(immediate=False)
    world.commit(ORDERS, 5)
    world.flush()
    world.commit(ORDERS, 6)
    world.restart()
    assert world.offset(ORDERS) == 5


def test_a_commit_whose_directory_failed_is_refused():
    world = World(immediate=False)
    answer = world.commit(ORDERS, 5)
    world.partition.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert answer.code is ErrorCode.NOT_COORDINATOR
    assert world.offset(ORDERS) == -1


def test_a_commit_that_cannot_be_appended_is_refused(world):
    world.partition.refuse(KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE))
    assert world.commit(ORDERS, 5).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not world.groups._part(GROUP).shard.offsets.has_open_work(GROUP)


def test_an_unknown_group_has_no_offsets_and_that_is_no_error(world):
    assert world.fetched(ORDERS) == FetchedOffset(ErrorCode.NONE, -1, -1, '')
    assert world.fetched_all(require_stable=True) == {}
    assert world.state() == 'none'


def test_a_consumer_without_group_management_commits_to_a_simple_group(world):
    assert world.commit(ORDERS, 5).code is ErrorCode.NONE
    assert world.state() == 'Empty'
    assert world.groups.describe(GROUP, 'classic').protocol_type is None


@pytest.mark.parametrize(('version', 'code'), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_of_no_group_is_refused(world, version, code):
    assert world.commit(ORDERS, 5, generation=0, version=version).code is code


def test_a_commit_without_a_member_is_refused_while_the_group_has_members(world):
    (client,) = stable_group(world, Client(world))
    assert world.commit(ORDERS, 5).code is ErrorCode.UNKNOWN_MEMBER_ID
    client.leave()
    assert world.commit(ORDERS, 5).code is ErrorCode.NONE


def test_a_commit_of_another_generation_or_member_is_refused(world):
    (client,) = stable_group(world, Client(world))
    assert world.commit(ORDERS, 5, **client.identity).code is ErrorCode.NONE
    assert world.commit(ORDERS, 5, **client.identity | {'generation': 0}).code is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(ORDERS, 5, **client.identity | {'member_id': 'x'}).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(ORDERS, 5, member_id=client.member_id).code is ErrorCode.ILLEGAL_GENERATION


def test_a_commit_passes_while_a_rebalance_is_prepared_and_not_while_it_completes(world):
    """In a rebalance, a member commits before it gives up its partitions. After it has joined again, it must not
    commit."""
    (client,) = stable_group(world, Client(world))
    joining = Client(world, 'b').join()
    assert world.commit(ORDERS, 5, **client.identity).code is ErrorCode.NONE
    client.joined(client.join())
    assert joining.came and world.state() == 'CompletingRebalance'
    assert world.commit(ORDERS, 5, **client.identity).code is ErrorCode.REBALANCE_IN_PROGRESS


def test_metadata_may_not_be_longer_than_the_setting_says(world):
    assert world.commit(ORDERS, 5, metadata='x' * 4096).code is ErrorCode.NONE
    assert world.commit(ORDERS, 6, metadata='x' * 4097).code is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.fetched(ORDERS) == FetchedOffset(ErrorCode.NONE, 5, -1, 'x' * 4096)


def test_offsets_are_the_same_after_a_restart(world):
    world.commit(ORDERS, 5, metadata='here')
    world.commit(ORDERS, 6)
    world.commit(PAYMENTS, 7, retention_ms=DAY_MS)
    world.commit(ORDERS, 8, group_id='g2')
    before = world.sees()
    assert len(before) == 2
    world.restart()
    assert world.sees() == before


# Transactions


def test_offsets_of_a_transaction_wait_for_its_marker(world):
    world.commit(ORDERS, 1)
    assert world.commit_transactional(ORDERS, 5, 1000).code is ErrorCode.NONE
    assert world.offset(ORDERS) == 1
    assert world.fetched(ORDERS, require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(1000, commit=True)
    assert world.fetched(ORDERS, require_stable=True) == FetchedOffset(ErrorCode.NONE, 5, -1, '')


def test_offsets_of_an_aborted_transaction_are_forgotten(world):
    world.commit(ORDERS, 1)
    world.commit_transactional(ORDERS, 5, 1000)
    world.end_transaction(1000, commit=False)
    assert world.fetched(ORDERS, require_stable=True).offset == 1


def test_offsets_of_an_aborted_transaction_leave_no_offset_where_there_was_none(world):
    world.commit_transactional(ORDERS, 5, 1000)
    assert world.fetched_all() == {}
    world.end_transaction(1000, commit=False)
    assert world.offset(ORDERS) == -1


def test_a_plain_commit_after_a_transactional_one_is_not_overruled_by_its_marker(world):
    world.commit_transactional(ORDERS, 5, 1000)
    world.commit(ORDERS, 9)
    world.end_transaction(1000, commit=True)
    assert world.offset(ORDERS) == 9


def test_of_two_transactions_the_later_commit_counts_whatever_the_order_of_markers(world):
    world.commit_transactional(ORDERS, 5, 1000)
    world.commit_transactional(ORDERS, 6, 2000)
    world.end_transaction(2000, commit=True)
    assert world.fetched(ORDERS, require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(1000, commit=True)
    assert world.fetched(ORDERS, require_stable=True).offset == 6


def test_the_last_of_many_transactions_counts_whatever_the_order_of_their_markers(world):
    for number in range(9):
        world.commit_transactional(ORDERS, number, 1000 + number)
    for number in (4, 0, 8, 2, 6, 1, 7, 3):
        world.end_transaction(1000 + number, commit=number != 8)
        assert world.fetched(ORDERS, require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert world.offset(ORDERS) == 7
    world.end_transaction(1005, commit=True)
    assert world.fetched(ORDERS, require_stable=True).offset == 7
    assert not world.groups._parts[0].shard.offsets.has_open_work(GROUP)


def test_a_transactional_commit_that_is_not_durable_makes_the_partition_unstable():
    """A transactional commit in flight has already passed the check of the generation. If a fetch returned the previous
    offset, the next owner of the partition would process the same records again."""
    world = World(immediate=False)
    world.commit_transactional(ORDERS, 5, 1000)
    assert world.fetched(ORDERS, require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.flush()
    world.end_transaction(1000, commit=True)
    assert world.fetched(ORDERS, require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.flush()
    assert world.fetched(ORDERS, require_stable=True).offset == 5


@pytest.mark.parametrize('commit', [True, False])
def test_a_transaction_survives_a_restart_in_its_middle(world, commit):
    world.commit(ORDERS, 1)
    world.commit_transactional(ORDERS, 5, 1000)
    world.restart()
    assert world.offset(ORDERS) == 1
    assert world.fetched(ORDERS, require_stable=True).error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(1000, commit=commit)
    assert world.fetched(ORDERS, require_stable=True).offset == (5 if commit else 1)


def test_a_repeated_marker_changes_nothing(world):
    world.commit_transactional(ORDERS, 5, 1000)
    world.end_transaction(1000, commit=True)
    world.end_transaction(1000, commit=False)
    assert world.offset(ORDERS) == 5


def test_a_transactional_commit_of_a_past_generation_is_refused(world):
    (client,) = stable_group(world, Client(world))
    assert world.commit_transactional(ORDERS, 5, 1000, **client.identity).code is ErrorCode.NONE
    assert (
        world.commit_transactional(ORDERS, 5, 1000, **client.identity | {'generation': 0}).code
        is ErrorCode.ILLEGAL_GENERATION
    )
    assert (
        world.commit_transactional(ORDERS, 5, 1000, **client.identity | {'member_id': 'x'}).code
        is ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert world.commit_transactional(ORDERS, 5, 1000, group_id='g2', generation=3).code is ErrorCode.ILLEGAL_GENERATION


def test_a_transactional_commit_of_an_old_client_names_no_member_and_passes(world):
    stable_group(world, Client(world))
    assert world.commit_transactional(ORDERS, 5, 1000).code is ErrorCode.NONE


def test_a_transactional_commit_passes_during_a_rebalance(world):
    (client,) = stable_group(world, Client(world))
    Client(world, 'b').join()
    client.joined(client.join())
    assert world.state() == 'CompletingRebalance'
    assert world.commit_transactional(ORDERS, 5, 1000, **client.identity).code is ErrorCode.NONE


# Deletion


def test_offsets_of_topics_without_a_reader_can_be_deleted(world):
    (client,) = stable_group(world, Client(world, protocols=[('range', subscription('orders'))]))
    world.commit(ORDERS, 5, **client.identity)
    world.commit(PAYMENTS, 6, **client.identity)
    assert forget(world, ORDERS, PAYMENTS) == {ORDERS: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, PAYMENTS: ErrorCode.NONE}
    assert (world.offset(ORDERS), world.offset(PAYMENTS)) == (5, -1)


def test_deleting_offsets_of_groups_that_are_no_consumers_needs_them_empty(world):
    client = Client(world)
    client.protocol_type = 'connect'
    stable_group(world, client)
    with pytest.raises(KafkaError) as refused:
        forget(world, ORDERS)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    client.leave()
    assert forget(world, ORDERS) == {ORDERS: ErrorCode.NONE}


def test_deleting_offsets_of_an_unknown_group_is_refused(world):
    with pytest.raises(KafkaError) as refused:
        forget(world, ORDERS)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_deleting_an_offset_takes_what_a_transaction_holds_of_it(world):
    world.commit(ORDERS, 1)
    world.commit_transactional(ORDERS, 5, 1000)
    assert forget(world, ORDERS) == {ORDERS: ErrorCode.NONE}
    world.end_transaction(1000, commit=True)
    assert world.offset(ORDERS) == -1


def test_a_group_with_members_cannot_be_deleted(world):
    stable_group(world, Client(world))
    assert delete_group(world) == [ErrorCode.NON_EMPTY_GROUP]
    assert delete_group(world, 'nowhere') == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_a_deleted_group_is_gone_for_good(world):
    world.commit(ORDERS, 5)
    assert delete_group(world) == [None]
    assert (world.state(), world.offset(ORDERS)) == ('none', -1)
    world.restart()
    assert (world.state(), world.offset(ORDERS)) == ('none', -1)


def test_a_group_whose_deletion_is_not_durable_takes_nothing_in():
    world = World(immediate=False)
    world.commit(ORDERS, 5)
    world.flush()
    answers = delete_group(world)
    assert (answers, world.state(), world.offset(ORDERS)) == ([], 'Dead', 5)
    assert world.commit(ORDERS, 6).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert Client(world).join().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.flush()
    world.run_due()
    assert (answers, world.state(), world.offset(ORDERS)) == ([None], 'none', -1)


def test_deleting_a_group_takes_the_commits_that_were_on_their_way():
    world = World(immediate=False)
    world.commit(ORDERS, 5)
    world.flush()
    world.commit(PAYMENTS, 6)
    world.commit_transactional(('orders', 1), 7, 1000)
    delete_group(world)
    world.flush()
    world.end_transaction(1000, commit=True)
    world.flush()
    assert world.fetched_all() == {}
    world.restart()
    assert world.state() == 'none'


def test_many_tombstones_are_written_in_batches_of_the_largest_size():
    world = World(message_max_bytes=1000)
    for partition in range(4):
        world.commit(('orders', partition), 1, group_id='g' * 300)
    before = len(world.partition.stored)
    assert delete_group(world, 'g' * 300) == [None]
    assert len(world.partition.stored) - before == 3
    assert world.state('g' * 300) == 'none'


def test_a_deleted_topic_takes_its_offsets_along(world):
    world.commit(ORDERS, 5)
    world.commit(PAYMENTS, 6)
    world.commit(ORDERS, 7, group_id='g2')
    world.topics.delete('orders')
    assert (world.offset(ORDERS), world.offset(ORDERS, 'g2'), world.offset(PAYMENTS)) == (-1, -1, 6)
    world.restart()
    assert (world.offset(ORDERS), world.offset(PAYMENTS)) == (-1, 6)


def test_offsets_of_a_topic_deleted_just_before_a_crash_are_gone_after_it(world):
    world.commit(ORDERS, 5)
    world.topics.on_topic_deleted.clear()  # so that no tombstones are written
    world.topics.delete('orders')
    world.topics.create('orders', 4)
    world.restart()
    assert world.offset(ORDERS) == -1


@pytest.mark.parametrize('ends_first', [False, True])
def test_an_offset_in_a_transaction_is_gone_with_its_topic(world, ends_first):
    world.commit_transactional(ORDERS, 5, 1000)
    world.topics.delete('orders')
    if not ends_first:
        world.restart()
    world.end_transaction(1000, commit=True)
    world.flush()
    assert world.offset(ORDERS) == -1
    world.restart()
    assert world.offset(ORDERS) == -1


@pytest.mark.parametrize('is_open', [False, True])
def test_an_offset_in_a_transaction_of_a_topic_deleted_just_before_a_crash_is_gone_after_it(world, is_open):
    """Until rows of transactions had topic ids, the restart left the offset for the new topic of the same name."""
    world.commit_transactional(ORDERS, 5, 1000)
    if not is_open:
        world.end_transaction(1000, commit=True)
    world.flush()
    world.topics.on_topic_deleted.clear()  # so that no tombstones are written
    world.topics.delete('orders')
    world.topics.create('orders', 4)
    world.restart()
    if is_open:
        world.end_transaction(1000, commit=True)
        world.flush()
    assert world.offset(ORDERS) == -1


def test_an_offset_that_reaches_a_transaction_after_its_topic_was_recreated_is_not_the_new_topics(world):
    """The broker looks up the topic, then verifies the transaction. The topic may be recreated in between."""
    old = world.topics.topic('orders')
    world.topics.delete('orders')
    world.topics.create('orders', 4)
    new = world.topics.topic('orders')
    world.commit_transactional(ORDERS, 5, 1000, topic_id=old.topic_id)
    world.end_transaction(1000, commit=True)
    world.flush()
    assert world.fetched(ORDERS, topic_id=old.topic_id).offset == 5
    assert world.fetched(ORDERS, topic_id=new.topic_id).offset == -1


def test_a_start_forgets_no_offset_of_a_topic_because_a_transaction_holds_one_of_its_predecessor(world):
    """A tombstone for the pending offset would also delete the committed one, whose row is before it in the log."""
    old = world.topics.topic('orders')
    world.topics.delete('orders')
    world.topics.create('orders', 4)
    world.commit(ORDERS, 7)
    world.commit_transactional(ORDERS, 5, 1000, topic_id=old.topic_id)
    world.flush()
    world.restart()
    world.end_transaction(1000, commit=False)
    world.flush()
    assert world.offset(ORDERS) == 7


# Expiry


def sweep_after(world, ms):
    world.clock.advance(ms)
    world.groups.sweep()


def test_offsets_of_a_simple_group_expire_after_their_last_commit(world):
    world.commit(ORDERS, 5)
    sweep_after(world, RETENTION_MS - 1)
    assert world.offset(ORDERS) == 5
    world.commit(PAYMENTS, 6)
    sweep_after(world, 1)
    assert (world.offset(ORDERS), world.offset(PAYMENTS)) == (-1, 6)
    sweep_after(world, RETENTION_MS)
    assert (world.state(), world.offset(PAYMENTS)) == ('none', -1)


def test_offsets_of_a_group_expire_after_its_last_member_left(world):
    (client,) = stable_group(world, Client(world, session_timeout_ms=1_800_000))
    world.commit(ORDERS, 5, **client.identity)
    world.commit(PAYMENTS, 5, **client.identity)
    world.clock.advance(DAY_MS)
    client.leave()
    sweep_after(world, RETENTION_MS - 1)
    assert world.offset(ORDERS) == world.offset(PAYMENTS) == 5
    sweep_after(world, 1)
    assert world.state() == 'none'


def test_offsets_of_topics_that_members_read_do_not_expire(world):
    (client,) = stable_group(world, Client(world))
    world.commit(ORDERS, 5, **client.identity)
    world.commit(PAYMENTS, 6, **client.identity)
    sweep_after(world, RETENTION_MS)
    assert (world.offset(ORDERS), world.offset(PAYMENTS)) == (5, -1)


def test_offsets_of_a_group_whose_topics_are_unknown_do_not_expire(world):
    client = Client(world, protocols=[('range', b'?')])
    stable_group(world, client)
    world.commit(ORDERS, 5, **client.identity)
    sweep_after(world, RETENTION_MS)
    assert world.offset(ORDERS) == 5


def test_an_offset_with_a_retention_of_its_own_expires_by_it(world):
    world.commit(ORDERS, 5, retention_ms=DAY_MS, version=4)
    world.restart()
    sweep_after(world, DAY_MS - 1)
    assert world.offset(ORDERS) == 5
    sweep_after(world, 1)
    assert world.offset(ORDERS) == -1


def test_an_offset_that_a_transaction_holds_does_not_expire(world):
    world.commit(ORDERS, 5)
    world.commit_transactional(ORDERS, 6, 1000)
    sweep_after(world, RETENTION_MS)
    assert world.offset(ORDERS) == 5
    world.end_transaction(1000, commit=False)
    sweep_after(world, 1)
    assert world.state() == 'none'


def test_an_offset_with_a_commit_on_its_way_does_not_expire():
    world = World(immediate=False)
    world.commit(ORDERS, 5)
    world.flush()
    world.clock.advance(RETENTION_MS)
    world.commit(ORDERS, 6)
    world.groups.sweep()
    world.flush()
    assert world.offset(ORDERS) == 6


def test_an_empty_group_without_offsets_goes_with_the_next_sweep(world):
    (client,) = stable_group(world, Client(world))
    client.leave()
    sweep_after(world, 0)
    assert world.state() == 'none'
    world.restart()
    assert world.state() == 'none'


def test_the_sweep_runs_by_itself(world):
    world.commit(ORDERS, 5, retention_ms=1)
    world.advance(600_000)
    assert world.state() == 'none'
