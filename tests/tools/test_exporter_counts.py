"""kbroker-exporter's counts of the records that read_committed consumers get, against counts of every offset."""
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.record.batch import encode_batch, read_header
from kbroker.record.control import encode_end_txn_marker
from kbroker_tools.exporter.counted_range import CountedRange, PartitionCount
from kbroker_tools.exporter.facts import RecordBounds


class Partition:
    """Batches in memory, with the offsets whose records a read_committed consumer gets."""

    def __init__(self):
        self.batches = []
        self.delivered = set()
        self.end_offset = 0

    def write(self, count, is_delivered=True, kept=None):
        """Write a batch of `count` offsets. Compaction has kept the records at the deltas `kept`."""
        batch = bytearray(encode_batch([(0, b'k', b'v')] * count))
        if kept is not None and len(kept) < count:
            batch = without(count, kept)
        self._put(batch, is_delivered, range(count) if kept is None else kept)

    def mark(self):
        self._put(encode_end_txn_marker(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0,
                                        timestamp_ms=0), False, [])

    def skip(self, count):
        """Leave out offsets, as compaction does with whole batches."""
        self.end_offset += count

    def _put(self, batch, is_delivered, deltas):
        batch[:8] = self.end_offset.to_bytes(8)
        header = read_header(batch)
        self.batches.append((header, memoryview(batch), is_delivered))
        if is_delivered:
            self.delivered |= {self.end_offset + delta for delta in deltas}
        self.end_offset = header.last_offset + 1

    def records_between(self, first, end):
        return sum(first <= offset < end for offset in self.delivered)

    def read(self, count, offset, most_batches):
        """Add the batches that a Fetch from `offset` returns."""
        found = [each for each in self.batches if each[0].last_offset >= offset][:most_batches]
        for each in found:
            count.add(*each)
        return bool(found)


def without(count, kept):
    """Return a batch of `count` offsets that has only the records at the deltas `kept`."""
    from kbroker.record.records import Record
    batch = bytearray(encode_batch([Record(delta, 0, b'k', b'v') for delta in kept]))
    batch[23:27] = (count - 1).to_bytes(4)      # the last offset delta
    return batch


EVENTS = st.one_of(
    st.tuples(st.just('write'), st.integers(1, 6), st.booleans(), st.none()),
    st.integers(1, 6).flatmap(lambda count: st.tuples(
        st.just('write'), st.just(count), st.booleans(),
        st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted))),
    st.tuples(st.just('mark')), st.tuples(st.just('skip'), st.integers(1, 4)))
ROUNDS = st.lists(st.tuples(st.lists(EVENTS, min_size=1, max_size=6), st.lists(st.integers(0, 60), max_size=4),
                            st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(ROUNDS, st.sampled_from([2, 5, 1000]))
def test_bounds_hold_after_any_history_and_are_exact_when_all_is_counted(rounds, most_gaps):
    partition, count = Partition(), PartitionCount()
    for events, places, most_batches, reads in rounds:
        for name, *arguments in events:
            getattr(partition, name)(*arguments)
        partition.mark()
        end = partition.end_offset
        positions = sorted({place for place in places if place < end})
        offset = count.next_offset(positions, end, most_gaps)
        while offset is not None and reads:
            reads -= 1
            assert partition.read(count, offset, most_batches)
            offset = count.next_offset(positions, end, most_gaps)
        for position in positions:
            bounds = count.bounds(position, end)
            records = partition.records_between(position, end)
            assert bounds.least <= records <= bounds.most
            if offset is None and most_gaps == 1000:
                assert bounds == RecordBounds(records, records)


def test_the_group_nearest_to_the_end_is_counted_first():
    partition, count = Partition(), PartitionCount()
    for _ in range(20):
        partition.write(4)
        partition.mark()
    partition.read(count, count.next_offset([0, 90], 100), 100)
    assert count.bounds(90, 100) == RecordBounds(8, 8)
    assert count.bounds(0, 100) == RecordBounds(8, 98)
    partition.read(count, count.next_offset([0, 90], 100), 100)
    assert count.bounds(0, 100) == RecordBounds(80, 80)


def test_a_count_continues_where_it_ended_and_reads_nothing_twice():
    partition, count = Partition(), PartitionCount()
    partition.write(10)
    partition.read(count, count.next_offset([2], 10), 10)
    partition.write(5)
    assert count.next_offset([2], 15) == 10
    partition.read(count, 10, 10)
    assert count.next_offset([2, 7], 15) is None
    assert count.bounds(7, 15) == RecordBounds(8, 8)


def test_a_group_that_goes_back_is_counted_without_another_read():
    partition, count = Partition(), PartitionCount()
    for _ in range(20):
        partition.write(4)
        partition.mark()
    partition.read(count, count.next_offset([10], 100), 100)
    assert count.next_offset([60], 100) is None
    assert count.next_offset([10], 100) is None
    assert count.bounds(10, 100) == RecordBounds(72, 72)


def test_a_group_that_keeps_up_costs_no_reads():
    count = PartitionCount()
    assert count.next_offset([], 10) is None
    assert count.bounds(10, 10) == RecordBounds(0, 0)


def test_too_many_gaps_end_the_count_downwards_instead_of_repeating_it():
    partition, count = Partition(), PartitionCount()
    for _ in range(100):
        partition.write(1)
        partition.mark()
    reads = 0
    while (offset := count.next_offset([0, 150], 200, 20)) is not None:
        reads += 1
        assert reads < 300
        partition.read(count, offset, 1)
    bounds = count.bounds(0, 200)
    assert bounds.least < 100 < bounds.most


def test_forgotten_offsets_are_not_counted_again():
    partition, counted = Partition(), CountedRange(0)
    for _ in range(10):
        partition.write(2)
        partition.mark()
    for header, batch, is_delivered in partition.batches:
        counted.add(header, batch, is_delivered)
    counted.forget_below(16)
    assert counted.start == 16
    assert counted.records_between(16, 30) == partition.records_between(16, 30)
