"""Walks over the batches of a log file. A walk reads only batch headers, and the single record of each marker.

A walk ends at `end`, or before the first bytes that are not a whole batch. The caller decides whether these bytes are
an unfinished write, a torn tail or damage.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from kbroker.base.errors import CorruptLogError
from kbroker.log.batch_walk cimport SEARCH_BYTES, BatchWalk, find_batch, walk_batches
from kbroker.log.fs.file cimport File
from kbroker.log.producer_state cimport ProducerStateTable
from kbroker.record.batch import CorruptBatchError
from kbroker.record.batch cimport (
    CONTROL_BIT, HEADER_READ, NO_MARKER, Marker, batch_last_offset, batch_size_bytes, header_of, read_marker)


cdef int read_marker_at(BatchWalk walk, Marker *marker) except -1:
    """Read the marker, if the current batch of the walk is one. Raise CorruptLogError with the file and the position if
    the marker cannot be read.
    """
    try:
        read_marker(walk.data(), batch_size_bytes(&walk.fields), &walk.fields, marker)
    except CorruptBatchError as error:
        raise CorruptLogError(f'{walk.file.path}: found a marker at {walk.position} that cannot be read: {error}'
                              ) from error
    return 0


def seek_batch(File file not None, int64_t position, int64_t end, int64_t offset) -> int:
    """Return the position of the first batch whose last offset is at or above `offset`. If there is none, return the
    position where the walk ended.
    """
    cdef BatchWalk walk = walk_batches(file, position, end, SEARCH_BYTES)
    while walk.next():
        if batch_last_offset(&walk.fields) >= offset:
            break
    return walk.position


def find_end(File file not None, int64_t position, int64_t end) -> tuple[int, int]:
    """Return the position behind the last whole batch, and the next offset after this batch. The offset is -1 if there
    is no batch.
    """
    cdef BatchWalk walk = walk_batches(file, position, end, SEARCH_BYTES)
    cdef int64_t next_offset = -1
    while walk.next():
        next_offset = batch_last_offset(&walk.fields) + 1
    return walk.position, next_offset


def replay_headers(ProducerStateTable producers not None, File file not None, int64_t position, int64_t end) -> int:
    """Apply the batches between `position` and `end` to `producers`. Return the position where the walk ended. Raise
    CorruptLogError if the record of a marker extends beyond its batch.
    """
    cdef BatchWalk walk = walk_batches(file, position, end, SEARCH_BYTES)
    cdef Marker marker
    marker.kind = NO_MARKER
    while walk.next():
        if walk.fields.attributes & CONTROL_BIT:
            read_marker_at(walk, &marker)
            producers.adopt(&walk.fields, &marker)
            marker.kind = NO_MARKER
        else:
            producers.adopt(&walk.fields, &marker)
    return walk.position


def find_sound_batch(File file not None, int64_t position, int64_t end) -> int:
    """Return the position of the first whole batch with a valid checksum between `position` and `end`, or -1. Try every
    byte.
    """
    return find_batch(file, position, end)


def read_headers(File file not None, int64_t position, int64_t end, int64_t whole_below):
    """Yield (header, batch) of each batch between `position` and `end`. `batch` is None, except for markers and for
    batches with a base offset below `whole_below`. Raise CorruptLogError at the first bytes that are not a batch.
    """
    cdef BatchWalk walk = walk_batches(file, position, end, SEARCH_BYTES)
    while walk.next():
        batch = None
        if walk.fields.attributes & CONTROL_BIT or walk.fields.base_offset < whole_below:
            batch = memoryview(PyBytes_FromStringAndSize(<const char *>walk.data(), batch_size_bytes(&walk.fields)))
        yield header_of(&walk.fields), batch
    if walk.fault != HEADER_READ:
        raise CorruptLogError(f'{walk.file.path}: found no batch at {walk.position}, '
                              f'expected one before the end at {walk.end}')
