# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.log.newest_connection cimport LateRefusal, NewestConnection
from kbroker.transaction.state cimport TransactionMetadata


cdef class GroupConnection:
    cdef int16_t producer_epoch
    cdef NewestConnection newest


cdef class StaleRequests:
    cdef readonly bint is_enabled
    cdef readonly int64_t refused           # requests, since the start
    cdef public Py_ssize_t most_groups
    cdef public object find_connection      # returns an open connection by its id, None for any other
    cdef object groups      # GroupConnection by (producer id, hash of the group id), the last used one at the end
    cdef dict groups_of     # {hash of a group id} by producer id

    cdef int check(self, TransactionMetadata metadata, object connection, str what) except -1
    cpdef int check_offsets(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, str group_id,
                            object connection) except -1
    cdef GroupConnection connection_of_group(self, int64_t producer_id, int16_t producer_epoch, str group_id)
    cdef int forget_least_used(self) except -1
    cdef int forget_producer(self, int64_t producer_id) except -1
    cdef int report(self, str what, str transactional_id, object connection, int64_t producer_id,
                    int16_t producer_epoch, LateRefusal refusal) except -1
