"""How an Api serves requests from their bytes."""


cdef class FrameHandler:
    """For the APIs whose messages would cost more than what they ask for."""

    cdef object serve(self, object broker, object connection, object client_id, const Frame *frame):
        """The answer as bytes, its header included; None if the connection has it, or gets it later.

        Raises ProtocolError for a body that does not parse; then nothing has happened.
        """
        raise NotImplementedError

    cdef int settle(self) except -1:
        """Called after a frame with `more_follow`, before anything but this handler looks at what it did."""
        return 0
