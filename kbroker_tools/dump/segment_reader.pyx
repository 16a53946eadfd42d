"""A reader of batches of any magic. It reads them one after another, through a window of bounded size.

Every batch begins with an offset int64 and a length int32 (of the bytes after it), and has its magic at byte 16.

In magic 0 and 1, which Kafka wrote before 0.11, the length is followed by these fields: crc uint32 (CRC-32 of the bytes
from byte 16 to the end); magic int8; attributes int8; in magic 1, timestamp int64; key and value, each as length int32
(-1 for null) and bytes. If the value is a compressed set of messages, the offset is that of the last message in the
set.
"""
import os
from zlib import crc32

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrnoWithFilenameObject
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset
from posix.types cimport off_t

from kbroker.record.batch cimport (
    CRC_AT, HEADER_BYTES, LOG_APPEND_TIME_BIT, LOG_OVERHEAD_BYTES, MAGIC, MAGIC_AT, ATTRIBUTES_AT, batch_last_offset,
    header_of, parse_header)
from kbroker.wire.bytes cimport read_int16, read_int32, read_int64
from kbroker.wire.crc32c cimport crc32c_update
from kbroker_tools.dump.selection cimport Selection

from kbroker.base.errors import CorruptLogError

cdef extern from '<unistd.h>' nogil:
    ssize_t pread(int fd, void *buffer, size_t size, off_t position)

cdef enum:
    WINDOW_BYTES = 1024 * 1024
    # Reading the records of a batch needs the whole batch in memory. For a batch above this size, only the checksum is
    # computed, in parts, and the records are not read. Such a batch is larger than the largest request that a broker
    # accepts by default (socket.request.max.bytes).
    WHOLE_BATCH_BYTES = 128 * 1024 * 1024
    COMMON_BYTES = 17
    LEGACY_LEAST_LENGTH = 14
    LEGACY_TIMESTAMP_AT = 18


cdef class SegmentReader:
    """A reader of the batches in a file. `step` moves to the next batch, which the properties then describe.

    The bytes of a batch are read when they are needed. Bytes after the first `max_bytes` of the file are not read.
    Methods raise OSError if the file cannot be read.
    """

    def __cinit__(self, path, int64_t max_bytes=(1 << 62), int64_t position=0):
        self.path = path
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.max_bytes = max_bytes
        self.next_position = position
        self.window_start = position
        self.update_size()

    def __dealloc__(self):
        free(self.window)
        self.close()

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def update_size(self):
        """Update the known size of the file, so that batches which were appended since are read too. Return the size in
        bytes."""
        size = os.fstat(self.fd).st_size
        self.end = min(<int64_t>size, self.max_bytes)
        return size

    cpdef bint step(self) except -1:
        """Move to the next batch. Return False if no complete batch follows.

        Raise CorruptLogError if the next bytes cannot be a batch. The reader then stays at its end.
        """
        cdef const uint8_t *head
        cdef int32_t length
        self.position = self.next_position
        self.at_end = True
        if self.position >= self.end - COMMON_BYTES:
            return False
        head = self.need(self.position, COMMON_BYTES)
        length = read_int32(head + 8)
        self.magic = <signed char>head[MAGIC_AT]
        if length < LEGACY_LEAST_LENGTH:
            self.refuse(f'found record size {length}, smaller than the minimum record overhead ({LEGACY_LEAST_LENGTH})')
        if self.position > self.end - LOG_OVERHEAD_BYTES - length:
            return False
        if not 0 <= self.magic <= MAGIC:
            self.refuse(f'found magic {self.magic}, expected 0, 1 or 2')
        if self.magic == MAGIC and length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            self.refuse(f'found record size {length}, smaller than a header ({HEADER_BYTES - LOG_OVERHEAD_BYTES})')
        if length > 0x7fffffff - LOG_OVERHEAD_BYTES:
            self.refuse(f'found record size {length}, which is no size of a batch')
        self.at_end = False
        self.size_bytes = length + LOG_OVERHEAD_BYTES
        self.next_position = self.position + self.size_bytes
        if self.magic == MAGIC:
            parse_header(self.need(self.position, HEADER_BYTES), HEADER_BYTES, &self.fields)
        else:
            self.read_legacy_header()
        return True

    cdef int refuse(self, str reason) except -1:
        raise CorruptLogError(f'{self.path}: position {self.position}: {reason}; the rest of the file is not read')

    cdef int read_legacy_header(self) except -1:
        cdef Py_ssize_t least = LEGACY_TIMESTAMP_AT + 8 * self.magic
        cdef const uint8_t *head
        if self.size_bytes < least + 8:
            self.refuse(f'found a message of {self.size_bytes} bytes, expected at least {least + 8} in magic '
                        f'{self.magic}')
        head = self.need(self.position, least)
        memset(&self.fields, 0, sizeof(self.fields))
        self.fields.base_offset = read_int64(head)
        self.fields.magic = self.magic
        self.fields.attributes = head[MAGIC_AT + 1]
        self.fields.max_timestamp_ms = read_int64(head + LEGACY_TIMESTAMP_AT) if self.magic else -1
        self.fields.base_timestamp_ms = self.fields.max_timestamp_ms
        self.fields.producer_id = -1
        self.fields.producer_epoch = -1
        self.fields.base_sequence = -1
        self.fields.partition_leader_epoch = -1
        self.fields.records_count = 1

    cdef int64_t last_offset(self) noexcept:
        return batch_last_offset(&self.fields)

    cdef const uint8_t *data(self) except NULL:
        """Return the bytes of the whole batch, which are valid until the next step. Raise CorruptLogError if the batch
        has more than WHOLE_BATCH_BYTES."""
        if self.size_bytes > WHOLE_BATCH_BYTES:
            raise CorruptLogError(f'found a batch of {self.size_bytes} bytes, of which the records are not read '
                                  f'(at most {WHOLE_BATCH_BYTES})')
        return self.need(self.position, self.size_bytes)

    cdef uint32_t stated_crc(self) except? 0xffffffff:
        if self.magic == MAGIC:
            return self.fields.crc
        return <uint32_t>read_int32(self.need(self.position, COMMON_BYTES) + LOG_OVERHEAD_BYTES)

    cdef uint32_t computed_crc(self) except? 0xffffffff:
        cdef int64_t position = self.position + (ATTRIBUTES_AT if self.magic == MAGIC else MAGIC_AT)
        cdef uint32_t crc = 0
        cdef Py_ssize_t piece
        cdef const uint8_t *data
        if self.size_bytes <= WHOLE_BATCH_BYTES:
            self.need(self.position, self.size_bytes)  # so that `data` need not read the batch again
        while position < self.next_position:
            piece = self.next_position - position
            if self.size_bytes > WHOLE_BATCH_BYTES:
                piece = min(piece, WINDOW_BYTES)
            data = self.need(position, piece)
            if self.magic == MAGIC:
                crc = crc32c_update(crc, data, piece)
            else:
                crc = crc32(PyMemoryView_FromMemory(<char *>data, piece, PyBUF_READ), crc)
            position += piece
        return crc

    def is_at_batch(self):
        """Return whether the next `step` would reach a valid batch. The reader does not move."""
        cdef int64_t position = self.next_position
        try:
            return bool(self.step()) and self.stated_crc() == self.computed_crc()
        except CorruptLogError:
            return False
        finally:
            self.next_position = position

    def is_in(self, Selection selection not None):
        """Return whether the current batch may contain selected records."""
        return selection.admits(&self.fields, self.magic != MAGIC)

    def is_beyond(self, Selection selection not None):
        """Return whether no batch after the current one can contain selected records."""
        return self.magic == MAGIC and self.fields.base_offset > selection.last_offset

    def header(self):
        """Return the BatchHeader of the current batch. A batch of magic 0 or 1 has only some of its fields."""
        return header_of(&self.fields)

    def batch(self):
        """Return a copy of the current batch."""
        return PyBytes_FromStringAndSize(<const char *>self.data(), self.size_bytes)

    def crc_is_right(self):
        return self.stated_crc() == self.computed_crc()

    cdef const uint8_t *need(self, int64_t position, Py_ssize_t size) except NULL:
        """Return `size` bytes of the file, beginning at `position`. All of them must be before `end`."""
        if position < self.window_start or self.window_start + self.window_bytes - position < size:
            self.refill(position, size)
        return self.window + (position - self.window_start)

    cdef int refill(self, int64_t position, Py_ssize_t size) except -1:
        """Move the start of the window to `position`, and fill the window. Bytes that the window already has after
        `position` are kept."""
        cdef int64_t held_end = self.window_start + self.window_bytes
        cdef Py_ssize_t kept = held_end - position if self.window_start <= position < held_end else 0
        cdef Py_ssize_t wanted, done
        cdef void *wider
        if kept > 0:
            memmove(self.window, self.window + (position - self.window_start), kept)
        self.window_start = position
        self.window_bytes = kept
        if self.capacity < size or self.capacity == 0:
            wanted = min(max(size, <Py_ssize_t>WINDOW_BYTES), max(self.end - position, size))
            wider = realloc(self.window, wanted)
            if wider == NULL:
                raise MemoryError()
            self.window = <uint8_t *>wider
            self.capacity = wanted
        while self.window_bytes < size:
            wanted = min(self.capacity - self.window_bytes, self.end - position - self.window_bytes)
            with nogil:
                done = pread(self.fd, self.window + self.window_bytes, wanted, position + self.window_bytes)
            if done < 0:
                if errno != EINTR:
                    PyErr_SetFromErrnoWithFilenameObject(OSError, self.path)
            elif done == 0:
                raise CorruptLogError(f'{self.path}: it was cut to {position + self.window_bytes} bytes while it was '
                                      f'read')
            else:
                self.window_bytes += done
                self.bytes_read += done
            PyErr_CheckSignals()
        return 0
