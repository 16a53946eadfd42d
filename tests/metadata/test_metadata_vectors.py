"""kbroker reads and writes the same metadata bytes as Apache Kafka."""

from __future__ import annotations

import pytest
from controller_directory import DATA, ControllerDirectory, create_topic

from kbroker.metadata import directory as directory_module
from kbroker.metadata import topic_operations as operations_module
from kbroker.metadata.batches import decode_batch, encode_control, encode_data
from kbroker.metadata.directory import feature_levels
from kbroker.metadata.features import RELEASES, record_version
from kbroker.protocol.codec import encode
from kbroker.protocol.messages import FeatureLevelRecord, LeaderChangeMessage, NoOpRecord
from kbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record
from kbroker.record.batch import encode_batch, iter_batches, set_base_offset

DIRECTORY_ID = bytes(range(0x10, 0x20))
TOPIC_ID = bytes(range(0x30, 0x40))
TIMESTAMP_MS = 1_700_000_000_000

_LINES = (DATA / 'kraft_vectors.txt').read_text().splitlines()
VECTORS = {title.rsplit(' (', 1)[0]: bytes.fromhex(data) for title, data in zip(_LINES[::2], _LINES[1::2], strict=True)}
RECORDS = {title: data for title, data in VECTORS.items() if data[0] == 1}
BATCHES = {title: data for title, data in VECTORS.items() if data[0] == 0}
FIRST_BATCH = 'LeaderChange + KRaftVersion 1 + KRaftVoters, offsets 0-2, epoch 1 (first start after --standalone)'
STATIC_FIRST_BATCH = 'LeaderChange, offset 0, epoch 1 (kraft.version 0, or 1 with no voters update)'
FORMAT_SNAPSHOT = "whole 00000000000000000000-0000000000.checkpoint of 'format --standalone' (4.4)"
UPGRADE_BATCH = (
    "batch of 'kafka-features upgrade --release-version 4.4', offsets 502-508, epoch 3 (4.4.0; a NoOp was queued)"
)
TOPIC_BATCH = 'topic creation batch, offsets 65-67, epoch 1 (Topic, Config, Partition)'


@pytest.mark.parametrize('title', RECORDS)
def test_a_record_is_read_and_written_to_the_byte(title: str) -> None:
    record, version = decode_metadata_record(RECORDS[title])
    assert encode_metadata_record(record, version) == RECORDS[title]


@pytest.mark.parametrize(
    ('title', 'metadata_version'),
    [
        ('RegisterBroker v4 (fenced, one dir, cordoned null)', 30),
        ('RegisterBroker v3 (same, metadata.version 17..29)', 29),
        ('BrokerRegistrationChange v0 unfence', 30),
        ('BrokerRegistrationChange v0 fence', 30),
        ('BrokerRegistrationChange v1 controlled shutdown', 30),
        ('BrokerRegistrationChange v3 cordoned []', 30),
        ('Partition v2', 23),
        ('Partition v1', 22),
        ('PartitionChange v2 clean stop (ELR on)', 23),
        ('NoOp v0', 30),
    ],
)
def test_a_record_has_the_version_of_the_metadata_version(title: str, metadata_version: int) -> None:
    record, version = decode_metadata_record(RECORDS[title])
    assert record_version(record, metadata_version) == version


@pytest.mark.parametrize('title', BATCHES)
def test_batches_are_read_and_written_to_the_byte(title: str) -> None:
    again = bytearray()
    for header, batch in iter_batches(BATCHES[title]):
        records = decode_batch(header, batch)
        place = {
            'base_offset': header.base_offset,
            'epoch': header.partition_leader_epoch,
            'timestamp_ms': header.base_timestamp_ms,
        }
        again += (
            encode_control(records, **place)
            if header.is_control
            else encode_data(records, metadata_version=30, **place)
        )
    assert bytes(again) == BATCHES[title]


def test_kafka_upgrades_to_4_4_by_a_record_for_each_feature() -> None:
    ((header, batch),) = iter_batches(VECTORS[UPGRADE_BATCH])
    records = decode_batch(header, batch)
    assert feature_levels(records) == RELEASES['4.4']
    assert [record for record in records if not isinstance(record, FeatureLevelRecord)] == [NoOpRecord()]


def first_batch(node: ControllerDirectory) -> bytes:
    return bytes(next(iter_batches(node.segment.read_bytes()))[1])


def test_a_new_directory_starts_with_the_bytes_of_a_formatted_one(
    node: ControllerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, 'random_uuid', lambda: DIRECTORY_ID)
    node.start()
    assert (node.metadata_directory / f'{0:020}-{0:010}.checkpoint').read_bytes() == VECTORS[FORMAT_SNAPSHOT]
    assert first_batch(node) == VECTORS[FIRST_BATCH]


def test_a_directory_with_a_static_voter_starts_with_a_bare_leader_change(unpack) -> None:
    node = unpack('kafka-4.3-static-voter')
    for file in node.metadata_directory.iterdir():
        file.unlink()
    node.metadata_directory.rmdir()
    node.start()
    assert first_batch(node) == VECTORS[STATIC_FIRST_BATCH]


def test_a_topic_is_created_in_the_bytes_of_one_batch(
    node: ControllerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, 'random_uuid', lambda: DIRECTORY_ID)
    monkeypatch.setattr(operations_module, 'random_uuid', lambda: TOPIC_ID)
    controller = node.start()
    create_topic(controller, 't1', 1, {'retention.ms': '86400000'})
    *_, (_, written) = iter_batches(node.segment.read_bytes())
    batch = bytearray(written)
    set_base_offset(batch, 65)
    assert bytes(batch) == VECTORS[TOPIC_BATCH]


def test_a_no_op_batch_moves_only_the_offset() -> None:
    ((header, batch),) = iter_batches(VECTORS['NoOp batch, offset 12, epoch 1 (72 bytes)'])
    assert decode_batch(header, batch) == [NoOpRecord()]


def test_a_leader_change_of_version_1_names_the_directory_of_each_voter() -> None:
    voter = LeaderChangeMessage.Voter(voter_id=1, voter_directory_id=DIRECTORY_ID)
    body = encode(LeaderChangeMessage(version=1, leader_id=1, voters=[voter], granting_voters=[voter]), 1)
    ((header, batch),) = iter_batches(encode_batch([(TIMESTAMP_MS, b'\0\0\0\2', body)], control=True))
    (record,) = decode_batch(header, batch)
    assert record.voters[0].voter_directory_id == DIRECTORY_ID
