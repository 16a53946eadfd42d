"""The topics that the members of a classic group of consumers subscribe to, read from their metadata."""
from libc.stdint cimport int64_t

from kbroker.group.classic.member cimport Member

from kbroker.group.records import topics_of_subscription

cdef enum:
    TOPICS_A_PART = 64          # the topics that are read between two yields

cdef object NOT_READ = object()


cdef class Subscriptions:
    """The topics of a group. They are not known until `read` has run, or if a member's metadata cannot be read."""

    def __init__(self):
        self._topics = NOT_READ

    cdef int forget(self) except -1:
        """Forget the topics, because the members have changed."""
        self._topics = NOT_READ
        self._version += 1
        return 0

    def read(self, list members not None, str protocol_name):
        """Read the topics in parts: a generator. Does nothing if they were read before.

        Without an assignor, or if the members change before the end, the topics are not known.
        """
        cdef int64_t version = self._version
        cdef Py_ssize_t read = 0
        cdef set topics = set()
        cdef Member member
        if self._topics is not NOT_READ:
            return
        self._topics = None
        if protocol_name is None:
            return
        try:
            for member in members:
                for topic in topics_of_subscription(member.metadata(protocol_name)):
                    topics.add(topic)
                    read += 1
                    if read % TOPICS_A_PART == 0:
                        yield
                        if self._version != version:
                            return
        except ValueError:
            return
        self._topics = topics

    cdef bint are_known(self) except -1:
        return self._topics is not None and self._topics is not NOT_READ

    cdef bint have(self, str topic) except -1:
        return topic in self._topics
