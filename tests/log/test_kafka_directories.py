"""Directories written by Apache Kafka brokers are read completely, and a check has no findings."""
import os
import pathlib
import shutil
import tarfile

import pytest

from kbroker.base.clock import Clock, Timers
from kbroker.log.check import Severity, check_partition
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.log.recovery import LogOptions
from kbroker.record.batch import check_crc
from kbroker.record.records import decode_records
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

ARCHIVES = sorted((pathlib.Path(__file__).parent.parent / 'data' / 'kafka-directories').glob('*.tgz'))
CONFIG = Config({})


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.stem)
def directories(request, tmp_path):
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter='data')
    return sorted(path for path in tmp_path.iterdir() if path.is_dir())


def partitions_of(directory):
    return sorted(path for path in directory.iterdir() if path.is_dir() and any(path.glob('*.log')))


def test_there_are_directories():
    assert len(ARCHIVES) >= 8


def test_a_check_finds_no_error(directories):
    for directory in directories:
        for partition in partitions_of(directory):
            findings = check_partition(FileSystem(), str(partition))
            assert [str(finding) for finding in findings if finding.severity == Severity.ERROR] == [], partition


@pytest.mark.parametrize('clean', [True, False])
def test_every_partition_is_read_and_stays_sound(directories, clean):
    for directory in directories:
        manager = LogManager(FileSystem(), str(directory), CONFIG, Clock(), Timers(Clock()))
        manager.clean_shutdown = clean
        found = {}
        for topic, partition in sorted(manager.found):
            log = manager.open_log(topic, partition, manager.topic_id_of(topic, partition), LogConfig(CONFIG, {}))
            found[topic, partition] = read_everything(log)
        assert manager.found or directory.name in ('d43s', 'd44.formatted', 'd440.formatted')
        manager.close(broker_epoch=5)
        for partition in partitions_of(directory):
            assert [str(finding) for finding in check_partition(FileSystem(), str(partition))
                    if finding.severity == Severity.ERROR] == []
        again = LogManager(FileSystem(), str(directory), CONFIG, Clock(), Timers(Clock()))
        assert again.clean_shutdown and again.previous_broker_epoch == 5
        for (topic, partition), before in found.items():
            log = again.open_log(topic, partition, again.topic_id_of(topic, partition), LogConfig(CONFIG, {}))
            assert read_everything(log) == before


def read_everything(log):
    """Return the bytes of all batches, the rows of the transaction index, and the end offsets of the log."""
    batches = []
    for header, batch in log.batches():
        check_crc(batch, header)
        assert len(decode_records(batch)) == header.records_count
        batches.append(bytes(batch))
    rows = [row for segment in log.segments for row in segment.transactions.rows]
    return batches, rows, log.log_start_offset, log.log_end_offset, log.leader_epochs.rows


def test_a_metadata_log_is_read_too(directories, tmp_path):
    for directory in directories:
        source = directory / '__cluster_metadata-0'
        if not any(source.glob('*.log')):
            continue
        shutil.copytree(source, tmp_path / 'copy', dirs_exist_ok=True)
        log = Log(FileSystem(), str(tmp_path / 'copy'), '__cluster_metadata', 0, LogConfig(CONFIG, {}), Clock(),
                  LogOptions(clean_shutdown=False, refuse_damage=True))
        assert sum(1 for _ in log.batches()) > 10
        kept = {name for name in os.listdir(source) if not name.endswith('.snapshot')}
        assert kept <= set(os.listdir(tmp_path / 'copy'))
        shutil.rmtree(tmp_path / 'copy')
