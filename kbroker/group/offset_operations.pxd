# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.base.completion cimport Completion
from kbroker.base.long_work cimport LongWork
from kbroker.group.classic.sessions cimport Sessions
from kbroker.group.commits cimport Commit
from kbroker.group.group cimport Group
from kbroker.group.records cimport OffsetKey
from kbroker.group.shard cimport Shard, TransactionalProducer


cdef class FetchedOffset:
    cdef readonly object error
    cdef readonly int64_t offset
    cdef readonly int32_t leader_epoch
    cdef readonly str metadata


cdef class Offsets:
    cdef Shard _shard
    cdef Sessions _sessions
    cdef object _turns
    cdef Py_ssize_t _longest_metadata       # in characters
    cdef int64_t _retention_ms
    cdef Clock _clock
    cdef LongWork _long_work
    cdef dict _deleted_topics           # {topic name: end of the log when the topic was deleted}

    cpdef commit(self, Commit commit, int version, Completion done)
    cpdef commit_transactional(self, Commit commit, int version, TransactionalProducer producer, Completion done)
    cdef Group group_of(self, Commit commit, missing)
    cdef check_memory(self, str group_id, list keys, list offsets)
    cdef Group living_group(self, str group_id)
    cdef make_rows(self, Commit commit, dict offsets)
    cdef append(self, Commit commit, Completion done, TransactionalProducer producer)
    cpdef delete(self, str group_id, partitions, Completion done)
    cpdef delete_group(self, str group_id, Completion done)
    cpdef dict fetch(self, str group_id, partitions, bint require_stable, bytes topic_id=*)
    cdef FetchedOffset fetch_one(self, OffsetKey key, bint require_stable, bytes topic_id)
