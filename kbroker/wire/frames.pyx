"""Where the network meets those who serve frames, without an object on the way; neither room knows the other."""
from libc.stdint cimport int64_t, uint8_t


cdef class FrameServer:
    """Serves requests from their bytes. This one serves none."""

    cdef object serve(self, object connection, int64_t sequence, uint8_t *frame, Py_ssize_t frame_bytes, bint more_follow):
        """The answer as bytes; None if the connection has it, or gets it later; NotImplemented: nothing has happened,
        let somebody else serve it.

        `frame` may be written to. It stays until `settle`, which is called after one with `more_follow`: the next of this
        connection is there and most likely handed out next.
        """
        return NotImplemented

    cdef int settle(self) except -1:
        """No more frames of this connection for now: finish what was left for several of them to finish together."""
        return 0
