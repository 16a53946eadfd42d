"""The output of a dump as JSON: one object per line, for each record and each index entry."""
from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker.base.errors import CorruptLogError, KafkaError, ProtocolError
from kbroker.record.batch import MAGIC, BatchHeader
from kbroker.record.compression import Compression
from kbroker.record.control import read_control_type
from kbroker.record.records import Record, iter_records
from kbroker_tools.base.render import as_utf8
from kbroker_tools.dump.legacy_messages import iter_messages
from kbroker_tools.dump.segment_reader import SegmentReader
from kbroker_tools.dump.selection import Selection
from kbroker_tools.dump.sink import Sink
from kbroker_tools.dump.text import MAX_DECOMPRESSED_BYTES

if TYPE_CHECKING:
    from kbroker_tools.rows.decoders import Decoder

ENCODERS: dict[str, Callable[[bytes], str]] = {
    'utf8': lambda data: data.decode('utf-8', 'replace'),
    'base64': lambda data: base64.b64encode(data).decode(),
    'hex': bytes.hex,
}

as_json = json.JSONEncoder(ensure_ascii=False, separators=(',', ':')).encode
quoted = json.encoder.encode_basestring
"""A function that returns a string as JSON text. It is faster than `as_json`, which looks at the type of its
argument."""


class DumpJson:
    """A writer of records as JSON. It has the same interface as DumpText."""

    def __init__(self, sink: Sink, payload: str, decoder: Decoder | None, selection: Selection | None,
                 on_damage: Callable[[str], None]):
        self._sink = sink
        self._encode = ENCODERS[payload]
        self._decoder = decoder
        self._selection = selection or Selection()
        self._on_damage = on_damage

    def begin(self, last_offset: int | None = None) -> None:
        """Begin a new file. Nothing has to be done, because JSON lines do not depend on the previous file."""

    def dump(self, reader: SegmentReader, most_bytes: int = 1 << 62) -> bool:
        """Write the next batches, up to about `most_bytes` bytes of the file. Return False at the end of the file."""
        enough = reader.next_position + most_bytes
        while reader.next_position < enough:
            if not reader.step():
                return False
            if reader.is_beyond(self._selection):
                return False
            if not reader.is_in(self._selection):
                continue
            try:
                for row in self._rows(reader):
                    self._sink.write(row)
            except (KafkaError, ProtocolError, CorruptLogError) as error:
                self._on_damage(f'{reader.path}: position {reader.position}, batch of offset '
                                f'{reader.header().base_offset}: {error}')
        return True

    def _rows(self, reader: SegmentReader) -> Iterator[str]:
        """Yield a line for each record of the current batch. The part of the line that is the same for all records is
        built once."""
        header, data = reader.header(), reader.batch()
        if reader.magic == MAGIC:
            records = iter_records(data, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)
        else:
            records = iter_messages(data, MAX_DECOMPRESSED_BYTES)
        begin = f'{{"file":{quoted(as_utf8(str(reader.path)))},"offset":'
        end = ',' + json_line(batch_fields(reader, header))[1:]
        holds, contents = self._selection.holds, self._contents
        for record in records:
            offset, timestamp_ms, headers = record.offset, record.timestamp_ms, record.headers
            if holds(offset, timestamp_ms):
                shown = ','.join([f'[{quoted(as_utf8(name))},{self._plain(value)}]' for name, value in headers])
                yield (f'{begin}{offset},"timestamp_ms":{timestamp_ms},{contents(header, record)},"headers":[{shown}],'
                       f'"sequence":{record.sequence}{end}')

    def _contents(self, header: BatchHeader, record: Record) -> str:
        key, value = record.key, record.value
        if header.is_control:
            name = read_control_type(key).name
            return f'"control":"{name}","key":{self._plain(key)},"value":{self._plain(value)}'
        if self._decoder is None:
            return f'"key":{self._plain(key)},"value":{self._plain(value)}'
        key_text, value_text = self._decoder.decode(record.offset, key, value)
        return f'"key":{as_json(parsed(key_text))},"value":{as_json(parsed(value_text))}'

    def _plain(self, data: bytes | None) -> str:
        return 'null' if data is None else quoted(self._encode(data))


def batch_fields(reader: SegmentReader, header: BatchHeader) -> dict[str, Any]:
    return {
        'timestamp_type': 'LogAppendTime' if header.is_log_append_time else 'CreateTime',
        'producer_id': header.producer_id, 'producer_epoch': header.producer_epoch,
        'partition_leader_epoch': header.partition_leader_epoch, 'is_transactional': header.is_transactional,
        'is_control': header.is_control, 'delete_horizon_ms': header.delete_horizon_ms,
        'compression': compression_of(header), 'magic': reader.magic,
        'batch_position': reader.position, 'batch_is_valid': reader.crc_is_right(),
    }


def compression_of(header: BatchHeader) -> str:
    """Return the name of the batch's compression codec. Raise CorruptLogError if the codec is unknown."""
    if header.compression > max(Compression):
        raise CorruptLogError(f'found compression {header.compression}, expected 0 to {max(Compression)}')
    return Compression(header.compression).name.lower()


def parsed(text: str | None) -> Any:
    """Return the JSON value of a text from a decoder. Return the text unchanged if it is not JSON."""
    if text is None or not text.startswith('{'):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def index_rows(path: str, suffix: str) -> Iterator[str]:
    """Yield the entries of an index file, or the producers of a snapshot, as JSON lines. Raise CorruptLogError or
    OSError if the file cannot be read."""
    from kbroker_tools.dump import index_files
    entries = {'.index': index_files.OffsetIndexFile, '.timeindex': index_files.TimeIndexFile,
               '.txnindex': index_files.transaction_rows, '.snapshot': index_files.snapshot_producers}[suffix](path)
    for entry in entries:  # type: ignore[attr-defined]
        fields = {name: value._asdict() if hasattr(value, '_asdict') else value
                  for name, value in entry._asdict().items()}
        yield json_line({'file': as_utf8(path), **fields})


def json_line(fields: dict[str, Any]) -> str:
    return as_json(fields) + '\n'
