"""How the coordinator writes: straight into a Partition, and by its Python face into what merely looks like one."""
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.append_result cimport Appended
from kbroker.log.log cimport read_whole
from kbroker.log.producer_state cimport ORIGIN_COORDINATOR
from kbroker.record.batch cimport BatchFields
from kbroker.topics.partition cimport COPIED, DurableWaiter, Partition


cdef int64_t append_batch(object partition, uint8_t *data, Py_ssize_t size, int transaction_version) except -1:
    """Append one batch, whose bytes are the caller's again afterwards. Returns the offset behind it: durable it is later.
    Raises KafkaError."""
    cdef BatchFields fields
    cdef Appended appended
    if not isinstance(partition, Partition):
        return partition.append((<char *>data)[:size], transaction_version=transaction_version).last_offset + 1
    read_whole(data, size, &fields)
    (<Partition>partition).append_at(data, size, &fields, ORIGIN_COORDINATOR, None, transaction_version, False, &appended,
                                     COPIED)
    return appended.last_offset + 1


cdef int await_durable(object partition, int64_t offset, DurableWaiter waiter, Py_ssize_t part) except -1:
    """Have `waiter.durable(part, error)` called, as `Partition.await_durable` does."""
    if isinstance(partition, Partition):
        return (<Partition>partition).await_durable(offset, waiter, part)
    partition.when_durable(offset, teller(waiter, part))
    return 0


cdef object teller(DurableWaiter waiter, Py_ssize_t part):
    return lambda error: waiter.durable(part, error)
