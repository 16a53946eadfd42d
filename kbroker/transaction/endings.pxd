# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.transaction.state cimport TransactionRow


cpdef decide_without_bump(int state, bint committed)
cpdef decide_with_bump(int state, int claim, bint committed)
cpdef bint is_overflow_retry(TransactionRow current, int64_t producer_id, int16_t producer_epoch) noexcept
cdef int claimed(TransactionRow current, int64_t producer_id, int16_t producer_epoch) noexcept
