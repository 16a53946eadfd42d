"""The table of the functions that apply rows to groups. `coordinator` fills it in: it knows every kind of group."""
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from kbroker.group.group import Group
from kbroker.protocol.messages import GroupMetadataKey

Result = TypeVar('Result')
Steps = Generator[Any, None, Result]
"""Work in small parts, as `LongWork` runs it."""

Row = tuple[Any, Any]
"""The key of a row and its value, None in a tombstone, as messages."""

ApplyRow = Callable[[Group | None, Any, Any], Group | None]
"""Applies a row to the group of its key, None if there is no such group.

Returns a new group, the same group with a change, or None if the row ends the group.
"""


class Kinds:
    """The kinds of groups. `new_group` makes a group that has only offsets, from its id.

    `appliers` has the function for each row, by the name of the class of its key.
    """

    def __init__(self, new_group: Callable[[str], Group], appliers: Mapping[str, ApplyRow]):
        self.new_group = new_group
        self._appliers = appliers

    def apply_row(self, group: Group | None, key: Any, value: Any) -> Group | None:
        """Apply a row, or a tombstone, to the group of its key. Return the group, as described at `ApplyRow`.

        A group that has only offsets may become any kind. Rows of an unknown kind change nothing. Raises
        CorruptLogError for a row of another kind of group than the one that exists.
        """
        apply = self._appliers.get(type(key).__name__)
        return group if apply is None else apply(group, key, value)


def group_id_of(key: Any) -> str:
    """Return the group that a row belongs to."""
    found: str = key.group if type(key) is GroupMetadataKey else key.group_id
    return found
