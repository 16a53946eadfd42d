# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.security.access cimport Access


cpdef enum LoginState:
    UNIDENTIFIED
    UNKNOWN
    INTRODUCED
    TOKENS
    BARE_TOKENS
    LOGGED_IN
    RENEWING
    RENEWING_BARE
    FAILED


cdef class Session:
    cdef readonly object principal      # Principal
    cdef readonly Access access         # None: everything is allowed
    cdef readonly LoginState state
    cdef readonly int64_t expires_ms    # the time of the monotonic clock at which the login expires
    cdef readonly bint is_guarded       # frames pass the guard, as no login is complete or it expires
    cdef public object mechanism        # the mechanism by which the client logged in, or None
    cdef public object attempt          # the login in progress, or None
    cdef public int64_t renewed_ms      # when the last re-authentication began, on the monotonic clock
