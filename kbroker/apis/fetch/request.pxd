# cython: language_level=3
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from kbroker.wire.bytes cimport Cursor


cdef struct FetchRequest:
    int version
    int32_t replica_id
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int8_t isolation_level
    int32_t session_id
    int32_t session_epoch
    Cursor topics               # at the array of topics, and at that of forgotten ones: for `take_count`
    Cursor forgotten_topics
    Py_ssize_t named            # topics and partitions, wanted and forgotten
    Py_ssize_t tags             # tagged fields of these
    # How far `FetchSession.take_over` is: it advances the two cursors.
    Py_ssize_t topics_left      # of the current array, or NOT_BEGUN
    Py_ssize_t partitions_left  # of the current topic
    bint is_forgetting


cdef struct AskedTopic:
    const uint8_t *key          # the name in UTF-8, or from version 13 on the 16 bytes of the id
    Py_ssize_t key_bytes
    Py_ssize_t partitions       # how many follow


cdef struct AskedPartition:
    int32_t index
    int32_t current_leader_epoch
    int64_t fetch_offset
    int32_t last_fetched_epoch
    int32_t max_bytes


cdef enum:
    MOST_NAMED = 100_000        # topics and partitions that a request may name
    NOT_BEGUN = -1


cdef int read_request(FetchRequest *request, const uint8_t *at, const uint8_t *end, int version) except -1
cdef Py_ssize_t take_count(Cursor *cursor, int version, Py_ssize_t element_bytes) except -1
cdef int take_topic(Cursor *cursor, int version, AskedTopic *topic) except -1
cdef int take_partition(Cursor *cursor, int version, AskedPartition *partition) except -1
cdef int take_forgotten_topic(Cursor *cursor, int version, AskedTopic *topic) except -1
cdef int end_struct(Cursor *cursor, int version) except -1
