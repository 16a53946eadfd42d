"""The output of kafka-dump-log for batches and records. The bytes of a file are converted directly to the bytes of the
text. Only the decoder of an internal topic creates Python objects for a record."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport strlen

from kbroker.record.batch cimport (
    COMPRESSION_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, HEADER_BYTES, LOG_APPEND_TIME_BIT, MAGIC, TRANSACTIONAL_BIT,
    BatchFields, sequence_after)
from kbroker.record.records cimport RecordFields, records_of, take_record
from kbroker.wire.bytes cimport Cursor, read_int16, read_int32, read_int64, take, take_varint
from kbroker_tools.dump.legacy_messages cimport LegacyMessage, LegacyMessages
from kbroker_tools.dump.segment_reader cimport SegmentReader
from kbroker_tools.dump.selection cimport Selection
from kbroker_tools.dump.sink cimport Sink, put_decimal, put_literal

from kbroker.base.errors import CorruptLogError, KafkaError, ProtocolError

# The most bytes to which a batch may decompress. A batch without compression has the same limit.
MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024

cdef enum:
    ABORT = 0
    COMMIT = 1
    CONTROL_KEY_BYTES = 4
    MARKER_BYTES = 6
    UNKNOWN_CODEC = 5

cdef const char **CODECS = ['none', 'gzip', 'snappy', 'lz4', 'zstd']


cdef class DumpText:
    """A writer of batches as text. It reads the batches from a SegmentReader and writes the text to a Sink.

    `decoder` has `decode(offset, key, value) -> (key text, payload text)`. A text of None is not printed. Without a
    decoder, key and payload are shown as UTF-8. `control_text(type, value)` returns the text of a control record that
    is not a transaction marker. `on_gap` is called with the offsets of two successive records that are not consecutive
    numbers. `on_damage` is called with a line of text for a batch whose records cannot be read. If it does not raise an
    exception, the dump continues with the next batch.
    """
    cdef Sink sink
    cdef bint deep
    cdef bint contents
    cdef bint metadata
    cdef object decoder
    cdef object control_text
    cdef object on_gap
    cdef object on_damage
    cdef Selection selection
    cdef int64_t last_offset
    cdef bint knows_last_offset

    def __init__(self, Sink sink not None, *, bint deep=False, bint contents=False, bint skip_record_metadata=False,
                 decoder=None, control_text=None, on_gap=None, on_damage=None, Selection selection=None):
        self.sink = sink
        self.deep = deep or contents
        self.contents = contents
        self.metadata = not skip_record_metadata
        self.decoder = decoder
        self.control_text = control_text
        self.on_gap = on_gap
        self.on_damage = on_damage
        self.selection = selection

    def begin(self, last_offset=None):
        """Begin a new file. If `last_offset` is not None, a gap between it and the first record of the file is
        reported."""
        self.knows_last_offset = last_offset is not None
        self.last_offset = -1 if last_offset is None else last_offset

    def dump(self, SegmentReader reader not None, int64_t most_bytes=(1 << 62)):
        """Write the next batches, up to about `most_bytes` bytes of the file. Return False at the end of the file."""
        cdef int64_t enough = reader.next_position + most_bytes
        while reader.next_position < enough:
            if not reader.step():
                return False
            if self.selection is not None:
                if reader.fields.base_offset > self.selection.last_offset and reader.magic == MAGIC:
                    return False
                if not self.selection.admits(&reader.fields, reader.magic != MAGIC):
                    continue
            try:
                self.put_batch(reader)
                if self.deep:
                    self.put_records(reader)
            except (KafkaError, ProtocolError, CorruptLogError) as error:
                self.on_damage(f'{reader.path}: position {reader.position}, batch of offset '
                               f'{reader.fields.base_offset}: {error}')
        return True

    cdef int put_batch(self, SegmentReader reader) except -1:
        cdef const BatchFields *batch = &reader.fields
        cdef uint32_t crc = reader.stated_crc()
        cdef bint is_valid = crc == reader.computed_crc()
        cdef int codec = batch.attributes & COMPRESSION_MASK
        cdef char *at
        if codec >= UNKNOWN_CODEC:
            raise CorruptLogError(f'found compression {codec}, expected 0 to {UNKNOWN_CODEC - 1}')
        at = self.sink.room_for_line()
        if reader.magic == MAGIC:
            at = put_identity(at, batch)
        else:
            at = put_decimal(put_literal(at, 'offset: '), reader.last_offset())
        at = put_decimal(put_literal(at, ' position: '), reader.position)
        at = put_timestamp(at, reader.magic, batch.attributes, batch.max_timestamp_ms)
        at = put_decimal(put_literal(at, ' size: '), reader.size_bytes)
        at = put_decimal(put_literal(at, ' magic: '), reader.magic)
        at = put_words(put_literal(at, ' compresscodec: '), CODECS[codec])
        at = put_decimal(put_literal(at, ' crc: '), crc)
        at = put_bool(put_literal(at, ' isvalid: '), is_valid)
        at[0] = b'\n'
        self.sink.end_at(at + 1)
        return 0

    cdef int put_records(self, SegmentReader reader) except -1:
        cdef const uint8_t *data = reader.data()
        cdef const BatchFields *batch = &reader.fields
        cdef RecordFields record
        cdef Cursor cursor
        cdef bytes block
        cdef int32_t i = 0
        if reader.magic != MAGIC:
            return self.put_messages(LegacyMessages(reader.batch(), MAX_DECOMPRESSED_BYTES), reader.magic)
        if batch.records_count < 0:
            raise CorruptLogError(f'found invalid record count {batch.records_count}')
        if batch.attributes & COMPRESSION_MASK:
            block = records_of(data, batch, MAX_DECOMPRESSED_BYTES)
            cursor.at = <const uint8_t *>PyBytes_AS_STRING(block)
            cursor.end = cursor.at + PyBytes_GET_SIZE(block)
        else:
            cursor.at = data + HEADER_BYTES
            cursor.end = data + reader.size_bytes
        try:
            for i in range(batch.records_count):
                take_record(&cursor, &record)
                if cursor.at != cursor.end and i == batch.records_count - 1:
                    raise CorruptLogError(f'found {cursor.end - cursor.at} bytes after the last of '
                                          f'{batch.records_count} records, expected none')
                self.put_record(batch, &record)
        except ProtocolError as error:
            raise CorruptLogError(f'record {i} of {batch.records_count}: {error}') from None
        return 0

    cdef int put_record(self, const BatchFields *batch, const RecordFields *record) except -1:
        cdef int64_t offset = batch.base_offset + record.offset_delta
        cdef int64_t timestamp_ms = batch.max_timestamp_ms
        cdef char *at
        if not batch.attributes & LOG_APPEND_TIME_BIT:
            timestamp_ms = batch.base_timestamp_ms + record.timestamp_delta_ms
        if self.selection is not None and not self.selection.admits_record(offset, timestamp_ms):
            return 0
        self.note_offset(offset)
        if self.metadata:
            at = put_decimal(put_literal(self.sink.room_for_line(), '| offset: '), offset)
            at = put_timestamp(at, MAGIC, batch.attributes, timestamp_ms)
            at = put_decimal(put_literal(at, ' keySize: '), record.key_size)
            at = put_decimal(put_literal(at, ' valueSize: '), record.value_size)
            at = put_decimal(put_literal(at, ' sequence: '), sequence_after(batch.base_sequence, record.offset_delta))
            self.sink.end_at(put_literal(at, ' headerKeys: ['))
            if record.headers_count:
                self.put_header_keys(record)
            self.sink.put_bytes(b']', 1)
            if batch.attributes & CONTROL_BIT:
                self.put_control(record)
        if self.contents and not batch.attributes & CONTROL_BIT:
            self.put_contents(offset, record.key, record.key_size, record.value, record.value_size)
        return self.sink.put_bytes(b'\n', 1)

    cdef int note_offset(self, int64_t offset) except -1:
        if self.knows_last_offset and offset != self.last_offset + 1 and self.on_gap is not None:
            self.on_gap(self.last_offset, offset)
        self.last_offset = offset
        self.knows_last_offset = True
        return 0

    cdef int put_header_keys(self, const RecordFields *record) except -1:
        cdef Cursor cursor = record.headers
        cdef Py_ssize_t size
        cdef int i
        for i in range(record.headers_count):
            if i:
                self.sink.put_bytes(b',', 1)
            size = take_varint(&cursor)
            self.sink.put_text(take(&cursor, size), size)
            size = take_varint(&cursor)
            if size > 0:
                take(&cursor, size)
        return 0

    cdef int put_contents(self, int64_t offset, const uint8_t *key, Py_ssize_t key_size, const uint8_t *value,
                          Py_ssize_t value_size) except -1:
        cdef const char *gap = b' ' if self.metadata else b'| '
        if self.decoder is not None:
            key_text, payload_text = self.decoder.decode(offset, blob(key, key_size), blob(value, value_size))
            parts = [part for part in (f'key: {key_text}' if key_text is not None else None,
                                       f'payload: {payload_text}' if payload_text is not None else None) if part]
            if parts:
                self.sink.put_bytes(gap, strlen(gap))
                self.sink.write(' '.join(parts))
            return 0
        if key_size >= 0:
            self.sink.put_bytes(gap, strlen(gap))
            self.sink.put_bytes(b'key: ', 5)
            self.sink.put_text(key, key_size)
            gap = b' '
        if value_size >= 0:
            self.sink.put_bytes(gap, strlen(gap))
            self.sink.put_bytes(b'payload: ', 9)
            self.sink.put_text(value, value_size)
        return 0

    cdef int put_control(self, const RecordFields *record) except -1:
        cdef int16_t number
        cdef char *at
        if record.key_size < CONTROL_KEY_BYTES:
            raise CorruptLogError(f'found a control key of {record.key_size} bytes, expected {CONTROL_KEY_BYTES}')
        number = read_int16(record.key + 2)
        if number != ABORT and number != COMMIT:
            self.sink.write(self.control_text(number, blob(record.value, record.value_size)))
            return 0
        if record.value_size < MARKER_BYTES:
            raise CorruptLogError(f'found a marker of {record.value_size} bytes, expected {MARKER_BYTES}')
        at = put_literal(self.sink.room_for_line(), ' endTxnMarker: ')
        at = put_words(at, 'COMMIT' if number == COMMIT else 'ABORT')
        self.sink.end_at(put_decimal(put_literal(at, ' coordinatorEpoch: '), read_int32(record.value + 2)))
        return 0

    cdef int put_messages(self, LegacyMessages messages, int magic) except -1:
        """Add the lines of messages of magic 0 and 1. Each message has its own CRC."""
        cdef LegacyMessage message
        cdef char *at
        while messages.step(&message):
            if self.selection is not None and not self.selection.admits_record(message.offset, message.timestamp_ms):
                continue
            self.note_offset(message.offset)
            if self.metadata:
                at = put_decimal(put_literal(self.sink.room_for_line(), '| offset: '), message.offset)
                at = put_timestamp(at, magic, messages.attributes, message.timestamp_ms)
                at = put_decimal(put_literal(at, ' keySize: '), message.key_size)
                at = put_decimal(put_literal(at, ' valueSize: '), message.value_size)
                at = put_bool(put_literal(at, ' isValid: '), message.is_valid)
                self.sink.end_at(put_decimal(put_literal(at, ' crc: '), message.crc))
            if self.contents:
                self.put_contents(message.offset, message.key, message.key_size, message.value, message.value_size)
            self.sink.put_bytes(b'\n', 1)
        return 0


cdef inline bytes blob(const uint8_t *data, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *>data, size)


cdef inline char *put_words(char *at, const char *words) noexcept:
    while words[0]:
        at[0] = words[0]
        at += 1
        words += 1
    return at


cdef inline char *put_bool(char *at, bint value) noexcept:
    return put_literal(at, 'true') if value else put_literal(at, 'false')


cdef inline char *put_timestamp(char *at, int magic, int16_t attributes, int64_t timestamp_ms) noexcept:
    """Write the type of the timestamp, and the timestamp. `at` is the place for the text. Return the end of the text. A
    message of magic 0 has no timestamp."""
    if magic == 0:
        at = put_literal(at, ' NoTimestampType: ')
    elif attributes & LOG_APPEND_TIME_BIT:
        at = put_literal(at, ' LogAppendTime: ')
    else:
        at = put_literal(at, ' CreateTime: ')
    return put_decimal(at, timestamp_ms)


cdef char *put_identity(char *at, const BatchFields *batch) noexcept:
    """Write the fields that only a batch of magic 2 has. `at` is the place for the text. Return the end of the text."""
    at = put_decimal(put_literal(at, 'baseOffset: '), batch.base_offset)
    at = put_decimal(put_literal(at, ' lastOffset: '), batch.base_offset + batch.last_offset_delta)
    at = put_decimal(put_literal(at, ' count: '), batch.records_count)
    at = put_decimal(put_literal(at, ' baseSequence: '), batch.base_sequence)
    at = put_decimal(put_literal(at, ' lastSequence: '), sequence_after(batch.base_sequence, batch.last_offset_delta))
    at = put_decimal(put_literal(at, ' producerId: '), batch.producer_id)
    at = put_decimal(put_literal(at, ' producerEpoch: '), batch.producer_epoch)
    at = put_decimal(put_literal(at, ' partitionLeaderEpoch: '), batch.partition_leader_epoch)
    at = put_bool(put_literal(at, ' isTransactional: '), batch.attributes & TRANSACTIONAL_BIT != 0)
    at = put_bool(put_literal(at, ' isControl: '), batch.attributes & CONTROL_BIT != 0)
    at = put_literal(at, ' deleteHorizonMs: OptionalLong')
    if batch.attributes & DELETE_HORIZON_BIT:
        at = put_decimal(put_literal(at, '['), batch.base_timestamp_ms)
        return put_literal(at, ']')
    return put_literal(at, '.empty')
