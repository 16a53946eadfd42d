# cython: language_level=3
from libc.stdint cimport int32_t

from kbroker.clock cimport Clock, Timers
from kbroker.transaction.state cimport TransactionRow


cdef class MarkerSender:
    cdef object topics
    cdef Clock clock
    cdef Timers timers
    cdef set sendings
    cdef dict found                 # Partition by (topic, partition), as far as asked for

    cdef int send(self, str transactional_id, TransactionRow prepared, int32_t coordinator_epoch, done) except -1
    cdef object partition(self, tuple topic_partition)
