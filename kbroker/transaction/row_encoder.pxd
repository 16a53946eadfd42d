# cython: language_level=3
from libc.stdint cimport uint8_t

from kbroker.transaction.state cimport TransactionRow


cdef list topics_of(TransactionRow row)
cdef Py_ssize_t value_room(list topics) except -1
cdef uint8_t *put_value(uint8_t *at, TransactionRow row, list topics, int version) except NULL
