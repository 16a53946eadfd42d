# cython: language_level=3
"""Checks the framing of a compressed block that a producer has sent."""
from libc.stdint cimport uint8_t


cdef int check_framing(int codec, const uint8_t *block, Py_ssize_t size_bytes) except -1
