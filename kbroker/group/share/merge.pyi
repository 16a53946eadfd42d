"""Types of merge.pyx; see merge.pyx for the documentation."""
from collections.abc import Sequence

_Batch = tuple[int, int, int, int]

def merge_batches(old: tuple[_Batch, ...], new: Sequence[_Batch], start_offset: int) -> tuple[_Batch, ...]: ...
def encode_batches(batches: Sequence[_Batch], delivery_complete_count: int) -> bytes: ...
