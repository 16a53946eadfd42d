"""Batches keep their order and their sequence numbers, however often they are sent."""
from kbroker.base.clock import ManualClock
from kbroker.client.accumulator import SEQUENCES, PartitionQueue, due_queues, expired_queues, next_due_ms
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.record.batch import HEADER_BYTES

PRODUCER = ProducerIdAndEpoch(7, 0)
EMPTY_RECORD_BYTES = 7


def append(queue, value=b'', context=None, clock=None):
    return queue.append(0, None, value, (), context, clock or ManualClock())


def filled(batches, records_each=2, batch_bytes=200):
    """Return a queue that has `batches` closed batches."""
    queue = PartitionQueue('t', 0, batch_bytes)
    for number in range(batches):
        for _ in range(records_each):
            append(queue, b'%d' % number)
        queue.close_open()
    return queue


def test_a_batch_closes_when_the_next_record_does_not_fit():
    queue = PartitionQueue('t', 0, HEADER_BYTES + 2 * EMPTY_RECORD_BYTES)
    waiting = []
    for number in range(4):
        append(queue, context=number)
        waiting.append(len(queue.waiting))
    assert waiting == [0, 0, 1, 1]
    assert [batch.contexts for batch in queue.waiting] == [[0, 1]]
    assert queue.open.contexts == [2, 3]


def test_an_open_batch_lingers():
    queue, clock = PartitionQueue('t', 0, 1000), ManualClock()
    clock.advance(100)
    assert queue.due_ms(5) is None
    append(queue, clock=clock)
    assert queue.due_ms(5) == 105
    queue.close_open()
    assert queue.due_ms(5) == 0


def test_queues_are_found_by_the_times_of_their_batches():
    idle, lingering, retried, closed = queues = [PartitionQueue('t', index, 1000) for index in range(4)]
    clock = ManualClock()
    clock.advance(100)
    for queue in (lingering, retried, closed):
        append(queue, clock=clock)
    for queue in (retried, closed):
        queue.close_open()
    retried.put_back(retried.take(PRODUCER), retry_at_ms=120)
    assert due_queues(queues, 104, 5) == [closed]
    assert due_queues(queues, 120, 5) == [lingering, retried, closed]
    assert [next_due_ms(queues, after_ms, 5) for after_ms in (-1, 0, 105, 120)] == [0, 105, 120, None]
    assert (expired_queues(queues, 100), expired_queues(queues, 101)) == ([], [retried, closed])
    assert next_due_ms([idle], -1, 5) is None


def test_sequences_follow_each_other_and_wrap():
    queue = filled(3)
    queue.producer, queue.next_sequence = PRODUCER, SEQUENCES - 3
    assert [queue.take(PRODUCER).base_sequence for _ in range(3)] == [SEQUENCES - 3, SEQUENCES - 1, 1]


def test_batches_come_back_in_order_and_keep_their_numbers():
    queue = filled(4)
    flying = [queue.take(PRODUCER) for _ in range(3)]
    for batch in flying:
        queue.put_back(batch, retry_at_ms=50)
    assert [batch.base_sequence for batch in queue.waiting] == [0, 2, 4, None]
    assert [batch.attempts for batch in queue.waiting] == [1, 1, 1, 0]


def test_a_batch_that_comes_back_late_takes_its_place_again():
    queue = filled(3)
    flying = [queue.take(PRODUCER) for _ in range(3)]
    queue.put_back(flying[2], 0)
    queue.put_back(flying[0], 0)
    queue.put_back(flying[1], 0)
    assert list(queue.waiting) == flying


def test_on_its_second_way_a_batch_travels_alone():
    queue = filled(3)
    flying = [queue.take(PRODUCER) for _ in range(2)]
    queue.put_back(flying[0], 0)
    assert queue.due_ms(0) is None
    queue.put_back(flying[1], 0)
    assert queue.due_ms(0) == 0
    again = queue.take(PRODUCER)
    assert again is flying[0]
    assert queue.due_ms(0) is None
    queue.finish(again)
    assert queue.take(PRODUCER) is flying[1]


def test_only_the_first_unfinished_batch_is_judged_by_its_sequence():
    queue = filled(2)
    first, second = queue.take(PRODUCER), queue.take(PRODUCER)
    assert queue.is_first_unfinished(first)
    assert not queue.is_first_unfinished(second)
    queue.put_back(first, 0)
    assert not queue.is_first_unfinished(second)
    queue.put_back(second, 0)
    queue.finish(queue.take(PRODUCER))
    assert queue.is_first_unfinished(queue.take(PRODUCER))


def test_a_new_epoch_begins_at_0_once_nothing_of_the_old_is_under_way():
    queue = filled(3)
    first = queue.take(PRODUCER)
    bumped = PRODUCER._replace(producer_epoch=1)
    second = queue.take(bumped)
    assert (second.producer, second.base_sequence) == (PRODUCER, 2)
    queue.finish(first)
    queue.finish(second)
    third = queue.take(bumped)
    assert (third.producer, third.base_sequence) == (bumped, 0)


def test_forgotten_sequence_numbers_are_assigned_again():
    queue = filled(2)
    queue.put_back(queue.take(PRODUCER), 0)
    queue.forget_numbers()
    bumped = PRODUCER._replace(producer_epoch=1)
    assert [(batch.producer, batch.base_sequence) for batch in (queue.take(bumped), queue.take(bumped))] == [
        (bumped, 0), (bumped, 2)]


def test_the_halves_of_a_batch_keep_its_numbers_and_its_place():
    queue = filled(2, records_each=5, batch_bytes=1000)
    whole = queue.take(PRODUCER)
    queue.put_back_halves(whole)
    assert [(batch.base_sequence, batch.records_count) for batch in queue.waiting] == [(0, 2), (2, 3), (None, 5)]
    first_half = queue.take(PRODUCER)
    queue.put_back(first_half, 0)
    assert [batch.base_sequence for batch in queue.waiting] == [0, 2, None]


def test_without_a_producer_id_nothing_is_numbered():
    queue = filled(1)
    assert queue.take(ProducerIdAndEpoch()).base_sequence is None


def test_batches_that_are_all_too_large_are_sent_in_halves_in_their_order():
    """These batches have no sequence numbers, so only the queue keeps their order."""
    queue = filled(2, records_each=4, batch_bytes=1000)
    flying = [queue.take(ProducerIdAndEpoch()) for _ in range(2)]
    for batch in flying:
        queue.put_back_halves(batch)
    assert [batch.ordinal for batch in queue.waiting] == [0, 0, 1, 1]
    queue.put_back_halves(queue.take(ProducerIdAndEpoch()))
    assert [(batch.ordinal, batch.records_count) for batch in queue.waiting] == [(0, 1), (0, 1), (0, 2), (1, 2), (1, 2)]
