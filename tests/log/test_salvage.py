"""The salvage of a log whose damage an operator has accepted: the batches that stay, and the files after a failure or a
power cut.
"""
import os
import pathlib
import random

import pytest
from batches import data_batch, marker_batch
from support.disk.faulty_file_systems import FailingFileSystem, FreezingFileSystem, fail_nth

from kbroker.base.errors import KafkaError
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.log.recovery import LogOptions
from kbroker.log.salvage import keep_sound_batches
from kbroker.record.batch import encode_batch, iter_batches, read_header

BATCHES = 8


def written(path, batches=BATCHES, value=b'value'):
    """Write a log file with batches of two records each. Return the file positions of the batches."""
    positions, content = [], b''
    for number in range(batches):
        positions.append(len(content))
        content += bytes(encode_batch([(1, None, value), (2, None, value)], base_offset=2 * number))
    path.write_bytes(content)
    return positions


def damage(path, position, byte=None):
    content = bytearray(path.read_bytes())
    content[position] = content[position] ^ 1 if byte is None else byte
    path.write_bytes(content)


def offsets(path):
    return [header.base_offset for header, _ in iter_batches(path.read_bytes())]


@pytest.fixture
def log_path(tmp_path):
    return tmp_path / f'{0:020d}.log'


@pytest.mark.parametrize('number', range(BATCHES - 1))
@pytest.mark.parametrize('at', [11, 16, 17, 22, 70], ids=['length', 'magic', 'checksum', 'attributes', 'records'])
def test_a_damaged_batch_goes_and_all_others_stay_at_their_offsets(log_path, number, at, caplog):
    """In an earlier version, when an operator accepted the loss of one batch, all later batches were removed too."""
    positions = written(log_path)
    damage(log_path, positions[number] + at)
    before = log_path.read_bytes()
    assert keep_sound_batches(FileSystem(), str(log_path), 0, None)
    assert offsets(log_path) == [2 * each for each in range(BATCHES) if each != number]
    cut = log_path.with_name(f'{log_path.name}.{positions[number]}.cut')
    end = positions[number + 1]
    assert cut.read_bytes() == before[positions[number]:end]
    assert f'Gone are the offsets {2 * number} to {2 * number + 1}' in caplog.text
    assert not keep_sound_batches(FileSystem(), str(log_path), 0, None)


@pytest.mark.parametrize('number', range(BATCHES - 1))
@pytest.mark.parametrize(('at', 'byte'), [(0, 1), (5, 1), (7, 200), (7, 0)])
def test_a_base_offset_that_contradicts_its_neighbours_is_the_wrong_one(log_path, number, at, byte):
    """The checksum of a batch does not cover the base offset, so only the neighbours can show which one is wrong."""
    positions = written(log_path)
    damage(log_path, positions[number] + at, byte)
    if (at, byte) == (7, 0) and number == 0:
        assert not keep_sound_batches(FileSystem(), str(log_path), 0, None)     # the first batch has base offset 0
        return
    assert keep_sound_batches(FileSystem(), str(log_path), 0, None)
    assert offsets(log_path) == [2 * each for each in range(BATCHES) if each != number]


def test_several_damaged_places_go_to_one_file(log_path, caplog):
    positions = written(log_path)
    for number in (1, 2, 5):
        damage(log_path, positions[number] + 70)
    before = log_path.read_bytes()
    assert keep_sound_batches(FileSystem(), str(log_path), 0, None)
    assert offsets(log_path) == [0, 6, 8, 12, 14]
    assert log_path.with_name(f'{log_path.name}.{positions[1]}.cut').read_bytes() == (
        before[positions[1]:positions[3]] + before[positions[5]:positions[6]])
    assert 'Gone are the offsets 2 to 5, 10 to 11' in caplog.text


def test_damage_at_the_end_is_left_to_the_recovery(log_path):
    positions = written(log_path)
    damage(log_path, positions[-1] + 70)
    before = log_path.read_bytes()
    assert not keep_sound_batches(FileSystem(), str(log_path), 0, None)
    assert log_path.read_bytes() == before and len(os.listdir(log_path.parent)) == 1


def test_a_batch_inside_a_damaged_record_is_no_batch_of_the_log(log_path):
    """The value of a record may contain batches with valid checksums, for example a copy of another log."""
    inner = bytes(encode_batch([(1, None, b'inner')], base_offset=3))
    positions = written(log_path, value=inner)
    damage(log_path, positions[1] + 62)
    assert keep_sound_batches(FileSystem(), str(log_path), 0, None)
    assert offsets(log_path) == [0, *range(4, 2 * BATCHES, 2)]


def test_a_batch_beyond_the_next_segment_goes(log_path):
    positions = written(log_path)
    damage(log_path, positions[3] + 6, 100)
    assert keep_sound_batches(FileSystem(), str(log_path), 0, 2 * BATCHES)
    assert offsets(log_path) == [0, 2, 4, 8, 10, 12, 14]


# ---- an opening

def partition_with_transactions(open_log):
    """Return the directory of a log with two segments and three transactions, of which one is open and one was aborted.
    """
    log = open_log()
    for producer_id, ending in ((1, True), (2, False), (3, None)):
        log.append_batch(data_batch(2, producer_id=producer_id, epoch=0, sequence=0, transactional=True),
                         Origin.CLIENT, 0)
        if ending is not None:
            log.append_batch(marker_batch(commit=ending, producer_id=producer_id, epoch=0), Origin.COORDINATOR, 0)
        if producer_id == 2:
            log.roll()
    log.append_batch(data_batch(2), Origin.CLIENT, 0)
    log.close()
    return log.directory


def accepted(directory, clock, fs=None):
    from kbroker.settings.config import Config
    from kbroker.settings.topic_config import LogConfig
    return Log(fs or FileSystem(), directory, 'topic', 0, LogConfig(Config({}), {}), clock,
               LogOptions(keeps_holes=True))


def test_a_lost_marker_leaves_a_transaction_open_which_the_start_names(open_log, clock, caplog):
    directory = partition_with_transactions(open_log)
    path = pathlib.Path(directory) / f'{0:020d}.log'
    headers = [(position, header) for position, header in _headers(path)]
    marker = next(position for position, header in headers if header.is_control)
    damage(path, marker + 70)
    log = accepted(directory, clock)
    assert log.log_end_offset == 10 and log.first_unstable_offset() == 0
    assert ('transactions are open: of producer id 1 from offset 0 on, of producer id 3 from offset 6 on. If a marker '
            'is among what is gone, nothing ends its transaction: kbroker-transactions why-stuck topic:0 '
            'shows it') in caplog.text
    assert [(row.producer_id, row.first_offset) for row in log.segments[0].transactions.rows] == [(2, 3)]
    log.close()
    assert check_partition(FileSystem(), directory) == []


def _headers(path):
    position, content = 0, path.read_bytes()
    while position < len(content):
        header = read_header(content, position)
        yield position, header
        position += header.size_bytes


def damaged_partition(open_log):
    directory = partition_with_transactions(open_log)
    path = pathlib.Path(directory) / f'{0:020d}.log'
    damage(path, 70)
    return directory


def kept_offsets(directory):
    return [offset for path in sorted(pathlib.Path(directory).glob('*.log')) for offset in offsets(path)]


def test_a_salvage_that_fails_at_any_change_can_be_repeated(open_log, clock, tmp_path):
    directory = damaged_partition(open_log)
    before = {name: (tmp_path / 'topic-0' / name).read_bytes() for name in os.listdir(directory)}
    number, failures = 0, 0
    while True:
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        for name, content in before.items():
            (tmp_path / 'topic-0' / name).write_bytes(content)
        try:
            accepted(directory, clock, FailingFileSystem(fail_nth(number))).close()
        except (OSError, KafkaError):
            failures += 1
        log = accepted(directory, clock)
        assert kept_offsets(directory) == [2, 3, 5, 6, 8] and log.log_end_offset == 10
        log.close()
        if failures <= number:
            break
        number += 1
    assert failures > 8


@pytest.mark.parametrize('seed', range(20))
def test_a_power_cut_at_any_change_leaves_a_log_that_can_be_salvaged(open_log, clock, tmp_path, seed):
    directory = damaged_partition(open_log)
    rng = random.Random(seed)
    fs = FreezingFileSystem(tmp_path)
    log = accepted(directory, clock, fs)
    fs.crash(tmp_path / 'after', rng)
    log = accepted(str(tmp_path / 'after' / 'topic-0'), clock)
    assert kept_offsets(log.directory) == [2, 3, 5, 6, 8] and log.log_end_offset == 10
