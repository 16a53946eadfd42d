# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.transaction.state cimport TransactionRow


cdef class RowBatch:
    cdef uint8_t *start
    cdef Py_ssize_t room
    cdef Py_ssize_t size            # of the batch so far, its header included
    cdef Py_ssize_t last            # where the row begins that was added last
    cdef int32_t count              # of rows

    cdef int add(self, bytes key, TransactionRow row, int version) except -1
    cdef int make_room(self, Py_ssize_t more) except -1
    cdef int seal(self, int64_t now_ms) except -1
    cdef void drop_last(self) noexcept
    cdef void clear(self) noexcept
