# cython: language_level=3
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker.apis.fetch.request cimport AskedPartition, AskedTopic, FetchRequest
from kbroker.apis.serving.waiting cimport Waiter, WaitingRoom
from kbroker.base.clock cimport Clock
from kbroker.base.long_work cimport LongWork
from kbroker.log.segments cimport LogSlice
from kbroker.security.access cimport Access
from kbroker.topics.partition cimport FetchWaiter


cdef enum:
    NO_SESSION = 0
    MOST_UNKNOWN = 100          # partitions of a session that do not exist
    FEW = 256                   # partitions that are treated at once; more are long work
    ALL = 0x7fffffff


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
    cdef int64_t sent_high_watermark
    cdef int64_t sent_log_start_offset
    cdef bint is_due

    # The results of the last look at the partition.
    cdef int16_t error_code
    cdef bint has_more          # more than was taken, or what was taken is to be asked for again
    cdef int64_t high_watermark
    cdef int64_t last_stable_offset
    cdef int64_t log_start_offset
    cdef int32_t diverging_epoch
    cdef int64_t diverging_end_offset
    cdef LogSlice records
    cdef bytes aborted_transactions

    cdef int acknowledged(self) except -1
    cdef int forget_look(self) noexcept
    cdef bint has_moved(self) except -1
    cdef bint has_news(self) noexcept
    cdef bint take_news(self) noexcept


cdef class FetchSession:
    cdef readonly int32_t session_id
    cdef public int32_t epoch
    cdef int64_t created_ms
    cdef int64_t used_ms
    cdef bint uses_topic_ids
    cdef bint is_incremental
    cdef bint is_busy           # a fetch of it is worked on in parts
    cdef bint is_ended
    cdef dict topics
    cdef Py_ssize_t size
    cdef Py_ssize_t counted     # of `size`, counted in FetchSessions.held
    cdef tuple size_key         # its place in FetchSessions.by_size, or None
    cdef Access access          # the rights of the last fetch, as they were at this generation
    cdef int64_t rights_generation
    cdef list due
    cdef list moved_since       # the partitions that moved since `parked` has looked, or None
    cdef Waiter parked
    cdef WaitingRoom room
    cdef WantedTopic taken      # the topic that `take_over` is at

    cdef bint take_over(self, FetchRequest *request, Py_ssize_t count) except -1
    cdef int take_topic(self, FetchRequest *request) except -1
    cdef int take_partition(self, FetchRequest *request) except -1
    cdef int want(self, const AskedPartition *asked) except -1
    cdef int forget(self, int32_t index) except -1
    cdef bint take_rights(self, Access access, int64_t generation) except -1
    cdef int moved(self, WantedPartition wanted) except -1
    cdef int end(self) except -1
    cdef int forget_all(self) except -1
    cdef list untaken_news(self)
    cdef int postpone_news(self) except -1


cdef class News:
    cdef FetchSession session
    cdef readonly list partitions
    cdef list due
    cdef list served
    cdef Py_ssize_t at

    cdef bint take(self, Py_ssize_t count) except -1


cdef class FetchSessions:
    cdef Py_ssize_t slots
    cdef Clock clock
    cdef WaitingRoom room
    cdef LongWork long_work
    cdef readonly dict sessions         # by id, the one used longest ago first
    cdef list by_size                   # (size, id) of sessions that a larger one may evict, sorted
    cdef readonly Py_ssize_t held       # partitions of sessions and of fetches that wait
    cdef object queue                   # deque of the generators of fetches that are worked on in parts

    cdef FetchSession begin(self, FetchRequest *request)
    cdef FetchSession advance(self, FetchRequest *request)
    cdef bint reserve(self, FetchSession session) except -1
    cdef int settle(self, FetchSession session, FetchRequest *request, Py_ssize_t unknown) except -1
    cdef int give_id(self, FetchSession session, FetchRequest *request) except -1
    cdef bint evict_one(self, Py_ssize_t size, int64_t now_ms) except -1
    cdef int list_by_size(self, FetchSession session, int64_t now_ms) except -1
    cdef int unlist(self, FetchSession session) except -1
    cdef int remove(self, FetchSession session) except -1
    cdef int drop(self, FetchSession session) except -1
    cdef int release(self, FetchSession session) except -1
    cdef int work_on(self, object steps) except -1
