"""CRC-32C (Castagnoli), the checksum of record batches. The fastest implementation for the processor is in use."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t


cdef extern from 'crc32c_kernels.h' nogil:
    ctypedef uint32_t (*kb_crc32c_function)(uint32_t crc, const uint8_t *p, size_t n) noexcept

    ctypedef struct kb_crc32c_kernel:
        const char *name
        kb_crc32c_function function

    kb_crc32c_kernel *kb_crc32c_kernels
    int kb_crc32c_kernels_count
    kb_crc32c_function kb_crc32c_best
    void kb_crc32c_init() noexcept


kb_crc32c_init()

cdef enum:
    RELEASE_GIL_BYTES = 8192  # for less data, releasing the GIL costs more than it gains


cdef uint32_t crc32c_update(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil:
    return kb_crc32c_best(crc, p, n)


cdef uint32_t checksum(kb_crc32c_function function, data, uint32_t crc) except? 0xFFFFFFFF:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < RELEASE_GIL_BYTES:
            return function(crc, <const uint8_t *>view.buf, view.len)
        with nogil:
            crc = function(crc, <const uint8_t *>view.buf, view.len)
        return crc
    finally:
        PyBuffer_Release(&view)


def crc32c(data, uint32_t crc=0):
    """Return the CRC-32C of a contiguous buffer. `crc` is the CRC-32C of the preceding bytes."""
    return checksum(kb_crc32c_best, data, crc)


def implementations():
    """Return the names of all implementations for this processor, slowest first. `crc32c` uses the last one."""
    return [kb_crc32c_kernels[i].name.decode() for i in range(kb_crc32c_kernels_count)]


def crc32c_by(str implementation, data, uint32_t crc=0):
    """Return the result of `crc32c`, computed by the implementation with this name. Raise ValueError if this processor
    does not support it."""
    for i in range(kb_crc32c_kernels_count):
        if kb_crc32c_kernels[i].name.decode() == implementation:
            return checksum(kb_crc32c_kernels[i].function, data, crc)
    raise ValueError(f'found {implementation!r}, expected one of {implementations()}')
