"""Keys and values of Kafka's internal topics as the text that kafka-dump-log and the console consumer print.

Both programs print the same data as JSON. kafka-dump-log prints the type and version of a row as strings, and the
formatters of the console consumer print them as numbers. A row that cannot be read becomes the same line as in
kafka-dump-log. Only the reason after `due to:` differs, because Kafka's text there describes a buffer of Kafka. Records
that were added in a later release are shown for every value of `compat`.
"""
from __future__ import annotations

import codecs
import functools
from collections.abc import Callable
from typing import Any, Protocol

from kbroker.base.errors import CorruptLogError, ProtocolError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.protocol import messages, schema
from kbroker.protocol.codec import decode_prefix
from kbroker.protocol.json import JsonWriter, TextOf, bytes_text, json_text, object_text, string_text
from kbroker.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    TransactionLogKey,
    TransactionLogValue,
    VotersRecord,
)
from kbroker.protocol.plan import Message
from kbroker.protocol.rows import TYPE_BYTES, row_classes
from kbroker.transaction.state import TransactionState
from kbroker_tools.rows.releases import NEWEST

SHARE_TOPIC, REMOTE_LOG_TOPIC = '__share_group_state', '__remote_log_metadata'
CONSUMER_PROTOCOL = 'consumer'
DELETED = '<DELETE>'
FRAME_VERSION = 1
LONGEST_VARINT_BYTES = 5
MAX_INT16 = 0x7fff

NAMED_STATES_FROM = '4.4'
"""The first release in which the status of a transaction is printed as a name (KAFKA-20712)."""

Texts = tuple[str | None, str | None]
"""The texts of key and payload. A text of None is not printed."""


class Decoder(Protocol):
    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Texts:
        """Return (key text, payload text). Raise CorruptLogError for a record at which Kafka's tool stops."""


class RecordLike(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


def decoder(name: str, compat: str = NEWEST) -> Decoder:
    """Return the decoder for the name in an option of kafka-dump-log: offsets, transaction, cluster-metadata,
    remote-log-metadata, share-group-state or string."""
    return DECODERS[name](compat)


def formatter(name: str, compat: str = NEWEST) -> Formatter:
    """Return the formatter whose Kafka class name begins with `name`. Names are transaction, offsets and
    group-metadata."""
    return Formatter(FORMATTERS[name], compat)


# ---- strings

class StringDecoder:
    """A decoder of keys and values that are UTF-8 text."""

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Texts:
        return None if key is None else java_text(key), None if value is None else java_text(value)


def java_text(data: bytes) -> str:
    """Decode UTF-8 as Java does. Half of a surrogate pair becomes one replacement character; in Python it would become
    three."""
    return str(data, 'utf-8', 'java')


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    data, end = error.object, error.end
    if data[error.start] == 0xed and 0xa0 <= _byte(data, error.start + 1) <= 0xbf:
        end = error.start + 2 + (0x80 <= _byte(data, error.start + 2) <= 0xbf)
    return '\ufffd', end


def _byte(data: bytes, position: int) -> int:
    return data[position] if position < len(data) else 0


codecs.register_error('java', _replace_as_java)


# ---- rows of the coordinators

class UnknownRowType(CorruptLogError):
    """The type of a row is unknown: no table has it."""

    def __init__(self, row_type: int):
        super().__init__(f'Unknown record type {row_type}')
        self.row_type = row_type


class RowReader:
    """A reader of the rows of one topic. Like Kafka's coordinators, it ignores bytes after the end of a row."""

    def __init__(self, topic: str):
        self._classes = row_classes(topic)

    def read(self, key: bytes, value: bytes | None) -> tuple[Message, Message | None, int]:
        """Return (key, value, version of the value). Raise UnknownRowType if the type is unknown, and CorruptLogError
        with Kafka's message if the row is damaged."""
        row_type = _int16(key, 'key')
        if row_type not in self._classes:
            raise UnknownRowType(row_type)
        key_class, value_class = self._classes[row_type]
        row_key = _read(key_class, key, 0, f"record with version {row_type} from key's buffer")
        if value is None:
            return row_key, None, -1
        version = _int16(value, 'value')
        first, last = value_class.versions  # type: ignore[attr-defined]
        if not first <= version <= last:
            raise CorruptLogError(f'Found an unknown record version {version} for {row_type} type')
        row_value = _read(value_class, value, version, f"record with version {version} from value's buffer")
        return row_key, row_value, version


def _int16(data: bytes, what: str) -> int:
    if len(data) < TYPE_BYTES:
        raise CorruptLogError(f"Could not read version from {what}'s buffer.")
    return int.from_bytes(data[:TYPE_BYTES], 'big', signed=True)


def _read(message_class: type[Message], data: bytes, version: int, what: str) -> Message:
    try:
        return decode_prefix(message_class, data, version, TYPE_BYTES)[0]
    except ProtocolError as error:
        raise CorruptLogError(f'Could not read {what} due to: {error}.') from None


class RowWriter:
    """A writer of rows as JSON text. It creates a `JsonWriter` for each version of a row that it meets."""

    def __init__(self, compat: str, *, expand_groups: bool):
        """If `expand_groups` is true, a consumer group member's subscription and assignment are decoded. Otherwise they
        are shown as bytes."""
        self._names_states = compat >= NAMED_STATES_FROM
        self._expand_groups = expand_groups
        self._writers: dict[tuple[type[Message], int, bool], JsonWriter] = {}

    def text(self, message: Message, version: int) -> str:
        is_consumers = (self._expand_groups and type(message) is GroupMetadataValue
                        and getattr(message, 'protocol_type') == CONSUMER_PROTOCOL)   # noqa: B009
        known = (type(message), version, is_consumers)
        if known not in self._writers:
            self._writers[known] = JsonWriter(type(message), version, self._overrides(type(message), is_consumers))
        return self._writers[known].text(message)

    def _overrides(self, message_class: type[Message], is_consumers: bool) -> dict[str, TextOf]:
        if is_consumers:
            return {'members.subscription': functools.partial(_member_text, ConsumerProtocolSubscription),
                    'members.assignment': functools.partial(_member_text, ConsumerProtocolAssignment)}
        if self._names_states and message_class is TransactionLogValue:
            return {'transaction_status': _status_text}
        return {}


def _member_text(message_class: type[Message], data: bytes) -> str:
    """Return the subscription or assignment of a member as JSON text. If the bytes are not a valid message, return them
    in base64."""
    if len(data) < TYPE_BYTES:
        return bytes_text(data)
    version = int.from_bytes(data[:TYPE_BYTES], 'big', signed=True)
    first, last = message_class.versions  # type: ignore[attr-defined]
    known = max(first, min(version, last))
    try:
        message = decode_prefix(message_class, data, known, TYPE_BYTES)[0]
    except ProtocolError:
        return bytes_text(data)
    return bytes_text(data) if version > last and _holds_structs(message) else json_text(message, known)


def _holds_structs(message: Any) -> bool:
    """Return whether the message contains structs. Kafka accepts structs only in versions that it knows."""
    return any(getattr(message, field.name) for field in message.schema.struct.fields if field.struct is not None)


def _status_text(status: int) -> str:
    """Return the name of a transaction state in quotes. If the state is unknown, return its number in quotes."""
    try:
        return string_text(TransactionState(status).title)
    except ValueError:
        return f'"{status}"'


class RowDecoder:
    """A decoder of rows to the text that kafka-dump-log prints."""

    def __init__(self, topic: str, compat: str):
        self._reader = RowReader(topic)
        self._writer = RowWriter(compat, expand_groups=True)

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Texts:
        if key is None:
            raise CorruptLogError(f'Failed to decode message at offset {offset} using the specified decoder (message '
                                  'had a missing key)')
        try:
            row_key, row_value, version = self._reader.read(key, value)
        except UnknownRowType as error:
            return f'{error} at offset {offset}, skipping.', None
        except CorruptLogError as error:
            return f'Error at offset {offset}, skipping. {error}', None
        key_text = object_text((('type', f'"{_row_type(row_key)}"'), ('data', self._writer.text(row_key, 0))))
        if row_value is None:
            return key_text, DELETED
        return key_text, object_text((('version', f'"{version}"'), ('data', self._writer.text(row_value, version))))


def _row_type(key: Message) -> int:
    found: int = key.row_type
    return found


class Formatter:
    """A formatter of rows to the text that the console consumer prints: one JSON object with key and value."""

    def __init__(self, key_classes: tuple[type[Message], ...], compat: str):
        """Only rows whose key is a message of `key_classes` are shown."""
        self._key_classes = key_classes
        self._reader = RowReader(key_classes[0].row_topic)  # type: ignore[attr-defined]
        self._writer = RowWriter(compat, expand_groups=False)

    def read(self, record: RecordLike) -> tuple[Message, Message | None, int] | None:
        """Return (key, value, version of the value). Return None if the row is not shown. Raise CorruptLogError with
        Kafka's message if the row is damaged."""
        if record.key is None:
            return None
        try:
            row = self._reader.read(record.key, record.value)
        except UnknownRowType:
            return None
        except CorruptLogError as error:
            raise CorruptLogError(f'Could not read record at offset {record.offset} due to: {error}') from None
        return row if isinstance(row[0], self._key_classes) else None

    def text(self, key: Message, value: Message | None, version: int) -> str:
        """Return a row as JSON. The arguments are the values that `read` returned."""
        value_text = 'null' if value is None else object_text(
            (('version', str(version)), ('data', self._writer.text(value, version))))
        key_text = object_text((('type', str(_row_type(key))), ('data', self._writer.text(key, 0))))
        return object_text((('key', key_text), ('value', value_text)))

    def format(self, record: RecordLike) -> str | None:
        """Return a record as JSON. Return None if the record is not shown. Raise CorruptLogError with Kafka's message
        if the record is damaged."""
        row = self.read(record)
        return None if row is None else self.text(*row)


# ---- framed records

class FrameReader:
    """A reader of framed records. A frame begins with three unsigned varints: the version of the frame (1), the type of
    the record and the version of the record."""

    def __init__(self, topic: str | None):
        """`topic` is the topic of the records, or None for `__cluster_metadata`."""
        self._classes: dict[int, type[Message]] = {
            declaration.key: getattr(messages, declaration.name) for declaration in schema.declarations().values()
            if declaration.kind == 'record' and declaration.topic == topic and declaration.key is not None}

    def read(self, data: bytes | None) -> tuple[Message, int]:
        """Return (record, version of the record). If the version is newer than this program, only the known fields are
        read. Raise CorruptLogError with Kafka's message if the record is damaged."""
        frame_version, position = _short(data or b'', 0, 'frame version')
        if frame_version == 0:
            raise CorruptLogError('Could not deserialize metadata record with frame version 0. Note that upgrades from '
                                  'the preview release of KRaft in 2.8 to newer versions are not supported.')
        if frame_version != FRAME_VERSION:
            raise CorruptLogError(f'Could not deserialize metadata record due to unknown frame version {frame_version}'
                                  f'(only frame version {FRAME_VERSION} is supported)')
        assert data is not None
        kind, position = _short(data, position, 'type')
        version, position = _short(data, position, 'version')
        record_class = self._classes.get(kind)
        if record_class is None:
            raise CorruptLogError('org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id '
                                  f'{kind}')
        known = min(version, record_class.versions[1])  # type: ignore[attr-defined]
        try:
            record, end = decode_prefix(record_class, data, known, position)
        except ProtocolError:
            raise CorruptLogError(f'Failed to deserialize record with type {kind}') from None
        if version > known and _holds_structs(record):
            raise CorruptLogError(f'Failed to deserialize record with type {kind}')
        if end < len(data):
            raise CorruptLogError(f'Found {len(data) - end} byte(s) of garbage after {kind}')
        return record, version


def _short(data: bytes, position: int, what: str) -> tuple[int, int]:
    """Return (value, next position) of an unsigned varint whose value fits an int16."""
    value = 0
    for i, group in enumerate(data[position:position + LONGEST_VARINT_BYTES]):
        value |= (group & 0x7f) << 7 * i
        if group < 0x80:
            if value > MAX_INT16:
                raise CorruptLogError(f'Value for {what} was too large.')
            return value, position + i + 1
    raise CorruptLogError(f'Error while reading {what}')


class ClusterMetadataDecoder:
    """A decoder of records of `__cluster_metadata` and of metadata snapshots. Keys are not shown."""

    def __init__(self) -> None:
        self._reader = FrameReader(None)
        self._writers: dict[tuple[type[Message], int], tuple[str, JsonWriter]] = {}

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Texts:
        try:
            record, version = self._reader.read(value)
        except CorruptLogError as error:
            return None, f'Error at {offset}, skipping. {error}'
        known = (type(record), version)
        if known not in self._writers:
            self._writers[known] = (f'"{_record_type(type(record))}"', JsonWriter(type(record), version))
        kind, writer = self._writers[known]
        return None, object_text((('type', kind), ('version', str(version)), ('data', writer.text(record))))


def _record_type(record_class: type[Message]) -> str:
    """Return Kafka's name of a record type. The class `RemoveTopicRecord` has the name `REMOVE_TOPIC_RECORD`."""
    name = record_class.__name__
    return ''.join('_' + letter if letter.isupper() and i else letter for i, letter in enumerate(name)).upper()


class RemoteLogMetadataDecoder:
    """A decoder of records of `__remote_log_metadata`, in the format of Kafka's own RemoteLogMetadataManager. Keys are
    not shown."""

    def __init__(self) -> None:
        self._reader = FrameReader(REMOTE_LOG_TOPIC)

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Texts:
        from kbroker_tools.rows.remote_log_metadata import remote_log_text
        try:
            return None, remote_log_text(self._reader.read(value)[0])
        except (CorruptLogError, ValueError) as error:
            return None, f'Error at offset {offset}, skipping. {error}'


# ---- control records

CONTROL_RECORDS: dict[int, tuple[str, type[Message]]] = {
    2: ('LeaderChange: ', LeaderChangeMessage),
    3: ('SnapshotHeader ', SnapshotHeaderRecord),
    4: ('SnapshotFooter ', SnapshotFooterRecord),
    5: ('KRaftVersion ', KRaftVersionRecord),
    6: ('KRaftVoters ', VotersRecord),
}


def quorum_record_text(control_type: int, value: bytes) -> str:
    """Return a control record of the quorum in the format of kafka-dump-log, such as `SnapshotFooter {"version":0}`.
    Raise KeyError if the type has no body, and CorruptLogError if the record is damaged."""
    title, message_class = CONTROL_RECORDS[control_type]
    version = int.from_bytes(value[:TYPE_BYTES], 'big', signed=True)
    first, last = message_class.versions  # type: ignore[attr-defined]
    known = max(first, min(version, last))
    try:
        return title + json_text(decode_prefix(message_class, value, known)[0], known)
    except ProtocolError as error:
        raise CorruptLogError(f'{title.rstrip(": ")}: {error}') from None


DECODERS: dict[str, Callable[[str], Decoder]] = {
    'string': lambda _: StringDecoder(),
    'offsets': lambda compat: RowDecoder(CONSUMER_OFFSETS, compat),
    'transaction': lambda compat: RowDecoder(TRANSACTION_STATE, compat),
    'share-group-state': lambda compat: RowDecoder(SHARE_TOPIC, compat),
    'cluster-metadata': lambda _: ClusterMetadataDecoder(),
    'remote-log-metadata': lambda _: RemoteLogMetadataDecoder(),
}
FORMATTERS: dict[str, tuple[type[Any], ...]] = {
    'transaction': (TransactionLogKey,),
    'offsets': (LegacyOffsetCommitKey, OffsetCommitKey),
    'group-metadata': (GroupMetadataKey,),
}
