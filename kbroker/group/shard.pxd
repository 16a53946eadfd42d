# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.base.completion cimport Completion
from kbroker.base.long_work cimport LongWork
from kbroker.group.group cimport Group
from kbroker.group.memory cimport GroupMemory
from kbroker.group.offsets.table cimport OffsetTable
from kbroker.group.records cimport CommittedOffset, GroupRow, OffsetKey
from kbroker.record.batch cimport BatchHeader
from kbroker.topics.partition cimport Partition


cdef class TransactionalProducer:
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly object guard


cdef class Shard:
    cdef readonly Partition partition
    cdef readonly dict groups               # {group id: Group}
    cdef readonly OffsetTable offsets
    cdef readonly GroupMemory memory
    cdef readonly object kinds              # a Kinds object
    cdef object _appended                   # a deque of batches in flight
    cdef Clock _clock
    cdef LongWork _long_work
    cdef bint _loading

    cpdef add_group(self, Group group)
    cpdef remove_group(self, str group_id)
    cpdef adopt_group(self, str group_id, Group group)
    cpdef append_tombstones(self, list keys)
    cpdef await_appended(self, Completion done)
    cdef append_batch(self, bytearray batch, guard)
    cpdef append_rows(self, list rows, adopt, Completion done)
    cdef append_batch_of_offsets(self, list keys, list offsets, TransactionalProducer producer)
    cpdef append_offsets(self, list keys, list offsets, Completion done, TransactionalProducer producer)
    cdef bytearray encode(self, list keys, list offsets, TransactionalProducer producer)
    cdef replay_appended(self, BatchHeader header, tuple appended)
    cdef replay_records(self, BatchHeader header, batch)
    cdef replay_offset(self, BatchHeader header, OffsetKey key, CommittedOffset committed)
    cdef replay_group(self, GroupRow row)
    cdef _simple_group(self, str group_id)
