"""The table of the functions that apply rows to groups. The module `coordinator` fills the table, because it knows
every kind of group."""
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from kbroker.group.group import Group
from kbroker.protocol.messages import GroupMetadataKey

Result = TypeVar('Result')
Steps = Generator[Any, None, Result]
"""The type of work that is done in parts, for `LongWork`: a generator that yields after each part."""

Row = tuple[Any, Any]
"""A row: its key and its value as message objects. The value of a tombstone is None."""

ApplyRow = Callable[[Group | None, Any, Any], Group | None]
"""A function that applies a row. The arguments are the group of the row's key (None if it does not exist), the key and
the value.

The function returns a new group or the changed group, or None if the row ends the group.
"""


class Kinds:
    """The kinds of groups. `new_group` takes a group id, and makes a group that only has offsets.

    `appliers` maps the class name of a row's key to the function that applies the row.
    """

    def __init__(self, new_group: Callable[[str], Group], appliers: Mapping[str, ApplyRow]):
        self.new_group = new_group
        self._appliers = appliers

    def apply_row(self, group: Group | None, key: Any, value: Any) -> Group | None:
        """Apply a row, which may be a tombstone, to the group of its key. Return the new or changed group, or None if
        the row ends the group.

        A row of any kind replaces a group that only has offsets. Rows of an unknown type change nothing. Raise
        CorruptLogError if the group and the row belong to different kinds.
        """
        apply = self._appliers.get(type(key).__name__)
        return group if apply is None else apply(group, key, value)


def group_id_of(key: Any) -> str:
    """Return the id of the group to which a row with this key belongs."""
    found: str = key.group if type(key) is GroupMetadataKey else key.group_id
    return found
