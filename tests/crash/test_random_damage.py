"""Random damage to a stopped log directory is reported whenever acknowledged data is lost.

The test compares with the records that consumers read before the damage. Damage counts as reported if the broker
refuses to start, takes a partition offline, fails a read, or logs an ERROR. If the broker accepts a loss,
`kbroker-check` still reports it afterwards.
"""
from __future__ import annotations

import logging
import pathlib
import random
import shutil
from dataclasses import dataclass
from typing import Any

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.disk.damages import SETTINGS, Loud, View, build, damage, view_of

from kbroker.base.errors import CorruptLogError, KafkaError, LogDirectoryError
from kbroker.log import inventory
from kbroker.log.check import Severity
from kbroker.log.fs import FileSystem
from kbroker_tools.check.directory_check import DirectoryCheck, check_one

DAMAGES = 150
SOAK_DAMAGES = 2000
DAMAGES_OF_A_TEST = 50


@dataclass(frozen=True)
class Sample:
    directory: pathlib.Path
    old: pathlib.Path
    """The directory as it was at an earlier time. Some kinds of damage restore files from it."""
    kinds: tuple[str, ...] = ()


@pytest.fixture(scope='module')
def sample(memory_path_of_module: pathlib.Path) -> Sample:
    """A directory with small files, which the checksums of the inventory cover completely."""
    found = Sample(memory_path_of_module / 'sample', memory_path_of_module / 'old')
    build(found.directory, found.old)
    return found


@pytest.fixture
def deep_sample(memory_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    """A directory in which the checksums of the inventory cover only the ends of files, as they do for segments of the
    usual size.
    """
    monkeypatch.setattr(inventory, 'SAMPLE_BYTES', 16)
    found = Sample(memory_path / 'sample', memory_path / 'old', ('flip',))
    build(found.directory, found.old)
    return found


def errors_of_check(directory: pathlib.Path) -> list[str]:
    check = DirectoryCheck(FileSystem(), str(directory))
    check.list_tasks()
    for task in check.tasks:
        check.add(task, check_one(FileSystem(), task))
    return [str(finding) for finding in check.conclude() if finding.severity is Severity.ERROR]


def start_and_view(directory: pathlib.Path, seed: object) -> View:
    """Start and stop a broker. Return what its consumers read. Raise Loud if the start is refused or a read fails."""
    broker = InProcessBroker(directory, SETTINGS)
    try:
        broker.__enter__()
    except (KafkaError, CorruptLogError, LogDirectoryError, OSError) as error:
        broker.abandon()
        raise Loud(f'refused: {error}') from error
    try:
        return view_of(broker, random.Random(str(seed)))
    finally:
        broker.__exit__(None, None, None)


def hold(sample: Sample, path: pathlib.Path, seed: int, caplog: Any) -> None:
    """Copy `sample` to `path`, damage the copy, and start a broker on it. Raise AssertionError if a loss is silent."""
    copy, untouched = path / f'{seed}', path / f'{seed}-before'
    shutil.copytree(sample.directory, copy)
    shutil.copytree(sample.directory, untouched)
    done = damage(copy, sample.old, random.Random(f'damage {seed}'), sample.kinds)
    try:
        if done is None:
            return
        what, file = done
        expected = start_and_view(untouched, seed)
        caplog.clear()
        try:
            found = start_and_view(copy, seed)
        except Loud:
            return
        if found == expected:
            return
        is_reported = any(record.levelno >= logging.ERROR for record in caplog.records)
        assert is_reported or (what.startswith('flip') and file.suffix == '.log'), f'{seed}: {what} is silent'
        assert errors_of_check(copy), f'{seed}: {what} leaves no trace'
    finally:
        shutil.rmtree(copy)
        shutil.rmtree(untouched)


@pytest.mark.parametrize('part', range(DAMAGES // DAMAGES_OF_A_TEST))
def test_no_random_damage_is_silent_where_data_is_gone(sample, memory_path, part, caplog):
    for number in range(DAMAGES_OF_A_TEST):
        hold(sample, memory_path, part * DAMAGES_OF_A_TEST + number, caplog)


@pytest.mark.soak
@pytest.mark.parametrize('part', range(SOAK_DAMAGES // DAMAGES_OF_A_TEST))
def test_none_of_many_random_damages_is_silent(sample, memory_path, part, caplog, soak_seed, tally):
    first = (soak_seed - 1) * SOAK_DAMAGES + part * DAMAGES_OF_A_TEST
    for number in range(DAMAGES_OF_A_TEST):
        hold(sample, memory_path, first + number, caplog)
    tally('damaged directories', DAMAGES_OF_A_TEST)


def test_a_flipped_bit_in_the_middle_of_a_file_is_not_silent(deep_sample, memory_path, caplog):
    """A start does not read the middle of a large file. A later read fails, or `kbroker-check` finds the damage."""
    for number in range(DAMAGES_OF_A_TEST):
        hold(deep_sample, memory_path, number, caplog)


@pytest.mark.soak
def test_none_of_many_flipped_bits_in_the_middle_of_files_is_silent(
        deep_sample, memory_path, caplog, soak_count, soak_seed, tally):
    count = soak_count(SOAK_DAMAGES // 4, DAMAGES_OF_A_TEST)
    for number in range(count):
        hold(deep_sample, memory_path, (soak_seed - 1) * SOAK_DAMAGES + number, caplog)
    tally('damaged directories', count)


def test_an_undamaged_directory_starts_without_an_error(sample, memory_path, caplog):
    copy = memory_path / 'copy'
    shutil.copytree(sample.directory, copy)
    assert errors_of_check(copy) == []
    views = [start_and_view(copy, 0) for _ in range(3)]
    assert views[0] == views[1] == views[2]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert errors_of_check(copy) == []
