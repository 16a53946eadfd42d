"""Formatters of consumed records: Kafka's default formatter, byte for byte, Kafka's other named formatters, and
JSON."""
from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import as_utf8, json_line
from kbroker_tools.console.message_format import FormatText

if TYPE_CHECKING:
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.record.records import Record
    from kbroker_tools.rows.decoders import Formatter

_PACKAGE = 'org.apache.kafka.tools.consumer.'
FORMATTER_OF_CLASS = {
    f'{_PACKAGE}DefaultMessageFormatter': 'default',
    'kafka.tools.DefaultMessageFormatter': 'default',
    f'{_PACKAGE}NoOpMessageFormatter': 'none',
    f'{_PACKAGE}OffsetsMessageFormatter': 'offsets',
    f'{_PACKAGE}GroupMetadataMessageFormatter': 'group-metadata',
    f'{_PACKAGE}TransactionLogMessageFormatter': 'transaction',
}
FORMATTERS = ('default', 'none', 'offsets', 'group-metadata', 'transaction')

SWITCHES = ('print.timestamp', 'print.partition', 'print.offset', 'print.delivery', 'print.epoch', 'print.headers',
            'print.key', 'print.value')
"""The properties that print a part of the record. They are in the order in which the parts are printed."""
TEXTS = ('key.separator', 'line.separator', 'headers.separator', 'null.literal')


class JsonBytes(bytes):
    """The JSON text of a key or value that was decoded. `found` is what the text means."""

    found: Any


class BatchFormatter(Protocol):
    def text(self, batch: DeliveredRecords, record: Record) -> bytes:
        """Return the output for a record. Raise CorruptLogError if the record cannot be shown."""


def make_formatter(name: str, properties: Mapping[str, str], as_json: bool,
                   template: str | None = None) -> BatchFormatter:
    """Return the formatter that has this short name or Kafka class name, or that of `template`, the text of `--format`.

    Raise ToolError if the name is unknown, or if two options name a format.
    """
    if template is not None and (as_json or name != 'default'):
        raise ToolError(f'--format and {"--json" if as_json else "--formatter"} cannot be given together')
    name = FORMATTER_OF_CLASS.get(name, name)
    if name not in FORMATTERS:
        raise ToolError(f'--formatter: found {name}, expected one of {", ".join(FORMATTERS)}, or its class in Kafka')
    for found in properties:
        if found not in (*SWITCHES, *TEXTS):
            raise ToolError(f'--formatter-property: found {found}, expected one of {", ".join((*SWITCHES, *TEXTS))}')
    if as_json:
        return JsonText()
    if template is not None:
        return FormatText(template, properties)
    if name == 'default':
        return DefaultText(properties)
    if name == 'none':
        return NoText()
    return RowText(name)


class DefaultText:
    r"""Kafka's default formatter. It separates the parts of a record by `key.separator`, and ends a record with
    `line.separator`.

        CreateTime:1700000000000 <tab> Partition:0 <tab> Offset:7 <tab> ... a:1,b:2 <tab> key <tab> value <newline>
    """

    def __init__(self, properties: Mapping[str, str]):
        self._shown = {name for name in SWITCHES
                       if properties.get(name, 'true' if name == 'print.value' else '').strip().lower() == 'true'}
        self._separator = properties.get('key.separator', '\t').encode()
        self._line_separator = properties.get('line.separator', '\n').encode()
        self._headers_separator = properties.get('headers.separator', ',').encode()
        self._null = properties.get('null.literal', 'null').encode()
        self._shows_values_alone = self._shown == {'print.value'}

    def text(self, batch: DeliveredRecords, record: Record) -> bytes:
        if self._shows_values_alone:
            return (self._null if record.value is None else record.value) + self._line_separator
        parts = self._parts(batch, record)
        return self._separator.join(parts) + self._line_separator if parts else b''

    def _parts(self, batch: DeliveredRecords, record: Record) -> list[bytes]:
        shown = self._shown
        parts = []
        if 'print.timestamp' in shown:
            parts.append(f'{record.timestamp_type}:{record.timestamp_ms}'.encode())
        if 'print.partition' in shown:
            parts.append(b'Partition:%d' % batch.partition)
        if 'print.offset' in shown:
            parts.append(b'Offset:%d' % record.offset)
        if 'print.delivery' in shown:
            parts.append(b'Delivery:NOT_PRESENT' if batch.delivery_count is None
                         else b'Delivery:%d' % batch.delivery_count)
        if 'print.epoch' in shown:
            parts.append(b'Epoch:NOT_PRESENT')      # Kafka's tool never shows it; --json does
        if 'print.headers' in shown:
            parts.append(self._headers_separator.join(
                as_utf8(name).encode() + b':' + self._or_null(value)
                for name, value in record.headers) or b'NO_HEADERS')
        if 'print.key' in shown:
            parts.append(self._or_null(record.key))
        if 'print.value' in shown:
            parts.append(self._or_null(record.value))
        return parts

    def _or_null(self, data: bytes | None) -> bytes:
        return self._null if data is None else data


class NoText:
    def text(self, batch: DeliveredRecords, record: Record) -> bytes:
        return b''


class RowText:
    """A formatter of one kind of rows in `__consumer_offsets` or `__transaction_state`. Records of other kinds are not
    shown.

    Kafka's formatters print nothing between rows. This formatter prints each row on its own line.
    """

    def __init__(self, name: str):
        from kbroker_tools.rows.decoders import formatter
        self._formatter: Formatter = formatter(name)

    def text(self, batch: DeliveredRecords, record: Record) -> bytes:
        text = self._formatter.format(record)
        return b'' if text is None else as_utf8(text).encode() + b'\n'


class JsonText:
    """A formatter that prints one JSON object per line. Bytes that are not UTF-8 become an object with the member
    `base64`. A decoded key or value is the JSON that it means, not a string."""

    def text(self, batch: DeliveredRecords, record: Record) -> bytes:
        row = {
            'topic': batch.topic, 'partition': batch.partition, 'offset': record.offset,
            'timestamp_ms': record.timestamp_ms, 'timestamp_type': record.timestamp_type,
            'leader_epoch': record.leader_epoch, 'key': _json_bytes(record.key),
            'value': _json_bytes(record.value), 'headers': [[name, _json_bytes(value)]
                                                            for name, value in record.headers]}
        if batch.delivery_count is not None:
            row['delivery_count'] = batch.delivery_count
        return json_line(row).encode() + b'\n'


def _json_bytes(data: bytes | None) -> Any:
    if data is None:
        return None
    if isinstance(data, JsonBytes):
        return data.found
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {'base64': base64.b64encode(data).decode()}
