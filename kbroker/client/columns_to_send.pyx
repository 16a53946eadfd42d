"""Reads the columns given to `send_batch` in place: sequences, slices of one buffer, and Arrow arrays.

Only headers are encoded, before the first row is queued.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from kbroker.client.partitioner cimport StickyPartitions, partition_of
from kbroker.record.arrow cimport ArrowArray, ArrowColumn, is_null
from kbroker.record.record_writer cimport (
    Blob, as_bytes, blob_of, blob_size, checked_pair, header_name, header_pairs, put_blob, put_varint, varint_size,
)

from collections.abc import Sequence

from kbroker.client.column_kinds import Slices

cdef dict ARROW_TIMES = {b'l': (1, 1), b'tss:': (1000, 1), b'tsm:': (1, 1), b'tsu:': (1, 1000), b'tsn:': (1, 1_000_000)}
"""Maps the beginning of an Arrow format to (factor, divisor), which convert its times to milliseconds."""


cdef class BlobColumn:
    """The addresses and sizes of a column's values. The object keeps the owners of the values alive."""

    def __cinit__(self, source, str name not None):
        self.owners = []
        if isinstance(source, Slices):
            self.read_slices(source.data, source.offsets)
        elif is_arrow(source):
            self.read_arrow(source, name)
        elif isinstance(source, Sequence) and not isinstance(source, (str, bytes, bytearray, memoryview)):
            self.read_sequence(source)
        else:
            raise TypeError(f'found {type(source).__name__} as {name}, expected a sequence of bytes, Slices or an '
                            'Arrow array')

    def __dealloc__(self):
        free(self.blobs)

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
        cdef ArrowColumn column = ArrowColumn(source)
        cdef const ArrowArray *chunk
        cdef Py_ssize_t i, k, start, at = 0, width = 4 if column.format in (b'z', b'u') else 8
        if column.format not in (b'z', b'u', b'Z', b'U'):
            raise TypeError(f'found an Arrow array of format {column.format.decode()!r} as {name}, expected binary or '
                            'string, large or not')
        self.owners.append(column)
        self.allocate(column.count)
        for k in range(column.chunks_count):
            chunk = column.chunk(k)
            for i in range(chunk.length):
                if is_null(chunk, i):
                    self.blobs[at] = blob_of(None)
                else:
                    start = <Py_ssize_t>offset_at(chunk.buffers[1], width, i + chunk.offset)
                    self.blobs[at].at = <const uint8_t *>chunk.buffers[2] + start
                    self.blobs[at].size = <Py_ssize_t>offset_at(chunk.buffers[1], width, i + chunk.offset + 1) - start
                at += 1
        return 0


cdef bint is_arrow(source):
    return hasattr(source, '__arrow_c_array__') or hasattr(source, '__arrow_c_stream__')


cdef inline int64_t offset_at(const void *offsets, Py_ssize_t width, Py_ssize_t index) noexcept nogil:
    return (<const int32_t *>offsets)[index] if width == 4 else (<const int64_t *>offsets)[index]


cdef int64_t checked_timestamp_ms(timestamp_ms) except -1:
    """Return a timestamp that the caller gave. Raise ValueError if it is negative or too large for a record."""
    cdef int overflow = 0
    cdef int64_t when_ms
    try:
        when_ms = PyLong_AsLongLongAndOverflow(timestamp_ms, &overflow)
    except TypeError:
        raise TypeError(f'found {type(timestamp_ms).__name__} as a timestamp, expected milliseconds since 1970 as int'
                        ) from None
    if overflow or when_ms < 0:
        raise ValueError(f'found timestamp {timestamp_ms}, expected milliseconds since 1970, 0 to {2**63 - 1}')
    return when_ms


cdef str checked_topic(topic):
    if isinstance(topic, str):
        return topic
    raise TypeError(f'found {type(topic).__name__} as a topic, expected str')


cdef class HeaderColumn:
    """The headers of each row, encoded as in a record: the number of headers, then the name and the value of each."""

    def __cinit__(self, source):
        cdef tuple rows = tuple(source)
        cdef Py_ssize_t i, start = 0
        self.data = bytearray(64 + 32 * len(rows))
        self.blobs = <Blob *>malloc((len(rows) + 1) * sizeof(Blob))
        if self.blobs == NULL:
            raise MemoryError(f'headers of {len(rows)} rows')
        for headers in rows:
            start = self.used
            self.add(headers)
            self.blobs[self.count].size = self.used - start
            self.count += 1
        start = 0
        for i in range(self.count):     # the address of the buffer does not change from here on
            self.blobs[i].at = <const uint8_t *>PyByteArray_AS_STRING(self.data) + start
            start += self.blobs[i].size

    def __dealloc__(self):
        free(self.blobs)

    cdef int add(self, headers) except -1:
        cdef Py_ssize_t size
        cdef const char *name_at
        cdef list pairs = list(header_pairs(headers)) if headers else []
        put_varint(self.room(varint_size(len(pairs))), len(pairs))
        for pair in pairs:
            if type(pair) is not tuple or len(<tuple>pair) != 2:
                pair = checked_pair(pair)
            name, content = <tuple>pair
            if not isinstance(name, str):
                name = header_name(name)
                name_at, size = PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            else:
                try:
                    name_at = PyUnicode_AsUTF8AndSize(name, &size)
                except UnicodeEncodeError:
                    name = name.encode('utf-8', 'surrogateescape')
                    name_at, size = PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            self.add_blob(<const uint8_t *>name_at, size)
            content = as_bytes(content, 'the value of a header')
            self.add_blob(blob_of(<bytes>content).at, blob_of(<bytes>content).size)
        return 0

    cdef int add_blob(self, const uint8_t *at, Py_ssize_t size) except -1:
        put_blob(self.room(blob_size(size)), at, size)
        return 0

    cdef uint8_t *room(self, Py_ssize_t size) except NULL:
        """Append `size` bytes of room to the buffer, and return their address."""
        if self.used + size > PyByteArray_GET_SIZE(self.data):
            PyByteArray_Resize(self.data, 2 * (self.used + size))
        self.used += size
        return <uint8_t *>PyByteArray_AS_STRING(self.data) + self.used - size


cdef class RowsToSend:
    """The rows of one call of `send_batch`, and the number of rows that are already queued.

    The constructor raises TypeError for a column of an unknown kind, ValueError for columns of different lengths.
    """

    def __init__(self, topic, values, keys, headers, partition, timestamps, context):
        self.topic = checked_topic(topic)
        self.partition = partition
        self.context = context
        self.values = BlobColumn(values, 'values')
        self.count = self.values.count
        self.rows.values = self.values.blobs
        if keys is not None:
            self.keys = BlobColumn(keys, 'keys')
            self.check_count(self.keys.count, 'keys')
            self.rows.keys = self.keys.blobs
        if headers is not None:
            self.headers = HeaderColumn(headers)
            self.check_count(self.headers.count, 'headers')
            self.rows.headers = self.headers.blobs
        if timestamps is not None:
            self.read_timestamps(timestamps)

    def __dealloc__(self):
        free(self.own_timestamps)
        free(self.order)
        free(self.ends)

    cdef int check_count(self, Py_ssize_t found, str what) except -1:
        """Raise ValueError unless `found`, the length of a column, is the number of values."""
        if found != self.count:
            raise ValueError(f'found {found} {what} for {self.count} values, expected as many')
        return 0

    cdef int64_t *own_timestamps_of(self, Py_ssize_t count) except NULL:
        """Allocate and return an array for the timestamps of `count` rows."""
        self.check_count(count, 'timestamps')
        self.own_timestamps = <int64_t *>malloc((count + 1) * sizeof(int64_t))
        if self.own_timestamps == NULL:
            raise MemoryError(f'{count} timestamps')
        self.rows.timestamps_ms = self.own_timestamps
        return self.own_timestamps

    cdef int read_timestamps(self, source) except -1:
        cdef int64_t *own
        cdef Py_ssize_t i = 0
        if is_arrow(source):
            return self.read_arrow_timestamps(source)
        try:
            view = memoryview(source)
        except TypeError:
            own = self.own_timestamps_of(len(source))
            for timestamp_ms in tuple(source)[:self.count]:
                own[i] = checked_timestamp_ms(timestamp_ms)
                i += 1
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

    cdef int read_arrow_timestamps(self, source) except -1:
        """Read an Arrow array of integers in ms, or of timestamps in any unit. Fractions of a millisecond are cut
        off.
        """
        cdef ArrowColumn column = ArrowColumn(source)
        cdef const ArrowArray *chunk
        cdef int64_t *own
        cdef int64_t factor, divisor, when
        cdef Py_ssize_t i, k, at = 0
        if column.format[:4] not in ARROW_TIMES:
            raise TypeError(f'found an Arrow array of format {column.format.decode()!r} as timestamps, expected int64 '
                            'or timestamp')
        factor, divisor = ARROW_TIMES[column.format[:4]]
        own = self.own_timestamps_of(column.count)
        for k in range(column.chunks_count):
            chunk = column.chunk(k)
            for i in range(chunk.length):
                if is_null(chunk, i):
                    raise ValueError(f'found no timestamp in row {at}, expected one in each')
                when = (<const int64_t *>chunk.buffers[1])[i + chunk.offset]
                if not 0 <= when <= INT64_MAX // factor:
                    checked_timestamp_ms(int(when) * factor)
                own[at] = when * factor // divisor
                at += 1
        return 0

    cdef Py_ssize_t largest_bytes(self) noexcept:
        """Return the size in bytes of the largest row: its key, value and headers together."""
        cdef Py_ssize_t i, size, largest = 0
        for i in range(self.count):
            size = max(self.rows.values[i].size, <Py_ssize_t>0)
            if self.rows.keys != NULL:
                size += max(self.rows.keys[i].size, <Py_ssize_t>0)
            if self.rows.headers != NULL:
                size += self.rows.headers[i].size
            largest = max(largest, size)
        return largest

    cdef int place(self, int32_t partitions, StickyPartitions sticky, list available) except -1:
        """Choose a partition for each row, and sort the rows by partition.

        The rows of one partition keep their order. Rows without a key go to the sticky partition.
        """
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
