"""Which partition of an internal topic a group or a transactional.id belongs to."""
from libc.stdint cimport uint32_t


def partition_for(str key not None, uint32_t partitions):
    """The partition, 0 to `partitions` - 1, of a group id or transactional.id.

    Kafka's rule: Java's string hash (31 * hash + UTF-16 unit, in 32 bits, signed), made non-negative, modulo the
    number of partitions. The absolute value of the smallest int counts as 0.
    """
    cdef uint32_t code_point, value = 0
    for code_point in key:
        if code_point > 0xFFFF:
            value = 31 * value + 0xD7C0 + (code_point >> 10)
            code_point = 0xDC00 + (code_point & 0x3FF)
        value = 31 * value + code_point
    if value == 0x80000000:
        return 0
    if value > 0x80000000:          # negative: its absolute value
        value = 0xFFFFFFFF - value + 1
    return value % partitions
