"""Arrow columns of decoded values, and the differences between the types of two columns."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def to_column(rows: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Return the column of some values, and the numbers of the values that the type cannot have. They are null.

    Arrow converts all values at once, and fails for all if it fails for one. Then it converts each half, and so on, so
    a few bad values cost little.
    """
    import pyarrow as pa
    parts: list[pa.Array] = []
    unfit: list[int] = []
    _convert(rows, 0, kind, parts, unfit)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.nulls(0, kind), unfit


def _convert(rows: Sequence[Any], first: int, kind: pa.DataType, parts: list[pa.Array], unfit: list[int]) -> None:
    import pyarrow as pa
    try:
        found = pa.array(rows, kind)
        if isinstance(found, pa.ChunkedArray):
            parts.extend(found.chunks)
        else:
            parts.append(found)
        return
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError, ValueError, TypeError):
        # A bad value is among the rows.
        if len(rows) == 1:
            parts.append(pa.nulls(1, kind))
            unfit.append(first)
            return
    half = len(rows) // 2
    _convert(rows[:half], first, kind, parts, unfit)
    _convert(rows[half:], first + half, kind, parts, unfit)


def added_fields(old: pa.StructType, new: pa.StructType, path: str = '') -> list[str] | None:
    """Return the paths of the fields that `new` has and `old` lacks, such as `address.street`. Return None if `new`
    differs in another way."""
    import pyarrow as pa
    if any(new.get_field_index(each.name) < 0 for each in old):
        return None
    found: list[str] = []
    for each in new:
        at = old.get_field_index(each.name)
        before = None if at < 0 else old.field(at).type
        if before is None:
            found.append(path + each.name)
        elif pa.types.is_struct(before) and pa.types.is_struct(each.type):
            inner = added_fields(before, each.type, f'{path}{each.name}.')
            if inner is None:
                return None
            found += inner
        elif before != each.type:
            return None
    return found
