"""A buffered writer of text to a file descriptor, in C. Numbers and bytes go to one buffer. The buffer is written when
it is full. `Sink` also has the method `write` of a text file, so that text from Python code keeps its place among the
other output."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.unistd cimport write as write_to

cdef enum:
    BUFFER_BYTES = 256 * 1024
    REPLACEMENT_BYTES = 3


cdef class Sink:
    """A buffer for the output to a file descriptor. Every method that adds to the buffer may write it, and may then
    raise OSError or KeyboardInterrupt."""

    def __cinit__(self, int fd):
        self.fd = fd
        self.buffer = <char *>malloc(BUFFER_BYTES)
        if self.buffer == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.buffer)

    cdef char *room_for_line(self) except NULL:
        """Return a place in the buffer with room for LINE_BYTES bytes. The caller writes there, and passes the end of
        the written bytes to `end_at`."""
        if BUFFER_BYTES - self.used < LINE_BYTES:
            self.flush()
        return self.buffer + self.used

    cdef void end_at(self, const char *at) noexcept:
        self.used = at - self.buffer

    cpdef int end_line(self) except -1:
        """Add a line feed unless the output ends with one."""
        if self.used > 0 and self.buffer[self.used - 1] != b'\n':
            self.put_bytes(b'\n', 1)
        return 0

    cdef int put_bytes(self, const char *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t piece
        while size > 0:
            if self.used == BUFFER_BYTES:
                self.flush()
            piece = min(size, BUFFER_BYTES - self.used)
            memcpy(self.buffer + self.used, data, piece)
            self.used += piece
            data += piece
            size -= piece
        return 0

    cdef int put_text(self, const uint8_t *data, Py_ssize_t size) except -1:
        """Add text. Bytes that are not UTF-8 become U+FFFD. As in Java's decoder, a group of invalid bytes becomes one
        U+FFFD."""
        cdef const uint8_t *end = data + size
        cdef const uint8_t *start = data
        cdef int length
        while data < end:
            data = after_ascii(data, end)
            if data == end:
                break
            length = utf8_length(data, end)
            if length < 0:
                self.put_bytes(<const char *>start, data - start)
                self.put_bytes(b'\xef\xbf\xbd', REPLACEMENT_BYTES)
                start = data - length
                data = start
            else:
                data += length
        return self.put_bytes(<const char *>start, end - start)

    def write(self, str text not None):
        """Add text. A surrogate escape, which comes from a file name that is not UTF-8, becomes the original byte."""
        cdef bytes data = text.encode('utf-8', 'surrogateescape')
        self.put_bytes(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cpdef int flush(self) except -1:
        """Write all bytes of the buffer. If the write fails, the bytes that were not written are discarded."""
        cdef char *data = self.buffer
        cdef Py_ssize_t left = self.used
        cdef Py_ssize_t done
        self.used = 0
        while left > 0:
            with nogil:
                done = write_to(self.fd, data, left)
            if done < 0:
                if errno != EINTR:
                    PyErr_SetFromErrno(OSError)
                PyErr_CheckSignals()
                continue
            data += done
            left -= done
            self.written_bytes += done
        PyErr_CheckSignals()
        return 0


cdef inline const uint8_t *after_ascii(const uint8_t *data, const uint8_t *end) noexcept:
    cdef uint64_t eight
    while end - data >= 8:
        memcpy(&eight, data, 8)
        if eight & <uint64_t>0x8080808080808080:
            break
        data += 8
    while data < end and data[0] < 0x80:
        data += 1
    return data


cdef inline bint continues(const uint8_t *at, const uint8_t *end) noexcept:
    return at < end and (at[0] & 0xc0) == 0x80


cdef int utf8_length(const uint8_t *at, const uint8_t *end) noexcept:
    """Return the length in bytes of the non-ASCII character at `at`. For invalid bytes, return the negative number of
    bytes that one U+FFFD replaces.

    These invalid bytes are the longest valid beginning of a character, or the three bytes of a surrogate.
    """
    cdef uint8_t first = at[0]
    if 0xc2 <= first <= 0xdf:
        return 2 if continues(at + 1, end) else -1
    if 0xe0 <= first <= 0xef:
        if not continues(at + 1, end) or (first == 0xe0 and at[1] < 0xa0):
            return -1
        if not continues(at + 2, end):
            return -2
        return -3 if first == 0xed and at[1] >= 0xa0 else 3
    if 0xf0 <= first <= 0xf4:
        if not continues(at + 1, end) or (first == 0xf0 and at[1] < 0x90) or (first == 0xf4 and at[1] >= 0x90):
            return -1
        if not continues(at + 2, end):
            return -2
        return 4 if continues(at + 3, end) else -3
    return -1
