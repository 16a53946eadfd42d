"""The segments of a log. Decides when a new segment begins, and finds the segment for an offset or a timestamp. Methods
raise OSError, and CorruptLogError for bytes that are not a batch.
"""
import random

from libc.stdint cimport int64_t, uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kbroker.base.errors import CorruptLogError
from kbroker.log.segment cimport Place, Segment
from kbroker.log.time_search cimport TimeSearch
from kbroker.log.transaction_index cimport PAIR_BYTES, TransactionIndex
from kbroker.record.batch cimport BatchFields


cdef class LogSlice:
    """Whole batches in a file. The first may begin below the requested offset. All of them end below `end_offset`.

    The file stays readable while the slice exists, even if its segment is deleted. Only a Log creates slices.
    """

    def __init__(self):
        raise TypeError('a slice is read from a log, not made')

    def read(self) -> bytes:
        """Return the bytes of the batches. Raise OSError, and CorruptLogError if the file has become shorter than the
        slice.
        """
        data = self.file.read_at(self.size_bytes, self.position)
        if len(data) != self.size_bytes:
            raise CorruptLogError(
                f'{self.file.path}: found {len(data)} bytes at {self.position}, expected {self.size_bytes}')
        return data

    def __repr__(self):
        return (f'<LogSlice {self.size_bytes} bytes at {self.position} of {self.file.path}, '
                f'offsets {self.start_offset}..{self.end_offset}>')


cdef class Segments:
    """A sequence of at least one Segment, oldest first. Batches are appended to the last segment, `active`."""

    def __init__(self, fs, str directory, config, clock, list segments):
        self.fs = fs
        self.directory = directory
        self.clock = clock
        self.all = segments
        self.active = segments[len(segments) - 1]
        self.update_config(config)
        self.set_roll_jitter()

    def __len__(self):
        return len(self.all)

    def __iter__(self):
        return iter(self.all)

    def __getitem__(self, key):
        return self.all[key]

    @property
    def size_bytes(self) -> int:
        cdef Segment segment
        cdef int64_t size_bytes = 0
        for segment in self.all:
            size_bytes += segment.size_bytes
        return size_bytes

    cdef int update_config(self, config) except -1:
        """Apply a new LogConfig. The index sizes of existing segments do not change."""
        self.config = config
        self.segment_bytes = config.segment_bytes
        self.segment_ms = config.segment_ms
        if 'compact' in config.cleanup_policy:      # only closed segments are compacted
            self.segment_ms = min(self.segment_ms, config.max_compaction_lag_ms)
        return 0

    # ---- the active segment ----

    cdef bint must_roll(self, const BatchFields *batch, int64_t size) except -1:
        """Return whether the batch must go to a new segment."""
        return self.active.must_roll(batch, size, self.segment_bytes, self.segment_ms,
                                     self.clock.wall_ms() if batch.max_timestamp_ms < 0 else 0)

    cdef Segment open_next(self, int64_t base_offset):
        """Seal the active segment and create a new one at `base_offset`. Return the sealed segment."""
        cdef Segment sealed = self.active
        sealed.seal()
        self.active = Segment(self.fs, self.directory, base_offset, self.config, self.clock.wall_ms())
        self.all.append(self.active)
        self.set_roll_jitter()
        return sealed

    cdef int set_roll_jitter(self) except -1:
        """Let the active segment roll a random time before segment.ms, so that partitions that were created together
        roll at different times.
        """
        if self.config.segment_jitter_ms > 0:
            self.active.jitter_ms = random.randrange(min(self.config.segment_jitter_ms, self.segment_ms))
        return 0

    # ---- removal ----

    cdef int drop_first(self, Py_ssize_t count) except -1:
        """Remove the `count` oldest segments from the sequence. An iteration that has begun still includes these
        segments.
        """
        self.all = self.all[count:]
        return 0

    cdef int replace(self, list old, list new) except -1:
        """Replace the consecutive segments `old` by `new`. The active segment must not be in `old`."""
        cdef Py_ssize_t first = self.all.index(old[0])
        self.all[first:first + len(old)] = new
        return 0

    # ---- search by offset ----

    cdef Py_ssize_t number_of(self, int64_t offset) noexcept:
        """Return the index of the last segment whose base offset is at or below `offset`, 0 if there is none."""
        cdef Py_ssize_t low = 0, high = len(self.all), middle
        if self.active.base_offset <= offset:
            return high - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if (<Segment>self.all[middle]).base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    cdef Segment find(self, int64_t offset):
        """Return the segment that contains `offset`."""
        if self.active.base_offset <= offset:       # true for nearly all calls
            return self.active
        return <Segment>self.all[self.number_of(offset)]

    cdef LogSlice slice(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch):
        """Return whole batches of one segment: see `Log.read`."""
        cdef Place start, end
        cdef Segment segment
        cdef LogSlice found
        segment = self.find(offset)
        segment.place_of(offset, &start)
        while start.position == segment.size_bytes and segment is not self.active:  # compaction removed the end
            segment = self.all[self.all.index(segment) + 1]
            segment.place_of(offset, &start)
        end.position, end.offset = segment.size_bytes, segment.next_offset
        if upper_bound_offset < segment.next_offset:
            segment.place_of(upper_bound_offset, &end)
        if start.position >= end.position:
            return None
        if end.position - start.position > max_bytes:
            segment.place_below(start.position + max_bytes, &end)
            if end.position <= start.position:
                if not min_one_batch:
                    return None
                segment.place_behind(&start, &end)
        found = LogSlice.__new__(LogSlice)
        found.file = segment.file()
        found.position, found.size_bytes = start.position, end.position - start.position
        found.start_offset, found.end_offset = start.offset, end.offset
        return found

    # ---- aborted transactions ----

    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset):
        """Return the aborted transactions that touch [fetch_offset, upper_bound_offset): see `Log.aborted_rows`."""
        cdef Py_ssize_t first = self.number_of(fetch_offset), count = 0
        cdef bytes rows
        self.walk_aborted(first, fetch_offset, upper_bound_offset, NULL, &count)
        if count == 0:
            return b''
        rows = PyBytes_FromStringAndSize(NULL, count * PAIR_BYTES)
        self.walk_aborted(first, fetch_offset, upper_bound_offset, <uint8_t *>PyBytes_AS_STRING(rows), &count)
        return rows

    cdef int walk_aborted(self, Py_ssize_t first, int64_t fetch_offset, int64_t upper_bound_offset, uint8_t *into,
                          Py_ssize_t *count) except -1:
        """Set `count` to the number of aborted transactions in the segments from index `first`. Unless `into` is NULL,
        write the transactions to it.
        """
        cdef TransactionIndex index
        cdef Py_ssize_t number, found
        count[0] = 0
        for number in range(first, len(self.all)):
            index = (<Segment>self.all[number]).transactions
            if index.is_read and index.count == 0:      # true for nearly all segments
                continue
            found = index.touching(fetch_offset, upper_bound_offset,
                                   NULL if into == NULL else into + count[0] * PAIR_BYTES)
            count[0] += found
            if index.is_complete(upper_bound_offset):
                break
        return 0

    # ---- search by time ----

    cpdef TimeSearch search_time(self, int64_t timestamp_ms, int64_t start_offset, int64_t end_offset):
        """Return a search in the first segment that overlaps [start_offset, end_offset) and has a timestamp of at least
        `timestamp_ms`.

        Return None if there is no such segment.
        """
        cdef Segment segment
        if start_offset >= end_offset:
            return None
        for segment in self.all[self.number_of(start_offset):]:
            if segment.base_offset >= end_offset:
                break
            if segment.max_timestamp_ms >= timestamp_ms and segment.next_offset > start_offset:
                return segment.search_time(timestamp_ms, start_offset)
        return None

    cpdef TimeSearch search_greatest(self):
        """Return a search in the first segment that has the greatest timestamp of the log. Return None if no record has
        a timestamp.
        """
        cdef Segment segment, found = None
        for segment in self.all:
            if segment.max_timestamp_ms >= 0 and (found is None or segment.max_timestamp_ms > found.max_timestamp_ms):
                found = segment
        return None if found is None else found.search_greatest()
