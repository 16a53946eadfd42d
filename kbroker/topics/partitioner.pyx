"""The assignment of groups and transactional.ids to the partitions of internal topics."""
from libc.stdint cimport INT32_MIN, int32_t, uint32_t


cpdef uint32_t partition_for(str key, uint32_t partitions) except? 0xFFFFFFFF:
    """Return the partition for a group id or a transactional.id: a number from 0 to `partitions` - 1.

    This is Kafka's rule. It computes Java's string hash (31 * hash + UTF-16 unit, a signed number of 32 bits). Then it
    makes the hash non-negative, where the smallest int becomes 0, and takes it modulo the number of partitions.
    """
    cdef uint32_t code_point, value = 0
    cdef Py_UCS4 character
    for character in key:
        code_point = character
        if code_point > 0xFFFF:
            value = 31 * value + 0xD7C0 + (code_point >> 10)
            code_point = 0xDC00 + (code_point & 0x3FF)
        value = 31 * value + code_point
    if <int32_t>value == INT32_MIN:
        return 0
    if <int32_t>value < 0:
        value = -value
    return value % partitions
