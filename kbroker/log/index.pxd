# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.log.fs.file cimport File

cdef enum:
    TAIL_ENTRIES = 64


cdef class Index:
    cdef object fs
    cdef readonly str path
    cdef readonly int64_t base_offset
    cdef readonly int64_t entries
    cdef readonly int64_t max_entries
    cdef int64_t last_key
    cdef int64_t found_bytes
    cdef int32_t entry_bytes
    cdef int32_t key_bytes
    cdef int32_t tail_entries
    cdef bint sealed
    cdef const uint8_t *mapped
    cdef size_t mapped_bytes
    cdef uint8_t *tail          # memory for TAIL_ENTRIES entries, while the index accepts entries

    cdef const uint8_t *entry(self, int64_t number) noexcept
    cdef int make_room(self) except -1
    cdef int make_tail(self) except -1
    cdef int put(self, int64_t key, int64_t value) except -1
    cdef int put_last(self, int64_t key, int64_t value) except -1
    cdef int store(self, int64_t key, int64_t value) noexcept
    cdef int write_tail(self) except -1
    cdef int write_tail_to(self, File file) except -1
    cdef int map(self) except -1
    cdef bint last_entry_is_plausible(self) noexcept
    cdef int load_last_key(self) except -1
    cdef int unmap(self) noexcept
    cdef int unseal(self) except -1
    cdef File open_file(self)
    cdef int64_t read_key(self, int64_t number) noexcept
    cdef int64_t read_value(self, int64_t number) noexcept
    cdef int64_t sound_value(self, int64_t number) except -1
    cdef int64_t search(self, int64_t target, bint by_value) except -2


cdef class OffsetIndex(Index):
    cdef int append(self, int64_t last_offset, int64_t position) except -1
    cdef int64_t position_for_offset(self, int64_t offset, int64_t *indexed_offset) except -1
    cdef int batch_at_or_below(self, int64_t position, int64_t *start, int64_t *last_offset) except -1


cdef class TimeIndex(Index):
    cdef int maybe_append(self, int64_t timestamp_ms, int64_t offset) except -1
    cdef int append_last(self, int64_t timestamp_ms, int64_t offset) except -1
    cdef bint is_full(self) noexcept
    cdef int64_t offset_before(self, int64_t timestamp_ms) except -1
