# cython: language_level=3
"""The check of the framings that a producer may choose for a compressed block."""
from libc.stdint cimport uint8_t


cdef int check_framing(int codec, const uint8_t *block, Py_ssize_t size_bytes) except -1
