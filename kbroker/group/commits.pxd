# cython: language_level=3
from libc.stdint cimport int32_t, int64_t


cdef class NewOffset:
    cdef readonly int64_t offset
    cdef readonly int32_t leader_epoch
    cdef readonly str metadata
    cdef readonly bytes topic_id


cdef class Commit:
    cdef readonly str group_id
    cdef readonly dict offsets
    cdef readonly int32_t generation
    cdef readonly str member_id
    cdef readonly str group_instance_id
    cdef readonly int64_t retention_ms
    cdef list keys                      # a list of the OffsetKey of each row; None until the rows are made
    cdef list rows                      # a CommittedOffset for each key in `keys`
    cdef dict results                   # {(topic, partition): error code}

    cpdef bint names_member(self) except -1
