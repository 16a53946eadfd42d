"""Appends of the transaction coordinator."""
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.append cimport ORIGIN_COORDINATOR, WRITE_LATER, Append, begin_append, read_whole
from kbroker.topics.partition cimport Partition


cdef int64_t append_batch(Partition partition, uint8_t *data, Py_ssize_t size, int transaction_version) except -1:
    """Append one batch and return the offset behind it, up to which the caller waits for the disk. Raises KafkaError.

    The bytes are the caller's again afterwards.
    """
    cdef Append append
    begin_append(&append, data, size, ORIGIN_COORDINATOR, WRITE_LATER)
    read_whole(data, size, &append.batch)
    append.transaction_version = transaction_version
    partition.append(&append)
    return append.last_offset + 1
