"""Types of group_encoder.pyx; the documentation stands there."""
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.records import Row

def group_row(group: ClassicGroup, assignments: dict[str, bytes], max_bytes: int) -> Row: ...
