# cython: language_level=3
from libc.stdint cimport int16_t, int32_t

from kbroker.apis.fetch_sessions cimport WantedPartition


cdef list write_response(int version, int32_t correlation_id, int16_t error_code, int32_t session_id, list news)
