# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.append cimport Append
from kbroker.log.fs.file cimport iovec
from kbroker.log.fs.lazy_file cimport LazyFile


cdef class WriteArena:
    cdef uint8_t *memory
    cdef int64_t used
    cdef Py_ssize_t users               # the number of tails with bytes in `memory`
    cdef int64_t tick                   # the number of the current tick
    cdef list borrowers                 # the tails with borrowed bytes

    cdef bint has_room(self, int64_t size) noexcept
    cdef uint8_t *take(self, int64_t size) noexcept
    cdef int end_loan(self) except -1
    cdef int end_tick(self) noexcept


cdef class UnwrittenTail:
    cdef WriteArena arena               # None: the log writes each append immediately
    cdef LazyFile file
    cdef int64_t position               # the file position of the first unwritten byte
    cdef int64_t size_bytes
    cdef iovec *pieces                  # NULL until an append is written later
    cdef int count
    cdef int owned_count                # the number of pieces before the first borrowed one
    cdef bint is_in_arena
    cdef bint is_borrowing              # True if the tail is in `arena.borrowers`
    cdef object failure                 # the OSError of a write at the end of a loan
    cdef int64_t tick                   # the tick of the last append
    cdef int appends_in_tick
    cdef bint was_busy                  # True if the last earlier tick with appends had several

    cdef bint may_take(self, const Append *append) noexcept
    cdef int reserve(self, LazyFile file, int64_t position) except -1
    cdef int add(self, const Append *append) except -1
    cdef int end_loan(self) except -1
    cdef int write(self) except -1
    cdef int64_t discard(self) noexcept
    cdef bint is_busy(self) noexcept
    cdef int put(self, uint8_t *data, int64_t size) noexcept
    cdef uint8_t *take_memory(self, int64_t size) noexcept
