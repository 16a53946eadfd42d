"""Types of batches.pyx; see batches.pyx for the documentation."""
from kbroker.topics.partition import Partition

def read_batches(partition: Partition, offset: int, max_bytes: int, upper_bound_offset: int, last_offset: int,
                 is_read_committed: bool) -> list[tuple[int, int, bool]]: ...
