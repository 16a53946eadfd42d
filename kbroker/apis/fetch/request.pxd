# cython: language_level=3
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from kbroker.apis.serving.request_fields cimport FieldReader
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
    FieldReader topics          # at the array of topics, and at that of forgotten ones
    FieldReader forgotten_topics
    Py_ssize_t named            # topics and partitions, wanted and forgotten
    # The progress of `FetchSession.take_over`, which advances the two readers.
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


cdef int read_request(FetchRequest *request, const Cursor *body, int version) except -1
cdef Py_ssize_t begin_topics(FieldReader *reader) except -1
cdef int take_topic(FieldReader *reader, AskedTopic *topic) except -1
cdef int take_partition(FieldReader *reader, AskedPartition *partition) except -1
cdef int end_topic(FieldReader *reader) except -1
cdef Py_ssize_t begin_forgotten_topics(FieldReader *reader) except -1
cdef int take_forgotten_topic(FieldReader *reader, AskedTopic *topic) except -1
cdef int32_t take_forgotten_partition(FieldReader *reader) except? -2147483001
cdef int end_forgotten_topic(FieldReader *reader) except -1
