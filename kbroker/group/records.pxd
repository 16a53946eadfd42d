# cython: language_level=3
from libc.stdint cimport int32_t, int64_t


cdef class OffsetKey:
    cdef readonly str group_id
    cdef readonly str topic
    cdef readonly int32_t partition


cdef class CommittedOffset:
    cdef readonly int64_t offset
    cdef readonly int32_t leader_epoch
    cdef readonly str metadata
    cdef readonly int64_t commit_timestamp_ms
    cdef readonly object expire_timestamp_ms
    cdef readonly bytes topic_id
    cdef readonly int64_t log_offset        # set by the shard that appends the row


cdef class OffsetRow:
    cdef readonly OffsetKey key
    cdef readonly CommittedOffset committed


cdef class GroupRow:
    cdef readonly object key
    cdef readonly object value


cdef OffsetKey offset_key(str group_id, str topic, int32_t partition)
cpdef object read_row(bytes key, bytes value, int64_t log_offset)
cpdef Py_ssize_t row_bytes(tuple row) except -1
