# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.transaction.stale_requests cimport StaleRequests
from kbroker.transaction.state cimport TransactionMetadata, TransactionRow


cdef object judge_without_bump(TransactionMetadata metadata, int64_t producer_id, int16_t producer_epoch,
                               bint committed, StaleRequests stale_requests, object connection)
cdef object judge_with_bump(TransactionMetadata metadata, int64_t producer_id, int16_t producer_epoch, bint committed,
                            int transaction_version)
cpdef decide_without_bump(int state, bint committed)
cpdef decide_with_bump(int state, int claim, bint committed)
cpdef bint is_overflow_retry(TransactionRow current, int64_t producer_id, int16_t producer_epoch) noexcept
