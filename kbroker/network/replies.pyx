"""The queue of replies.

They are sent in the order of the requests, even if the requests were answered in another order.

A reply is a list of segments. A segment is a bytes-like object or a slice of a file: an object with `size_bytes`,
`position` and `file`, like LogSlice.

A slice is read just before it is sent, into the send buffer that all connections share. The bytes that the socket did
not accept are read again later. So no bytes of a file wait in memory, however slow a peer is. A slice that is not in
the page cache is read here only if the caller accepts a wait for the disk. Otherwise `next_slice` returns the slice to
read into the page cache first.

Small segments are copied to the send buffer, too, so that a whole reply is one piece. Long bytes objects are sent
without a copy.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker.log.fs.file cimport File
from kbroker.wire.bytes cimport write_int32


cdef enum:
    PREFIX_BYTES = 4
    # The kernel handles a separate piece of at least this size in less time than the broker would take to copy it.
    LONG_BYTES = 16 * 1024


cdef class Reply:
    """A reply that is not a single bytes object: several segments, or one segment of another type."""

    cdef bint stage(self, Outgoing *out, int64_t skip) except -1:
        """Add the bytes after the prefix to `out`, without the first `skip` of them.

        Return False if `out` does not have room for all of them.
        """
        cdef Py_ssize_t i
        cdef int64_t size
        skip -= self.passed
        for i in range(self.first, len(self.segments)):
            segment = self.segments[i]
            size = segment_size(segment)
            if skip < size and not stage_segment(out, segment, skip, size - skip):
                return False
            skip = max(0, skip - size)
        return True

    cdef tuple slice_after(self, int64_t skip):
        """Return (file, position, size) of the unsent rest of a slice, which begins `skip` bytes after the prefix."""
        cdef Py_ssize_t i
        cdef int64_t size
        skip -= self.passed
        for i in range(self.first, len(self.segments)):
            segment = self.segments[i]
            size = segment_size(segment)
            if skip < size:
                return segment.file, segment.position + skip, size - skip
            skip -= size
        raise IndexError(f'no segment at {skip} bytes behind the end')

    cdef int forget(self, int64_t sent) except -1:
        """Drop the segments that are completely sent: those within the first `sent` bytes after the prefix."""
        cdef int64_t size
        while self.first < len(self.segments):
            size = segment_size(self.segments[self.first])
            if self.passed + size > sent:
                break
            self.passed += size
            self.segments[self.first] = b''
            self.first += 1
        return 0


cdef class ReplyQueue:
    """The replies of one connection, in the order of its requests. Knows no socket."""

    def __cinit__(self):
        self.ready = []

    cdef int64_t take_sequence(self) noexcept:
        """Return the sequence number of the request that will be served next."""
        self.unanswered += 1
        return self.next_reply + self.unanswered - 1

    cdef bint is_answered(self, int64_t sequence) except -1:
        """Return whether the handler of a served request has given its reply."""
        return sequence < self.next_reply or (self.early is not None and sequence in self.early)

    cdef int put(self, int64_t sequence, object segments) except -1:
        """Answer a request with a list of segments or with bytes, or with None if the protocol gives it no reply.

        Raise ValueError if `take_sequence` never returned `sequence`, if the request has its reply, or if the reply
        exceeds 2 GiB.
        """
        if sequence >= self.next_reply + self.unanswered or self.is_answered(sequence):
            raise ValueError(f'reply to request {sequence}: expected one of {self.next_reply} to '
                             f'{self.next_reply + self.unanswered - 1} that is not answered yet')
        reply = None if segments is None else self.accept(segments)
        if sequence != self.next_reply:
            if self.early is None:
                self.early = {}
            self.early[sequence] = reply
            return 0
        self.release(reply)
        while self.early and self.next_reply in self.early:
            self.release(self.early.pop(self.next_reply))
        return 0

    cdef object accept(self, object segments):
        """Count the bytes of a reply, and return its entry for the queue.

        The entry is the bytes object if the reply is a single one, else a Reply.
        """
        cdef Reply reply
        cdef int64_t size
        only = segments
        if not PyBytes_CheckExact(only):
            only = (<list?>segments)[0] if len(segments) == 1 else None
        if PyBytes_CheckExact(only) and PyBytes_GET_SIZE(only) <= INT32_MAX:
            size = PyBytes_GET_SIZE(only)
            self.queued_bytes += PREFIX_BYTES + size
            self.memory_bytes += size
            return only
        reply = Reply.__new__(Reply)
        reply.segments = list(segments)
        for segment in segments:
            size = segment_size(segment)
            reply.size += size
            if PyObject_CheckBuffer(segment):
                reply.memory_bytes += size
        if reply.size > INT32_MAX:
            raise ValueError(f'reply of {reply.size} bytes: a frame holds at most {INT32_MAX}')
        self.queued_bytes += PREFIX_BYTES + reply.size
        self.memory_bytes += reply.memory_bytes
        return reply

    cdef int release(self, object reply) except -1:
        self.next_reply += 1
        self.unanswered -= 1
        if reply is not None:
            self.ready.append(reply)
            self.ready_bytes += PREFIX_BYTES + reply_size(reply)
        return 0

    cdef int stage(self, Outgoing *out, int waits) except -1:
        """Fill `out` with the bytes to send next, until it is full or a slice `is_cold` (not in the page cache).

        The first `waits` slices are read even if that means waiting for the disk. Raise OSError if a file cannot be
        read.
        """
        cdef int64_t skip = self.head_sent
        cdef int64_t size
        cdef char *at
        out.used = out.size = out.count = 0
        out.waits = waits
        out.is_cold = False
        for reply in self.ready:
            size = reply_size(reply)
            if skip < PREFIX_BYTES and not stage_prefix(out, size, skip):
                break
            skip = max(0, skip - PREFIX_BYTES)
            if not PyBytes_CheckExact(reply):
                if not (<Reply>reply).stage(out, skip):
                    break
            elif size <= LONG_BYTES and skip == 0 and (at := take_room(out, size)) != NULL:
                memcpy(at, PyBytes_AS_STRING(reply), size)
            elif not stage_segment(out, reply, skip, size - skip):
                break
            skip = 0
        return 0

    cdef tuple next_slice(self):
        """Return (file, position, size) of the cold slice at the front of the queue.

        Call this when all staged bytes are sent.
        """
        return (<Reply?>self.ready[0]).slice_after(max(0, self.head_sent - PREFIX_BYTES))

    cdef int sent(self, int64_t size) except -1:
        """Remove the first `size` unsent bytes from the queue, because the socket has accepted them."""
        cdef Py_ssize_t done = 0
        cdef int64_t reply_bytes
        self.queued_bytes -= size
        self.ready_bytes -= size
        if self.ready_bytes == 0 and not self.early:
            self.ready.clear()
            self.head_sent = self.memory_bytes = 0
            return 0
        size += self.head_sent
        for reply in self.ready:
            reply_bytes = PREFIX_BYTES + reply_size(reply)
            if size < reply_bytes:
                if size > PREFIX_BYTES and not PyBytes_CheckExact(reply):
                    (<Reply>reply).forget(size - PREFIX_BYTES)
                break
            size -= reply_bytes
            done += 1
            self.forget(reply)
        self.head_sent = size
        del self.ready[:done]
        return 0

    cdef int forget(self, object reply) except -1:
        if PyBytes_CheckExact(reply):
            self.memory_bytes -= PyBytes_GET_SIZE(reply)
        else:
            self.memory_bytes -= (<Reply>reply).memory_bytes
        return 0


cdef inline int64_t reply_size(object reply) except -1:
    return PyBytes_GET_SIZE(reply) if PyBytes_CheckExact(reply) else (<Reply>reply).size


cdef inline int64_t segment_size(object segment) except -1:
    if PyBytes_CheckExact(segment):
        return PyBytes_GET_SIZE(segment)
    if PyObject_CheckBuffer(segment):
        return memoryview(segment).nbytes
    return segment.size_bytes


cdef inline char *take_room(Outgoing *out, Py_ssize_t size) noexcept:
    """Add the next `size` bytes of the send buffer to the bytes to send.

    Return their address, or NULL if the buffer has no room for them.
    """
    cdef char *at = out.buffer + out.used
    cdef int last = out.count - 1
    if size > out.room - out.used or size > out.max_size - out.size:
        return NULL
    if last >= 0 and <char *>out.pieces[last].iov_base + out.pieces[last].iov_len == at:
        out.pieces[last].iov_len += size
    elif not add_piece(out, at, size):
        return NULL
    out.used += size
    out.size += size
    return at


cdef inline bint add_piece(Outgoing *out, char *at, size_t size) noexcept:
    if out.count == MAX_PIECES:
        return False
    out.pieces[out.count].iov_base = at
    out.pieces[out.count].iov_len = size
    out.count += 1
    return True


cdef inline void give_back(Outgoing *out, Py_ssize_t size) noexcept:
    """Remove the last `size` bytes that the last call of `take_room` added."""
    cdef int last = out.count - 1
    out.used -= size
    out.size -= size
    out.pieces[last].iov_len -= size
    if out.pieces[last].iov_len == 0:
        out.count = last


cdef bint stage_prefix(Outgoing *out, int64_t size, int64_t skip) noexcept:
    cdef uint8_t prefix[PREFIX_BYTES]
    cdef char *at = take_room(out, PREFIX_BYTES - skip)
    if at == NULL:
        return False
    write_int32(prefix, <int32_t>size)
    memcpy(at, prefix + skip, PREFIX_BYTES - skip)
    return True


cdef bint stage_segment(Outgoing *out, object segment, int64_t skip, int64_t size) except -1:
    """Add `size` bytes of the segment to `out`, without the first `skip` bytes of the segment.

    Return False if `out` does not have room for all of them, or if they are not in the page cache.
    """
    cdef Py_buffer view
    cdef char *at
    cdef int64_t part, found
    if PyBytes_CheckExact(segment) and size > LONG_BYTES:
        part = min(size, out.max_size - out.size)
        if part == 0 or not add_piece(out, PyBytes_AS_STRING(segment) + skip, part):
            return False
        out.size += part
        return part == size
    part = min(size, out.room - out.used, out.max_size - out.size)
    at = take_room(out, part) if part else NULL
    if at == NULL:
        return False
    if PyBytes_CheckExact(segment):
        memcpy(at, PyBytes_AS_STRING(segment) + skip, part)
    elif PyObject_CheckBuffer(segment):
        PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
        memcpy(at, <char *>view.buf + skip, part)
        PyBuffer_Release(&view)
    else:
        found = read_slice(out, segment, skip, at, part)
        if found < part:
            give_back(out, part - found)
            out.is_cold = True
            return False
    return part == size


cdef int64_t read_slice(Outgoing *out, object segment, int64_t skip, char *at, Py_ssize_t size) except -1:
    """Read `size` bytes of a slice, without its first `skip` bytes, to `at`. Return the number of bytes read.

    The number is less than `size` only if `out.waits` is 0 and the page cache does not have all bytes. Raise OSError if
    the file ends before the last byte.
    """
    cdef File file = segment.file
    cdef int64_t position = <int64_t>segment.position + skip
    cdef int64_t found
    if out.waits == 0:
        return file.pread_cached(<uint8_t *>at, size, position)
    out.waits -= 1
    found = file.pread(<uint8_t *>at, size, position)
    if found != size:
        raise OSError(f'{file.path}: found {found} bytes at {position}, expected {size}')
    return found
