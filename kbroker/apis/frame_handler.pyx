"""How an Api serves requests from their bytes."""


cdef class FrameHandler:
    """For the APIs whose messages would cost more than what they ask for.

    `may_follow_unwritten`: a request cannot tell whether what the connection asked before it is written yet.
    """

    cdef object serve(self, object broker, object connection, object client_id, const Frame *frame):
        """The answer as bytes, its header included; None if the connection has it, or gets it later; NotImplemented, and
        nothing has happened, for a version that the Api's `handle` serves.

        Raises ProtocolError for a body that does not parse; then nothing has happened.
        """
        raise NotImplementedError
