# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.record.batch cimport BatchFields

cdef enum:
    # As the connection of a request: the request is never late. As the newest connection: no request was executed yet.
    ANY_CONNECTION = 0
    # After this many refusals in a row, requests on the older connection are executed again. Otherwise a client that
    # keeps using the older connection would be refused forever.
    MOST_REFUSALS = 8


cdef struct NewestConnection:
    int64_t connection_id
    int refusals            # the number of late requests refused since the last execution


cdef struct LateRefusal:
    int64_t newest_id       # the newest connection when a late request was refused; ANY_CONNECTION: not late
    int number              # the number of the refusal, from 1; refusal MOST_REFUSALS is the last


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
    """Count the refusal of a late request. After MOST_REFUSALS, forget the newest connection."""
    cdef LateRefusal refusal
    newest.refusals += 1
    refusal.newest_id, refusal.number = newest.connection_id, newest.refusals
    if newest.refusals == MOST_REFUSALS:
        forget_connection(newest)
    return refusal


cdef int refuse_late_batch(NewestConnection *newest, const BatchFields *batch, int64_t connection_id,
                           LateRefusal *refusal) except -1
