"""The table of the functions that apply rows to groups. `coordinator` fills it in, because it knows every kind of
group."""
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from kbroker.group.group import Group
from kbroker.protocol.messages import GroupMetadataKey

Result = TypeVar('Result')
Steps = Generator[Any, None, Result]
"""Work in small parts, for `LongWork`."""

Row = tuple[Any, Any]
"""The key of a row and its value, as messages. The value is None in a tombstone."""

ApplyRow = Callable[[Group | None, Any, Any], Group | None]
"""Applies a row to the group of its key, which is None if there is no such group.

Returns a new group, or the same group with the change; None if the row ends the group.
"""


class Kinds:
    """The kinds of groups. `new_group` makes a group that only has offsets from its id.

    `appliers` has the function for each type of row, by the name of the key's class.
    """

    def __init__(self, new_group: Callable[[str], Group], appliers: Mapping[str, ApplyRow]):
        self.new_group = new_group
        self._appliers = appliers

    def apply_row(self, group: Group | None, key: Any, value: Any) -> Group | None:
        """Apply a row, which may be a tombstone, to the group of its key. Return the group, or None, as an `ApplyRow`
        does.

        A group that only has offsets may become a group of any kind. Rows of an unknown type change nothing. Raises
        CorruptLogError if the group is of another kind than the row.
        """
        apply = self._appliers.get(type(key).__name__)
        return group if apply is None else apply(group, key, value)


def group_id_of(key: Any) -> str:
    """Return the id of the group to which a row with this key belongs."""
    found: str = key.group if type(key) is GroupMetadataKey else key.group_id
    return found
