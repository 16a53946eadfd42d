# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.group.deadlines cimport Deadlines
from kbroker.group.shard cimport Shard

cdef struct IdleBeat:
    int64_t session_timeout_ms
    int64_t interval_ms         # the time until the member's next heartbeat
    # The fields of a response that only streams groups have:
    int32_t endpoint_epoch
    int32_t task_offset_interval_ms
    int64_t recovery_lag


cdef class Sender:
    cdef str group_id
    cdef str member_id
    cdef str instance_id        # None if the request names no instance
    cdef str client_id
    cdef str client_host
    cdef int32_t epoch


cdef class IdleMembers:
    cdef Shard _shard
    cdef Deadlines _deadlines
    cdef Clock _clock
    cdef dict _lines            # `Turns.lines`: {group id: waiting operations}
    cdef object _changes
    cdef object _heartbeats
    cdef object _is_idle
    cdef object _group_config
    cdef object _group_class
    cdef str _kind
    cdef bint _has_endpoints

    cdef bint find(self, Sender sender, IdleBeat *found) except -1
    cdef int serve(self, str group_id, str member_id, IdleBeat *found) except -1


cpdef int64_t next_interval_ms(int64_t configured_ms, bint is_settled, int64_t since_assignment_ms,
                               Py_ssize_t members) except? -1
