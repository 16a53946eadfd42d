"""Avro values: the reader's schema, and functions that read values of a writer's schema."""
from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker_tools.registry.avro_logical import Mismatch
from kbroker_tools.registry.avro_pairs import pair
from kbroker_tools.registry.avro_schema import AvroSchema
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.formats import Read, Undecodable, refuse_message

if TYPE_CHECKING:
    import pyarrow as pa


class AvroFormat:
    """The reader's schema of Avro values, as a JSON text."""

    kind = 'avro'
    has_indexes = False

    def __init__(self, text: str, references: Mapping[str, str] | None = None):
        self._schema = AvroSchema(text, references)
        self.type: pa.StructType = self._schema.arrow_type()
        self.text = self._schema.text() if references else text

    @classmethod
    def from_option(cls, schema: str) -> AvroFormat:
        return cls(schema)

    @classmethod
    def from_registry(cls, text: str, references: Mapping[str, str], message: str | None) -> AvroFormat:
        refuse_message(message)
        return cls(text, references)

    def own_values(self) -> Read:
        """Return a function that reads values of the reader's schema itself."""
        return self._reading(self._schema)

    def values_of(self, text: str, references: Mapping[str, str], indexes: tuple[int, ...]) -> Read:
        """Return a function that reads values of a writer's schema. Raise Undecodable if the schemas do not fit."""
        try:
            return self._reading(AvroSchema(text, references))
        except RegistryError as error:
            raise Undecodable(str(error)) from None

    def _reading(self, writer: AvroSchema) -> Read:
        from fastavro import schemaless_reader
        try:
            written, wanted = pair(writer, self._schema)
        except Mismatch as error:
            raise Undecodable(str(error)) from None
        return _reading(schemaless_reader, written, None if wanted == written else wanted)


def _reading(read: Callable[..., Any], written: Any, wanted: Any) -> Read:
    def value_of(data: bytes, at: int) -> Any:
        stream = io.BytesIO(data)
        stream.seek(at)
        found = read(stream, written, wanted)
        if stream.tell() != len(data):
            raise Undecodable(f'found {len(data) - stream.tell()} bytes after the value')
        return found
    return value_of
