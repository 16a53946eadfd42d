"""The index of the aborted transactions of a segment (`.txnindex`), for read_committed consumers.

`formats` defines the layout of an entry. Entries are in the order of their markers, so their last offsets and last
stable offsets grow. The file exists only if the segment has the marker of an aborted transaction.

A last stable offset is at most the offset after the marker. A follower of Apache Kafka 4.4 may store a larger one: it
computes the offset after it has replayed a whole append, and passes over the next transaction of the same producer.
Searches bound the offset, or they would miss the abort of that transaction. The rows keep the stored value.
"""
from typing import NamedTuple

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport free, realloc

from kbroker.base.errors import CorruptLogError
from kbroker.log.formats import TRANSACTION_ENTRY as ENTRY
from kbroker.log.formats import TRANSACTION_ENTRY_VERSION as VERSION
from kbroker.log.fs.file cimport File
from kbroker.log.fs.lazy_file cimport LazyFile
from kbroker.wire.bytes cimport write_int64

cdef enum:
    BLOCK_ENTRIES = 64


class AbortedTransaction(NamedTuple):
    """One aborted transaction, with the last stable offset after its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


cdef inline int64_t stable_offset(const Row *row) noexcept:
    return min(row.last_stable_offset, row.last_offset + 1)


cdef class TransactionIndex:
    """The rows of one segment's index. They stay in memory after they were read. Methods raise OSError, and
    CorruptLogError if the file is damaged.
    """

    def __init__(self, fs, str path, int64_t base_offset, *, bint exists):
        self.path = path
        self.lazy_file = LazyFile(fs, path)
        self.exists = exists
        self.fs = fs
        self.base_offset = base_offset
        self.is_read = not exists

    def __dealloc__(self):
        free(self.entries)
        free(self.lowest)

    @property
    def rows(self) -> list[AbortedTransaction]:
        """Return the rows in the order of their markers."""
        cdef Py_ssize_t i
        self.read()
        return [self.row(i) for i in range(self.count)]

    cdef object row(self, Py_ssize_t number):
        cdef Row *row = &self.entries[number]
        return AbortedTransaction(row.producer_id, row.first_offset, row.last_offset, row.last_stable_offset)

    cdef int make_room(self, Py_ssize_t count) except -1:
        """Reserve memory for `count` entries in total, so that `add` cannot fail."""
        cdef Py_ssize_t capacity
        cdef void *wider
        if count > self.capacity:
            capacity = max(count, 2 * self.capacity, <Py_ssize_t>BLOCK_ENTRIES)
            wider = realloc(self.entries, capacity * sizeof(Row))
            if wider == NULL:
                raise MemoryError()
            self.entries = <Row *>wider
            wider = realloc(self.lowest, (capacity // BLOCK_ENTRIES) * sizeof(int64_t))
            if wider == NULL:
                raise MemoryError()
            self.lowest = <int64_t *>wider
            self.capacity = capacity
        return 0

    cdef int add(self, const Row *row) except -1:
        cdef Py_ssize_t i
        cdef int64_t lowest = INT64_MAX
        self.make_room(self.count + 1)
        self.entries[self.count] = row[0]
        self.count += 1
        if self.count % BLOCK_ENTRIES == 0:
            for i in range(self.count - BLOCK_ENTRIES, self.count):
                lowest = min(lowest, self.entries[i].first_offset)
            self.lowest[self.count // BLOCK_ENTRIES - 1] = lowest
        return 0

    def append(self, row) -> None:
        """Add a row. Its marker must be above the markers of all earlier rows. If the write fails, the index is
        unchanged.
        """
        cdef Row entry = Row(row[0], row[1], row[2], row[3])
        self.read()
        if self.count and entry.last_offset <= self.entries[self.count - 1].last_offset:
            raise CorruptLogError(f'{self.path}: marker at {entry.last_offset} after one at '
                                  f'{self.entries[self.count - 1].last_offset}, expected a higher offset')
        self.make_room(self.count + 1)
        self.file().write_at(ENTRY.pack(VERSION, *row), self.count * ENTRY.size)
        self.exists = True
        self.add(&entry)

    cdef Py_ssize_t touching(self, int64_t fetch_offset, int64_t upper_bound_offset, uint8_t *into) except -1:
        """Return how many transactions overlap [fetch_offset, upper_bound_offset). Unless `into` is NULL, write the
        producer id and the first offset of each transaction to it, in wire format.

        Blocks of rows whose transactions all begin too late are skipped, so the cost depends mostly on the number of
        transactions found.
        """
        cdef Py_ssize_t i, end, found = 0
        self.read()
        i = self.first_reaching(fetch_offset, False)
        end = min(self.first_reaching(upper_bound_offset, True) + 1, self.count)
        while i < end:
            if (i % BLOCK_ENTRIES == 0 and i + BLOCK_ENTRIES <= end
                    and self.lowest[i // BLOCK_ENTRIES] >= upper_bound_offset):
                i += BLOCK_ENTRIES
                continue
            if self.entries[i].first_offset < upper_bound_offset:
                if into != NULL:
                    write_int64(into + found * PAIR_BYTES, self.entries[i].producer_id)
                    write_int64(into + found * PAIR_BYTES + 8, self.entries[i].first_offset)
                found += 1
            i += 1
        return found

    cdef Py_ssize_t first_reaching(self, int64_t offset, bint by_stable_offset) noexcept:
        """Return the index of the first row whose marker is at or above `offset`.

        With `by_stable_offset`, compare the last stable offset of the rows instead of the marker. The transactions of
        all rows after the returned one then begin at or above `offset`.
        """
        cdef Py_ssize_t low = 0, high = self.count, middle
        cdef const Row *row
        while low < high:
            middle = (low + high) >> 1
            row = &self.entries[middle]
            if (stable_offset(row) if by_stable_offset else row.last_offset) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint is_complete(self, int64_t upper_bound_offset) noexcept:
        """Return True if no row of a later segment can belong to a transaction that begins below `upper_bound_offset`.
        """
        return self.count > 0 and stable_offset(&self.entries[self.count - 1]) >= upper_bound_offset

    def collect(self, int64_t fetch_offset, int64_t upper_bound_offset) -> tuple[list[AbortedTransaction], bool]:
        """Return the rows whose transactions overlap [fetch_offset, upper_bound_offset). Also return True if no later
        segment can have a row for this range.
        """
        cdef Py_ssize_t i
        self.read()
        found = [self.row(i) for i in range(self.first_reaching(fetch_offset, False),
                                            min(self.first_reaching(upper_bound_offset, True) + 1, self.count))
                 if self.entries[i].first_offset < upper_bound_offset]
        return found, self.is_complete(upper_bound_offset)

    def truncate_to(self, int64_t offset) -> None:
        """Remove the rows whose markers are at or above `offset`."""
        self.read()
        kept = self.first_reaching(offset, False)
        if self.exists:
            self.file().resize(kept * ENTRY.size)
        self.count = kept

    def reset(self) -> None:
        """Remove all rows and the file, so that the index can be rebuilt."""
        if self.exists:
            self.lazy_file.close()
            self.fs.unlink(self.path)
        self.exists = False
        self.is_read = True
        self.count = 0

    def check(self) -> None:
        """Read the index file. Raise CorruptLogError if it is damaged."""
        self.read()

    def file(self) -> File:
        """Return the open file, which the caller writes or syncs."""
        return self.lazy_file.get(True)

    cdef int read(self) except -1:
        cdef Row row
        cdef int64_t above = self.base_offset - 1
        if self.is_read:
            return 0
        data = self.fs.read_file(self.path)
        if len(data) % ENTRY.size:
            raise CorruptLogError(f'{self.path}: found {len(data)} bytes, expected a multiple of {ENTRY.size}')
        self.count = 0
        self.make_room(len(data) // ENTRY.size)
        for position in range(0, len(data), ENTRY.size):
            (version, row.producer_id, row.first_offset, row.last_offset,
             row.last_stable_offset) = ENTRY.unpack_from(data, position)
            if version != VERSION:
                raise CorruptLogError(f'{self.path}: found version {version} at {position}, expected {VERSION}')
            if row.last_offset <= above:
                raise CorruptLogError(f'{self.path}: found marker offset {row.last_offset} at {position}, '
                                      f'expected one above {above}')
            above = row.last_offset
            self.add(&row)
        self.is_read = True
        return 0
