"""The interface of a format of values."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

Read = Callable[[bytes, int], Any]
"""A function that returns the value in bytes from a position on, as Arrow needs it: a dict for a struct. It raises any
exception for damaged bytes, because the libraries of the formats do."""


class Undecodable(Exception):
    """A value, or all values of a schema, do not match the reader's schema."""


class Format(Protocol):
    """The reader's schema in one format. The constructor raises RegistryError if the schema is wrong."""

    kind: str
    has_indexes: bool
    """True if message indexes follow the id of a schema."""
    type: pa.StructType
    """The type of the column."""
    text: str
    """The reader's schema without references to other schemas."""

    def own_values(self) -> Read:
        """Return a function that reads values which no registry describes."""

    def values_of(self, text: str, references: Mapping[str, str], indexes: tuple[int, ...]) -> Read:
        """Return a function that reads values of a writer's schema. `references` has the texts of the schemas that it
        uses, by name, each after those that it uses itself. Raise Undecodable if the schemas do not fit."""
