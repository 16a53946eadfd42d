# cython: language_level=3
from kbroker.clock cimport Clock, Timers
from kbroker.transaction.state cimport TransactionRow
from kbroker.transaction.store cimport Step


cdef class MarkerSender:
    cdef object topics
    cdef Clock clock
    cdef Timers timers
    cdef set sendings
    cdef dict found                 # Partition by (topic, partition), as far as asked for

    cdef int send(self, Step ending, TransactionRow prepared) except -1
    cdef object partition(self, tuple topic_partition)
