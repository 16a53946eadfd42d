"""Sparse indexes of a segment: offset -> position (`.index`) and timestamp -> offset (`.timeindex`).

`formats` defines the layout of an entry: a key and an int32 value. The keys of successive entries grow strictly. The
file of an index is created when the first entry is written, or by a clean stop. A segment of a few KiB has no entry.
While entries are added, the file is sparse and has its full size, with zeros behind the entries. Sealing the index
trims the file. After an unclean stop, an unsealed index is rebuilt and never read. Therefore the newest entries may
wait in memory until many can be written at a time. Entries are written by a system call, which can fail with an error.
A failed store into mapped memory would kill the process. Reads use the mapped file.
"""
import os

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from kbroker.base.errors import CorruptLogError
from kbroker.log.formats import OFFSET_ENTRY, TIME_ENTRY
from kbroker.log.formats cimport INDEX_VALUE_BYTES
from kbroker.log.fs.file cimport File
from kbroker.wire.bytes cimport read_int32, read_int64, write_int32, write_int64


cdef extern from '<sys/mman.h>' nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int descriptor, long offset)
    int munmap(void *address, size_t length)
    int PROT_READ
    int MAP_SHARED
    void *MAP_FAILED


cdef int32_t OFFSET_ENTRY_BYTES = OFFSET_ENTRY.size
cdef int32_t TIME_ENTRY_BYTES = TIME_ENTRY.size


cdef class Index:
    """The base class of OffsetIndex and TimeIndex: a file of entries of equal size, sorted by key. The newest entries
    may still be in memory.

    A new index accepts entries immediately. An existing index accepts entries only after `unseal`, and must pass
    `check` before its first use.
    """

    def __init__(self, fs, str path, int64_t base_offset, int64_t max_bytes, *, int64_t file_bytes=-1):
        """Create; `file_bytes` is the size of the existing file, or -1 if there is no file."""
        self.fs = fs
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry_bytes
        self.found_bytes = file_bytes
        self.entries = max(file_bytes, <int64_t>0) // self.entry_bytes
        self.sealed = True

    def __dealloc__(self):
        self.unmap()
        free(self.tail)

    cdef File open_file(self):
        """Open the file for one operation. It does not stay open, because a thousand partitions must not use thousands
        of file descriptors.
        """
        return self.fs.open(self.path, True)

    cdef int map(self) except -1:
        """Map the file's entries into memory. If the index is not sealed, also map the part of the file for later
        entries.
        """
        cdef size_t needed = (self.entries - self.tail_entries) * self.entry_bytes
        cdef void *address
        cdef File file
        if self.mapped_bytes >= needed:
            return 0
        self.unmap()
        file = self.open_file()
        if not self.sealed:
            needed = self.max_entries * self.entry_bytes
        address = mmap(NULL, needed, PROT_READ, MAP_SHARED, file.fileno(), 0)
        if address == MAP_FAILED:
            raise OSError(f'{self.path}: cannot map {needed} bytes')
        self.mapped = <const uint8_t *>address
        self.mapped_bytes = needed
        return 0

    cdef int unmap(self) noexcept:
        if self.mapped != NULL:
            munmap(<void *><size_t>self.mapped, self.mapped_bytes)
            self.mapped = NULL
            self.mapped_bytes = 0
        return 0

    cdef const uint8_t *entry(self, int64_t number) noexcept:
        """Return the address of entry `number`, counted from 0. The entry must exist. If it is in the file, the caller
        must have called `map`.
        """
        cdef int64_t in_file = self.entries - self.tail_entries
        if number >= in_file:
            return &self.tail[(number - in_file) * self.entry_bytes]
        return self.mapped + number * self.entry_bytes

    cdef int64_t read_key(self, int64_t number) noexcept:
        cdef const uint8_t *entry = self.entry(number)
        return read_int64(entry) if self.key_bytes == 8 else read_int32(entry)

    cdef int64_t read_value(self, int64_t number) noexcept:
        return read_int32(self.entry(number) + self.key_bytes)

    cdef int64_t sound_value(self, int64_t number) except -1:
        """Return the value of entry `number`. Raise CorruptLogError if it is negative, which only damage can cause."""
        cdef int64_t value = self.read_value(number)
        if value < 0:
            raise CorruptLogError(f'{self.path}: found {value} in entry {number} of {self.entries}, '
                                  'expected a position or an offset')
        return value

    cdef int64_t search(self, int64_t target, bint by_value) except -2:
        """Return the number of the last entry whose key is at or below `target`, -1 if there is none. With `by_value`,
        compare the values.
        """
        cdef int64_t low = 0, high = self.entries, middle, found
        cdef int64_t in_file = self.entries - self.tail_entries
        cdef bint is_long = self.key_bytes == 8 and not by_value
        cdef const uint8_t *first
        if self.tail_entries and (self.read_value(in_file) if by_value else self.read_key(in_file)) <= target:
            low = in_file
        elif in_file == 0:
            return -1
        else:
            self.map()
            high = in_file
        # The searched entries are contiguous. `first` is the address that entry 0 would have if the entries before them
        # were contiguous, too.
        first = self.entry(low) - low * self.entry_bytes + (self.key_bytes if by_value else 0)
        while low < high:
            middle = (low + high) >> 1
            found = (read_int64(first + middle * self.entry_bytes) if is_long
                     else read_int32(first + middle * self.entry_bytes))
            if found <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    cdef int make_room(self) except -1:
        """Ensure that the next `put` cannot fail: create the file in its full size, and make room for one entry in
        memory.
        """
        if self.sealed:
            self.unseal()
        self.make_tail()
        if self.tail_entries == TAIL_ENTRIES:
            self.write_tail()
        return 0

    cdef int make_tail(self) except -1:
        if self.tail == NULL:
            self.tail = <uint8_t *>malloc(TAIL_ENTRIES * self.entry_bytes)
            if self.tail == NULL:
                raise MemoryError()
        return 0

    cdef int put(self, int64_t key, int64_t value) except -1:
        self.make_room()
        return self.store(key, value)

    cdef int put_last(self, int64_t key, int64_t value) except -1:
        """Add the final entry before the index is sealed, without room for further entries."""
        if self.sealed:
            self.make_tail()
        else:
            self.make_room()
        return self.store(key, value)

    cdef int store(self, int64_t key, int64_t value) noexcept:
        cdef uint8_t *at = &self.tail[self.tail_entries * self.entry_bytes]
        if self.key_bytes == 8:
            write_int64(at, key)
        else:
            write_int32(at, <int32_t>key)
        write_int32(at + self.key_bytes, <int32_t>value)
        self.tail_entries += 1
        self.entries += 1
        self.last_key = key
        return 0

    cdef int write_tail(self) except -1:
        return self.write_tail_to(self.open_file()) if self.tail_entries else 0

    cdef int write_tail_to(self, File file) except -1:
        cdef int64_t in_file = self.entries - self.tail_entries
        if self.tail_entries:
            file.pwrite(self.tail, self.tail_entries * self.entry_bytes, in_file * self.entry_bytes)
            self.tail_entries = 0
        return 0

    cdef int unseal(self) except -1:
        """Make the index accept entries again: extend the file to its full size, with zeros behind the last entry."""
        cdef File file = self.open_file()
        self.unmap()
        if file.size() > self.entries * self.entry_bytes:
            file.truncate(self.entries * self.entry_bytes)
        file.truncate(self.max_entries * self.entry_bytes)
        self.sealed = False
        return 0

    def seal(self) -> None:
        """Write the entries that are still in memory, and trim the file to its entries. Create the file if it is
        missing.
        """
        cdef int64_t size_bytes = self.entries * self.entry_bytes
        cdef File file
        self.unmap()
        if not self.sealed or self.tail_entries or self.found_bytes != size_bytes:
            file = self.open_file()
            self.write_tail_to(file)
            if not self.sealed or self.found_bytes > size_bytes:
                file.truncate(size_bytes)
        self.found_bytes = size_bytes
        self.sealed = True
        free(self.tail)
        self.tail = NULL

    def make(self) -> None:
        """Create the file of an empty index, unless it exists."""
        if self.sealed and self.found_bytes < 0:
            self.open_file()
            self.found_bytes = 0

    def reset(self) -> None:
        """Remove all entries, so that the index can be rebuilt."""
        cdef File file
        self.unmap()
        self.tail_entries = 0
        self.entries = 0
        self.last_key = 0
        if self.found_bytes > 0:
            file = self.open_file()
            file.forget_errors()
            file.truncate(0)
            self.found_bytes = 0
        self.sealed = True

    cdef int load_last_key(self) except -1:
        self.last_key = 0
        if self.entries:
            self.map()
            self.last_key = self.read_key(self.entries - 1)
        return 0

    def check(self) -> None:
        """Raise CorruptLogError if the file cannot be an index: if its size is not a multiple of the entry size, or if
        the last entry cannot follow the first.
        """
        if self.found_bytes < 0:
            raise CorruptLogError(f'{self.path}: found no such file, expected the index of a segment')
        if self.found_bytes % self.entry_bytes:
            raise CorruptLogError(f'{self.path}: found {self.found_bytes} bytes, '
                                  f'expected a multiple of {self.entry_bytes}')
        self.load_last_key()
        if self.entries and not self.last_entry_is_plausible():
            raise CorruptLogError(f'{self.path}: found ({self.read_key(self.entries - 1)}, '
                                  f'{self.read_value(self.entries - 1)}) as the last of {self.entries} entries, '
                                  'expected one above the first')

    cdef bint last_entry_is_plausible(self) noexcept:
        """Return whether the last entry can follow the first. The caller must have mapped the entries. Each subclass
        overrides this method.
        """
        return True

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, int64_t number) -> tuple[int, int]:
        """Return (key, value) of entry `number` as stored: (relative offset, position) or (timestamp in ms, relative
        offset).
        """
        if not 0 <= number < self.entries:
            raise IndexError(f'{self.path}: entry {number} of {self.entries}')
        self.map()
        return self.read_key(number), self.read_value(number)

    def __iter__(self):
        for number in range(self.entries):
            yield self[number]

    def sync_file(self) -> File:
        """Write the entries that are still in memory, and return the file, which the caller must sync."""
        self.write_tail()
        return self.open_file()


cdef class OffsetIndex(Index):
    """The `.index` of a segment: offset -> position. The first batch of a segment is never indexed, so a relative
    offset is never 0.
    """

    def __cinit__(self):
        self.entry_bytes = OFFSET_ENTRY_BYTES
        self.key_bytes = OFFSET_ENTRY_BYTES - INDEX_VALUE_BYTES

    cdef int append(self, int64_t last_offset, int64_t position) except -1:
        if self.entries and last_offset - self.base_offset <= self.last_key:
            raise CorruptLogError(f'{self.path}: offset {last_offset} after {self.base_offset + self.last_key}, '
                                  'expected a higher one')
        return self.put(last_offset - self.base_offset, position)

    def add(self, int64_t last_offset, int64_t position) -> None:
        self.append(last_offset, position)

    cdef int64_t position_for_offset(self, int64_t offset, int64_t *indexed_offset) except -1:
        """Return the position at which a scan for `offset` must begin: that of the last entry at or below `offset`, or
        0 if there is no such entry.

        Set `indexed_offset` to the offset in the entry. The batch at the returned position must begin at or below
        `indexed_offset`.
        """
        cdef int64_t number = self.search(offset - self.base_offset, False)
        indexed_offset[0] = INT64_MAX if number < 0 else self.base_offset + self.read_key(number)
        return 0 if number < 0 else self.sound_value(number)

    cdef int batch_at_or_below(self, int64_t position, int64_t *start, int64_t *last_offset) except -1:
        """Find the last indexed batch that begins at or before `position`. Set `start` to its position and
        `last_offset` to its last offset.

        If there is no such batch, set `start` to 0 and `last_offset` to the base offset of the segment: the first batch
        of a segment is not indexed.
        """
        cdef int64_t number = self.search(position, True)
        start[0] = 0 if number < 0 else self.sound_value(number)
        last_offset[0] = self.base_offset if number < 0 else self.base_offset + self.read_key(number)
        return 0

    def lookup(self, int64_t offset) -> int:
        cdef int64_t indexed_offset
        return self.position_for_offset(offset, &indexed_offset)

    cdef bint last_entry_is_plausible(self) noexcept:
        return self.read_key(self.entries - 1) > 0 and self.read_value(self.entries - 1) > 0


cdef class TimeIndex(Index):
    """The `.timeindex` of a segment: timestamp -> offset. It reserves room for the final entry, which is added when the
    segment is sealed.
    """

    def __cinit__(self):
        self.entry_bytes = TIME_ENTRY_BYTES
        self.key_bytes = TIME_ENTRY_BYTES - INDEX_VALUE_BYTES

    cdef int maybe_append(self, int64_t timestamp_ms, int64_t offset) except -1:
        """Add an entry if `timestamp_ms` is above the timestamp of the last entry. Do not add timestamp -1, which means
        no timestamp.
        """
        if timestamp_ms > (self.last_key if self.entries else -1):
            return self.put(timestamp_ms, offset - self.base_offset)
        return 0

    cdef int append_last(self, int64_t timestamp_ms, int64_t offset) except -1:
        """Add the final entry under the condition of `maybe_append`. The caller must call `seal` next."""
        if timestamp_ms > (self.last_key if self.entries else -1):
            return self.put_last(timestamp_ms, offset - self.base_offset)
        return 0

    def add(self, int64_t timestamp_ms, int64_t offset) -> None:
        self.maybe_append(timestamp_ms, offset)

    cdef bint is_full(self) noexcept:
        return self.entries >= self.max_entries - 1

    cdef int64_t offset_before(self, int64_t timestamp_ms) except -1:
        """Return an offset of the segment such that every record below it has a timestamp below `timestamp_ms`."""
        cdef int64_t number = self.search(timestamp_ms - 1, False)
        return self.base_offset if number < 0 else self.base_offset + self.sound_value(number)

    def lookup(self, int64_t timestamp_ms) -> tuple[int, int]:
        """Return (timestamp, offset) of the last entry at or below `timestamp_ms`. If there is none, return (-1, base
        offset)."""
        cdef int64_t number = self.search(timestamp_ms, False)
        if number < 0:
            return -1, self.base_offset
        return self.read_key(number), self.base_offset + self.sound_value(number)

    cdef bint last_entry_is_plausible(self) noexcept:
        cdef int64_t timestamp_ms = self.read_key(self.entries - 1), relative_offset = self.read_value(self.entries - 1)
        if self.entries == 1:
            return relative_offset > 0 or (relative_offset == 0 and timestamp_ms != 0)
        return relative_offset >= 0 and timestamp_ms > self.read_key(0)
