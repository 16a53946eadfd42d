"""The interface between `kbroker.network` and `kbroker.apis`. Neither of these packages imports the other."""
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t


cdef class KeptFrame:
    """A frame that its handler still needs after `end_loan`. While this object exists, the bytes of the frame count as
    held memory.

    `buffer` contains the frame at its unchanged address. `buffer` is None if the frame is in the buffer that all
    connections share: then the handler must copy the frame.
    """


cdef class FrameServer:
    """The base class of servers, which serve frames. A subclass in C overrides `serve`, and a subclass in Python
    overrides `handle`.

    Before `serve`, the caller sets `arrived_us` to the time at which the frame arrived, on the clock of `now_us`. With
    0, the server does not measure the times of the request.
    """

    cdef object serve(self, object connection, object session, int64_t sequence, uint8_t *frame,
                      Py_ssize_t frame_bytes, bint follows_unanswered):
        """Serve one request. If the reply is known when the call ends, return it as bytes or a list of segments.

        Otherwise return None, and call `connection.reply(sequence, segments)` during the call or later, or close the
        connection. `session` is what the server has stored as `connection.session`. `frame` may be written to and stays
        valid until `end_loan`. `follows_unanswered` is True if a previous request of the connection is not answered
        yet, but has called `let_next_pass`. `connection.keep_frame()` returns the KeptFrame of the frame that is being
        served, or None if the connection has closed.
        """
        view = PyMemoryView_FromMemory(<char *>frame, frame_bytes, PyBUF_WRITE)
        try:
            self.handle(connection, sequence, view)
        finally:
            view.release()
        return None

    def handle(self, connection, sequence, frame):
        """Serve one request, and answer with `connection.reply`. `frame` is a writable view, which is valid only during
        the call."""
        raise NotImplementedError(f'{type(self).__name__} serves no frames')

    cdef int write_deferred(self) except -1:
        """Write all appends that were deferred to the end of the tick."""
        return 0

    cdef int end_loan(self) except -1:
        """Stop using all served frames, because their buffer is about to be overwritten."""
        return 0
