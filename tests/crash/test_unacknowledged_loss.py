"""After a power cut, the broker's log and kbroker-check say whether acknowledged records are lost.

Any subset of the unsynced writes may survive a power cut, so a valid batch may follow a lost one. Such a gap does not
mean that the disk is faulty. But no record below the checkpointed high watermark may be missing.
"""
from __future__ import annotations

import logging
import pathlib
import random

import pytest
from support.disk.directory_with_cleaner import DirectoryWithCleaner, write
from support.disk.faulty_file_systems import FreezingFileSystem

from kbroker.base.clock import ManualClock
from kbroker.log.check import Severity
from kbroker.log.checkpoints import HIGH_WATERMARK_FILE, read_partition_offsets
from kbroker.log.fs import FileSystem, ReadOnlyFileSystem
from kbroker_tools.check.directory_check import DirectoryCheck, check_one

SEEDS = 40
ACKNOWLEDGED, UNSYNCED = 6, 8
KEY = 'topic', 0


def cut_power(root: pathlib.Path, seeds: int, *, rolls: bool) -> list[pathlib.Path]:
    """Append batches, sync and checkpoint them, and append more batches. Return directories that power cuts at this
    moment may leave.
    """
    (root / 'running').mkdir()
    fs = FreezingFileSystem(root / 'running')
    directory = DirectoryWithCleaner(root / 'running', fs=fs)
    log = directory.open(**{'cleanup.policy': 'delete'})
    for number in range(ACKNOWLEDGED):
        write(log, ('key', f'acknowledged {number}'))
    log.flush()
    directory.manager.high_watermarks.begin()
    for number in range(UNSYNCED):
        if rolls and number % 3 == 1:
            log.roll()
        write(log, ('key', f'unsynced {number}'))
    left = []
    for seed in range(seeds):
        left.append(root / f'left{seed}')
        left[-1].mkdir()
        fs.crash(left[-1], random.Random(seed))
    directory.manager.close(clean=False)
    return left


def recover(path: pathlib.Path) -> int:
    """Open the log as after a crash. Return its end offset."""
    directory = DirectoryWithCleaner(path, clock=ManualClock())
    log = directory.open(**{'cleanup.policy': 'delete'})
    directory.manager.close(clean=False)
    return log.log_end_offset


def errors_in(path: pathlib.Path) -> list[str]:
    check = DirectoryCheck(ReadOnlyFileSystem(), str(path))
    check.list_tasks()
    for task in check.tasks:
        check.add(task, check_one(check.fs, task))
    check.conclude()
    return [str(finding) for finding in check.findings if finding.severity is Severity.ERROR
            and 'meta.properties' not in finding.file]


def mark_as_log_directory(path: pathlib.Path) -> None:
    """Write a file that makes kbroker-check read the checkpoints."""
    (path / 'meta.properties').write_text('version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\n')


@pytest.mark.parametrize('rolls', [False, True])
def test_unsynced_writes_that_a_power_cut_takes_are_no_error(tmp_path, caplog, rolls):
    kept = []
    for path in cut_power(tmp_path, SEEDS, rolls=rolls):
        mark_as_log_directory(path)
        assert errors_in(path) == []
        caplog.clear()
        assert recover(path) >= ACKNOWLEDGED
        assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
        files = list(path.rglob('*.cut'))
        explained = [record for record in caplog.records if 'no checkpoint says' in record.message]
        assert len(explained) == bool(files)
        kept += files
    assert kept, 'no seed left a valid batch behind a lost one'


@pytest.mark.parametrize('rolls', [False, True])
def test_acknowledged_records_that_a_disk_loses_are_an_error(tmp_path, caplog, rolls):
    for path in cut_power(tmp_path, 5, rolls=rolls):
        mark_as_log_directory(path)
        assert read_partition_offsets(FileSystem(), str(path), HIGH_WATERMARK_FILE) == {KEY: ACKNOWLEDGED}
        log = path / 'topic-0' / f'{0:020d}.log'
        content = bytearray(log.read_bytes())
        content[content.index(b'acknowledged 4')] ^= 1
        log.write_bytes(content)
        assert len(errors_in(path)) == 1
        caplog.clear()
        assert recover(path) == 4
        errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(errors) == 1 and f'high watermark {ACKNOWLEDGED}' in errors[0]
