"""The directory of a cleanly stopped broker is damaged. The tests check what the next start logs, which partitions it
serves, what `kbroker-check` finds, and how an operator repairs the directory.
"""
from __future__ import annotations

import json
import logging
import os
import pathlib
import shutil

import pytest
from click.testing import CliRunner
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import READ_UNCOMMITTED, Client, Promises
from support.disk.damages import PLAIN, SETTINGS, TRANSACTIONS, TRIMMED, Loud, View, build, view_of
from support.disk.faulty_file_systems import FailingFileSystem, FreezingFileSystem

from kbroker.base.clock import ManualClock
from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError, LogDirectoryError
from kbroker.log.append import Origin
from kbroker.log.checkpoints import LOG_START_OFFSET_FILE
from kbroker.log.damage_notes import DAMAGE_FILE
from kbroker.log.directory_names import CLEAN_SHUTDOWN_FILE
from kbroker.log.fs import FileSystem
from kbroker.log.inventory import INVENTORY_FILE, read_inventory
from kbroker.record.batch import encode_batch, iter_batches
from kbroker_tools.commands import check as check_command

HOUR_MS = 3_600_000


@pytest.fixture(scope='module')
def built(memory_path_of_module: pathlib.Path) -> pathlib.Path:
    build(memory_path_of_module / 'built', memory_path_of_module / 'old')
    return memory_path_of_module / 'built'


@pytest.fixture
def stopped(built: pathlib.Path, memory_path: pathlib.Path) -> pathlib.Path:
    """A copy of a directory that was stopped cleanly."""
    shutil.copytree(built, memory_path / 'data')
    return memory_path / 'data'


@pytest.fixture
def expected(built: pathlib.Path, memory_path: pathlib.Path) -> View:
    """The records that consumers read from the undamaged directory."""
    shutil.copytree(built, memory_path / 'untouched')
    return look(memory_path / 'untouched')


def look(directory: pathlib.Path) -> View:
    with InProcessBroker(directory, SETTINGS) as broker:
        return view_of(broker, every_offset())


class every_offset:
    """A replacement for a random generator. Its `sample` returns the whole population."""

    def sample(self, population: range, count: int) -> list[int]:
        return list(population)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def check(*arguments: object) -> tuple[int, str]:
    """Run kbroker-check. Return its exit code and its output."""
    result = CliRunner().invoke(check_command.main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def segments(directory: pathlib.Path, partition: str, suffix: str = '.log') -> list[pathlib.Path]:
    return sorted((directory / partition).glob(f'*{suffix}'))


def cut_at_a_batch(path: pathlib.Path) -> None:
    *kept, _ = iter_batches(path.read_bytes())
    path.write_bytes(path.read_bytes()[:sum(header.size_bytes for header, _ in kept)])


def filled(directory: pathlib.Path, partition: str) -> list[pathlib.Path]:
    return [path for path in segments(directory, partition) if path.stat().st_size]


# ---- lost records ----

@pytest.mark.parametrize('damage', [
    lambda directory: cut_at_a_batch(filled(directory, f'{PLAIN}-0')[-1]),
    lambda directory: filled(directory, f'{PLAIN}-0')[0].write_bytes(b''),
    lambda directory: filled(directory, f'{PLAIN}-0')[0].unlink(),
    lambda directory: shutil.rmtree(directory / f'{PLAIN}-0'),
], ids=['cut at a batch', 'emptied', 'removed', 'without its directory'])
def test_a_partition_that_lost_records_is_offline_until_they_are_restored_or_the_loss_is_accepted(
        stopped, built, expected, caplog, damage):
    """An earlier version of the broker started without a log line, and lowered its checkpoints to the remaining
    records.
    """
    damage(stopped)
    before = {path: path.read_bytes() for path in (stopped / f'{PLAIN}-0').glob('*')}
    code, output = check(stopped)
    assert code == 1 and 'expected' in output
    for _ in range(2):      # a stop and a start do not make it normal
        caplog.clear()
        with InProcessBroker(stopped, SETTINGS) as broker:
            message, = errors(caplog)
            assert f'{PLAIN}-0' in message and 'found' in message and 'expected' in message and '--accept' in message
            with pytest.raises(KafkaError) as raised:
                broker.topics.get(PLAIN, 0)
            assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert broker.topics.get(PLAIN, 1).log_end_offset >= expected[PLAIN, 1][1]
            client = Client(broker, Promises())
            client.init_idempotent()
            client.produce({(PLAIN, 1): ['served']})
        assert {path: path.read_bytes() for path in (stopped / f'{PLAIN}-0').glob('*')} == before
        code, output = check(stopped)
        assert code == 1 and 'keeps the partition offline' in output
    with InProcessBroker(stopped, SETTINGS) as broker:
        broker.crash()
    again = stopped.parent / 'accepted'
    shutil.copytree(stopped, again)

    shutil.rmtree(stopped / f'{PLAIN}-0', ignore_errors=True)
    shutil.copytree(built / f'{PLAIN}-0', stopped / f'{PLAIN}-0')
    caplog.clear()
    found = look(stopped)
    assert errors(caplog) == [] and {key: value for key, value in found.items() if (PLAIN, 0) in (key, key[0])} == {
        key: value for key, value in expected.items() if (PLAIN, 0) in (key, key[0])}
    assert not (stopped / DAMAGE_FILE).exists() and check(stopped)[0] == 0

    assert check('--accept', again)[0] == 0
    caplog.clear()
    with InProcessBroker(again, SETTINGS) as broker:
        assert not broker.topics.get(PLAIN, 0).is_offline and errors(caplog) == []
        broker.topics.get(PLAIN, 0).append_batch(encode_batch([(0, None, b'goes on')]), Origin.CLIENT)
        broker.turn()
    assert not (again / DAMAGE_FILE).exists()
    with InProcessBroker(again, SETTINGS) as broker:
        assert not broker.topics.get(PLAIN, 0).is_offline and errors(caplog) == []


def test_a_log_that_ends_below_the_checkpoints_is_offline_without_an_inventory(stopped, caplog):
    """A directory that Apache Kafka wrote has no inventory. Its checkpoints prove the loss."""
    with InProcessBroker(stopped, SETTINGS) as broker:
        for value in (b'kept', b'lost'):
            broker.topics.get(PLAIN, 0).append_batch(encode_batch([(0, None, value)]), Origin.CLIENT)
            broker.turn()
    (stopped / INVENTORY_FILE).unlink()
    cut_at_a_batch(filled(stopped, f'{PLAIN}-0')[-1])
    for _ in range(2):
        with InProcessBroker(stopped, SETTINGS) as broker:
            assert broker.topics.find(PLAIN, 0).is_offline and not broker.topics.find(PLAIN, 1).is_offline
    assert 'as in the checkpoints' in errors(caplog)[0]
    assert check(stopped)[0] == 1
    assert check('--accept', stopped / f'{PLAIN}-0')[0] == 0
    look(stopped)
    assert check(stopped)[0] == 0


@pytest.mark.parametrize('topic', ['__consumer_offsets', '__transaction_state'])
def test_a_start_without_all_of_an_internal_topic_is_refused(stopped, topic):
    damaged = next(path for number in range(2) for path in filled(stopped, f'{topic}-{number}'))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for _ in range(2):
        broker = InProcessBroker(stopped, SETTINGS)
        with pytest.raises(LogDirectoryError, match=rf'{topic}.*found .* bytes, expected .*--accept'):
            broker.take_directory()
        broker.abandon()
    assert check('--accept', damaged.parent)[0] == 0
    look(stopped)


def test_a_topic_that_lost_records_can_be_deleted(stopped):
    filled(stopped, f'{PLAIN}-0')[0].unlink()
    with InProcessBroker(stopped, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.delete_topic(PLAIN)
        client.let_pass(1)
        assert not list(stopped.glob(f'{PLAIN}-0'))
        client.create_topic(PLAIN, 1)
        assert broker.topics.get(PLAIN, 0).log_end_offset == 0
    assert not (stopped / DAMAGE_FILE).exists()


# ---- files that can be rebuilt ----

def flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize('damage', [pathlib.Path.unlink, flip, lambda path: path.write_bytes(b'')])
@pytest.mark.parametrize('suffix', ['.txnindex', '.index', '.timeindex'])
def test_a_damaged_index_is_rebuilt_and_reported(stopped, expected, caplog, suffix, damage):
    """In an earlier version, consumers with read_committed saw aborted records when a `.txnindex` was missing."""
    damage(next(path for path in segments(stopped, f'{TRANSACTIONS}-0', suffix) if path.stat().st_size))
    assert look(stopped) == expected
    message, = errors(caplog)
    assert suffix in message and message.endswith('it is rebuilt from the log')
    assert 'warning' in check(stopped)[1]
    caplog.clear()
    assert look(stopped) == expected and errors(caplog) == []
    check('--accept', stopped)
    assert check(stopped) == (0, check(stopped)[1]) and not (stopped / DAMAGE_FILE).exists()


@pytest.mark.parametrize('name', ['partition.metadata', 'leader-epoch-checkpoint'])
@pytest.mark.parametrize('damage', [pathlib.Path.unlink, flip])
def test_a_damaged_file_of_a_partition_is_written_again(stopped, expected, caplog, name, damage):
    damage(stopped / f'{PLAIN}-0' / name)
    assert look(stopped) == expected
    assert len(errors(caplog)) == 1 and check(stopped)[0] == 0
    assert not list(stopped.glob('*-stray'))


@pytest.mark.parametrize('damage', [pathlib.Path.unlink, flip, lambda path: path.write_bytes(b'')])
@pytest.mark.parametrize('name', [
    'log-start-offset-checkpoint', 'recovery-point-offset-checkpoint', 'replication-offset-checkpoint'])
def test_the_offsets_of_a_damaged_checkpoint_come_from_the_inventory(stopped, expected, caplog, name, damage):
    """In an earlier version, deleted records came back when the checkpoint of log start offsets was empty."""
    damage(stopped / name)
    assert look(stopped) == expected and expected[TRIMMED, 0][0] == 7
    message, = [message for message in errors(caplog) if 'treated as empty' not in message]
    assert name in message
    assert look(stopped) == expected


# ---- when the inventory counts ----

def test_a_clean_shutdown_mark_that_cannot_be_read_is_reported_for_ever_after(stopped, caplog):
    """In an earlier version, deleted records came back if the checkpoint of log start offsets was damaged as well. The
    broker only logged a line.
    """
    (stopped / CLEAN_SHUTDOWN_FILE).write_text('0\n0\n')
    (stopped / LOG_START_OFFSET_FILE).write_text('{}')
    look(stopped)
    assert any('cannot be verified' in message for message in errors(caplog))
    for _ in range(2):
        code, output = check(stopped)
        assert code == 1 and CLEAN_SHUTDOWN_FILE in output and 'a start found this' in output
        look(stopped)


def test_an_inventory_from_before_another_broker_is_not_believed(stopped, caplog):
    mark = stopped / CLEAN_SHUTDOWN_FILE
    epoch = json.loads(mark.read_text())['brokerEpoch']
    mark.write_text(json.dumps({'version': 0, 'brokerEpoch': epoch + 7}))    # as a later clean stop of Apache Kafka
    filled(stopped, f'{PLAIN}-0')[0].write_bytes(b'')
    with InProcessBroker(stopped, SETTINGS) as broker:
        assert not broker.topics.find(PLAIN, 0).is_offline
    assert errors(caplog) == []


def test_an_inventory_is_not_believed_after_a_kill(stopped, expected, caplog):
    with InProcessBroker(stopped, SETTINGS) as broker:
        broker.topics.get(PLAIN, 0).append_batch(encode_batch([(0, None, b'later')]), Origin.CLIENT)
        broker.turn()
        broker.crash()
    with InProcessBroker(stopped, SETTINGS) as broker:
        assert broker.topics.get(PLAIN, 0).log_end_offset == expected[PLAIN, 0][1] + 1
    assert errors(caplog) == [] and check(stopped)[0] == 0


def test_a_damaged_inventory_is_reported_and_written_again(stopped, expected, caplog):
    flip(stopped / INVENTORY_FILE)
    assert check(stopped)[0] == 1
    assert look(stopped) == expected
    assert any('cannot be verified' in message for message in errors(caplog))
    assert read_inventory(FileSystem(), str(stopped)) is not None


def test_a_stop_that_cannot_write_the_inventory_is_clean_all_the_same(stopped, expected, caplog):
    fs = FailingFileSystem(lambda change, path: 28 if INVENTORY_FILE in path else None)
    with InProcessBroker(stopped, SETTINGS, fs=fs):
        pass
    assert 'the inventory cannot be written' in caplog.text
    assert look(stopped) == expected and errors(caplog) == []


def test_a_power_cut_after_a_clean_stop_is_no_damage(memory_path, caplog):
    import random
    root = memory_path / 'running'
    root.mkdir()
    fs = FreezingFileSystem(root)
    with InProcessBroker(root, SETTINGS, fs=fs) as broker:
        client = Client(broker, Promises())
        client.create_topic(PLAIN, 2)
        client.init_idempotent()
        client.produce({(PLAIN, 0): ['x']})
    for seed in range(5):
        fs.crash(memory_path / f'{seed}', random.Random(seed))
        with InProcessBroker(memory_path / f'{seed}', SETTINGS) as broker:
            assert broker.topics.get(PLAIN, 0).log_end_offset == 1
    assert errors(caplog) == []


def test_a_partition_that_does_not_change_keeps_its_row(stopped):
    before = read_inventory(FileSystem(), str(stopped))
    look(stopped)
    after = read_inventory(FileSystem(), str(stopped))
    assert before is not None and after is not None and before.rows == after.rows
    assert before.broker_epoch < after.broker_epoch


@pytest.mark.parametrize('deleted', [0, 3, 6, 7])
def test_a_partition_whose_files_changed_without_an_append_is_served_after_a_clean_stop(tmp_path, caplog, deleted):
    """In an earlier version, retention deleted the segments below the log start in a later run than DeleteRecords. The
    inventory of the clean stop still listed them, and the next start took the partition offline.
    """
    clock = ManualClock()
    with InProcessBroker(tmp_path / 'data', clock=clock) as broker:
        broker.topics.create('orders', 1, {})
        broker.turn()
        log = broker.logs.logs['orders', 0]
        for number in range(7):
            if number % 2 == 0:
                log.roll()
            log.append_batch(encode_batch([(clock.wall_ms(), None, b'value')]), Origin.CLIENT, 0)
        log.delete_records(deleted)
    with InProcessBroker(tmp_path / 'data', clock=clock) as broker:
        log = broker.logs.logs['orders', 0]
        assert len(log.segments) == 4
        if deleted:
            clock.advance(HOUR_MS)
            broker.turn()
            assert len(log.segments) < 4
        else:
            log.roll()
    caplog.clear()
    for _ in range(2):
        with InProcessBroker(tmp_path / 'data', clock=clock) as broker:
            log = broker.logs.logs['orders', 0]
            assert (log.log_start_offset, log.log_end_offset) == (deleted, 7)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_topic_that_is_created_again_with_as_many_records_is_served_after_a_clean_stop(memory_path, caplog):
    """In an earlier version, the inventory kept the row of the deleted topic, because the new topic had the same
    offsets. The next start considered the new topic damaged and set its records aside.
    """
    place = 'again', 0
    for number in range(3):
        with InProcessBroker(memory_path, SETTINGS) as broker:
            client = Client(broker, Promises())
            if number:
                assert list(client.read(place, READ_UNCOMMITTED).values()) == [f'life {number - 1}', 'last']
                client.delete_topic('again')
            client.create_topic('again', 1)
            client.init_idempotent()
            client.produce({place: [f'life {number}', 'last']})
    assert errors(caplog) == []
    assert check(memory_path)[0] == 0


def test_a_repair_takes_a_partition_out_of_the_inventory(stopped, expected, caplog):
    os.unlink(next(path for path in segments(stopped, f'{TRANSACTIONS}-0', '.txnindex')))
    assert check('--repair', '--no-dry-run', stopped)[0] == 0
    assert look(stopped) == expected and errors(caplog) == []


def test_notes_of_damage_that_cannot_be_read_stop_the_start(stopped):
    (stopped / DAMAGE_FILE).write_text('{"topic": 1}\n')
    broker = InProcessBroker(stopped, SETTINGS)
    with pytest.raises(LogDirectoryError, match='no damage note'):
        broker.take_directory()
    broker.abandon()


# ---- the metadata log ----

def remove_metadata(directory: pathlib.Path) -> None:
    shutil.rmtree(directory / '__cluster_metadata-0')


def empty_metadata(directory: pathlib.Path) -> None:
    (directory / '__cluster_metadata-0' / f'{0:020}.log').write_bytes(b'')


def remove_metadata_files(directory: pathlib.Path) -> None:
    (directory / '__cluster_metadata-0' / f'{0:020}.log').unlink()


def cut_metadata(directory: pathlib.Path) -> None:
    path = directory / '__cluster_metadata-0' / f'{0:020}.log'
    path.write_bytes(path.read_bytes()[:168])


def cut_metadata_at_a_batch(directory: pathlib.Path) -> None:
    cut_at_a_batch(directory / '__cluster_metadata-0' / f'{0:020}.log')


@pytest.mark.parametrize('is_clean', [True, False])
@pytest.mark.parametrize('damage', [
    remove_metadata, empty_metadata, remove_metadata_files, cut_metadata, cut_metadata_at_a_batch])
def test_a_start_without_all_of_the_metadata_log_is_refused_and_changes_nothing(stopped, built, damage, is_clean):
    """An earlier version of the broker started as an empty cluster and renamed all partitions to -stray."""
    if not is_clean:
        (stopped / CLEAN_SHUTDOWN_FILE).unlink()
    damage(stopped)
    before = {path: path.read_bytes() for path in sorted(stopped.rglob('*')) if path.is_file()}
    broker = InProcessBroker(stopped, SETTINGS)
    with pytest.raises((LogDirectoryError, CorruptLogError), match=r'Restore .* from a backup|found'):
        broker.take_directory()
    broker.abandon()
    assert {path: path.read_bytes() for path in sorted(stopped.rglob('*')) if path.is_file()} == before
    assert check(stopped)[0] == 1
    shutil.rmtree(stopped / '__cluster_metadata-0', ignore_errors=True)
    shutil.copytree(built / '__cluster_metadata-0', stopped / '__cluster_metadata-0')
    look(stopped)


@pytest.mark.parametrize('damage', [cut_metadata, empty_metadata])
def test_lost_metadata_without_an_inventory_is_found_by_topic_ids(stopped, damage):
    for name in (CLEAN_SHUTDOWN_FILE, INVENTORY_FILE):
        (stopped / name).unlink()
    damage(stopped)
    broker = InProcessBroker(stopped, SETTINGS)
    with pytest.raises(LogDirectoryError, match=r'Restore .* from a backup'):
        broker.take_directory()
    broker.abandon()


def test_the_loss_of_metadata_can_be_accepted(stopped):
    cut_metadata(stopped)
    assert check('--accept', stopped)[0] == 0
    with InProcessBroker(stopped, SETTINGS) as broker:
        assert broker.topics.topics() == []
    assert len(list(stopped.glob('*-stray'))) > 5
    with InProcessBroker(stopped, SETTINGS):
        pass


def test_a_topic_whose_deletion_a_crash_undid_is_set_aside_as_before(stopped):
    with InProcessBroker(stopped, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.delete_topic(PLAIN)
        client.let_pass(1)
        deleted = [path for path in stopped.glob(f'{PLAIN}-*-delete')]
        broker.crash()
    for path in deleted:
        path.rename(stopped / path.name.partition('.')[0])
    look(stopped)
    assert len(list(stopped.glob(f'{PLAIN}-*-stray'))) == 2


def test_a_read_through_a_damaged_index_fails_and_skips_nothing(stopped):
    """A start does not read the middle of a large index. A read compares each index entry that it uses with the batch
    at that position.
    """
    with InProcessBroker(stopped, SETTINGS) as broker:
        segment = broker.logs.logs[PLAIN, 1].segments[0]
        path = pathlib.Path(segment.path('.index'))
        content = bytearray(path.read_bytes())
        assert len(content) > 40
        content[16:20] = content[40:44]      # offset of the third entry: that of a later one, but not its position
        content[20:24] = content[44:48]
        content[16:20] = (int.from_bytes(content[8:12], 'big') + 1).to_bytes(4, 'big')
        path.write_bytes(content)
        with pytest.raises(Loud, match='CORRUPT_MESSAGE'):
            view_of(broker, every_offset())


# ---- after an accepted loss ----

def damage_a_batch(directory: pathlib.Path, number: int) -> int:
    """Flip a bit in the records of a batch of the first filled segment. Return the batch's base offset."""
    path = filled(directory, f'{PLAIN}-0')[0]
    content, position = bytearray(path.read_bytes()), 0
    for index, (header, _) in enumerate(iter_batches(path.read_bytes())):
        if index == number:
            content[position + 65] ^= 1
            path.write_bytes(content)
            return header.base_offset
        position += header.size_bytes
    raise AssertionError('there is no such batch')


@pytest.mark.parametrize('is_noted', [True, False], ids=['found by a start', 'found by kbroker-check alone'])
def test_an_accepted_loss_takes_the_damaged_batch_and_no_other(stopped, expected, caplog, is_noted):
    """An earlier version moved all batches after the damaged one to a file that no tool read. New records then got
    their offsets.
    """
    lost = damage_a_batch(stopped, 1)
    if not is_noted:        # as in the middle of a large file, of which the inventory has no checksum
        (stopped / INVENTORY_FILE).unlink()
    code, output = check(stopped)
    assert code == 1 and 'found CRC' in output
    assert check('--accept', stopped / f'{PLAIN}-0')[0] == 0
    before = expected[PLAIN, 0]
    with InProcessBroker(stopped, SETTINGS) as broker:
        assert broker.topics.get(PLAIN, 0).log_end_offset == before[1]
        log = broker.topics.get(PLAIN, 0)
        assert log.log_start_offset == before[0]
    assert f'Gone are the offsets {lost}' in caplog.text
    offsets = [header.base_offset for path in filled(stopped, f'{PLAIN}-0')
               for header, _ in iter_batches(path.read_bytes())]
    assert lost not in offsets and max(offsets) > lost
    assert check(stopped)[0] == 0 and len(list((stopped / f'{PLAIN}-0').glob('*.cut'))) == 1
    caplog.clear()
    assert look(stopped)[PLAIN, 0][1] == before[1] and errors(caplog) == []
