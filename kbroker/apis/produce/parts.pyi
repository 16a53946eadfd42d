"""Types of parts.pyx, which has the documentation."""

MAX_PARTITIONS: int

class ProduceParts: ...
