"""A function that reads the first and last offsets of the batches from which a share group may acquire records. It
reads only the headers of the batches."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.batch_walk cimport SEARCH_BYTES, BatchWalk, walk_batches
from kbroker.log.segments cimport LogSlice
from kbroker.record.batch cimport CONTROL_BIT, HEADER_BYTES, batch_last_offset, batch_size_bytes
from kbroker.topics.partition cimport Partition

from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import read_header

cdef enum:
    # The most headers that one call reads. The event loop is blocked during the call; a header takes about a
    # microsecond.
    MOST_BATCHES = 2048
    PAIR_BYTES = 16     # producer id and first offset of an aborted transaction


def read_batches(Partition partition not None, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset,
                 int64_t last_offset, bint is_read_committed):
    """Return a list of (first offset, last offset, is aborted), with an entry for each batch, starting with the batch
    that contains `offset`.

    The list is empty if there is no batch below `upper_bound_offset`. It ends with the batch that contains
    `last_offset`, after MOST_BATCHES batches, or after `max_bytes` bytes, whichever comes first, but not before the
    first batch. `is aborted` is True for a batch of records of an aborted transaction if `is_read_committed` is true;
    it is False for all other batches and for markers. Raise KafkaError if the read fails.
    """
    cdef LogSlice found = partition.read(offset, max_bytes, upper_bound_offset, True)
    cdef BatchWalk walk
    cdef list batches = []
    cdef object aborted = None
    cdef bint is_aborted = False, is_control
    cdef int64_t last
    if found is None:
        return batches
    if is_read_committed:
        aborted = abort_filter(partition, offset, found.end_offset)
    walk = walk_batches(found.file, found.position, found.position + found.size_bytes, SEARCH_BYTES)
    while len(batches) < MOST_BATCHES and walk.next():
        last = batch_last_offset(&walk.fields)
        if aborted is not None:
            is_control = walk.fields.attributes & CONTROL_BIT
            is_aborted = not aborted.admits(*first_bytes(walk, is_control)) and not is_control
        batches.append((walk.fields.base_offset, last, is_aborted))
        if last >= last_offset:
            break
    return batches


cdef object abort_filter(Partition partition, int64_t offset, int64_t end_offset):
    """Return the filter for the aborted transactions in a range of offsets. Return None if the range has no aborted
    transactions."""
    cdef bytes rows = partition.aborted_rows(offset, end_offset)
    if not rows:
        return None
    return AbortFilter([(int.from_bytes(rows[at:at + 8], 'big', signed=True),
                         int.from_bytes(rows[at + 8:at + PAIR_BYTES], 'big', signed=True))
                        for at in range(0, len(rows), PAIR_BYTES)])


cdef tuple first_bytes(BatchWalk walk, bint is_control):
    """Return the decoded header of the walk's current batch, and the bytes that the abort filter reads: the whole batch
    if it is a marker, else only the header."""
    cdef int64_t size = batch_size_bytes(&walk.fields) if is_control else HEADER_BYTES
    cdef const uint8_t *data_at = walk.data() if is_control else walk.need(walk.position, size)
    data = PyBytes_FromStringAndSize(<const char *>data_at, size)
    return read_header(data), data
