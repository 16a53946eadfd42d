from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.client.partitioner cimport StickyPartitions
from kbroker.record.record_writer cimport Blob, Rows


cdef class BlobColumn:
    cdef Blob *blobs
    cdef readonly Py_ssize_t count
    cdef list owners                # the owners of the bytes to which `blobs` refer

    cdef int allocate(self, Py_ssize_t count) except -1
    cdef int read_sequence(self, source) except -1
    cdef int read_slices(self, data, offsets) except -1
    cdef int read_arrow(self, source, str name) except -1


cdef class HeaderColumn:
    cdef Blob *blobs
    cdef readonly Py_ssize_t count
    cdef bytearray data
    cdef Py_ssize_t used

    cdef int add(self, headers) except -1
    cdef int add_blob(self, const uint8_t *at, Py_ssize_t size) except -1
    cdef uint8_t *room(self, Py_ssize_t size) except NULL


cdef class RowsToSend:
    cdef readonly str topic
    cdef readonly object partition      # None: chosen by key, or the sticky partition
    cdef readonly object context
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t position            # the number of rows that are queued
    cdef BlobColumn values
    cdef BlobColumn keys
    cdef HeaderColumn headers
    cdef Rows rows
    cdef object timestamps_owner
    cdef int64_t *own_timestamps
    cdef int32_t *order
    cdef Py_ssize_t room_bytes          # the bytes of buffer.memory that the next rows of a batch may need
    cdef Py_ssize_t *ends               # by partition, the end of its rows in `order`

    cdef int check_count(self, Py_ssize_t found, str what) except -1
    cdef int read_timestamps(self, source) except -1
    cdef int read_arrow_timestamps(self, source) except -1
    cdef int64_t *own_timestamps_of(self, Py_ssize_t count) except NULL
    cdef Py_ssize_t largest_bytes(self) noexcept
    cdef int place(self, int32_t partitions, StickyPartitions sticky, list available) except -1


cdef int64_t checked_timestamp_ms(timestamp_ms) except -1
cdef str checked_topic(topic)
