"""The seam between the network and the APIs: neither room imports the other."""
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t


cdef class KeptFrame:
    """A frame that its handler uses after `end_loan`. Its bytes count as held while this object exists.

    `buffer` contains the frame, whose address does not change. It is None for a frame in the buffer that all
    connections share: the handler must copy such a frame.
    """


cdef class FrameServer:
    """The server of frames. A subclass in C overrides `serve`, one in Python overrides `handle`."""

    cdef object serve(self, object connection, object session, int64_t sequence, uint8_t *frame,
                      Py_ssize_t frame_bytes, bint follows_unanswered):
        """Serve one request. Return its reply if there is one now: bytes, or a list of segments.

        Otherwise the server calls `connection.reply(sequence, segments)`, now or later, or closes the connection.
        `session` is what the server has stored as `connection.session`. `frame` may be written to and stays valid until
        `end_loan`. `follows_unanswered` is True if an earlier request of the connection is not answered yet, but has
        let this one pass. `connection.keep_frame()` returns the KeptFrame of the frame that is being served, or None if
        the connection has closed.
        """
        view = PyMemoryView_FromMemory(<char *>frame, frame_bytes, PyBUF_WRITE)
        try:
            self.handle(connection, sequence, view)
        finally:
            view.release()
        return None

    def handle(self, connection, sequence, frame):
        """Serve one request; `frame` is a writable view, valid during the call only."""
        raise NotImplementedError(f'{type(self).__name__} serves no frames')

    cdef int write_deferred(self) except -1:
        """Write the appends that were deferred to the end of the tick."""
        return 0

    cdef int end_loan(self) except -1:
        """Stop using the frames that were served: their buffer is about to be overwritten."""
        return 0
