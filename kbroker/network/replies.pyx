"""Replies in, bytes out: in the order of the requests, whatever the order in which they were answered.

A reply is a list of segments. A segment is bytes-like, or a slice of a file: an object with `size_bytes`, `position`
and `file`, as `kbroker.log.log.LogSlice` is. Slices are read when their turn comes, into the one send buffer that all
connections share, and what a socket did not take is read again later: however slow a peer is, no bytes of a file wait
for it in memory.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker.log.fs cimport File
from kbroker.wire.bytes cimport write_int32


cdef enum:
    PREFIX_BYTES = 4


cdef class ReplyQueue:
    """What one connection owes and what it has ready. Knows no socket."""

    def __cinit__(self):
        self.early = {}
        self.segments = []

    cdef int64_t take_sequence(self) noexcept:
        """Number the request that is handed out now."""
        self.unanswered += 1
        return self.next_reply + self.unanswered - 1

    cpdef put(self, int64_t sequence, list segments):
        """Answer a request; None for one that gets no answer.

        Raises ValueError if the request was never handed out or has been answered, or the reply exceeds 2 GiB.
        """
        if not self.next_reply <= sequence < self.next_reply + self.unanswered or sequence in self.early:
            raise ValueError(f'reply to request {sequence}: expected one of {self.next_reply} to '
                             f'{self.next_reply + self.unanswered - 1} that is not answered yet')
        framed = None if segments is None else self.frame(segments)
        if sequence != self.next_reply:
            self.early[sequence] = framed
            return
        self.release(framed)
        while self.early and self.next_reply in self.early:
            self.release(self.early.pop(self.next_reply))

    cdef list frame(self, list segments):
        """Put the size prefix before a reply."""
        cdef int64_t size = 0
        cdef uint8_t prefix[PREFIX_BYTES]
        for segment in segments:
            size += segment_size(segment)
        if size > INT32_MAX:
            raise ValueError(f'reply of {size} bytes: a frame holds at most {INT32_MAX}')
        write_int32(prefix, <int32_t>size)
        self.queued_bytes += PREFIX_BYTES + size
        return [PyBytes_FromStringAndSize(<char *>prefix, PREFIX_BYTES), *segments]

    cdef int release(self, list segments) except -1:
        self.next_reply += 1
        self.unanswered -= 1
        if segments is not None:
            self.segments += segments
        return 0

    cdef Py_ssize_t stage(self, char *at, Py_ssize_t room) except -1:
        """Copy the next bytes to send to `at`, at most `room`; returns how many. Raises OSError of a file."""
        cdef Py_ssize_t staged = 0, skip = self.head_sent, size
        for segment in self.segments:
            if staged == room:
                break
            size = min(segment_size(segment) - skip, room - staged)
            copy_segment(segment, skip, at + staged, size)
            staged += size
            skip = 0
        return staged

    cdef int sent(self, Py_ssize_t size) except -1:
        """The first `size` bytes that are not sent are."""
        cdef Py_ssize_t done = 0, segment_bytes
        self.queued_bytes -= size
        size += self.head_sent
        for segment in self.segments:
            segment_bytes = segment_size(segment)
            if size < segment_bytes:
                break
            size -= segment_bytes
            done += 1
        self.head_sent = size
        if done == len(self.segments):
            self.segments.clear()
        elif done:
            del self.segments[:done]
        return 0


cdef inline Py_ssize_t segment_size(object segment) except -1:
    if PyBytes_CheckExact(segment):
        return PyBytes_GET_SIZE(segment)
    if PyObject_CheckBuffer(segment):
        return memoryview(segment).nbytes
    return segment.size_bytes


cdef int copy_segment(object segment, Py_ssize_t skip, char *at, Py_ssize_t size) except -1:
    cdef Py_buffer view
    if PyBytes_CheckExact(segment):
        memcpy(at, PyBytes_AS_STRING(segment) + skip, size)
        return 0
    if not PyObject_CheckBuffer(segment):
        return read_slice(segment, skip, at, size)
    PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
    memcpy(at, <char *>view.buf + skip, size)
    PyBuffer_Release(&view)
    return 0


cdef int read_slice(object segment, Py_ssize_t skip, char *at, Py_ssize_t size) except -1:
    cdef File file = segment.file
    cdef int64_t position = <int64_t>segment.position + skip
    cdef int64_t found = file.pread(<uint8_t *>at, size, position)
    if found != size:
        raise OSError(f'{file.path}: found {found} bytes at {position}, expected {size}')
    return 0
