"""Types of parts.pyx; the documentation stands there."""

MAX_PARTITIONS: int

class ProduceParts: ...
