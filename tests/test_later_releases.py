"""A directory that a later release wrote is refused by name: the fault, the highest known level or version, and the
release to use. The commands on a directory say so, too.

The directories are of this release, with one change that a later release could make.
"""
from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import TOPIC, Client, Promises
from support.messages.message_builder import build

from kbroker import __version__
from kbroker.base.errors import CorruptLogError, LogDirectoryError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kbroker.log.fs import FileSystem
from kbroker.log.inventory import INVENTORY_FILE, read_inventory
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.protocol.messages import FeatureLevelRecord, RegisterBrokerRecord, TopicRecord
from kbroker.protocol.metadata_records import encode_metadata_record
from kbroker.protocol.rows import encode_row_key
from kbroker.record.batch import encode_batch
from kbroker.wire.crc32c import crc32c
from kbroker_tools.commands.acls import main as acls
from kbroker_tools.commands.check import main as check
from kbroker_tools.commands.topics import main as topics

SETTINGS = {'log.index.size.max.bytes': '4096', 'offsets.topic.num.partitions': '1',
            'transaction.state.log.num.partitions': '1', 'share.coordinator.state.topic.num.partitions': '1'}
WRITER = (rf'\. A later release of Apache Kafka or kbroker wrote it: kbroker {__version__} made the last clean stop, '
          rf'and this is kbroker {__version__}\. Start that release or a later one$')


@pytest.fixture
def used(tmp_path) -> pathlib.Path:
    """A directory that a broker closed cleanly, with a row of a group, of a transaction and of a share group."""
    with InProcessBroker(tmp_path / 'data', SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic(TOPIC, 1)
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE):
            broker.topics.ensure_internal(topic)
        broker.turn()
    return tmp_path / 'data'


def append_to_metadata(directory: pathlib.Path, *values: bytes) -> None:
    """Append one batch with these records to the metadata log."""
    log = QuorumLog(FileSystem(), str(directory), 0)
    log.load(MetadataImage())
    path = sorted((directory / '__cluster_metadata-0').glob('*.log'))[-1]
    with path.open('ab') as file:
        file.write(encode_batch([(1, None, value) for value in values], base_offset=log.end_offset,
                                partition_leader_epoch=log.epoch))


def encoded(record, version: int = 0) -> bytes:
    return encode_metadata_record(record, version)


def of_version(value: bytes, version: int) -> bytes:
    """Return a metadata record with another version."""
    return value[:2] + bytes([version]) + value[3:]


LEVEL_35 = FeatureLevelRecord(name='metadata.version', feature_level=35)
REGISTRATION = of_version(encoded(RegisterBrokerRecord(broker_id=1, broker_epoch=1), 4), 9)


def higher_level(directory):
    append_to_metadata(directory, encoded(LEVEL_35))


def higher_level_and_its_records(directory):
    append_to_metadata(directory, encoded(LEVEL_35), REGISTRATION)


def records_after_a_higher_level(directory):
    append_to_metadata(directory, encoded(LEVEL_35))
    append_to_metadata(directory, REGISTRATION)


def unknown_feature(directory):
    append_to_metadata(directory, encoded(FeatureLevelRecord(name='queues.version', feature_level=1)))


def newer_record(directory):
    append_to_metadata(directory, REGISTRATION)


def unknown_record(directory):
    append_to_metadata(directory, bytes([1, 99, 0]) + encoded(TopicRecord(name='t', topic_id=bytes(16)))[3:])


METADATA_CASES = [
    (higher_level, 'found feature metadata.version at level 35, expected 7 to 33'),
    (higher_level_and_its_records, 'found feature metadata.version at level 35, expected 7 to 33'),
    (records_after_a_higher_level, 'found feature metadata.version at level 35, expected 7 to 33'),
    (unknown_feature, 'found feature queues.version at level 1, which this release does not know'),
    (newer_record, r'metadata batch at offset \d+, record 0: found version 9 of RegisterBrokerRecord, expected at most '
                   '4'),
    (unknown_record, r'metadata batch at offset \d+, record 0: metadata record of unknown api key 99, version 0')]


@pytest.mark.parametrize('is_locked_before', [False, True])
@pytest.mark.parametrize(('change', 'text'), METADATA_CASES)
def test_metadata_of_a_later_release_is_refused(used, change, text, is_locked_before):
    change(used)
    if not is_locked_before:
        (used / '.lock').unlink()
    before = tree(used)
    with pytest.raises(LogDirectoryError, match=text + WRITER):
        InProcessBroker(used, SETTINGS).__enter__()
    assert tree(used) == before


def tree(directory: pathlib.Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob('*') if path.is_file() and path.name != '.lock'}


def test_the_writer_is_named_only_if_the_directory_says_it(used):
    (used / INVENTORY_FILE).unlink()
    higher_level(used)
    with pytest.raises(LogDirectoryError, match=r'wrote it, and this is kbroker'):
        InProcessBroker(used, SETTINGS).__enter__()


def change_inventory(directory: pathlib.Path, **fields: object) -> None:
    head, *rows, last = (directory / INVENTORY_FILE).read_text().splitlines()
    content = ''.join(f'{line}\n' for line in [json.dumps(json.loads(head) | fields), *rows])
    (directory / INVENTORY_FILE).write_text(f'{content}{last.split()[0]} {crc32c(content.encode())}\n')


@pytest.mark.parametrize('is_clean', [True, False])
def test_formats_of_a_later_kbroker_are_refused_with_its_release(used, is_clean):
    change_inventory(used, version=2, release='7.1.0')
    if not is_clean:
        (used / '.kafka_cleanshutdown').unlink()
    before = tree(used)
    with pytest.raises(LogDirectoryError, match=r'found version 2, expected at most 1: only kbroker 7\.1\.0 or later '
                                                rf'can open the directory, and this is kbroker {__version__}$'):
        InProcessBroker(used, SETTINGS).__enter__()
    assert tree(used) == before


def test_the_inventory_of_a_release_that_did_not_write_its_name_is_read(used):
    head, *_ = (used / INVENTORY_FILE).read_text().splitlines()
    assert json.loads(head)['release'] == __version__
    change_inventory(used, release=None)
    assert read_inventory(FileSystem(), str(used)) is not None


ROWS = [
    (CONSUMER_OFFSETS, build('OffsetCommitKey', group='g', topic=TOPIC, partition=0), 'OffsetCommitValue', 4),
    (TRANSACTION_STATE, build('TransactionLogKey', transactional_id='x'), 'TransactionLogValue', 1),
    (SHARE_GROUP_STATE, build('ShareSnapshotKey', group_id='g', topic_id=b'1' * 16, partition=0), 'ShareSnapshotValue',
     0)]


@pytest.mark.parametrize(('topic', 'key', 'value', 'highest'), ROWS)
def test_a_row_of_a_later_release_is_refused(used, topic, key, value, highest):
    """An earlier version skipped rows of transactions and of share groups."""
    batch = encode_batch([(1, encode_row_key(key), bytes([0, highest + 1]) + bytes(20))], base_offset=0,
                         partition_leader_epoch=0)
    (used / '.kafka_cleanshutdown').unlink()
    with (used / f'{topic}-0' / f'{0:020}.log').open('ab') as file:
        file.write(batch)
    with pytest.raises(CorruptLogError, match=rf'{topic}.*the row at offset 0 cannot be read: found {value} of version '
                                              rf'{highest + 1}, expected at most {highest}: only the release of '):
        InProcessBroker(used, SETTINGS).__enter__()


# ---- the commands on a directory ----

@pytest.mark.parametrize(('change', 'text'), METADATA_CASES)
def test_kbroker_check_does_not_call_a_later_release_damage(used, change, text):
    change(used)
    ended = CliRunner().invoke(check, [str(used)])
    assert ended.exit_code == 1
    output = ended.output.replace('\n', ' ')
    assert 'A later release of Apache Kafka or kbroker wrote it' in output, ended.output
    assert 'do: check the directory with kbroker-check of that release' in output, ended.output
    assert 'backup' not in output


@pytest.mark.parametrize(('change', 'text'), METADATA_CASES)
def test_the_view_of_a_directory_warns_about_a_later_release(used, change, text, caplog):
    change(used)
    ended = CliRunner().invoke(topics, ['--list', '--data-dir', str(used)])
    assert (ended.exit_code, TOPIC in ended.stdout) == (0, True), ended.output
    assert [record for record in caplog.records if 'A later release of Apache Kafka or kbroker wrote it'
            in record.getMessage()], caplog.text


def test_a_command_that_writes_refuses_a_directory_of_a_later_release(used):
    higher_level(used)
    before = tree(used)
    ended = CliRunner().invoke(acls, ['--data-dir', str(used), '--add', '--allow-principal', 'User:x', '--operation',
                                      'All', '--cluster'])
    assert ended.exit_code == 1 and 'found feature metadata.version at level 35' in ended.stderr, ended.output
    assert tree(used) == before
