# cython: language_level=3
from libc.stdint cimport int16_t, int32_t

from kbroker.apis.request cimport Request


cdef list write_response(Request request, int16_t error_code, int32_t session_id, list news)
