# cython: language_level=3
from libc.stdint cimport int16_t, int64_t


cdef bytearray encode_offsets(list keys, list offsets, int64_t now_ms, int64_t producer_id, int16_t producer_epoch)
