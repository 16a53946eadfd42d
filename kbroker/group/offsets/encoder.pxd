# cython: language_level=3
from libc.stdint cimport int16_t, int64_t, uint8_t


cdef bytearray encode_offsets(list keys, list offsets, int64_t now_ms, int64_t producer_id, int16_t producer_epoch)

cdef struct Text:
    const char *start
    Py_ssize_t size


cdef Text text_of(str value) except *
cdef uint8_t *put_text(uint8_t *at, Text text) noexcept
