# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.record.batch cimport BatchFields

cdef enum:
    # The connection of a request that is never late, and the newest connection before the first request.
    ANY_CONNECTION = 0
    # After this many refusals without an execution, requests on the older connection are executed again. Otherwise the
    # broker would refuse a client that does not give up that connection forever.
    MOST_REFUSALS = 8


cdef struct NewestConnection:
    int64_t connection_id
    int refusals            # since the last execution


cdef struct LateRefusal:
    int64_t newest_id       # of the connection for which a late request was refused; ANY_CONNECTION: it was not late
    int number              # of the refusal; the one with MOST_REFUSALS is the last


cdef inline bint is_late(const NewestConnection *newest, int64_t connection_id) noexcept:
    return connection_id != ANY_CONNECTION and connection_id < newest.connection_id


cdef inline int count_execution(NewestConnection *newest, int64_t connection_id) noexcept:
    if connection_id >= newest.connection_id:
        newest.connection_id = connection_id
    newest.refusals = 0
    return 0


cdef inline int forget_connection(NewestConnection *newest) noexcept:
    newest.connection_id = ANY_CONNECTION
    newest.refusals = 0
    return 0


cdef inline LateRefusal count_refusal(NewestConnection *newest) noexcept:
    """Count the refusal of a late request. After MOST_REFUSALS forget the connection."""
    cdef LateRefusal refusal
    newest.refusals += 1
    refusal.newest_id, refusal.number = newest.connection_id, newest.refusals
    if newest.refusals == MOST_REFUSALS:
        forget_connection(newest)
    return refusal


cdef int refuse_late_batch(NewestConnection *newest, const BatchFields *batch, int64_t connection_id,
                           LateRefusal *refusal) except -1
