"""The interface of a format of values."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

from kbroker_tools.registry.errors import RegistryError

if TYPE_CHECKING:
    import pyarrow as pa

Read = Callable[[bytes, int], Any]
"""A function that returns the value in bytes from a position on, as Arrow needs it: a dict for a struct. It raises any
exception for damaged bytes, because the libraries of the formats do."""


class Undecodable(Exception):
    """A value, or all values of a schema, do not match the reader's schema."""


class Format(Protocol):
    """The reader's schema in one format. What makes one raises RegistryError if the schema is wrong."""

    kind: str
    has_indexes: bool
    """True if message indexes follow the id of a schema."""
    type: pa.StructType
    """The type of the column."""
    text: str
    """The reader's schema without references to other schemas."""

    def __init__(self, text: str): ...

    @classmethod
    def from_option(cls, schema: str) -> Self:
        """Return the schema that --value-schema has. Raise OSError if its file cannot be read."""

    @classmethod
    def from_registry(cls, text: str, references: Mapping[str, str], message: str | None) -> Self:
        """Return the schema that a registry has. `message` names a message of a Protobuf file."""

    def own_values(self) -> Read:
        """Return a function that reads values which no registry describes."""

    def values_of(self, text: str, references: Mapping[str, str], indexes: tuple[int, ...]) -> Read:
        """Return a function that reads values of a writer's schema. `references` has the texts of the schemas that it
        uses, by name, each after those that it uses itself. Raise Undecodable if the schemas do not fit."""


def refuse_message(message: str | None) -> None:
    """Raise RegistryError if a message is named for a format that has none."""
    if message is not None:
        raise RegistryError(f'found the name of a message, {message}, expected --value-format protobuf beside it')
