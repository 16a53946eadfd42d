# cython: language_level=3
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker.log.append_result cimport Appended
from kbroker.log.log cimport Log
from kbroker.log.log_slice cimport LogSlice
from kbroker.record.batch cimport BatchFields
from kbroker.topics.gathering cimport Gatherer, Gathering


cdef enum Gather:               # whether the caller waits until an append is durable, so that it may be written later
    AT_ONCE
    COPIED
    BORROWED                    # as COPIED, of bytes that stay until Gathering.loan_ends


cdef struct WaiterLink:
    WaiterLink *next
    WaiterLink *previous
    PyObject *waiter            # borrowed: a waiter takes its link out before it goes


cdef class DurableWaiter:
    cdef int durable(self, Py_ssize_t part, object error) except -1


cdef struct Awaited:
    int64_t offset
    Py_ssize_t part
    PyObject *waiter                # owned


cdef class DurableQueue:
    cdef Awaited *awaited
    cdef Py_ssize_t first
    cdef Py_ssize_t end
    cdef Py_ssize_t capacity

    cdef int put(self, int64_t offset, object waiter, Py_ssize_t part) except -1
    cdef int make_room(self) except -1
    cdef int answer_first(self, object error) except -1


cdef class FetchWaiter:
    cdef readonly Partition partition
    cdef WaiterLink link

    cdef int wait(self) except -1
    cdef void stop_waiting(self) noexcept
    cpdef wake(self)


cdef class Partition(Gatherer):
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly bytes topic_id
    cdef public int32_t leader_epoch
    cdef Log _log                     # nobody else reaches into it: tests/test_layers.py
    cdef readonly int64_t high_watermark
    cdef readonly bint is_deleted
    cdef bint _page_cache
    cdef object _flusher
    cdef Gathering _gathering
    cdef int64_t _turn              # of the last append
    cdef int _appends_in_turn
    cdef bint _is_busy              # that turn, or the one with an append before it, had more than one
    cdef DurableQueue _durable_queue
    cdef WaiterLink _fetch_waiters    # the head of a ring
    cdef object _replayer
    cdef object _not_replayed         # deque of (header, batch copy) above the high watermark, only with a replayer

    cdef int64_t start_offset(self) noexcept
    cdef int64_t end_offset(self) noexcept
    cdef int64_t stable_offset(self) except -1
    cdef int _advance(self, int64_t high_watermark) except -1
    cdef int _replay(self) except -1
    cdef int append_at(self, uint8_t *data, int64_t size, BatchFields *batch, int origin, object guard,
                       int transaction_version, bint verification_required, Appended *appended, Gather gather=*) except -1
    cdef bint is_busy(self) noexcept
    cdef int gather(self, uint8_t *data, int64_t size, BatchFields *batch, int origin, object guard,
                    int transaction_version, bint verification_required, Appended *appended, bint borrow) except -1
    cdef bint answers_from_page_cache(self) noexcept
    cdef int _appended(self) except -1
    cdef int await_durable(self, int64_t offset, DurableWaiter waiter, Py_ssize_t part) except -1
    cpdef LogSlice read(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch)
    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset)
    cpdef start_verification(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                             bint supports_epoch_bump, int64_t now_ms)
    cdef int wake_fetch_waiters(self) except -1
