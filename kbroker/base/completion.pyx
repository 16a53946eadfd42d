"""Callbacks that receive the results of operations, and the points at which operations can be held."""
from libc.stdint cimport int64_t


cdef class Completion:
    """The caller's part of an operation that may finish later. A subclass continues its work in `complete`.

    The operation calls `complete` exactly once, possibly before the function that starts the operation returns. The
    operation passes an error to `complete`, and does not raise it.
    """

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        """Receive the result of an operation.

        - `error` is None or a KafkaError.
        - `part` is the number that the caller gave to the operation: one completion may wait for several operations.
        - `result` is the result of the operation, or None after an error or if the operation has no result.
        """
        raise NotImplementedError

    cdef bint is_overdue(self, int64_t monotonic_ms) noexcept:
        """Return whether the caller has waited too long.

        It then prefers the error REQUEST_TIMED_OUT to a later result.
        """
        return False


cdef class Steps:
    """The object that decides at each named point whether an operation goes on. A broker has it only if a test controls
    the broker; otherwise all packages have None instead.

    A step is one arrival of one operation at a point.
    """

    cpdef bint reach(self, str point, dict facts, proceed) except -1:
        """Return whether an operation that has reached `point` must stop there.

        If the result is True, the caller does nothing more. `proceed()` is called later if the operation may go on, but
        never before this method returns. `proceed` must then look up the state again, because it may have changed.
        `facts` describe the operation; the caller must not use the dict afterwards.
        """
        raise NotImplementedError

    cpdef connection_closed(self, int64_t connection_id):
        """Forget the requests and the replies of a closed connection."""

    cpdef close(self):
        """Let all operations go on, now and later, because the broker stops."""


cdef class Callback(Completion):
    """A completion for callers in Python. It calls `function(error, result)`."""

    def __init__(self, function):
        self.function = function

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        self.function(error, result)
        return 0

    cdef bint is_overdue(self, int64_t monotonic_ms) noexcept:
        return self.overdue_ms and monotonic_ms >= self.overdue_ms


def complete(Completion done not None, error, result):
    """Complete `done` from Python. `part` is 0."""
    done.complete(error, 0, result)
