"""TLS for a connection: OpenSSL, through Python's `ssl`, between two buffers in memory.

OpenSSL gets only whole records. For an incomplete record it would raise an exception, which takes longer than
decrypting a small record. So this module cuts the received bytes into records, and keeps an incomplete record until the
rest of it arrives.

A record need not carry data. It may contain a new key, which takes 20 microseconds or more, or ask for an answer from
OpenSSL. So OpenSSL gets a few records at a time, and a turn ends after RECEIVE_US. While the peer does not receive
these answers, the broker does not read further records of the peer.
"""
import os
import ssl

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EPROTO
from libc.stdint cimport int64_t, uint8_t

from kbroker.base.clock cimport now_us
from kbroker.network.replies cimport Outgoing
from kbroker.network.transport cimport Transport


cdef enum:
    RECORD_HEADER_BYTES = 5
    # RFC 5246, section 6.2.3, allows records that are 1792 bytes longer. No implementation uses them.
    MAX_RECORD_BYTES = 16384 + 256 + RECORD_HEADER_BYTES
    RECEIVED_BYTES = 128 * 1024
    # The most bytes that OpenSSL encrypts before the next send. Encrypted bytes that the socket does not accept stay in
    # memory.
    MAX_PLAIN_BYTES = 256 * 1024
    RECORDS_AT_ONCE = 8
    # The time in microseconds after which a turn reads no more records.
    RECEIVE_US = 1000
    # The most bytes of OpenSSL's answers, for example to new keys, that may be unsent while the broker reads records.
    MAX_ANSWER_BYTES = 4096

# All transports share this buffer: the loop runs in one thread, and no bytes remain in the buffer between calls.
cdef char received[RECEIVED_BYTES]


cdef class TlsTransport(Transport):
    """A transport whose socket carries TLS records."""
    cdef object context
    cdef object session             # None until the peer has sent bytes
    cdef object incoming
    cdef object outgoing
    cdef bytes records              # what was received
    cdef Py_ssize_t fed             # the part of the received bytes that OpenSSL has
    cdef Py_ssize_t whole           # the part of the received bytes that is whole records
    cdef bytes unsent               # records that the socket has not accepted yet
    cdef Py_ssize_t unsent_from
    cdef bint has_ended             # whether the peer announced that it sends no more

    def __init__(self, int fd, context):
        Transport.__init__(self, fd)
        self.context = context
        self.records = self.unsent = b''
        self.shakes_hands = True

    cdef ssize_t receive(self, char *at, size_t room) noexcept nogil:
        with gil:
            try:
                return self.receive_records(at, room)
            except ssl.SSLError as error:
                self.failure = describe_handshake(error) if self.shakes_hands else describe(error)
                self.send_alert()
                return -EPROTO
            except OSError as error:
                return -error.errno

    cdef ssize_t send_pieces(self, Outgoing *out) noexcept nogil:
        with gil:
            try:
                return self.encrypt(out)
            except ssl.SSLError as error:
                self.failure = describe(error)
                return -EPROTO
            except OSError as error:
                return -error.errno

    cdef object peer_certificate(self):
        return None if self.session is None or self.shakes_hands else self.session.getpeercert(True)

    cdef ssize_t receive_records(self, char *at, size_t room) except? -1:
        cdef ssize_t size, taken
        if self.has_ended:
            return 0
        if not self.has_more:
            with nogil:
                size = Transport.receive(self, received, RECEIVED_BYTES)
            if size <= 0:
                return size
            self.take_in(size)
        if self.shakes_hands and not self.finish_handshake():
            return -EAGAIN
        taken = self.read(at, room)
        return taken if taken or self.has_ended else -EAGAIN

    cdef int take_in(self, ssize_t size) except -1:
        """Append the received bytes to the records that OpenSSL has not read yet."""
        cdef bytes data = PyBytes_FromStringAndSize(received, size)
        if self.session is None:
            self.incoming = ssl.MemoryBIO()
            self.outgoing = ssl.MemoryBIO()
            self.session = self.context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        if self.fed < PyBytes_GET_SIZE(self.records):
            data = self.records[self.fed:] + data
        self.records = data
        self.fed = 0
        self.whole = whole_records(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return 0

    cdef int feed(self) except -1:
        """Pass the next whole records to OpenSSL, at most RECORDS_AT_ONCE."""
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(self.records)
        cdef Py_ssize_t end = self.fed
        cdef int count = 0
        while end < self.whole and count < RECORDS_AT_ONCE:
            end += record_size(data + end)
            count += 1
        end = min(end, self.whole)
        self.incoming.write(memoryview(self.records)[self.fed:end])
        self.fed = end
        if end == PyBytes_GET_SIZE(self.records):
            self.records = b''
            self.fed = self.whole = 0
        return 0

    cdef bint finish_handshake(self) except -1:
        """Continue the handshake with the records that have arrived. Return whether the handshake is done."""
        cdef int64_t end_us = now_us() + RECEIVE_US
        while self.fed < self.whole and not self.is_clogged:
            self.feed()
            try:
                self.session.do_handshake()
                self.shakes_hands = False
                self.context = None
            except ssl.SSLWantReadError:
                pass
            self.flush()
            if not self.shakes_hands:
                return True
            if now_us() >= end_us:
                break
        self.has_more = self.fed < self.whole
        return False

    cdef ssize_t read(self, char *at, size_t room) except -1:
        """Decrypt the pending records to `at`, until `room` bytes are written or RECEIVE_US are over.

        Return the number of bytes written.
        """
        cdef size_t taken = 0
        cdef ssize_t size
        cdef int64_t end_us = 0
        while taken < room:
            if not self.incoming.pending and not self.session.pending():
                if self.fed == self.whole:
                    break
                if self.outgoing.pending:
                    self.flush()
                if self.is_clogged or end_us and now_us() >= end_us:
                    break
                if end_us == 0:
                    end_us = now_us() + RECEIVE_US
                self.feed()
            try:
                size = self.session.read(room - taken, PyMemoryView_FromMemory(at + taken, room - taken, PyBUF_WRITE))
            except ssl.SSLWantReadError:        # a record without data, for example a new key
                continue
            except ssl.SSLZeroReturnError:
                size = 0
            if size == 0:
                self.has_ended = True
                break
            taken += size
        self.has_more = (self.has_ended or self.fed < self.whole or self.incoming.pending > 0
                         or self.session.pending() > 0)
        if self.outgoing.pending:
            self.flush()
        return taken

    cdef ssize_t encrypt(self, Outgoing *out) except? -1:
        """Encrypt and send the pieces until the socket accepts no more. Return the number of bytes encrypted."""
        cdef ssize_t taken = 0
        cdef size_t done, size
        cdef int i
        self.flush()
        if self.owes:
            return -EAGAIN
        for i in range(out.count):
            done = 0
            while done < out.pieces[i].iov_len:
                if self.owes:
                    return taken
                size = min(out.pieces[i].iov_len - done, <size_t>MAX_PLAIN_BYTES)
                self.send_records(<char *>out.pieces[i].iov_base + done, size)
                done += size
                taken += size
        return taken

    cdef int send_records(self, char *at, size_t size) except -1:
        cdef size_t done = 0
        while done < size:
            done += <size_t>self.session.write(PyMemoryView_FromMemory(at + done, size - done, PyBUF_READ))
        return self.flush()

    cdef int send_alert(self) except -1:
        """Send the peer an alert with the reason for closing the connection, if the socket accepts it."""
        try:
            self.flush()
        except OSError:
            pass
        return 0

    cdef int flush(self) except -1:
        """Send encrypted records until the socket accepts no more. Then `owes` says whether some are unsent."""
        cdef const char *at
        cdef ssize_t size
        cdef Py_ssize_t left
        if not self.unsent:
            self.unsent = self.outgoing.read()
        while self.unsent:
            left = PyBytes_GET_SIZE(self.unsent) - self.unsent_from
            at = PyBytes_AS_STRING(self.unsent) + self.unsent_from
            with nogil:
                size = Transport.send(self, at, left)
            if size < 0 and size != -EAGAIN:
                raise OSError(-size, os.strerror(-size))
            self.unsent_from += max(size, 0)
            if size < left:
                break
            self.unsent = self.outgoing.read()
            self.unsent_from = 0
        self.owes = len(self.unsent) > 0
        self.is_clogged = self.owes and self.outgoing.pending >= MAX_ANSWER_BYTES
        return 0


cdef inline Py_ssize_t record_size(const uint8_t *header) noexcept:
    return RECORD_HEADER_BYTES + (header[3] << 8 | header[4])


cdef Py_ssize_t whole_records(const uint8_t *data, Py_ssize_t size) noexcept:
    """Return how many bytes at the beginning of `data` are whole records.

    If `data` does not begin with TLS records, return `size`, so that OpenSSL rejects the bytes.
    """
    cdef Py_ssize_t at = 0, record
    while size - at >= RECORD_HEADER_BYTES:
        record = record_size(data + at)
        if data[at + 1] != 3 or record > MAX_RECORD_BYTES:
            return size
        if record > size - at:
            break
        at += record
    return at


cdef str describe_handshake(error):
    """Return why the handshake failed, in words."""
    from kbroker.security.tls_failures import why_the_client_failed  # needed only after an error

    return why_the_client_failed(error)


cdef str describe(error):
    """Return the error in words: OpenSSL's reason, or the text of a socket error."""
    if isinstance(error, ssl.SSLError):
        return f'TLS: {(error.reason or str(error)).replace("_", " ").lower()}'
    return error.strerror or str(error)
