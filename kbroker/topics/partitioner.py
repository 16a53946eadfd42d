"""Which partition of an internal topic a group or a transactional.id belongs to."""


def partition_for(key: str, partitions: int) -> int:
    """The partition, 0 to `partitions` - 1, of a group id or transactional.id.

    Kafka's rule: Java's string hash (31 * hash + UTF-16 unit, in 32 bits, signed), made non-negative, modulo the
    number of partitions. The absolute value of the smallest int counts as 0.
    """
    units = key.encode('utf-16-be', 'surrogatepass')
    unsigned = 0
    for position in range(0, len(units), 2):
        unsigned = (31 * unsigned + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    if unsigned == 0x80000000:
        return 0
    return min(unsigned, 0x100000000 - unsigned) % partitions
