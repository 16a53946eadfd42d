"""Functions that build messages and batches from plain values."""
from __future__ import annotations

from typing import Any

from kbroker.protocol import messages
from kbroker.record.batch import encode_batch


def build(name: str, **fields: Any) -> Any:
    """Build the message `name` from these fields. The value of a struct is a dict."""
    message_class = getattr(messages, name)
    return _build(message_class, message_class, message_class.schema.struct, fields)


def _build(message_class: Any, struct_class: Any, struct: Any, values: dict[str, Any]) -> Any:
    made = {}
    by_name = {field.name: field for field in struct.fields}
    for name, value in values.items():
        nested = by_name[name].struct
        if nested is not None and value is not None:
            nested_class = getattr(message_class, nested.name)
            value = (
                [_build(message_class, nested_class, nested, item) for item in value]
                if by_name[name].is_array
                else _build(message_class, nested_class, nested, value)
            )
        made[name] = value
    return struct_class(**made)


def error_codes(answer: Any, fields: tuple[str, ...] = ('error_code', 'partition_error_code')) -> set[int]:
    """Return every error code in the fields of an answer with these names, nested fields included."""
    if isinstance(answer, list):
        return set().union(*(error_codes(item, fields) for item in answer))
    found = set()
    for name in getattr(getattr(answer, '_layout', None), 'names', ()):
        value = getattr(answer, name)
        found |= {value} if name in fields else error_codes(value, fields)
    return found


def batch_of(now_ms: int, *values: Any, **options: Any) -> bytes:
    """Encode a batch of records. A record is a value, (key, value) or (timestamp in ms, key, value). The default
    timestamp is `now_ms`.
    """
    records = [
        value if isinstance(value, tuple) and len(value) == 3
        else (now_ms, *value) if isinstance(value, tuple) else (now_ms, b'key', value)
        for value in values
    ]
    return bytes(encode_batch(records, **options))
