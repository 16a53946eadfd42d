"""Records of configs: functions that create them, and the limits of their sizes."""
from __future__ import annotations

from collections.abc import Mapping

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.codec import MAX_STRING_BYTES
from kbroker.protocol.messages import ClearElrRecord, ConfigRecord

MIN_INSYNC_REPLICAS = 'min.insync.replicas'
OVERHEAD_BYTES = 64
"""An upper bound of the bytes that a record takes in a batch, without the bytes of its strings."""


def config_record(resource_type: int, name: str, key: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=value)


def check_config_sizes(configs: Mapping[str, str | None]) -> None:
    """Raise KafkaError INVALID_CONFIG if a name or a value is too long for a record."""
    for key, value in configs.items():
        if max(len(key.encode()), len((value or '').encode())) > MAX_STRING_BYTES:
            raise KafkaError(ErrorCode.INVALID_CONFIG,
                             f'{key[:80]}: found a name or value of more than {MAX_STRING_BYTES} bytes')


def longest_encoding(record: ConfigRecord | ClearElrRecord) -> int:
    """Return an upper bound of the bytes that the record takes in a batch."""
    texts = ([record.topic_name] if isinstance(record, ClearElrRecord) else
             [record.resource_name, record.name, record.value or ''])
    return OVERHEAD_BYTES + sum(len(text.encode()) for text in texts)
