"""TLS under a connection: OpenSSL, through Python's `ssl`, between two buffers in memory.

OpenSSL gets whole records only. If it lacks bytes it raises an exception, which costs more than decrypting a small
record. So the received bytes are cut into records here, and an incomplete record waits for its end.
"""
import os
import ssl

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EPROTO
from libc.stdint cimport uint8_t

from kbroker.network.connection cimport Transport
from kbroker.network.replies cimport Outgoing

from kbroker.tls import load_key, set_versions, trust
from kbroker.tls_settings import bad_setting, take_inline_pem, take_store, take_tls_versions

CLIENT_AUTH = {'none': ssl.CERT_NONE, 'requested': ssl.CERT_OPTIONAL, 'required': ssl.CERT_REQUIRED}

cdef enum:
    RECORD_HEADER_BYTES = 5
    # RFC 5246 6.2.3 allows 2048 more, which no implementation uses.
    MAX_RECORD_BYTES = 16384 + 256 + RECORD_HEADER_BYTES
    RECEIVED_BYTES = 128 * 1024
    # The bytes that OpenSSL encrypts before the next send. Those that the socket does not take stay in memory.
    MAX_PLAIN_BYTES = 256 * 1024

# Shared by all transports: the loop is one thread, and no bytes stay here between calls.
cdef char received[RECEIVED_BYTES]


def server_context(settings):
    """Return the SSLContext of a listener. Remove the `ssl.` settings that it uses from `settings`, a dict of texts.

    Raises ConfigError, and OSError for a file that cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0         # they serve clients that come back often; Kafka's keep their connections
    set_versions(context, take_tls_versions(settings))
    key = take_store(settings, 'ssl.keystore', 'ssl.keystore.key')
    if key is None:
        raise bad_setting('ssl.keystore.location',
                          'found none, expected the key and certificate chain of an SSL listener')
    chain = take_inline_pem(settings, 'ssl.keystore.certificate.chain')
    load_key(context, key, key if chain is None else chain, settings.pop('ssl.key.password', None))
    trusted = take_store(settings, 'ssl.truststore', 'ssl.truststore.certificates')
    auth = settings.pop('ssl.client.auth', 'none')
    if auth != 'none':
        if trusted is None:
            raise bad_setting('ssl.truststore.location',
                              f'found none, expected certificates: ssl.client.auth is {auth}')
        context.verify_mode = CLIENT_AUTH[auth]
    if trusted is not None:
        trust(context, trusted)
    return context


cdef class TlsTransport(Transport):
    """A socket whose bytes are TLS records."""
    cdef object session
    cdef object incoming
    cdef object outgoing
    cdef bytes unfinished           # the beginning of a record
    cdef bytes unsent               # records that the socket did not take yet
    cdef Py_ssize_t unsent_from
    cdef bint established
    cdef bint has_ended             # the peer said that it sends no more

    def __init__(self, int fd, context):
        Transport.__init__(self, fd)
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.unfinished = self.unsent = b''

    cdef ssize_t receive(self, char *at, size_t room) noexcept nogil:
        with gil:
            try:
                return self.receive_records(at, room)
            except (ssl.SSLError, OSError) as error:
                self.failure = describe(error)
                self.flush()            # the alert that tells the peer why
                return -EPROTO

    cdef ssize_t send_pieces(self, Outgoing *out) noexcept nogil:
        with gil:
            try:
                return self.encrypt(out)
            except (ssl.SSLError, OSError) as error:
                self.failure = describe(error)
                return -EPROTO

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
        if not self.established and not self.shake_hands():
            return -EAGAIN
        taken = self.read(at, room)
        return taken if taken or self.has_ended else -EAGAIN

    cdef int take_in(self, ssize_t size) except -1:
        """Hand the whole records of what was received to OpenSSL, and keep what is left."""
        cdef bytes data = PyBytes_FromStringAndSize(received, size)
        cdef Py_ssize_t whole
        if self.unfinished:
            data = self.unfinished + data
        whole = whole_records(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.unfinished = data[whole:]
        if whole:
            self.incoming.write(data[:whole] if self.unfinished else data)
        return 0

    cdef bint shake_hands(self) except -1:
        """Go on with the handshake. Whether it is done."""
        if not self.incoming.pending:
            return False
        try:
            self.session.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        self.flush()
        return self.established

    cdef ssize_t read(self, char *at, size_t room) except -1:
        """Decrypt what is there, as far as there is room."""
        cdef size_t taken = 0
        cdef ssize_t size
        while taken < room and (self.incoming.pending or self.session.pending()):
            try:
                size = self.session.read(room - taken, PyMemoryView_FromMemory(at + taken, room - taken, PyBUF_WRITE))
            except ssl.SSLWantReadError:        # a record without data, as that of a new key
                continue
            except ssl.SSLZeroReturnError:
                size = 0
            if size == 0:
                self.has_ended = True
                break
            taken += size
        self.has_more = self.has_ended or self.incoming.pending or self.session.pending()
        if self.outgoing.pending:
            self.flush()
        return taken

    cdef ssize_t encrypt(self, Outgoing *out) except? -1:
        """Send the pieces as far as the socket takes the records."""
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

    cdef int flush(self) except -1:
        """Send records as far as the socket takes them. `owes` says whether some are left."""
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
        return 0


cdef Py_ssize_t whole_records(const uint8_t *data, Py_ssize_t size) noexcept:
    """How many bytes at the beginning of `data` are whole records; all of it if it is none, for OpenSSL to refuse."""
    cdef Py_ssize_t at = 0, record
    while size - at >= RECORD_HEADER_BYTES:
        record = RECORD_HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
        if data[at + 1] != 3 or record > MAX_RECORD_BYTES:
            return size
        if record > size - at:
            break
        at += record
    return at


cdef str describe(error):
    """Return the error in words: OpenSSL's reason, or the text of a socket error."""
    if isinstance(error, ssl.SSLError):
        return f'TLS: {(error.reason or str(error)).replace("_", " ").lower()}'
    return error.strerror or str(error)
