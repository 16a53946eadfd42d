"""How the coordinator writes: straight into a Partition, and by its Python face into what merely looks like one."""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.log cimport Appended, read_whole
from kbroker.log.producer_state cimport ORIGIN_COORDINATOR
from kbroker.record.batch cimport BatchFields
from kbroker.topics.partition cimport COPIED, DurableWaiter, Partition


cdef int64_t append_batch(object partition, bytearray batch, int transaction_version) except -1:
    """Append one batch, and return the offset behind it: durable it is later. Raises KafkaError."""
    cdef BatchFields fields
    cdef Appended appended
    cdef uint8_t *data = <uint8_t *>PyByteArray_AS_STRING(batch)
    if not isinstance(partition, Partition):
        return partition.append(batch, transaction_version=transaction_version).last_offset + 1
    read_whole(data, PyByteArray_GET_SIZE(batch), &fields)
    (<Partition>partition).append_at(data, PyByteArray_GET_SIZE(batch), &fields, ORIGIN_COORDINATOR, None,
                                     transaction_version, False, &appended, COPIED)
    return appended.last_offset + 1


cdef int await_durable(object partition, int64_t offset, DurableWaiter waiter, Py_ssize_t part) except -1:
    """Have `waiter.durable(part, error)` called, as `Partition.await_durable` does."""
    if isinstance(partition, Partition):
        return (<Partition>partition).await_durable(offset, waiter, part)
    partition.when_durable(offset, lambda error: waiter.durable(part, error))
    return 0
