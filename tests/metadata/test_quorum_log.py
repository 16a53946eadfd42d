"""The metadata log: which content is allowed at its end, errors in its middle, and its single writer."""

from __future__ import annotations

import struct

import pytest
from controller_directory import ControllerDirectory, CountdownFileSystem, alter_configs, create_topic
from reference.kraft import read_log

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.log.fs import FileSystem
from kbroker.metadata.batches import encode_data
from kbroker.metadata.directory import DirectoryRefusedError
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.metadata.quorum_state import QuorumState, parse_quorum_state
from kbroker.protocol.messages import BeginTransactionRecord, NoOpRecord, TopicRecord
from kbroker.record.batch import encode_batch, iter_batches


@pytest.mark.parametrize('left', [1, 11, 12, 60, 61, 90])
def test_a_torn_last_batch_is_cut_when_the_next_epoch_begins(stopped: ControllerDirectory, left: int) -> None:
    whole = stopped.segment.read_bytes()
    torn = encode_data([TopicRecord(name='torn', topic_id=b'1' * 16)], **stopped.next_place(), metadata_version=30)
    stopped.append(torn[:left])
    controller = stopped.open()
    assert 'torn' not in controller.image.topics and 't' in controller.image.topics
    assert stopped.segment.read_bytes().startswith(whole)
    assert read_log(stopped.log_dir)[-1].epoch == 2


@pytest.mark.parametrize('tail', [bytes(4096), b'\xff' * 300, b'\x02' * 300])
def test_bytes_at_the_end_that_are_no_batch_are_cut(stopped: ControllerDirectory, tail: bytes) -> None:
    stopped.append(tail)
    assert 't' in stopped.open().image.topics
    read_log(stopped.log_dir)


def test_a_last_batch_with_a_wrong_checksum_is_a_torn_write(stopped: ControllerDirectory) -> None:
    batch = encode_data([TopicRecord(name='torn', topic_id=b'1' * 16)], **stopped.next_place(), metadata_version=30)
    batch[-1] ^= 1
    stopped.append(bytes(batch))
    assert 'torn' not in stopped.open().image.topics


def test_reading_alone_cuts_nothing(stopped: ControllerDirectory) -> None:
    stopped.append(b'torn')
    before = stopped.files()
    QuorumLog(FileSystem(), str(stopped.log_dir), 1 << 30).load(MetadataImage())
    assert stopped.files() == before


@pytest.mark.parametrize('part', ['base_offset', 'length', 'magic', 'crc', 'records'])
def test_damage_in_the_middle_refuses_to_open_and_changes_nothing(stopped: ControllerDirectory, part: str) -> None:
    data = bytearray(stopped.segment.read_bytes())
    *_, (_, _), (before_last, _), (_, _) = iter_batches(data)
    starts = [header.base_offset for header, _ in iter_batches(data)]
    position = sum(header.size_bytes for header, _ in iter_batches(data) if header.base_offset < starts[2])
    at = {'base_offset': 7, 'length': 10, 'magic': 16, 'crc': 17, 'records': before_last.size_bytes - 1}[part]
    data[position + at] ^= 1
    stopped.segment.write_bytes(data)
    stopped.assert_refused(CorruptLogError, 'a sound one behind them|expected offset')


def test_a_long_stretch_of_garbage_is_more_than_a_torn_write(stopped: ControllerDirectory) -> None:
    stopped.append(b'\xff' * (17 * 1024 * 1024))
    stopped.assert_refused(CorruptLogError, 'more than a write')


def test_a_gap_in_the_offsets_refuses_to_open(stopped: ControllerDirectory) -> None:
    stopped.append_records(NoOpRecord(), base_offset=stopped.next_place()['base_offset'] + 1)
    stopped.assert_refused(CorruptLogError, 'expected offset')


def test_an_epoch_that_falls_refuses_to_open(stopped: ControllerDirectory) -> None:
    stopped.append_records(NoOpRecord(), epoch=0)
    stopped.assert_refused(CorruptLogError, 'in epoch 0')


NOT_KNOWN = [
    (None, b'\x01\x63\x00'), (None, b'\x02\x14\x00\x00'), (None, b'\x01\x14\x01\x00'), (None, b'\x01\x14\x00\x00extra'),
    (None, b''), (None, None), (b'\0\0\0\x09', b'\0\0\0'), (b'\0', b'\0\0\0'), (b'\0\0\0\x05', b'\0\x07\0\0\0')]
"""(key, value) of records that the log does not know. A record with a key is a control record."""


@pytest.mark.parametrize(('key', 'value'), NOT_KNOWN)
def test_a_record_that_is_not_known_refuses_to_open(
    stopped: ControllerDirectory, key: bytes | None, value: bytes | None
) -> None:
    place = stopped.next_place()
    stopped.append(encode_batch(
        [(place['timestamp_ms'], key, value)], base_offset=place['base_offset'],
        partition_leader_epoch=place['epoch'], control=key is not None))
    stopped.assert_refused((CorruptLogError, DirectoryRefusedError),
                           f'metadata batch at offset {place["base_offset"]}, record 0')


def test_a_record_that_contradicts_the_state_refuses_to_open(stopped: ControllerDirectory) -> None:
    stopped.append_records(TopicRecord(name='t', topic_id=b'1' * 16))
    stopped.assert_refused(CorruptLogError, 'is taken')


@pytest.mark.parametrize(
    'content', [b'', b'garbage', b'[]', b'{"leaderId":1}', b'{"leaderId":1,"leaderEpoch":1,"data_version":2}']
)
def test_a_quorum_state_that_cannot_be_read_refuses_to_open(stopped: ControllerDirectory, content: bytes) -> None:
    (stopped.metadata_directory / 'quorum-state').write_bytes(content)
    stopped.assert_refused(CorruptLogError, 'quorum-state')


@pytest.mark.parametrize(
    'state', [QuorumState(7, 1), QuorumState(7, 3), QuorumState(7, -1), QuorumState(7, 1, (1,), data_version=0)]
)
def test_the_next_epoch_is_above_the_one_of_the_quorum_state(stopped: ControllerDirectory, state: QuorumState) -> None:
    (stopped.metadata_directory / 'quorum-state').write_bytes(state.encode())
    stopped.open()
    assert read_log(stopped.log_dir)[-1].epoch == 8
    assert parse_quorum_state((stopped.metadata_directory / 'quorum-state').read_bytes(), '') == QuorumState(8, 1)


@pytest.mark.parametrize('content', [None, QuorumState(0, 1).encode()])
def test_the_next_epoch_is_above_the_one_of_the_log(stopped: ControllerDirectory, content: bytes | None) -> None:
    path = stopped.metadata_directory / 'quorum-state'
    path.unlink() if content is None else path.write_bytes(content)
    stopped.open()
    assert read_log(stopped.log_dir)[-1].epoch == 2


def test_quorum_states_are_spelled_as_kafka_does() -> None:
    assert QuorumState(3, 1, (1,), data_version=0).encode() == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert QuorumState(3, 1).encode() == (
        b'{"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )


def test_a_transaction_left_open_is_aborted_at_the_next_start(stopped: ControllerDirectory) -> None:
    stopped.append_records(BeginTransactionRecord(name='x'), TopicRecord(name='u', topic_id=b'1' * 16))
    controller = stopped.open()
    assert controller.image.open_transaction is None and 'u' not in controller.image.topics
    assert read_log(stopped.log_dir)[-1].value == bytes.fromhex('01190001001414436f6e74726f6c6c6572206661696c6f766572')
    assert 'u' not in stopped.open().image.topics


def test_a_second_writer_of_the_log_is_noticed_before_the_next_write(node: ControllerDirectory) -> None:
    controller = node.start()
    node.append_records(NoOpRecord())
    before = node.files()
    for _ in range(2):
        with pytest.raises(KafkaError, match='another program writes this log') as failure:
            create_topic(controller, 't', 1)
        assert failure.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.files() == before and not controller.image.topics


def test_a_second_leader_of_the_quorum_is_noticed_before_the_next_write(node: ControllerDirectory) -> None:
    controller = node.start()
    (node.metadata_directory / 'quorum-state').write_bytes(QuorumState(2, 1).encode())
    with pytest.raises(KafkaError, match='another program leads this log'):
        create_topic(controller, 't', 1)


@pytest.mark.usefixtures('any_group_config')
def test_the_log_rolls_into_segments_that_are_read_in_order(tmp_path) -> None:
    node = ControllerDirectory(tmp_path / 'data', metadata_log_segment_bytes='8388608')
    controller = node.start()
    for letter in 'abcdefghijklm':
        alter_configs(controller, 32, 'g', {f'key.{number}': letter * 30_000 for number in range(30)})
    create_topic(controller, 't', 1)
    bases = sorted(int(path.stem) for path in node.metadata_directory.glob('*.log'))
    assert len(bases) == 2 and all(path.stat().st_size <= 8388608 for path in node.metadata_directory.glob('*.log'))
    node.stop(controller)
    again = node.open().image
    assert 't' in again.topics and set(again.configs[32, 'g'].values()) == {'m' * 30_000}


def test_damage_at_the_end_of_a_segment_that_is_not_the_last_refuses_to_open(stopped: ControllerDirectory) -> None:
    end = stopped.next_place()['base_offset']
    stopped.append(b'torn')
    (stopped.metadata_directory / f'{end:020}.log').touch()
    stopped.assert_refused(CorruptLogError, 'and a later segment')


def test_a_missing_segment_refuses_to_open(stopped: ControllerDirectory) -> None:
    (stopped.metadata_directory / f'{999:020}.log').touch()
    stopped.assert_refused(CorruptLogError, 'found a segment at offset 999')


def test_a_segment_that_was_begun_and_never_written_is_used(stopped: ControllerDirectory) -> None:
    end = stopped.next_place()['base_offset']
    (stopped.metadata_directory / f'{end:020}.log').touch()
    stopped.open()
    assert stopped.segment.name == f'{end:020}.log' and stopped.segment.stat().st_size > 0
    read_log(stopped.log_dir)


class TestSnapshots:
    """Snapshots of a directory whose log starts at offset 4469, and whose newest snapshot ends at offset 7132."""

    @pytest.fixture
    def trimmed(self, unpack) -> ControllerDirectory:
        return unpack('trimmed-metadata-log-with-snapshots')

    def newest(self, node: ControllerDirectory):
        return max(node.metadata_directory.glob('*.checkpoint'))

    def test_a_log_that_starts_above_every_snapshot_is_refused(self, trimmed: ControllerDirectory) -> None:
        for snapshot in trimmed.metadata_directory.glob('*.checkpoint'):
            snapshot.unlink()
        trimmed.assert_refused(CorruptLogError, 'the log starts at offset 4469')

    def test_an_older_snapshot_gives_the_same_image(self, trimmed: ControllerDirectory) -> None:
        images = []
        for _ in range(3):
            image = MetadataImage()
            QuorumLog(FileSystem(), str(trimmed.log_dir), 1 << 30).load(image)
            images.append((image.topics, image.configs, image.brokers, image.features, image.next_producer_id))
            self.newest(trimmed).unlink()
        assert images[0] == images[1] == images[2]

    def test_unfinished_and_deleted_snapshots_do_not_count(self, trimmed: ControllerDirectory) -> None:
        for suffix in ('checkpoint.part', 'checkpoint.deleted', '-12345.checkpoint.part'):
            (trimmed.metadata_directory / f'{7500:020}-{17:010}.{suffix}').write_bytes(b'x')
        assert 't1' in trimmed.open().image.topics

    def test_a_snapshot_ahead_of_the_log_is_refused(self, trimmed: ControllerDirectory) -> None:
        self.newest(trimmed).rename(trimmed.metadata_directory / f'{9999:020}-{17:010}.checkpoint')
        trimmed.assert_refused(CorruptLogError, 'expected the log to reach as far')

    def test_a_snapshot_that_ends_inside_a_batch_is_refused(self, trimmed: ControllerDirectory) -> None:
        first = next(header for header, _ in iter_batches(trimmed.segment.read_bytes()) if header.last_offset_delta > 0)
        newest = self.newest(trimmed).read_bytes()
        for path in trimmed.metadata_directory.glob('*.checkpoint'):
            path.unlink()
        (trimmed.metadata_directory / f'{first.last_offset:020}-{17:010}.checkpoint').write_bytes(newest)
        trimmed.assert_refused(CorruptLogError, 'ends inside the batch')

    @pytest.mark.parametrize('damage', ['cut', 'flip', 'no footer', 'no header', 'appended'])
    def test_a_damaged_snapshot_is_refused(self, trimmed: ControllerDirectory, damage: str) -> None:
        path = self.newest(trimmed)
        data = path.read_bytes()
        header, *_, footer = [bytes(batch) for _, batch in iter_batches(data)]
        path.chmod(0o600)
        path.write_bytes(
            {
                'cut': data[:-1],
                'flip': data[:200] + bytes([data[200] ^ 1]) + data[201:],
                'no footer': data[: -len(footer)],
                'no header': data[len(header) :],
                'appended': data + b'x',
            }[damage]
        )
        trimmed.assert_refused(CorruptLogError, 'checkpoint')


def test_a_length_that_promises_gigabytes_is_not_believed(stopped: ControllerDirectory) -> None:
    place = stopped.next_place()
    stopped.append(struct.pack('>qiib', place['base_offset'], 2**31 - 1, 1, 2) + bytes(100))
    assert 't' in stopped.open().image.topics


def test_a_write_that_fails_is_the_last_one(node: ControllerDirectory) -> None:
    fs = CountdownFileSystem()
    controller = node.start(fs)
    fs.allowed = fs.changes
    for _ in range(2):
        with pytest.raises(KafkaError) as failure:
            create_topic(controller, 't', 1)
        assert failure.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        fs.allowed = 1_000_000
    assert not controller.image.topics
