"""The columns of a table, compared with those that a job writes.

Columns that others added stay, and are null in the job's rows. A column of the job that is missing, was renamed or has
another type is refused.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.ledger import IngestError

if TYPE_CHECKING:
    import pyarrow as pa


def plain(kind: Any) -> Any:
    """Return an Arrow type without the differences between libraries: large and small offsets, names of list
    elements, names of the time zone UTC, nullability and metadata."""
    import pyarrow as pa
    from pyarrow import types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, 'UTC')
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field('element', plain(kind.value_type)))
    return kind


def check_columns(table: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """Raise IngestError unless the table has every wanted column with its type. A struct of the table may have more
    fields."""
    for each in wanted:
        _check(table, each.name, found.field(each.name).type if each.name in found.names else None, each.type)


def _check(table: str, name: str, found: Any, wanted: Any) -> None:
    if found is None:
        raise IngestError(f'{table}: found no column {name}, expected it with type {plain(wanted)}: it was dropped or '
                          'renamed, or the table is not one of this job; --evolve add adds columns')
    members = _members(found, wanted)
    if members is None:
        if plain(found) != plain(wanted):
            raise IngestError(f'{table}: found column {name} with type {plain(found)}, expected {plain(wanted)}')
        return
    for member, inner_found, inner_wanted in members:
        _check(table, f'{name}.{member}', inner_found, inner_wanted)


def _members(found: Any, wanted: Any) -> list[tuple[str, Any, Any]] | None:
    """Return (name, found type, wanted type) of the parts of a nested type. Return None if it is not nested, or if the
    two are nested in different ways."""
    from pyarrow import types
    if types.is_struct(found) and types.is_struct(wanted):
        names = {each.name: each.type for each in found}
        return [(each.name, names.get(each.name), each.type) for each in wanted]
    if types.is_map(found) and types.is_map(wanted):
        return [('key', found.key_type, wanted.key_type), ('value', found.item_type, wanted.item_type)]
    if _is_list(found) and _is_list(wanted):
        return [('element', found.value_type, wanted.value_type)]
    return None


def _is_list(kind: Any) -> bool:
    from pyarrow import types
    return bool(types.is_list(kind) or types.is_large_list(kind))


def is_extended(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Return whether the wanted columns, or their structs, have a field that the table lacks."""
    return any(each.name not in found.names or _lacks(found.field(each.name).type, each.type) for each in wanted)


def _lacks(found: Any, wanted: Any) -> bool:
    return any(inner_found is None or _lacks(inner_found, inner_wanted)
               for _, inner_found, inner_wanted in _members(found, wanted) or ())
