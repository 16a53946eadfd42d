"""A partition's high watermark and last stable offset, and the order in which it notifies waiters."""
import gc
import random

import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.topics.partition import FetchWaiter

T = 1_700_000_000_000
PRODUCER = 7


def data(count=1, *, sequence=-1, transactional=False):
    return encode_batch([(T, b'k', b'v')] * count, producer_id=PRODUCER if sequence >= 0 else -1,
                        producer_epoch=0 if sequence >= 0 else -1, base_sequence=sequence, transactional=transactional)


def marker(*, commit):
    return encode_end_txn_marker(commit=commit, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0,
                                 timestamp_ms=T)


def read(partition, upper_bound_offset):
    return partition.read(0, 1 << 20, upper_bound_offset, True)


class Waiter(FetchWaiter):
    def __init__(self, partition):
        super().__init__(partition)
        self.woken = 0
        self.wait()

    def wake(self):
        self.woken += 1


def test_the_high_watermark_waits_for_the_disk(open_partition, flusher, disk):
    partition = open_partition()
    partition.append_batch(data(3), Origin.CLIENT)
    assert (partition.log_end_offset, partition.high_watermark) == (3, 0)
    flusher.kick()
    assert partition.high_watermark == 0
    disk.finish()
    assert partition.high_watermark == 3


def test_with_page_cache_durability_it_follows_the_log_end(open_partition, disk):
    partition = open_partition(page_cache=True)
    partition.append_batch(data(3), Origin.CLIENT)
    assert partition.high_watermark == 3 and not disk.jobs


def test_with_page_cache_durability_a_roll_is_flushed_all_the_same(open_partition, flusher, disk):
    # With page-cache durability, too, a rolled segment is synced. Otherwise, recovery after a crash would read every
    # segment that was written since the start.
    partition = open_partition(page_cache=True)
    partition.append_batch(data(), Origin.CLIENT)
    open_partition.log.roll()
    partition.append_batch(data(), Origin.CLIENT)
    flusher.kick()
    disk.finish()
    assert open_partition.log.flushed_offset == 2


def test_with_page_cache_durability_flush_messages_is_honoured(open_partition, flusher, disk):
    partition = open_partition(page_cache=True, flush_messages=3)
    partition.append_batch(data(2), Origin.CLIENT)
    flusher.kick()
    assert not disk.jobs
    partition.append_batch(data(2), Origin.CLIENT)
    flusher.kick()
    assert len(disk.jobs) == 1


def test_appends_during_a_flush_wait_for_the_next_one(open_partition, flusher, disk):
    partition = open_partition()
    partition.append_batch(data(), Origin.CLIENT)
    flusher.kick()
    partition.append_batch(data(), Origin.CLIENT)
    flusher.kick()
    assert len(disk.jobs) == 1
    disk.finish()
    assert partition.high_watermark == 1
    flusher.kick()
    disk.finish()
    assert partition.high_watermark == 2


def test_waiters_are_notified_in_order_of_offset_and_not_before(open_partition, flusher, disk):
    partition = open_partition()
    told = []
    for name in ('first', 'second'):
        end = partition.append_batch(data(), Origin.CLIENT).last_offset + 1
        partition.when_durable(end, lambda error, name=name: told.append((name, error, partition.high_watermark)))
        if name == 'first':
            flusher.kick()
    assert told == []
    disk.finish()
    assert told == [('first', None, 1)]
    flusher.kick()
    disk.finish()
    assert told == [('first', None, 1), ('second', None, 2)]


@pytest.mark.parametrize('seed', range(5))
def test_any_number_of_waiters_in_any_order(open_partition, flusher, disk, seed):
    """Waiters do not arrive in the order of their offsets: a waiter for a duplicate waits for a lower offset than
    waiters that came before it."""
    source = random.Random(seed)
    partition = open_partition()
    told, expected, waiting = [], [], []
    for number in range(300):
        if source.random() < 0.7:
            partition.append_batch(data(), Origin.CLIENT)
        end = partition.log_end_offset
        offset = source.randint(max(partition.high_watermark, end - 30) + 1, end + 3)
        partition.when_durable(offset, lambda error, of=(offset, number): told.append(of))
        waiting.append((offset, number))
        if source.random() < 0.1:
            flusher.kick()
            if disk.jobs:
                disk.finish()
            waiting.sort()
            expected += [of for of in waiting if of[0] <= partition.high_watermark]
            waiting = [of for of in waiting if of[0] > partition.high_watermark]
            assert told == expected
    partition.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, 'gone'))
    assert told == [*expected, *sorted(waiting)]


def test_a_waiter_for_a_durable_offset_is_notified_at_once(open_partition):
    partition = open_partition(page_cache=True)
    partition.append_batch(data(), Origin.CLIENT)
    told = []
    partition.when_durable(1, told.append)
    assert told == [None]


def test_the_replayer_sees_each_batch_once_it_is_durable_and_before_its_waiters(open_partition, flusher, disk):
    partition = open_partition()
    seen = []
    partition.set_replayer(lambda header, batch: seen.append(header.base_offset))
    buffer = data()
    end = partition.append_batch(buffer).last_offset + 1
    buffer[:] = bytes(len(buffer))          # the caller reuses its buffer
    partition.when_durable(end, lambda error: seen.append('told'))
    flusher.kick()
    assert seen == []
    disk.finish()
    assert seen == [0, 'told']


def test_a_replay_in_which_more_is_appended_stays_in_order(open_partition):
    partition = open_partition(page_cache=True)
    seen = []

    def replay(header, batch):
        seen.append(header.base_offset)
        if header.base_offset == 0:
            partition.append_batch(data())

    partition.set_replayer(replay)
    partition.append_batch(data())
    assert seen == [0, 1]


def test_an_open_transaction_holds_the_last_stable_offset_and_its_marker_lets_it_go(open_partition):
    partition = open_partition(page_cache=True)
    partition.append_batch(data(2), Origin.CLIENT)
    partition.append_batch(data(2, sequence=0, transactional=True), Origin.CLIENT)
    assert (partition.high_watermark, partition.last_stable_offset) == (4, 2)
    partition.append_batch(marker(commit=True))
    assert (partition.high_watermark, partition.last_stable_offset) == (5, 5)


def test_a_marker_moves_the_last_stable_offset_only_when_it_is_durable(open_partition, flusher, disk):
    partition = open_partition()
    partition.append_batch(data(2, sequence=0, transactional=True), Origin.CLIENT)
    flusher.kick()
    disk.finish()
    partition.append_batch(marker(commit=False))
    assert partition.last_stable_offset == 0
    flusher.kick()
    disk.finish()
    assert partition.last_stable_offset == 3


def test_isolation_bounds_what_is_read(open_partition):
    partition = open_partition(page_cache=True)
    partition.append_batch(data(2), Origin.CLIENT)
    partition.append_batch(data(2, sequence=0, transactional=True), Origin.CLIENT)
    assert read(partition, partition.high_watermark).end_offset == 4
    assert read(partition, partition.last_stable_offset).end_offset == 2
    assert open_partition.log.aborted_transactions(0, 2) == []
    partition.append_batch(marker(commit=False))
    assert read(partition, partition.last_stable_offset).end_offset == 5
    assert open_partition.log.aborted_transactions(0, 5) == [(PRODUCER, 2)]


def test_what_is_not_flushed_is_not_read(open_partition):
    partition = open_partition()
    partition.append_batch(data(), Origin.CLIENT)
    assert read(partition, partition.high_watermark) is None
    with pytest.raises(KafkaError) as refused:
        partition.read(2, 1 << 20, partition.high_watermark, True)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_waiter_is_woken_by_the_disk_and_not_by_the_append(open_partition, flusher, disk):
    partition = open_partition()
    waiter = Waiter(partition)
    partition.append_batch(data(), Origin.CLIENT)
    assert waiter.woken == 0
    flusher.kick()
    disk.finish()
    assert waiter.woken == 1


def move(partition, flusher, disk):
    partition.append_batch(data(), Origin.CLIENT)
    flusher.kick()
    disk.finish()


def test_a_fetch_waiter_is_woken_once_unless_it_waits_again(open_partition, flusher, disk):
    partition = open_partition()
    waiter = Waiter(partition)
    move(partition, flusher, disk)
    move(partition, flusher, disk)
    assert waiter.woken == 1
    waiter.wait()
    waiter.wait()
    move(partition, flusher, disk)
    assert waiter.woken == 2


def test_fetch_waiters_that_left_or_are_gone_are_not_woken(open_partition, flusher, disk):
    partition = open_partition()
    first, gone, left, last = (Waiter(partition) for _ in range(4))
    left.stop_waiting()
    left.stop_waiting()
    del gone
    move(partition, flusher, disk)
    assert (first.woken, left.woken, last.woken) == (1, 0, 1)


def test_a_fetch_waiter_in_a_ring_of_garbage_is_taken_out(open_partition, flusher, disk):
    partition = open_partition()
    waiter = Waiter(partition)
    waiter.itself = waiter
    del waiter
    gc.collect()
    move(partition, flusher, disk)


def test_deleting_records_below_an_open_transaction_keeps_it_open(open_partition):
    partition = open_partition(page_cache=True)
    partition.append_batch(data(2, sequence=0, transactional=True), Origin.CLIENT)
    partition.append_batch(data(2), Origin.CLIENT)
    partition.delete_records(3)
    assert (partition.log_start_offset, partition.last_stable_offset) == (3, 3)
    with pytest.raises(KafkaError) as refused:
        partition.delete_records(5)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_deleting_records_up_to_the_high_watermark(open_partition):
    partition = open_partition(page_cache=True)
    partition.append_batch(data(4), Origin.CLIENT)
    partition.delete_records(-1)
    assert partition.log_start_offset == 4


def test_a_deleted_partition_answers_everyone(open_partition, flusher):
    partition = open_partition()
    waiter = Waiter(partition)
    told = []
    partition.when_durable(partition.append_batch(data(), Origin.CLIENT).last_offset + 1, told.append)
    partition.mark_deleted()
    partition.when_durable(0, told.append)
    assert [error.code for error in told] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert waiter.woken == 1
    with pytest.raises(KafkaError):
        partition.read(0, 1, partition.high_watermark, True)


def test_a_partition_opens_with_its_high_watermark_at_the_end(open_partition):
    partition = open_partition(page_cache=True)
    partition.append_batch(data(3), Origin.CLIENT)
    open_partition.log.close()
    assert open_partition().high_watermark == 3
