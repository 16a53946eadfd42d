"""Types of encoder.pyx; see encoder.pyx for the documentation."""
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.records import Row

def group_row(group: ClassicGroup, assignments: dict[str, bytes], max_bytes: int) -> Row: ...
