"""Files that are larger than any file of a broker. Such a sparse file needs no disk space, but reading it whole would
need all memory.
"""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.disk.segment_files import SECOND, two_segments
from support.runner.command_runner import ROOT, run_in_process

from kbroker.base.errors import CorruptLogError
from kbroker.log.checkpoints import LOG_START_OFFSET_FILE, read_partition_offsets
from kbroker.log.fs import SMALL_FILE_BYTES, FileSystem
from kbroker.settings.properties import MOST_TEXT_BYTES, read_text

HUGE_BYTES = 100 << 30


def grow(path):
    with open(path, 'ab') as file:
        file.truncate(HUGE_BYTES)
    return str(path)


def test_a_file_is_read_whole_only_if_its_size_fits(tmp_path):
    path = grow(tmp_path / 'file')
    with pytest.raises(CorruptLogError, match=rf'file: found {HUGE_BYTES} bytes, expected at most 1073741824$'):
        FileSystem().read_file(path)
    os.truncate(path, SMALL_FILE_BYTES)
    assert len(FileSystem().read_file(path, SMALL_FILE_BYTES)) == SMALL_FILE_BYTES
    os.truncate(path, SMALL_FILE_BYTES + 1)
    with pytest.raises(CorruptLogError, match=f'found {SMALL_FILE_BYTES + 1} bytes'):
        FileSystem().read_file(path, SMALL_FILE_BYTES)


def test_a_checkpoint_that_is_too_large_is_a_damaged_one(tmp_path):
    grow(tmp_path / LOG_START_OFFSET_FILE)
    with pytest.raises(CorruptLogError, match='expected at most'):
        read_partition_offsets(FileSystem(), str(tmp_path), LOG_START_OFFSET_FILE)


def test_a_text_of_the_user_has_a_bound_even_from_a_device(tmp_path):
    with pytest.raises(OSError, match=f'found {HUGE_BYTES} bytes, expected at most {MOST_TEXT_BYTES}'):
        read_text(Path(grow(tmp_path / 'settings')))
    with pytest.raises(OSError, match='expected at most'):
        read_text(Path('/dev/zero'))


BESIDE = ['meta.properties', 'log-start-offset-checkpoint', 'replication-offset-checkpoint',
          'recovery-point-offset-checkpoint', '.kafka_cleanshutdown', '.kbroker_damage', '.kbroker_inventory']
WITHIN = ['partition.metadata', 'leader-epoch-checkpoint', f'{SECOND}.snapshot', f'{SECOND}.txnindex',
          f'{SECOND}.index', f'{SECOND}.timeindex']
COMMANDS = [
    ('topics', '--describe'), ('transactions', 'timeline', 'topic:0'), ('transactions', 'list'),
    ('transactions', 'describe-producers', '--topic', 'topic', '--partition', '0'), ('groups', '--list'),
    ('transactions', 'find-hanging')]


@pytest.mark.parametrize('name', [*BESIDE, *(f'topic-0/{name}' for name in WITHIN)])
def test_a_command_reads_a_directory_with_an_oversized_file_to_its_end_or_reports_it(tmp_path, name):
    two_segments(tmp_path)
    path = grow(tmp_path / name)
    for command, *arguments in COMMANDS:
        done = run_in_process(command, *arguments, '--data-dir', tmp_path)
        assert done.returncode in (0, 1), done.stderr
        assert 'Traceback' not in done.stderr
    assert run_in_process('check', tmp_path).returncode in (0, 1)
    if name.endswith('.snapshot'):
        done = run_in_process('dump-log', path)
        assert f'found {HUGE_BYTES} bytes, expected at most' in done.stderr


@pytest.mark.parametrize('name', ['meta.properties', '__cluster_metadata-0/quorum-state', '.kbroker_damage', 'given'])
def test_a_start_refuses_an_oversized_file_in_one_line(tmp_path, name):
    directory, settings = tmp_path / 'data', tmp_path / 'given'
    settings.write_text(f'log.dirs={directory}\nlisteners=PLAINTEXT://127.0.0.1:0\n')
    serve = [sys.executable, '-m', 'kbroker', 'serve', '--config', str(settings)]
    subprocess.run([sys.executable, '-m', 'kbroker', 'storage', '--config', str(settings)], cwd=ROOT,
                   check=False, capture_output=True)
    path = settings if name == 'given' else directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    grow(path)
    done = subprocess.run(serve, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert f'found {HUGE_BYTES} bytes, expected at most' in done.stderr + done.stdout
    assert 'Traceback' not in done.stderr + done.stdout
