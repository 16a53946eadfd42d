"""Messages of magic 0 and 1, which Kafka wrote before 0.11 and still reads.

A message has these fields: offset int64; size int32 (of the fields after it); crc uint32 (CRC-32 of the fields after
it); magic int8; attributes int8 (bits 0-2 compression, bit 3 log append time); in magic 1, timestamp int64; key and
value, each as length int32 (-1 for null) and bytes.

The value of a compressed message, the wrapper, is a set of messages. The wrapper has the offset of the last message in
the set. Inside a wrapper, messages of magic 0 have absolute offsets, and messages of magic 1 have offsets that count
from 0 (KIP-31). A log append time in the wrapper applies to all messages in it (KIP-32).
"""
from zlib import crc32

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker.record.batch cimport COMPRESSION_MASK, LOG_APPEND_TIME_BIT
from kbroker.wire.bytes cimport Cursor, read_int32, read_int64, take

from kbroker.base.errors import CorruptLogError
from kbroker.record.records import Record

cdef int64_t NO_TIMESTAMP = -1


cdef class LegacyMessages:
    """The messages of one entry in a log. They are either the entry itself, or the messages that the entry wraps.

    The constructor raises KafkaError if the entry cannot be decompressed.
    """

    def __cinit__(self, bytes message not None, Py_ssize_t max_decompressed_bytes):
        cdef LegacyMessage wrapper
        cdef int magic
        self.append_time_ms = NO_TIMESTAMP
        self.over(message)
        take_message(&self.cursor, &wrapper)
        magic = PyBytes_AS_STRING(message)[16]
        self.attributes = PyBytes_AS_STRING(message)[17]
        self.over(message)
        if not self.attributes & COMPRESSION_MASK:
            return
        if wrapper.value_size < 0:
            raise CorruptLogError('found a compressed message without a value')
        from kbroker.record.compression import decompress
        self.over(decompress(self.attributes & COMPRESSION_MASK, wrapper.value[:wrapper.value_size],
                             max_decompressed_bytes))
        if magic == 1:
            if self.attributes & LOG_APPEND_TIME_BIT:
                self.append_time_ms = wrapper.timestamp_ms
            self.offset_shift = wrapper.offset - last_offset(self.cursor)

    cdef int over(self, bytes data) except -1:
        self.data = data
        self.cursor.at = <const uint8_t *>PyBytes_AS_STRING(data)
        self.cursor.end = self.cursor.at + PyBytes_GET_SIZE(data)

    cdef bint step(self, LegacyMessage *message) except -1:
        """Read the next message. Return False if no message is left. Raise ProtocolError or CorruptLogError if the data
        is damaged."""
        if self.cursor.at == self.cursor.end:
            return False
        take_message(&self.cursor, message)
        message.offset += self.offset_shift
        if self.append_time_ms != NO_TIMESTAMP:
            message.timestamp_ms = self.append_time_ms
        return True


def iter_messages(bytes message not None, Py_ssize_t max_decompressed_bytes):
    """Yield the messages of one entry in a log as records. Raise KafkaError, ProtocolError or CorruptLogError if the
    entry is damaged."""
    cdef LegacyMessages messages = LegacyMessages(message, max_decompressed_bytes)
    cdef LegacyMessage found
    while messages.step(&found):
        yield Record(found.offset, found.timestamp_ms, None if found.key_size < 0 else found.key[:found.key_size],
                     None if found.value_size < 0 else found.value[:found.value_size])


cdef int take_message(Cursor *cursor, LegacyMessage *message) except -1:
    cdef Cursor body
    cdef const uint8_t *checked
    cdef int magic
    message.offset = read_int64(take(cursor, 8))
    body.at = take(cursor, read_int32(take(cursor, 4)))
    body.end = cursor.at
    message.crc = <uint32_t>read_int32(take(&body, 4))
    checked = body.at
    message.is_valid = message.crc == <uint32_t>crc32(
        PyMemoryView_FromMemory(<char *>checked, body.end - checked, PyBUF_READ))
    magic = take(&body, 1)[0]
    if magic > 1:
        raise CorruptLogError(f'found a message of magic {magic}, expected 0 or 1')
    take(&body, 1)
    message.timestamp_ms = read_int64(take(&body, 8)) if magic else NO_TIMESTAMP
    message.key = take_sized(&body, &message.key_size)
    message.value = take_sized(&body, &message.value_size)
    return 0


cdef const uint8_t *take_sized(Cursor *cursor, Py_ssize_t *size) except NULL:
    size[0] = read_int32(take(cursor, 4))
    return cursor.at if size[0] == -1 else take(cursor, size[0])


cdef int64_t last_offset(Cursor cursor) except? -1:
    """Return the offset field of the last message in a set."""
    cdef int64_t offset = 0
    while cursor.at < cursor.end:
        offset = read_int64(take(&cursor, 8))
        take(&cursor, read_int32(take(&cursor, 4)))
    return offset
