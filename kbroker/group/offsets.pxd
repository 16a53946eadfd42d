# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.clock cimport Clock
from kbroker.completion cimport Completion
from kbroker.group.classic cimport ClassicGroup
from kbroker.group.records cimport OffsetKey
from kbroker.group.sessions cimport Sessions
from kbroker.group.shard cimport Shard, TransactionalProducer
from kbroker.long_work cimport LongWork


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
    cdef list keys                      # OffsetKeys of the rows; None until the rows are made
    cdef list rows                      # CommittedOffset for each key
    cdef dict results                   # an error code for each partition

    cdef bint names_member(self) except -1
    cdef bint is_standalone(self, ClassicGroup group) except -1


cdef class FetchedOffset:
    cdef readonly object error
    cdef readonly int64_t offset
    cdef readonly int32_t leader_epoch
    cdef readonly str metadata


cdef class Offsets:
    cdef Shard _shard
    cdef Sessions _sessions
    cdef Py_ssize_t _longest_metadata       # in characters
    cdef int64_t _retention_ms
    cdef Clock _clock
    cdef LongWork _long_work
    cdef dict _deleted_topics           # by name: the end of the log when the topic was deleted

    cpdef commit(self, Commit commit, int version, Completion done)
    cpdef commit_transactional(self, Commit commit, TransactionalProducer producer, Completion done)
    cdef ClassicGroup group_of(self, Commit commit, missing)
    cdef check_memory(self, str group_id, list keys, list offsets)
    cdef ClassicGroup living_group(self, str group_id)
    cdef make_rows(self, Commit commit, dict offsets)
    cdef append(self, Commit commit, Completion done, TransactionalProducer producer)
    cpdef delete(self, str group_id, partitions, Completion done)
    cpdef delete_group(self, str group_id, Completion done)
    cpdef dict fetch(self, str group_id, partitions, bint require_stable)
    cdef FetchedOffset fetch_one(self, OffsetKey key, bint require_stable)
