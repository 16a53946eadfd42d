from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef uint32_t hash_of(const uint8_t *data, Py_ssize_t size) noexcept nogil


cdef inline int32_t partition_of(const uint8_t *key, Py_ssize_t size, int32_t partitions) noexcept nogil:
    """Return the partition, 0 to `partitions` - 1, that every Kafka client chooses for this key."""
    return <int32_t>((hash_of(key, size) & 0x7fffffff) % <uint32_t>partitions)


cdef class StickyPartitions:
    cdef Py_ssize_t batch_bytes
    cdef object random
    cdef int32_t current
    cdef object available               # the available partitions, which are known to include `current`
    cdef Py_ssize_t placed_bytes

    cpdef int32_t place(self, Py_ssize_t size_bytes, available) except -1
    cdef int32_t another(self, available) except -1
