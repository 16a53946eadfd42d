# cython: language_level=3
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker.apis.fetch_request cimport AskedTopic, FetchRequest
from kbroker.apis.waiting cimport Waiter, WaitingRoom
from kbroker.clock cimport Clock
from kbroker.log.log_slice cimport LogSlice
from kbroker.topics.partition cimport FetchWaiter


cdef enum:
    NO_SESSION = 0


cdef class WantedTopic:
    cdef bytes key              # the name in UTF-8, or the 16 bytes of the id
    cdef dict partitions        # by index


cdef class WantedPartition(FetchWaiter):
    cdef FetchSession session   # None once it is forgotten
    cdef WantedTopic topic
    cdef int32_t index
    cdef int32_t max_bytes
    cdef int64_t fetch_offset
    cdef int32_t current_leader_epoch
    cdef int32_t last_fetched_epoch
    cdef int64_t told_high_watermark
    cdef int64_t told_log_start_offset
    cdef bint is_due

    # Found by the last look.
    cdef int16_t error_code
    cdef bint has_more          # more than was taken, or what was taken is to be asked for again
    cdef int64_t high_watermark
    cdef int64_t last_stable_offset
    cdef int64_t log_start_offset
    cdef int32_t diverging_epoch
    cdef int64_t diverging_end_offset
    cdef LogSlice records
    cdef bytes aborted_transactions

    cdef int forget_look(self) noexcept
    cdef bint take_news(self) noexcept


cdef class FetchSession:
    cdef readonly int32_t session_id
    cdef public int32_t epoch
    cdef int64_t used_ms
    cdef bint uses_topic_ids
    cdef bint is_incremental
    cdef dict topics
    cdef Py_ssize_t size
    cdef list due
    cdef Waiter parked
    cdef WaitingRoom room

    cdef int take_over(self, FetchRequest *request) except -1
    cdef int forget_partitions(self, FetchRequest *request) except -1
    cdef WantedTopic find_topic(self, const AskedTopic *asked, bint adds)
    cdef int moved(self, WantedPartition wanted) except -1
    cdef int park(self, Waiter waiter) except -1
    cdef list take_news(self)
    cdef int end(self) except -1


cdef class FetchSessions:
    cdef Py_ssize_t slots
    cdef Clock clock
    cdef WaitingRoom room
    cdef readonly dict sessions         # by id, the one used longest ago first

    cdef FetchSession begin(self, FetchRequest *request)
    cdef FetchSession advance(self, FetchRequest *request)
    cdef int give_id(self, FetchSession session, FetchRequest *request) except -1
