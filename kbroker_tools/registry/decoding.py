"""Decoders: columns of bytes become columns of structs, by a plain schema or by the schemas of a registry.

A value that does not match the schema is null in the column `value`, and its bytes are in the column `value_undecoded`.
For all other values, `value_undecoded` is null. A failure of the registry raises RegistryUnavailable: such values may
be good.

The reader's schema decides the columns. It is the newest version of the topic's subject at the first run of a job. The
job records it and passes it to later runs.
"""
from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kbroker_tools.registry.avro import AvroFormat
from kbroker_tools.registry.client import RegistryClient, Schema
from kbroker_tools.registry.columns import added_fields, to_column
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.formats import Format, Read, Undecodable
from kbroker_tools.registry.framing import VALUE_HEADER, Frame, FramingError, read_header, read_prefix
from kbroker_tools.registry.json_values import JsonFormat
from kbroker_tools.registry.protobuf import ProtobufFormat
from kbroker_tools.registry.settings import RegistrySettings

if TYPE_CHECKING:
    import pyarrow as pa

REGISTRY = 'registry:'
MOST_READERS = 1000
"""The most writer's schemas for which a decoder keeps a function."""
FORMATS: dict[str, type[Format]] = {'avro': AvroFormat, 'json': JsonFormat, 'protobuf': ProtobufFormat}


class ValueDecoder(Protocol):
    """A decoder of values. It can be pickled: each task uses a copy. `decode` is not for several threads at once."""

    @property
    def type(self) -> pa.StructType:
        """The type of the column `value`."""

    @property
    def shape(self) -> list[str]:
        """The format and the text of the reader's schema. A job records it, and compares it between runs."""

    @property
    def needs_headers(self) -> bool:
        """True if the id of a value's schema may be in a header."""

    @property
    def added(self) -> list[str]:
        """The paths of the fields that this reader's schema has and the recorded one lacks, such as `address.street`.
        Empty if the recorded schema is in use."""

    def decode(self, values: pa.Array, headers: pa.Array | None) -> tuple[pa.Array, pa.Array]:
        """Return the decoded values, which are null where undecodable or null, and the column `value_undecoded`: the
        bytes where undecodable. `headers` is the column of the data source, or None."""


@dataclass(frozen=True)
class ValueSchema:
    """The format of values and its schema, as --value-format, --value-schema and --registry-config say.

    `schema` is DDL text of a struct (json), JSON text (avro), `DESCRIPTOR-FILE:package.Message` (protobuf), or
    `registry:[URL][#[SUBJECT][,MESSAGE]]`. SUBJECT replaces the subject `TOPIC-value`. MESSAGE is a message of a
    Protobuf schema that is not its first one.
    """

    kind: str
    schema: str = field(repr=False)     # a URL in it may have a password
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings in the file of --registry-config."""

    @property
    def uses_registry(self) -> bool:
        return self.schema.startswith(REGISTRY)

    def decoder(self, topics: Sequence[str], recorded: Sequence[str] | None = None,
                evolve: bool = False) -> ValueDecoder:
        """Return the decoder for values of these topics.

        `recorded` is the shape that an earlier run recorded. It stays in use. But if `evolve` is true, and the newest
        version of all subjects only adds fields, the newest version is used. Raise RegistryError if a setting or a
        schema is wrong, RegistryUnavailable if the registry fails, and OSError if a file cannot be read.
        """
        if self.kind not in FORMATS:
            raise RegistryError(f'--value-format: found {self.kind!r}, expected one of {", ".join(FORMATS)}')
        try:
            return self._decoder(topics, recorded, evolve)
        except ImportError as error:
            raise RegistryError(f'values in {self.kind} need the package {error.name}, which is missing; expected '
                                'pip install "kbroker[registry]"') from None

    def _decoder(self, topics: Sequence[str], recorded: Sequence[str] | None, evolve: bool) -> ValueDecoder:
        if not self.uses_registry:
            return Decoder(self.kind, self._from_option().text, None)
        url, subject, message = _place(self.schema)
        client = RegistryClient(RegistrySettings.of(self.registry, url))
        if recorded is not None and recorded[0] != self.kind:
            raise RegistryError(f'--value-format: found {self.kind}, but the job has values in {recorded[0]}')
        if recorded is not None and not evolve:
            return Decoder(self.kind, recorded[1], client)
        newest = self._newest(client, [subject] if subject else [f'{topic}-value' for topic in topics], message)
        first = next(iter(newest))
        for other, each in newest.items():
            if each.text == newest[first].text:
                continue
            if recorded is not None:        # one subject is ahead of another
                return Decoder(self.kind, recorded[1], client)
            raise RegistryError(f'{client.name}: the newest schemas of subjects {first} and {other} differ, expected '
                                'the same for all topics: name the one to read by with --value-schema '
                                'registry:#SUBJECT, or ingest each topic by a job of its own')
        if recorded is None or newest[first].text == recorded[1]:
            return Decoder(self.kind, newest[first].text, client)
        added = added_fields(FORMATS[self.kind](recorded[1]).type, newest[first].type)
        return Decoder(self.kind, newest[first].text if added else recorded[1], client, added or [])

    def _from_option(self) -> Format:
        try:
            return FORMATS[self.kind].from_option(self.schema)
        except RegistryError as error:
            raise RegistryError(f'--value-schema: {error}') from None

    def _newest(self, client: RegistryClient, subjects: Sequence[str], message: str | None) -> dict[str, Format]:
        """Return the newest schema of each subject."""
        found: dict[str, Format] = {}
        for subject in dict.fromkeys(subjects):
            schema = client.newest(subject)
            if schema is None:
                raise RegistryError(f'{client.name}: found no subject {subject}, expected the schema of the values: '
                                    'register one, or name the subject with --value-schema registry:#SUBJECT')
            if schema.kind != self.kind:
                raise RegistryError(f'{client.name}: subject {subject} has a schema in {schema.kind}, expected '
                                    f'--value-format {self.kind}')
            found[subject] = self._format_of(client, subject, schema, message)
        return found

    def _format_of(self, client: RegistryClient, subject: str, schema: Schema, message: str | None) -> Format:
        texts = {name: each.text for name, each in client.references(schema).items()}
        try:
            return FORMATS[self.kind].from_registry(schema.text, texts, message)
        except RegistryError as error:
            raise RegistryError(f'{client.name}: subject {subject}: {error}') from None


def _place(text: str) -> tuple[str | None, str | None, str | None]:
    """Return the URL, the subject and the message in `registry:[URL][#[SUBJECT][,MESSAGE]]`."""
    url, _, rest = text.removeprefix(REGISTRY).partition('#')
    subject, _, message = rest.partition(',')
    return url or None, subject or None, message or None


class Decoder:
    """The decoder of one reader's schema. Without a client, values have no schema ids."""

    def __init__(self, kind: str, text: str, client: RegistryClient | None, added: Sequence[str] = ()):
        self.added = list(added)
        self._kind, self._text, self._client = kind, text, client
        self._readers: dict[Any, Read | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kind, self._text, self._client, self.added)

    @functools.cached_property
    def _format(self) -> Format:
        return FORMATS[self._kind](self._text)

    @property
    def type(self) -> pa.StructType:
        return self._format.type

    @property
    def shape(self) -> list[str]:
        return [self._kind, self._text]

    @property
    def needs_headers(self) -> bool:
        return self._client is not None

    def decode(self, values: pa.Array, headers: pa.Array | None) -> tuple[pa.Array, pa.Array]:
        import pyarrow as pa
        data = values.to_pylist()
        in_headers = {} if headers is None or self._client is None else _ids_in(headers)
        rows = [None if each is None else self._value(each, in_headers.get(number)) for number, each in enumerate(data)]
        column, unfit = to_column(rows, self.type)
        for number in unfit:
            rows[number] = None
        bad = [each if row is None else None for row, each in zip(rows, data, strict=True)]
        return column, pa.array(bad, pa.binary())

    def _value(self, data: bytes, header: bytes | None) -> Any:
        """Return a value. Return None if it is undecodable."""
        if self._client is None:
            read, at = self._own_reader(), 0
        else:
            try:
                frame = read_prefix(data, self._format.has_indexes) if header is None else read_header(
                    header, self._format.has_indexes)
            except FramingError:
                return None
            read, at = self._reader(frame), frame.data_at
        if read is None:
            return None
        try:
            return read(data, at)
        except MemoryError:
            raise
        except Exception:       # a library raises many types of errors for damaged bytes
            return None

    def _own_reader(self) -> Read | None:
        if None not in self._readers:
            self._readers[None] = self._format.own_values()
        return self._readers[None]

    def _reader(self, frame: Frame) -> Read | None:
        """Return the function for values of a schema. Return None if the registry does not know the schema, or if it
        does not fit the reader's."""
        known: tuple[int | uuid.UUID, tuple[int, ...]] = frame.key, frame.indexes
        if known in self._readers:
            return self._readers[known]
        assert self._client is not None
        schema = self._client.schema(frame.key)
        if schema is None:      # it may be registered later
            return None
        read = None
        if schema.kind == self._kind:
            references = {name: each.text for name, each in self._client.references(schema).items()}
            try:
                read = self._format.values_of(schema.text, references, frame.indexes)
            except Undecodable:
                read = None
        if len(self._readers) >= MOST_READERS:
            self._readers.clear()
        self._readers[known] = read
        return read


def _ids_in(headers: pa.Array) -> dict[int, bytes]:
    """Return the content of the header with the schema id, for the numbers of the rows that have one. The first such
    header of a row counts."""
    import pyarrow.compute as pc
    rows = pc.list_parent_indices(headers)
    flat = pc.list_flatten(headers)
    places = pc.indices_nonzero(pc.fill_null(pc.equal(flat.field('key'), VALUE_HEADER), False))
    found: dict[int, bytes] = {}
    contents = flat.field('value').take(places).to_pylist()
    for row, content in zip(rows.take(places).to_pylist(), contents, strict=True):
        if content is not None:
            found.setdefault(row, content)
    return found
