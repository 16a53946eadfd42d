"""The choice of the decoder for a dump, and the text of control records."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError
from kbroker_tools.dump.options import STRING_DECODER, DumpOptions
from kbroker_tools.rows.releases import NEWEST

if TYPE_CHECKING:
    from kbroker_tools.rows.decoders import Decoder

def decoder_for(options: DumpOptions) -> Decoder | None:
    """Return the decoder that the options name. Return None if keys and values are shown as UTF-8 text."""
    if options.decoder is not None:
        from kbroker_tools.rows.decoders import decoder
        return decoder(options.decoder, options.compat or NEWEST)
    classes = (options.key_decoder_class, options.value_decoder_class)
    if all(name in (None, STRING_DECODER) for name in classes):
        return None
    return ClassDecoder(*(_reader_of(name or STRING_DECODER) for name in classes))


class ClassDecoder:
    """The decoder of keys and values by the classes that --key-decoder-class and --value-decoder-class name."""

    def __init__(self, read_key: Callable[[bytes], str], read_value: Callable[[bytes], str]):
        self._read_key = read_key
        self._read_value = read_value

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        return (None if key is None else self._read_key(key), None if value is None else self._read_value(value))


def _reader_of(class_name: str) -> Callable[[bytes], str]:
    if class_name == STRING_DECODER:
        from kbroker_tools.rows.decoders import java_text
        return java_text
    size = 4 if class_name.endswith('.IntegerDecoder') else 8

    def read(data: bytes) -> str:
        if len(data) < size:
            raise CorruptLogError(f'found {len(data)} bytes, expected the {size} of a number')
        return str(int.from_bytes(data[:size], 'big', signed=True))
    return read


def control_text(number: int, value: bytes | None) -> str:
    """Return the text of a control record that is not a transaction marker. Raise CorruptLogError if its value cannot
    be read."""
    from kbroker_tools.rows.decoders import CONTROL_RECORDS, quorum_record_text
    if number not in CONTROL_RECORDS:
        return f' controlType: UNKNOWN({number})'
    if value is None:
        raise CorruptLogError(f'found a control record of type {number} without a value')
    return ' ' + quorum_record_text(number, value)
