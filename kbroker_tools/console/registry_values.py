"""Keys and values with the schema id of a registry. Readers show them as JSON, and writers make them of lines with
JSON."""
from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import click

from kbroker_tools.base.command import FILE, ToolError
from kbroker_tools.base.render import json_line, warn
from kbroker_tools.console.line_reader import Headers, LineError, LineReader
from kbroker_tools.console.message_text import JsonBytes, RowText

if TYPE_CHECKING:
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.record.records import Record
    from kbroker_tools.console.message_text import BatchFormatter
    from kbroker_tools.console.record_filter import Matches
    from kbroker_tools.registry.client import Key, RegistryClient, Schema

F = TypeVar('F', bound=Callable[..., Any])

FORMATS = ('avro', 'protobuf', 'json')
MOST_CODECS = 1000
SIDES = ('key', 'value')

# ---- the options of both commands

def registry_options(function: F) -> F:
    """Add the options that name a registry and the format of keys and values."""
    for option in reversed((
        click.option('--value-format', type=click.Choice(FORMATS), help='The format of values with the schema id of a '
                     'registry, in a prefix or a header. They are lines of JSON here.'),
        click.option('--key-format', type=click.Choice(FORMATS), help='The format of keys with a schema id.'),
        click.option('--registry', metavar='URL', help="The schema registry, with Confluent's API."),
        click.option('--registry-config', type=FILE, metavar='FILE', help='Settings of its client '
                     '(schema.registry.url, basic.auth.user.info, bearer.auth.token, ssl.*), as properties.'),
    )):
        function = option(function)
    return function


def formats_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the formats that the options name for `key` and `value`. Raise click.UsageError if they name a format and
    no registry, or the reverse."""
    found = {side: options[f'{side}_format'] for side in SIDES if options[f'{side}_format'] is not None}
    has_registry = options['registry'] is not None or options['registry_config'] is not None
    if found and not has_registry:
        raise click.UsageError(f'--{next(reversed(found))}-format needs --registry URL or --registry-config FILE')
    if has_registry and not found:
        raise click.UsageError('--registry and --registry-config need --value-format or --key-format')
    return found


def open_registry(options: Mapping[str, Any]) -> Codecs:
    """Return the schemas of the registry that the options name. Raise RegistryError if a setting is wrong."""
    from kbroker_tools.registry.client import RegistryClient
    from kbroker_tools.registry.settings import RegistrySettings
    file: Path | None = options['registry_config']
    settings = RegistrySettings.of({}, options['registry']) if file is None else RegistrySettings.load(
        file, options['registry'])
    return Codecs(RegistryClient(settings))


# ---- values of one schema

class Codec(Protocol):
    """A converter between the bytes and the JSON of values with one schema. Methods raise ValueError for a value that
    does not fit the schema."""

    def read(self, data: bytes) -> Any: ...

    def write(self, text: bytes) -> bytes: ...


class Codecs:
    """The codecs for the schemas of a registry. The most recently used ones are kept."""

    def __init__(self, client: RegistryClient):
        self.client = client
        self._kept: OrderedDict[tuple[Key, tuple[int, ...]], Codec | str] = OrderedDict()

    def get(self, kind: str, key: Key, indexes: tuple[int, ...]) -> Codec:
        """Return the codec for the schema with an id or a guid. Raise ValueError if the registry has no such schema, or
        if it is invalid or of another kind. Raise ToolError if the registry is not available."""
        found = self._kept.get((key, indexes))
        from kbroker_tools.registry.errors import RegistryError
        if found is None:
            schema = answer_of(lambda: self.client.schema(key))
            if schema is None:
                raise ValueError(f'the registry has no schema with the id {key}')
            try:
                found = self.make(kind, schema, indexes)
            except (ValueError, RegistryError) as error:
                found = str(error)
            self._kept[key, indexes] = found
            if len(self._kept) > MOST_CODECS:
                self._kept.popitem(last=False)
        self._kept.move_to_end((key, indexes))
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def references(self, schema: Schema) -> dict[str, str]:
        """Return the texts of the schemas that a schema uses, by their names."""
        return {name: each.text for name, each in answer_of(lambda: self.client.references(schema)).items()}

    def make(self, kind: str, schema: Schema, indexes: tuple[int, ...]) -> Codec:
        """Return the codec for a schema. Raise ValueError or RegistryError if the schema is invalid or of another kind.
        Raise ToolError if a package is missing."""
        if schema.kind != kind:
            raise ValueError(f'found a schema of the format {schema.kind}, expected {kind}')
        references = self.references(schema)
        try:
            if kind == 'avro':
                from kbroker_tools.console.avro_json import AvroJson
                return AvroJson(schema.text, references)
            if kind == 'protobuf':
                from kbroker_tools.console.protobuf_json import ProtobufJson
                return ProtobufJson(schema.text, references, indexes)
        except ImportError as error:
            raise _missing(error) from None
        return SchemaJson(schema.text, references)


T = TypeVar('T')


def answer_of(ask: Callable[[], T]) -> T:
    """Return the answer of the registry. Raise ToolError if it is not available."""
    from kbroker_tools.registry.errors import RegistryUnavailable
    try:
        return ask()
    except RegistryUnavailable as error:
        raise ToolError(str(error)) from None


def _missing(error: ImportError) -> ToolError:
    return ToolError(f'{error.name} is not installed: pip install "kbroker[registry]"')


class SchemaJson:
    """The codec for values in JSON with a JSON Schema. A reader takes any JSON, because the writer has validated it."""

    def __init__(self, text: str, references: Mapping[str, str]):
        self._schema = _json(text)
        self._references = {name: _json(each) for name, each in references.items()}
        self._validator: Any = None

    def read(self, data: bytes) -> Any:
        return _json(data)

    def write(self, text: bytes) -> bytes:
        found = _json(text)
        try:
            from referencing.exceptions import Unresolvable
            if self._validator is None:
                self._validator = self._made()
        except ImportError as error:
            raise _missing(error) from None
        try:
            problem = next(self._validator.iter_errors(found), None)
        except Unresolvable as error:
            raise ValueError(f'the schema uses {error.ref}, which is not among its references') from None
        if problem is not None:
            raise ValueError(f'{problem.json_path}: {problem.message}')
        return text.strip()

    def _made(self) -> Any:
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
        from jsonschema.validators import Draft7Validator, validator_for  # type: ignore[import-untyped]
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT7
        made = validator_for(self._schema, Draft7Validator)
        try:
            made.check_schema(self._schema)
        except SchemaError as error:
            raise ValueError(f'found a text that is no JSON Schema: {error.message}') from None
        return made(self._schema, registry=Registry().with_resources(
            (name, Resource.from_contents(each, DRAFT7)) for name, each in self._references.items()))


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError('the JSON is nested too deeply') from None


# ---- readers

@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record with the attributes of `Record`. Its key and value may be JsonBytes."""

    offset: int
    timestamp_ms: int
    timestamp_type: str
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class DecodedText:
    """A formatter that decodes keys and values, and passes the records to another formatter. It leaves those that
    cannot be decoded as they are, and counts them."""

    def __init__(self, shown: BatchFormatter, codecs: Codecs, formats: Mapping[str, str]):
        from kbroker_tools.registry.framing import KEY_HEADER, VALUE_HEADER
        self._shown = shown
        self._codecs = codecs
        self._formats = formats
        self._headers = {'key': KEY_HEADER, 'value': VALUE_HEADER}
        self._undecoded = 0
        self._first = ''

    def text(self, batch: DeliveredRecords, record: Record) -> bytes:
        decoded, problems = self._decoded(record)
        if problems and not self._undecoded:
            self._first = f'{batch.topic}-{batch.partition}, offset {record.offset}, {problems[0]}'
        self._undecoded += len(problems)
        return self._shown.text(batch, decoded)

    def before(self, matches: Matches) -> Matches:
        """Return a filter that sees decoded keys and values."""
        return lambda record: matches(self._decoded(record)[0])

    def report(self) -> None:
        """Print how many keys and values could not be decoded."""
        if self._undecoded:
            warn(f'{self._undecoded} keys or values could not be decoded, the first at {self._first}')

    def _decoded(self, record: Record) -> tuple[Record, list[str]]:
        """Return a record with decoded key and value, and the problems of those that stay as they are."""
        problems: list[str] = []
        key, value = (self._side(side, data, record.headers, problems)
                      for side, data in (('key', record.key), ('value', record.value)))
        decoded = DecodedRecord(record.offset, record.timestamp_ms, record.timestamp_type, record.leader_epoch, key,
                                value, record.headers)
        return cast('Record', decoded), problems

    def _side(self, side: str, data: bytes | None, headers: Headers, problems: list[str]) -> bytes | None:
        if data is None or side not in self._formats:
            return data
        try:
            found = self._found(self._formats[side], data, self._id_in(headers, side))
            text = JsonBytes(json_line(found).encode())
        except (ValueError, RecursionError) as error:
            problems.append(f'{side}: {error}')
            return data
        text.found = found
        return text

    def _id_in(self, headers: Headers, side: str) -> bytes | None:
        """Return the content of the first header with a schema id."""
        return next((content for name, content in headers if name == self._headers[side]), None)

    def _found(self, kind: str, data: bytes, header: bytes | None) -> Any:
        from kbroker_tools.registry.framing import read_header, read_prefix
        frame = read_prefix(data, kind == 'protobuf') if header is None else read_header(header, kind == 'protobuf')
        return self._codecs.get(kind, frame.key, frame.indexes).read(data[frame.data_at:])


@contextmanager
def decoded_text(shown: BatchFormatter, options: Mapping[str, Any]) -> Iterator[BatchFormatter]:
    """Yield the formatter, or one that decodes keys and values before it if the options name a format. At the end,
    report what could not be decoded.

    Raise click.UsageError if the formatter does not show keys and values.
    """
    formats = formats_of(options)
    if not formats:
        yield shown
        return
    if isinstance(shown, RowText):
        raise click.UsageError('--value-format and --key-format need another --formatter: the rows of internal topics '
                               'have no schema ids')
    decoded = DecodedText(shown, open_registry(options), formats)
    try:
        yield decoded
    finally:
        decoded.report()


# ---- writers

@dataclass(frozen=True)
class Encoding:
    """The schema with which a writer encodes keys or values."""

    codec: Codec
    schema_id: bytes
    header: str | None
    """The header for the id. None if the id is a prefix."""

    def encode(self, text: bytes, headers: Headers) -> bytes:
        """Return the bytes of a value, and append the header of its id. Raise ValueError if the text does not fit the
        schema."""
        data = self.codec.write(text)
        if self.header is None:
            return self.schema_id + data
        headers.append((self.header, self.schema_id))
        return data


@dataclass
class EncodingReader:
    """A reader of lines whose keys and values are JSON. It encodes them with the schemas of a registry."""

    lines: LineReader
    encodings: Mapping[str, Encoding] = field(default_factory=dict)

    def read(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None, Headers]:
        """Return (key, value, headers) of a line. Raise LineError if the line is not a record, or if its key or value
        does not fit the schema."""
        key, value, headers = self.lines.read(line, number)
        return self._side('key', key, headers, number), self._side('value', value, headers, number), headers

    def _side(self, side: str, text: bytes | None, headers: Headers, number: int) -> bytes | None:
        encoding = self.encodings.get(side)
        if text is None or encoding is None:
            return text
        try:
            return encoding.encode(text, headers)
        except ValueError as error:
            raise LineError(f'line {number}: the {side} does not fit the schema: {error}') from None


def schema_options(function: F) -> F:
    """Add the options that choose the schemas of a writer."""
    for option in reversed((
        click.option('--value-schema', metavar='SCHEMA|@FILE', help='The schema for values. It is registered under the '
                     'subject TOPIC-value, unless it is there.  [default: the newest of this subject]'),
        click.option('--key-schema', metavar='SCHEMA|@FILE', help='The schema for keys, under the subject TOPIC-key.'),
        click.option('--value-message', metavar='NAME', help='The full name of a Protobuf message, such as '
                     'package.Message.  [default: the first message of the schema]'),
        click.option('--key-message', metavar='NAME', help='The full name of the Protobuf message of keys.'),
        click.option('--schema-id-in', type=click.Choice(['prefix', 'header']), default='prefix', show_default=True,
                     help='The place for the id of a schema. Not every reader knows the headers __value_schema_id and '
                     '__key_schema_id.'),
    )):
        function = option(function)
    return function


def encodings_of(options: Mapping[str, Any], topic: str) -> dict[str, Encoding]:
    """Return the encodings of keys and values that the options name. Register the schemas that they have. Return {} if
    the options name no format.

    Raise click.UsageError if options contradict each other. Raise ToolError or RegistryError if there is no valid
    schema.
    """
    formats = formats_of(options)
    for side in SIDES:
        if options[f'{side}_schema'] is not None and side not in formats:
            raise click.UsageError(f'--{side}-schema needs --{side}-format')
        if options[f'{side}_message'] is not None and formats.get(side) != 'protobuf':
            raise click.UsageError(f'--{side}-message needs --{side}-format protobuf')
    if not formats:
        return {}
    codecs = open_registry(options)
    return {side: _encoding(codecs, side, kind, f'{topic}-{side}', options) for side, kind in formats.items()}


def _encoding(codecs: Codecs, side: str, kind: str, subject: str, options: Mapping[str, Any]) -> Encoding:
    from kbroker_tools.registry.client import Schema
    from kbroker_tools.registry.errors import RegistryError
    from kbroker_tools.registry.framing import KEY_HEADER, VALUE_HEADER, prefix_of
    text: str | None = options[f'{side}_schema']
    indexes: tuple[int, ...] = ()
    found = Schema(kind, _text_or_file(side, text)) if text is not None else answer_of(
        lambda: codecs.client.newest(subject))
    if found is None:
        raise ToolError(f'{codecs.client.name}: found no schema under the subject {subject}, expected one: give '
                        f'--{side}-schema @FILE')
    try:
        if kind == 'protobuf' and found.kind == kind:
            from kbroker_tools.console.protobuf_json import indexes_of
            indexes = indexes_of(found.text, codecs.references(found), options[f'{side}_message'])
        codec = codecs.make(kind, found, indexes)
    except ImportError as error:
        raise _missing(error) from None
    except (ValueError, RegistryError) as error:
        where = f'--{side}-schema' if text is not None else f'{codecs.client.name}, subject {subject}'
        raise ToolError(f'{where}: {error}') from None
    schema_id = found.id if text is None else answer_of(lambda: codecs.client.register(subject, found))
    if schema_id is None:
        raise ToolError(f'{codecs.client.name}, subject {subject}: found a schema without an id')
    header = None if options['schema_id_in'] == 'prefix' else {'key': KEY_HEADER, 'value': VALUE_HEADER}[side]
    return Encoding(codec, prefix_of(schema_id, indexes), header)


def _text_or_file(side: str, text: str) -> str:
    if not text.startswith('@'):
        return text
    try:
        return Path(text[1:]).read_text('utf-8')
    except ValueError:
        raise ToolError(f'--{side}-schema: {text[1:]} is not UTF-8') from None
