"""Decodes batches to columns in the memory layout of Apache Arrow, without an object per record.

A column of strings or bytes has int32 offsets and one buffer with all bytes. The validity bitmap has the least
significant bit first. All integers are in native byte order.

Batches that the filter hides are not decompressed, and columns that the caller does not request are not copied.
"""
cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

cdef extern from 'Python.h':
    Py_ssize_t Py_REFCNT(object held)

from kbroker.record.arrow cimport binary_capsules
from kbroker.record.batch cimport (
    COMPRESSION_MASK, HEADER_BYTES, HEADER_READ, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, BatchFields, HeaderFault,
    batch_last_offset, batch_size_bytes, check_crc_at, parse_header, refuse_header, sequence_after)
from kbroker.record.batch_filter cimport BatchFilter
from kbroker.record.records cimport Record, RecordFields, take_record
from kbroker.wire.bytes cimport Cursor, take, take_varint

from collections.abc import Sequence

from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.record.batch import CorruptBatchError
from kbroker.record.compression import decompress
from kbroker.record.records import MAX_DECOMPRESSED_BYTES

COLUMNS = ('key', 'value', 'offset', 'timestamp', 'timestamp_type', 'headers', 'producer_id', 'producer_epoch',
           'sequence', 'is_transactional', 'outcome', 'leader_epoch', 'compression', 'batch_base_offset')
RECORD_COLUMNS = ('key', 'value', 'offset', 'timestamp', 'timestamp_type', 'headers', 'sequence', 'leader_epoch')
"""The columns that `RecordColumns.records` needs."""
# The columns with int64 values. All other integer columns have int32 values.
cdef frozenset WIDE = frozenset(('offset', 'timestamp', 'producer_id', 'batch_base_offset'))

cdef enum Source:       # the field of a batch that a BatchIntegers repeats for each record
    TIMESTAMP_TYPE
    PRODUCER_ID
    PRODUCER_EPOCH
    IS_TRANSACTIONAL
    OUTCOME
    LEADER_EPOCH
    COMPRESSION
    BATCH_BASE_OFFSET

cdef dict SOURCES = {
    'timestamp_type': TIMESTAMP_TYPE, 'producer_id': PRODUCER_ID, 'producer_epoch': PRODUCER_EPOCH,
    'is_transactional': IS_TRANSACTIONAL, 'outcome': OUTCOME, 'leader_epoch': LEADER_EPOCH, 'compression': COMPRESSION,
    'batch_base_offset': BATCH_BASE_OFFSET}

cdef enum:
    RELEASE_GIL_BYTES = 8192
    LEAST_BYTES = 128   # small, because a batch of one record has about ten buffers


@cython.final
cdef class Buffer:
    """A growing byte buffer that exports the buffer protocol, for Python and Arrow."""
    cdef uint8_t *at
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Buffer previous  # the buffer that was filled and taken before this one

    def __dealloc__(self):
        free(self.at)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.size, 1, flags)

    def __len__(self):
        return self.size

    cdef int reserve(self, Py_ssize_t more) except -1 nogil:
        cdef Py_ssize_t wanted = self.size + more
        cdef Py_ssize_t capacity = max(self.capacity, <Py_ssize_t>LEAST_BYTES)
        cdef void *wider
        if wanted <= self.capacity:
            return 0
        while capacity < wanted:
            capacity += capacity >> 1
        wider = realloc(self.at, capacity)
        if wider == NULL:
            with gil:
                raise MemoryError(f'{capacity} bytes')
        self.at = <uint8_t *>wider
        self.capacity = capacity
        return 0

    cdef inline void put_int32(self, int32_t value) noexcept nogil:
        (<int32_t *>(self.at + self.size))[0] = value
        self.size += 4

    cdef inline void put_int64(self, int64_t value) noexcept nogil:
        (<int64_t *>(self.at + self.size))[0] = value
        self.size += 8

    cdef inline void set_bit(self, Py_ssize_t bit) noexcept nogil:
        self.at[bit >> 3] = self.at[bit >> 3] | <uint8_t>(1 << (bit & 7))

    cdef inline void put(self, const uint8_t *data, Py_ssize_t size) noexcept nogil:
        memcpy(self.at + self.size, data, size)
        self.size += size

    cdef void cut_bits(self, Py_ssize_t count) noexcept:
        """Keep the first `count` bits, and clear the remaining bits of the last byte."""
        self.size = (count + 7) // 8
        if count & 7:
            self.at[self.size - 1] = self.at[self.size - 1] & <uint8_t>((1 << (count & 7)) - 1)


cdef Buffer buffer_like(Buffer other):
    """Return an empty buffer with room for as many bytes as `other` has. The room is at least one byte, because Arrow
    rejects null pointers.

    If nothing else refers to the predecessor of `other`, return that buffer, because allocating memory costs more than
    writing the data to it.
    """
    cdef Buffer buffer = None if other is None else other.previous
    if buffer is not None and Py_REFCNT(buffer) == 2:  # the references are `buffer` and `other.previous`
        buffer.size = 0
    else:
        buffer = Buffer.__new__(Buffer)
        buffer.reserve(1 if other is None else max(other.size, <Py_ssize_t>1))
    if other is not None:
        other.previous = None
        buffer.previous = other
    return buffer


cdef class Column:
    """The base class of the columns of a ColumnDecoder."""

    cdef Column successor(self):
        """Return an empty column of the same kind. It may reuse the memory of an earlier column that nothing else
        refers to.
        """
        raise NotImplementedError

    cdef int reserve(self, Py_ssize_t more, Py_ssize_t size_bytes) except -1 nogil:
        """Make room for `more` rows whose values have at most `size_bytes` together."""
        return 0

    cdef int cut(self, Py_ssize_t rows) except -1:
        """Keep the first `rows` rows."""
        raise NotImplementedError

    cdef object taken(self):
        """Return the buffers of the column, in the form that `ColumnDecoder.take` documents."""
        raise NotImplementedError


@cython.final
cdef class Integers(Column):
    """A column of integers of `width` bytes that has a value for each record."""
    cdef Buffer buffer
    cdef Py_ssize_t width

    cdef Column successor(self):
        cdef Integers column = Integers.__new__(Integers)
        column.buffer, column.width = buffer_like(self.buffer), self.width
        return column

    cdef int reserve(self, Py_ssize_t more, Py_ssize_t size_bytes) except -1 nogil:
        return self.buffer.reserve(self.width * more)

    cdef int cut(self, Py_ssize_t rows) except -1:
        self.buffer.size = self.width * rows
        return 0

    cdef object taken(self):
        return self.buffer


@cython.final
cdef class BatchIntegers(Column):
    """A column of integers of `width` bytes in which all records of a batch have the same value."""
    cdef Buffer buffer
    cdef Py_ssize_t width
    cdef Source source

    cdef Column successor(self):
        cdef BatchIntegers column = BatchIntegers.__new__(BatchIntegers)
        column.buffer, column.width, column.source = buffer_like(self.buffer), self.width, self.source
        return column

    cdef int cut(self, Py_ssize_t rows) except -1:
        return 0        # the batch is added after all its records are decoded

    cdef object taken(self):
        return self.buffer

    cdef int add(self, const BatchFields *fields, BatchFilter batch_filter, Py_ssize_t rows) except -1:
        """Add the value of the batch `rows` times."""
        cdef int64_t value = self.value_of(fields, batch_filter)
        cdef Py_ssize_t i
        self.buffer.reserve(self.width * rows)
        if self.width == 8:
            for i in range(rows):
                self.buffer.put_int64(value)
        else:
            for i in range(rows):
                self.buffer.put_int32(<int32_t>value)
        return 0

    cdef int64_t value_of(self, const BatchFields *fields, BatchFilter batch_filter) except? -1:
        if self.source == TIMESTAMP_TYPE:
            return fields.attributes & LOG_APPEND_TIME_BIT != 0
        if self.source == PRODUCER_ID:
            return fields.producer_id
        if self.source == PRODUCER_EPOCH:
            return fields.producer_epoch
        if self.source == IS_TRANSACTIONAL:
            return fields.attributes & TRANSACTIONAL_BIT != 0
        if self.source == OUTCOME:
            return <int>batch_filter.outcome_of(fields)
        if self.source == LEADER_EPOCH:
            return fields.partition_leader_epoch
        if self.source == COMPRESSION:
            return fields.attributes & COMPRESSION_MASK
        return fields.base_offset


@cython.final
cdef class Blobs(Column):
    """A nullable column of bytes: a sequence of bytes or None, which is also an Arrow array.

    `data` has the values one after another. `ends` has int32 positions in `data`: first 0, then the end of each value.
    """
    cdef Buffer validity
    cdef readonly Buffer ends
    cdef readonly Buffer data
    cdef Py_ssize_t rows
    cdef Py_ssize_t nulls

    index = Sequence.index
    count = Sequence.count

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        cdef Py_ssize_t row
        if isinstance(index, slice):
            return [self.item(row) for row in range(*index.indices(self.rows))]
        row = index if index >= 0 else index + self.rows
        if not 0 <= row < self.rows:
            raise IndexError(f'found index {index}, expected one within {self.rows} values')
        return self.item(row)

    def __iter__(self):
        cdef Py_ssize_t row
        for row in range(self.rows):
            yield self.item(row)

    def __arrow_c_array__(self, requested_schema=None):
        """Return the capsules of the column for Arrow's C data interface, with Arrow's type binary. No data is copied.
        """
        return binary_capsules(self.rows, self.nulls, NULL if self.nulls == 0 else self.validity.at, self.ends.at,
                               self.data.at, self)

    cdef bytes item(self, Py_ssize_t row):
        cdef const int32_t *end = <const int32_t *>self.ends.at + row
        if self.nulls and not self.validity.at[row >> 3] >> (row & 7) & 1:
            return None
        return PyBytes_FromStringAndSize(<const char *>self.data.at + end[0], end[1] - end[0])

    cdef Column successor(self):
        cdef Blobs blobs = Blobs.__new__(Blobs)
        blobs.validity = buffer_like(self.validity)
        blobs.ends = buffer_like(self.ends)
        blobs.data = buffer_like(self.data)
        blobs.ends.reserve(4)
        blobs.ends.put_int32(0)
        return blobs

    cdef int reserve(self, Py_ssize_t more, Py_ssize_t size_bytes) except -1 nogil:
        cdef Py_ssize_t old = self.validity.size, wanted = (self.rows + more + 7) // 8
        self.validity.reserve(wanted - old)
        if wanted > old:
            memset(self.validity.at + old, 0, wanted - old)
            self.validity.size = wanted
        self.ends.reserve(4 * more)
        return self.data.reserve(size_bytes)

    cdef inline void put(self, const uint8_t *data, Py_ssize_t size) noexcept nogil:
        if size < 0:
            self.nulls += 1
        else:
            self.validity.set_bit(self.rows)
            self.data.put(data, size)
        self.rows += 1
        self.ends.put_int32(<int32_t>self.data.size)

    cdef int cut(self, Py_ssize_t rows) except -1:
        cdef Py_ssize_t i
        self.rows = self.nulls = rows
        self.ends.size = 4 * (rows + 1)
        self.data.size = (<int32_t *>self.ends.at)[rows]
        self.validity.cut_bits(rows)
        for i in range(rows):
            self.nulls -= (self.validity.at[i >> 3] >> (i & 7)) & 1
        return 0

    cdef object taken(self):
        self.validity.size = (self.rows + 7) // 8
        return (self.rows, self.nulls, None if self.nulls == 0 else self.validity, self.ends, self.data)


Sequence.register(Blobs)


@cython.final
cdef class Headers(Column):
    """A column with the headers of each record. `ends` has first 0, then for each record the number of headers up to
    and including that record.
    """
    cdef Buffer validity
    cdef Buffer ends
    cdef Blobs keys
    cdef Blobs values

    cdef Column successor(self):
        cdef Headers headers = Headers.__new__(Headers)
        headers.validity = buffer_like(self.validity)
        headers.ends = buffer_like(self.ends)
        headers.ends.reserve(4)
        headers.ends.put_int32(0)
        headers.keys = <Blobs>self.keys.successor()
        headers.values = <Blobs>self.values.successor()
        return headers

    cdef int cut(self, Py_ssize_t rows) except -1:
        self.ends.size = 4 * (rows + 1)
        self.validity.cut_bits(rows)
        self.keys.cut((<int32_t *>self.ends.at)[rows])
        return self.values.cut((<int32_t *>self.ends.at)[rows])

    cdef object taken(self):
        return self.validity, self.ends, self.keys.taken(), self.values.taken()

    cdef int add(self, const RecordFields *record) except -1 nogil:
        """Add the headers of one record."""
        cdef Cursor cursor = record.headers
        cdef Py_ssize_t size, row = self.ends.size // 4 - 1
        cdef const uint8_t *key
        cdef const uint8_t *value
        cdef int32_t i
        self.validity.reserve(1)
        if row % 8 == 0:
            self.validity.at[self.validity.size] = 0
            self.validity.size += 1
        if record.headers_count > 0:
            self.validity.set_bit(row)
        for i in range(record.headers_count):
            size = take_varint(&cursor)
            key = take(&cursor, size)
            self.keys.reserve(1, size)
            self.keys.put(key, size)
            size = take_varint(&cursor)
            value = take(&cursor, max(size, <Py_ssize_t>0))
            self.values.reserve(1, max(size, <Py_ssize_t>0))
            self.values.put(value, size)
        self.ends.reserve(4)
        self.ends.put_int32(<int32_t>self.keys.rows)
        return 0


cdef Column column_named(str name):
    """Return a column of the kind that `name` requires. A decoder only calls its `successor`."""
    cdef Integers integers
    cdef BatchIntegers batch_integers
    cdef Headers headers
    cdef Py_ssize_t width = 8 if name in WIDE else 4
    if name in ('key', 'value'):
        return Blobs.__new__(Blobs)
    if name == 'headers':
        headers = Headers.__new__(Headers)
        headers.keys, headers.values = Blobs.__new__(Blobs), Blobs.__new__(Blobs)
        return headers
    if name in SOURCES:
        batch_integers = BatchIntegers.__new__(BatchIntegers)
        batch_integers.width, batch_integers.source = width, <Source>SOURCES[name]
        return batch_integers
    integers = Integers.__new__(Integers)
    integers.width = width
    return integers


cdef Buffer buffer_of(Integers column):
    return None if column is None else column.buffer


@cython.final
cdef class ColumnDecoder:
    """Decodes runs of batches to columns of about `batch_rows` rows or `batch_bytes` bytes. The caller must pass the
    batches in offset order.

    `columns` has the names of the requested columns, a subset of COLUMNS. A batch is never split, so the result of
    `take` may exceed both limits by one batch, of at most `max_decompressed_bytes`. Timestamps are in ms.
    """
    cdef dict columns                   # {name: Column}
    cdef list all                       # the same columns as a list
    cdef list of_batches                # the columns of the class BatchIntegers
    cdef Blobs keys                     # columns for `add_records`; None if not requested
    cdef Blobs values
    cdef Headers headers
    cdef Buffer offsets
    cdef Buffer timestamps
    cdef Buffer sequences
    cdef bint check_crcs
    cdef Py_ssize_t batch_rows
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t max_decompressed_bytes
    cdef readonly Py_ssize_t rows
    cdef readonly int64_t next_offset
    cdef readonly Py_ssize_t position   # the position of the last batch read, even if damaged
    cdef readonly int64_t hidden_batches
    cdef bint is_taken                  # True if the buffers belong to the last `take`

    def __init__(self, columns, *, bint check_crcs=True, Py_ssize_t batch_rows=10_000,
                 Py_ssize_t batch_bytes=4 * 1024 * 1024, Py_ssize_t max_decompressed_bytes=MAX_DECOMPRESSED_BYTES):
        unknown = set(columns) - set(COLUMNS)
        if unknown:
            raise ValueError(f'found columns {sorted(unknown)}, expected some of {COLUMNS}')
        self.columns = {name: column_named(name) for name in COLUMNS if name in columns}
        self.check_crcs = check_crcs
        self.batch_rows = batch_rows
        self.batch_bytes = batch_bytes
        self.max_decompressed_bytes = max_decompressed_bytes
        self.next_offset = -1
        self.start_over()

    cdef int start_over(self) except -1:
        """Continue in new columns, because the caller owns the taken ones."""
        cdef Column column
        self.rows = 0
        self.is_taken = False
        self.all, self.of_batches = [], []
        for name, column in self.columns.items():
            column = column.successor()
            self.columns[name] = column
            self.all.append(column)
            if isinstance(column, BatchIntegers):
                self.of_batches.append(column)
        self.keys, self.values = self.columns.get('key'), self.columns.get('value')
        self.headers = self.columns.get('headers')
        self.offsets = buffer_of(self.columns.get('offset'))
        self.timestamps = buffer_of(self.columns.get('timestamp'))
        self.sequences = buffer_of(self.columns.get('sequence'))
        return 0

    @property
    def is_full(self):
        return self.full()

    cdef bint full(self) noexcept:
        return not self.is_taken and (self.rows >= self.batch_rows or self.size_bytes() >= self.batch_bytes)

    cdef Py_ssize_t size_bytes(self) noexcept:
        cdef Py_ssize_t size = 0
        if self.keys is not None:
            size += self.keys.data.size
        if self.values is not None:
            size += self.values.data.size
        if self.headers is not None:
            size += self.headers.keys.data.size + self.headers.values.data.size
        return size

    def feed(self, data, BatchFilter batch_filter not None, *, Py_ssize_t position=0, int64_t start_offset=0,
             int64_t end_offset=0x7fffffffffffffff):
        """Decode the whole batches in `data`, beginning at `position`. Add their records with offsets in [start_offset,
        end_offset). Return the position behind the last batch that was read.

        Stop when the next batch is incomplete, the decoder is full, or `next_offset` is at or above `end_offset`.

        Raise CorruptBatchError with the offset of a damaged batch. No record of the damaged batch is added. The records
        decoded before it can still be taken.
        """
        cdef Py_buffer view
        cdef BatchFields fields
        cdef HeaderFault fault
        cdef const uint8_t *at
        if self.is_taken:  # the caller could use the taken columns until now
            self.start_over()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            # Do not read beyond `end_offset`: an unfinished write may be there.
            while not self.full() and self.next_offset < end_offset and view.len - position >= HEADER_BYTES:
                at = <const uint8_t *>view.buf + position
                self.position = position
                fault = parse_header(at, view.len - position, &fields)
                if fault != HEADER_READ:
                    refuse_header(fault, &fields, view.len - position)
                if fields.base_offset >= end_offset:
                    self.next_offset = end_offset
                    break
                if batch_size_bytes(&fields) > view.len - position:
                    break
                if fields.base_offset < self.next_offset:  # the CRC does not cover it
                    raise CorruptBatchError(f'found a batch at offset {fields.base_offset}, expected '
                                            f'{self.next_offset} or above')
                self.add_batch(at, &fields, batch_filter, start_offset, end_offset)
                self.next_offset = batch_last_offset(&fields) + 1
                position += batch_size_bytes(&fields)
        finally:
            PyBuffer_Release(&view)
        return position

    cdef int add_batch(self, const uint8_t *data, const BatchFields *fields, BatchFilter batch_filter,
                       int64_t start_offset, int64_t end_offset) except -1:
        cdef Cursor cursor
        cdef bytes block
        cdef Py_ssize_t rows = self.rows
        cdef BatchIntegers column
        if batch_last_offset(fields) < start_offset:
            return 0
        if self.check_crcs:
            check_crc_at(data, batch_size_bytes(fields), fields)
        if not batch_filter.admits_fields(fields, data):
            self.hidden_batches += 1
            return 0
        if fields.records_count <= 0:
            return 0
        if fields.attributes & COMPRESSION_MASK:
            block = decompress(
                fields.attributes & COMPRESSION_MASK,
                PyMemoryView_FromMemory(
                    <char *>data + HEADER_BYTES, batch_size_bytes(fields) - HEADER_BYTES, PyBUF_READ),
                self.max_decompressed_bytes)
            cursor.at = <const uint8_t *>PyBytes_AS_STRING(block)
            cursor.end = cursor.at + PyBytes_GET_SIZE(block)
        else:
            cursor.at = data + HEADER_BYTES
            cursor.end = data + batch_size_bytes(fields)
        self.make_room(cursor.end - cursor.at, fields)
        try:
            if cursor.end - cursor.at < RELEASE_GIL_BYTES:
                self.add_records(&cursor, fields, start_offset, end_offset)
            else:
                with nogil:
                    self.add_records(&cursor, fields, start_offset, end_offset)
            if cursor.at != cursor.end:
                raise ProtocolError(f'found {cursor.end - cursor.at} bytes after the last of {fields.records_count} '
                                    'records, expected none')
        except ProtocolError as error:
            self.cut(rows)
            raise CorruptBatchError(f'batch at offset {fields.base_offset}: {error}') from None
        for column in self.of_batches:
            column.add(fields, batch_filter, self.rows - rows)
        return 0

    cdef int make_room(self, Py_ssize_t size_bytes, const BatchFields *fields) except -1:
        """Make room for the rows of a batch. Reject a number of records that does not fit into `size_bytes`: a record
        has at least 7 bytes.
        """
        cdef Py_ssize_t rows = fields.records_count
        cdef Column column
        if rows > size_bytes // 7:
            raise CorruptBatchError(f'batch at offset {fields.base_offset}: found {rows} records in {size_bytes} '
                                    'bytes, expected 7 bytes or more for each')
        if self.size_bytes() + size_bytes > INT32_MAX:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f'batch at offset {fields.base_offset}: found {size_bytes} '
                                                          'bytes of records, more than a column of Arrow can hold')
        for column in self.all:
            column.reserve(rows, size_bytes)
        return 0

    cdef int cut(self, Py_ssize_t rows) except -1:
        """Keep the first `rows` rows, and drop the decoded part of a damaged batch."""
        cdef Column column
        self.rows = rows
        for column in self.all:
            column.cut(rows)
        return 0

    cdef int add_records(self, Cursor *cursor, const BatchFields *fields, int64_t start_offset,
                         int64_t end_offset) except -1 nogil:
        cdef RecordFields record
        cdef int64_t offset
        cdef int32_t i
        for i in range(fields.records_count):
            take_record(cursor, &record)
            offset = <int64_t>(<uint64_t>fields.base_offset + <uint64_t>record.offset_delta)  # a hostile sum wraps
            if offset < start_offset or offset >= end_offset:
                continue
            if self.keys is not None:
                self.keys.put(record.key, record.key_size)
            if self.values is not None:
                self.values.put(record.value, record.value_size)
            if self.offsets is not None:
                self.offsets.put_int64(offset)
            if self.timestamps is not None:
                self.timestamps.put_int64(timestamp_of(fields, &record))
            if self.sequences is not None:
                self.sequences.put_int32(sequence_after(fields.base_sequence, record.offset_delta))
            if self.headers is not None:
                self.headers.add(&record)
            self.rows += 1
        return 0

    def take(self):
        """Return (number of rows, {column name: its buffers}) for the rows that were decoded since the last call.

        `key` and `value` have the buffers (count, nulls, validity or None, int32 offsets, data). `headers` has the
        buffers (validity, int32 offsets, buffers of the keys, buffers of the values); a record without headers is null,
        as in Spark. Every other column has one buffer, with int64 values for the columns in WIDE and int32 values for
        all others.
        """
        cdef dict found = {}
        cdef Py_ssize_t rows
        cdef Column column
        if self.is_taken:
            self.start_over()
        rows = self.rows
        self.rows = 0
        self.is_taken = True
        for name, column in self.columns.items():
            found[name] = column.taken()
        return rows, found


cdef class RecordColumns:
    """The result of one `take` of a ColumnDecoder with RECORD_COLUMNS: keys, values, offsets and timestamps.

    `records` returns the rows as objects. `offsets` and `timestamps` are memoryviews of int64.
    """
    cdef readonly Blobs keys
    cdef readonly Blobs values
    cdef readonly object offsets
    cdef readonly object timestamps
    cdef readonly Py_ssize_t count
    cdef Headers headers
    cdef dict integers

    def __cinit__(self, ColumnDecoder decoder not None):
        self.count, self.integers = decoder.take()
        self.keys, self.values, self.headers = decoder.keys, decoder.values, decoder.headers
        self.offsets = memoryview(self.integers['offset']).cast('q')
        self.timestamps = memoryview(self.integers['timestamp']).cast('q')

    def records(self):
        """Return the rows as a list of Record."""
        cdef const int64_t *offsets = <const int64_t *>(<Buffer>self.integers['offset']).at
        cdef const int64_t *timestamps = <const int64_t *>(<Buffer>self.integers['timestamp']).at
        cdef const int32_t *sequences = <const int32_t *>(<Buffer>self.integers['sequence']).at
        cdef const int32_t *types = <const int32_t *>(<Buffer>self.integers['timestamp_type']).at
        cdef const int32_t *epochs = <const int32_t *>(<Buffer>self.integers['leader_epoch']).at
        cdef list found = []
        cdef Py_ssize_t i
        cdef Record record
        for i in range(self.count):
            record = Record.__new__(Record)
            record.offset, record.timestamp_ms, record.sequence = offsets[i], timestamps[i], sequences[i]
            record.leader_epoch, record.is_log_append_time = epochs[i], types[i]
            record.key, record.value = self.keys.item(i), self.values.item(i)
            record.headers = self.headers_of(i)
            found.append(record)
        return found

    cdef list headers_of(self, Py_ssize_t row):
        cdef const int32_t *end = <const int32_t *>self.headers.ends.at + row
        cdef list headers = []
        cdef int32_t i
        for i in range(end[0], end[1]):
            headers.append((self.headers.keys.item(i).decode('utf-8', 'surrogateescape'), self.headers.values.item(i)))
        return headers


cdef inline int64_t timestamp_of(const BatchFields *fields, const RecordFields *record) noexcept nogil:
    """Return the timestamp of a record in ms. The sum of base timestamp and delta wraps as in Java."""
    if fields.attributes & LOG_APPEND_TIME_BIT:
        return fields.max_timestamp_ms
    return <int64_t>(<uint64_t>fields.base_timestamp_ms + <uint64_t>record.timestamp_delta_ms)
