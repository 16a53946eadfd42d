"""A slow reader of the metadata log in `__cluster_metadata-0`, written from the description of the format."""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reference.record import decode_batch, decode_records

LOG_OVERHEAD_BYTES = 12


@dataclass
class Entry:
    """A record of the metadata log. All records of one batch have the same `batch_offset`, and take effect together."""

    batch_offset: int
    offset: int
    epoch: int
    timestamp_ms: int
    control_type: int | None
    value: bytes


class Fields:
    """Reads values one after the other from the bytes of a record in the compact encoding."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def fixed(self, form: str) -> Any:
        return struct.unpack('>' + form, self.take(struct.calcsize('>' + form)))[0]

    def take(self, size: int) -> bytes:
        assert size <= len(self.data) - self.at, 'the value ends too early'
        self.at += size
        return self.data[self.at - size : self.at]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def string(self) -> str:
        return self.take(self.unsigned() - 1).decode()

    def skip_int32_array(self) -> None:
        self.take(4 * (self.unsigned() - 1))

    def tags(self) -> dict[int, bytes]:
        return {self.unsigned(): self.take(self.unsigned()) for _ in range(self.unsigned())}


def entries(log: bytes) -> Iterator[Entry]:
    """Yield the records in `log`, the bytes of a segment. Raise AssertionError for a batch that no quorum leader would
    write."""
    at = 0
    while at < len(log):
        end = at + LOG_OVERHEAD_BYTES + int.from_bytes(log[at + 8 : at + 12], 'big')
        batch = decode_batch(log[at:end])
        assert batch.attributes in (0, 0x20) and batch.base_timestamp_ms == batch.max_timestamp_ms
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
        for index, record in enumerate(decode_records(batch.records, batch.records_count)):
            assert (record.offset_delta, record.timestamp_delta_ms, record.headers) == (index, 0, [])
            assert record.value is not None and (record.key is None) == (batch.attributes == 0)
            control_type = None if record.key is None else struct.unpack('>hh', record.key)[1]
            yield Entry(
                batch.base_offset,
                batch.base_offset + index,
                batch.partition_leader_epoch,
                batch.base_timestamp_ms,
                control_type,
                record.value,
            )
        assert index == batch.last_offset_delta
        at = end


def read_log(log_dir: pathlib.Path) -> list[Entry]:
    """Return all records of the metadata log. Raise AssertionError unless their offsets are contiguous and their epochs
    never decrease."""
    found: list[Entry] = []
    for segment in sorted(log_dir.glob('__cluster_metadata-0/*.log')):
        for entry in entries(segment.read_bytes()):
            if found:
                assert entry.offset == found[-1].offset + 1 and entry.epoch >= found[-1].epoch
            found.append(entry)
    return found


def record_kinds(found: list[Entry]) -> list[tuple[int, int]]:
    """Return (api key, version) for each data record."""
    return [(entry.value[1], entry.value[2]) for entry in found if entry.control_type is None]


def partition_states(found: list[Entry]) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return {(topic, partition): (leader, leader epoch, partition epoch)}. The log must not have aborted
    transactions."""
    names: dict[bytes, str] = {}
    states: dict[tuple[str, int], tuple[int, int, int]] = {}
    for entry in found:
        if entry.control_type is not None:
            continue
        frame_version, api_key, _ = entry.value[:3]
        assert frame_version == 1
        fields = Fields(entry.value[3:])
        if api_key == 2:
            name = fields.string()
            names[fields.take(16)] = name
        elif api_key == 3:
            index, topic_id = fields.fixed('i'), fields.take(16)
            for _ in ('replicas', 'isr', 'removing_replicas', 'adding_replicas'):
                fields.skip_int32_array()
            states[names[topic_id], index] = fields.fixed('i'), fields.fixed('i'), fields.fixed('i')
        elif api_key == 5:
            index, topic_id = fields.fixed('i'), fields.take(16)
            leader, leader_epoch, partition_epoch = states[names[topic_id], index]
            elected = fields.tags().get(1)
            if elected is not None:
                leader, leader_epoch = struct.unpack('>i', elected)[0], leader_epoch + 1
            states[names[topic_id], index] = leader, leader_epoch, partition_epoch + 1
        elif api_key == 9:
            name = names.pop(fields.take(16))
            states = {key: state for key, state in states.items() if key[0] != name}
    return states
