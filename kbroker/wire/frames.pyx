"""Where the network meets those who serve frames, without an object on the way; neither room knows the other."""
from libc.stdint cimport int64_t, uint8_t


cdef class FrameServer:
    """Serves requests from their bytes. This one serves none."""

    cdef object serve(self, object connection, int64_t sequence, uint8_t *frame, Py_ssize_t frame_bytes,
                      bint follows_unanswered):
        """The answer as bytes; None if the connection has it, or gets it later; NotImplemented: nothing has happened,
        let somebody else serve it.

        `frame` may be written to, and stays until `loan_ends`. `follows_unanswered`: an earlier request of this connection has
        no answer yet, but has let this one pass.
        """
        return NotImplemented

    cdef int settle(self) except -1:
        """Finish now what was left to be finished together at the end of the turn: somebody waits for an answer."""
        return 0

    cdef int loan_ends(self) except -1:
        """The frames that were served go away."""
        return 0
