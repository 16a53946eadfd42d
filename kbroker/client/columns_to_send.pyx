"""Columns of values and keys, read in place: from sequences, from slices of one buffer, and from Arrow arrays.

Arrow arrays come through the C data interface (`__arrow_c_array__`), so that pyarrow is not imported.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from kbroker.client.partitioner cimport StickyPartitions, partition_of
from kbroker.record.arrow cimport ArrowArray, ArrowSchema
from kbroker.record.record_writer cimport Blob, as_bytes, blob_of

from collections.abc import Sequence

from kbroker.client.column_kinds import Slices


cdef class BlobColumn:
    """The places and sizes of a column's values. The column keeps their owners alive."""

    def __cinit__(self, source, str name not None):
        self.owners = []
        if isinstance(source, Slices):
            self.read_slices(source.data, source.offsets)
        elif hasattr(source, '__arrow_c_array__'):
            self.read_arrow(source, name)
        elif isinstance(source, Sequence) and not isinstance(source, (str, bytes, bytearray, memoryview)):
            self.read_sequence(source)
        else:
            raise TypeError(f'found {type(source).__name__} as {name}, expected a sequence of bytes, Slices or an '
                            'Arrow array')

    def __dealloc__(self):
        free(self.blobs)

    def item(self, Py_ssize_t row):
        """Return a value as bytes."""
        if not 0 <= row < self.count:
            raise IndexError(row)
        return None if self.blobs[row].size < 0 else PyBytes_FromStringAndSize(
            <const char *>self.blobs[row].at, self.blobs[row].size)

    cdef int allocate(self, Py_ssize_t count) except -1:
        if count > INT32_MAX:
            raise ValueError(f'found {count} rows, expected at most {INT32_MAX}')
        self.blobs = <Blob *>malloc((count + 1) * sizeof(Blob))
        if self.blobs == NULL:
            raise MemoryError(f'{count} rows')
        self.count = count
        return 0

    cdef int read_sequence(self, source) except -1:
        cdef tuple values = tuple(source)   # a callback of the caller may change the list
        cdef Py_ssize_t i = 0
        self.owners.append(values)
        self.allocate(len(values))
        for value in values:
            if value is not None and type(value) is not bytes:
                value = as_bytes(value)
                self.owners.append(value)
            self.blobs[i] = blob_of(<bytes>value)
            i += 1
        return 0

    cdef int read_slices(self, data, offsets) except -1:
        cdef object bytes_view = memoryview(data).cast('B'), offsets_view = memoryview(offsets)
        cdef const uint8_t *at = <const uint8_t *>PyMemoryView_GET_BUFFER(bytes_view).buf
        cdef const void *ends = PyMemoryView_GET_BUFFER(offsets_view).buf
        cdef Py_ssize_t i, start, end, width = offsets_view.itemsize, size = bytes_view.nbytes
        if offsets_view.format not in ('i', 'l', 'q') or not offsets_view.c_contiguous or offsets_view.ndim != 1:
            raise TypeError(f'found offsets of format {offsets_view.format!r}, expected an array of int32 or int64')
        if len(offsets_view) == 0:
            raise ValueError('found no offsets, expected one more than there are values')
        self.owners += [bytes_view, offsets_view]
        self.allocate(len(offsets_view) - 1)
        start = <Py_ssize_t>offset_at(ends, width, 0)
        for i in range(self.count):
            end = <Py_ssize_t>offset_at(ends, width, i + 1)
            if not 0 <= start <= end <= size:
                raise ValueError(f'found value {i} from {start} to {end}, expected ascending offsets within {size} '
                                 'bytes')
            self.blobs[i].at = at + start
            self.blobs[i].size = end - start
            start = end
        return 0

    cdef int read_arrow(self, source, str name) except -1:
        schema_capsule, array_capsule = source.__arrow_c_array__()
        cdef const ArrowSchema *schema = <const ArrowSchema *>PyCapsule_GetPointer(schema_capsule, 'arrow_schema')
        cdef const ArrowArray *array = <const ArrowArray *>PyCapsule_GetPointer(array_capsule, 'arrow_array')
        cdef bytes type_code = schema.format
        cdef const uint8_t *validity
        cdef const uint8_t *data
        cdef Py_ssize_t i, row, start, width = 4 if type_code in (b'z', b'u') else 8
        if type_code not in (b'z', b'u', b'Z', b'U'):
            raise TypeError(f'found an Arrow array of format {type_code.decode()!r} as {name}, expected binary or '
                            'string, large or not')
        self.owners.append(array_capsule)
        self.allocate(array.length)
        validity, data = <const uint8_t *>array.buffers[0], <const uint8_t *>array.buffers[2]
        for i in range(self.count):
            row = i + array.offset
            if validity != NULL and not validity[row >> 3] >> (row & 7) & 1:
                self.blobs[i] = blob_of(None)
                continue
            start = <Py_ssize_t>offset_at(array.buffers[1], width, row)
            self.blobs[i].at = data + start
            self.blobs[i].size = <Py_ssize_t>offset_at(array.buffers[1], width, row + 1) - start
        return 0


cdef inline int64_t offset_at(const void *offsets, Py_ssize_t width, Py_ssize_t index) noexcept nogil:
    return (<const int32_t *>offsets)[index] if width == 4 else (<const int64_t *>offsets)[index]


cdef int64_t checked_timestamp_ms(timestamp_ms) except -1:
    """Return a timestamp of the caller. Raises ValueError for one that is negative, or too large for a record."""
    cdef int overflow
    cdef int64_t when_ms = PyLong_AsLongLongAndOverflow(timestamp_ms, &overflow)
    if overflow or when_ms < 0:
        raise ValueError(f'found timestamp {timestamp_ms}, expected milliseconds since 1970, 0 to {2**63 - 1}')
    return when_ms


cdef class RowsToSend:
    """The rows of one `send_batch`, and how far they are queued.

    Raises TypeError for columns of another kind, ValueError for columns of different lengths.
    """

    def __init__(self, str topic not None, values, keys, partition, timestamps, context):
        self.topic = topic
        self.partition = partition
        self.context = context
        self.values = BlobColumn(values, 'values')
        self.count = self.values.count
        self.rows.values = self.values.blobs
        if keys is not None:
            self.keys = BlobColumn(keys, 'keys')
            self.check_count(self.keys.count, 'keys')
            self.rows.keys = self.keys.blobs
        if timestamps is not None:
            self.read_timestamps(timestamps)

    def __dealloc__(self):
        free(self.own_timestamps)
        free(self.order)
        free(self.ends)

    def check_count(self, Py_ssize_t found, str what not None):
        """Raise ValueError unless a column has as many rows as the values."""
        if found != self.count:
            raise ValueError(f'found {found} {what} for {self.count} values, expected as many')

    def row(self, Py_ssize_t row):
        """Return (value, key, timestamp or None) of one row as objects."""
        return (self.values.item(row), None if self.keys is None else self.keys.item(row),
                None if self.rows.timestamps_ms == NULL else self.rows.timestamps_ms[row])

    cdef int read_timestamps(self, source) except -1:
        cdef Py_ssize_t i = 0
        try:
            view = memoryview(source)
        except TypeError:
            self.check_count(len(source), 'timestamps')
            self.own_timestamps = <int64_t *>malloc((self.count + 1) * sizeof(int64_t))
            if self.own_timestamps == NULL:
                raise MemoryError(f'{self.count} timestamps') from None
            for timestamp_ms in tuple(source)[:self.count]:
                self.own_timestamps[i] = checked_timestamp_ms(timestamp_ms)
                i += 1
            self.rows.timestamps_ms = self.own_timestamps
            return 0
        if view.format not in ('l', 'q') or view.itemsize != 8 or not view.c_contiguous or view.ndim != 1:
            raise TypeError(f'found timestamps of format {view.format!r}, expected an array of int64')
        self.check_count(len(view), 'timestamps')
        self.timestamps_owner = view
        self.rows.timestamps_ms = <const int64_t *>PyMemoryView_GET_BUFFER(view).buf
        for i in range(self.count):
            if self.rows.timestamps_ms[i] < 0:
                checked_timestamp_ms(self.rows.timestamps_ms[i])
        return 0

    cdef Py_ssize_t largest_bytes(self) noexcept:
        """Return the largest size of a key and a value together."""
        cdef Py_ssize_t i, size, largest = 0
        for i in range(self.count):
            size = max(self.rows.values[i].size, <Py_ssize_t>0)
            if self.rows.keys != NULL:
                size += max(self.rows.keys[i].size, <Py_ssize_t>0)
            largest = max(largest, size)
        return largest

    cdef int place(self, int32_t partitions, StickyPartitions sticky, list available) except -1:
        """Sort the rows by partition; rows of one partition keep their order. Rows without a key stay together."""
        cdef int32_t *chosen = <int32_t *>malloc((self.count + 1) * sizeof(int32_t))
        cdef Py_ssize_t *next_place = NULL
        cdef Py_ssize_t i, total = 0, rows_of_partition
        try:
            self.order = <int32_t *>malloc((self.count + 1) * sizeof(int32_t))
            self.ends = <Py_ssize_t *>calloc(partitions, sizeof(Py_ssize_t))
            next_place = <Py_ssize_t *>calloc(partitions, sizeof(Py_ssize_t))
            if chosen == NULL or self.order == NULL or self.ends == NULL or next_place == NULL:
                raise MemoryError(f'{self.count} rows of {partitions} partitions')
            for i in range(self.count):
                if self.rows.keys[i].size >= 0:
                    chosen[i] = partition_of(self.rows.keys[i].at, self.rows.keys[i].size, partitions)
                else:
                    chosen[i] = sticky.place(max(self.rows.values[i].size, <Py_ssize_t>0), available)
                self.ends[chosen[i]] += 1
            for i in range(partitions):
                rows_of_partition, next_place[i] = self.ends[i], total
                total += rows_of_partition
                self.ends[i] = total
            for i in range(self.count):
                self.order[next_place[chosen[i]]] = <int32_t>i
                next_place[chosen[i]] += 1
            self.rows.order = self.order
        finally:
            free(chosen)
            free(next_place)
        return 0
