# cython: language_level=3
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker.base.completion cimport Completion
from kbroker.log.append cimport Appender
from kbroker.log.log cimport Log
from kbroker.log.segments cimport LogSlice
from kbroker.log.unwritten cimport WriteArena


cdef struct WaiterLink:
    WaiterLink *next
    WaiterLink *previous
    PyObject *waiter            # borrowed: a waiter removes its link before it is freed


cdef struct Awaited:
    int64_t offset
    Py_ssize_t part
    PyObject *completion            # owned


@cython.final
cdef class DurableQueue:
    cdef Awaited *awaited
    cdef Py_ssize_t first
    cdef Py_ssize_t end
    cdef Py_ssize_t capacity

    cdef int put(self, int64_t offset, Completion completion, Py_ssize_t part) except -1
    cdef int make_room(self) except -1
    cdef int complete_first(self, object error) except -1
    cdef list remove_overdue(self, int64_t monotonic_ms)


cdef class FetchWaiter:
    cdef readonly Partition partition
    cdef WaiterLink link

    cpdef int wait(self) except -1
    cpdef int stop_waiting(self) except -1
    cdef void unlink(self) noexcept
    cpdef wake(self)
    cdef int acknowledged(self) except -1


@cython.final
cdef class Tick:
    cdef WriteArena arena
    cdef list partitions
    cdef int64_t costly_work_ends_us   # in this tick; 0 before the first costly work

    cdef int add(self, Partition partition) except -1
    cdef int end_loan(self) except -1
    cdef bint has_time(self) noexcept
    cpdef write(self)


cdef class Partition(Appender):
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly bytes topic_id
    cdef public int32_t leader_epoch
    cdef Log _log                     # private to topics/, which tests/test_layers.py checks
    cdef readonly int64_t high_watermark
    cdef readonly int64_t acknowledged_offset   # the end of the records acknowledged with acks=1 or acks=0
    cdef readonly bint is_deleted
    cdef readonly int64_t produced_records  # that clients have appended, and the bytes of their batches
    cdef readonly int64_t produced_bytes
    cdef readonly int64_t fetched_records   # the offsets in answers to clients, and their bytes
    cdef readonly int64_t fetched_bytes
    cdef readonly int64_t unsynced_bytes    # appended since the last sync began that has ended
    cdef int64_t _syncing_bytes             # the part of unsynced_bytes that the sync in progress covers
    cdef bint _page_cache
    cdef object _flusher
    cdef Tick _tick
    cdef bint _is_in_tick           # among the partitions of _tick
    cdef DurableQueue _durable_queue
    cdef WaiterLink _fetch_waiters    # the head of a ring
    cdef object _replayer
    cdef object _not_replayed         # deque of (header, batch copy) above the high watermark; None without a replayer

    cdef int64_t start_offset(self) noexcept
    cdef int64_t end_offset(self) noexcept
    cdef int64_t stable_offset(self) except -1
    cdef int64_t append_bytes(self, uint8_t *data, Py_ssize_t size, int transaction_version) except -1
    cdef int _advance(self, int64_t high_watermark) except -1
    cdef int _replay(self) except -1
    cdef int end_tick(self) except -1
    cdef bint is_made(self) noexcept
    cdef bint answers_from_page_cache(self) noexcept
    cdef int acknowledge(self, int64_t end_offset) except -1
    cdef bint hides_acknowledged(self, int64_t offset) noexcept
    cdef int _written(self) except -1
    cdef int await_durable(self, int64_t offset, Completion completion, Py_ssize_t part) except -1
    cpdef LogSlice read(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch)
    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset)
    cpdef start_verification(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                             bint supports_epoch_bump, int64_t now_ms)
    cdef int wake_fetch_waiters(self) except -1
