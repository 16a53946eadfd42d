"""Changes of the metadata whose batch is written but not durable yet. No reader and no later change depends on such a
change before its sync."""

from __future__ import annotations

import errno
import os
import pathlib
import random
from typing import Any

import pytest
from controller_directory import ControllerDirectory, allocate_producer_ids, create_topic
from reference.kraft import read_log
from support.disk.faulty_file_systems import FailingFile, FailingFileSystem, FreezingFileSystem
from support.disk.held_disk import HeldDisk

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork
from kbroker.log.fs import File
from kbroker.metadata.changes import Turns
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.image import ResourceType
from kbroker.metadata.topic_operations import NewTopic
from kbroker.protocol.messages import ConfigRecord

TOPIC, GROUP = int(ResourceType.TOPIC), int(ResourceType.GROUP)


class ReportingFileSystem(FailingFileSystem):
    """A file system that reports a failed write as Linux does: in each open file, only the first sync after it
    fails."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[ReportingFile] = []

    def open(self, path: str, create: bool = False) -> File:
        self.opened.append(ReportingFile(self, path, create))
        return self.opened[-1]

    def fail_writes(self) -> None:
        for file in self.opened:
            file.owes_error = True


class ReportingFile(FailingFile):
    owes_error = False

    def on_sync(self) -> None:
        if self.owes_error:
            self.owes_error = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)


class Changes:
    """A controller, the changes that clients have requested, and a disk on which a sync ends only when the test says
    so."""

    def __init__(self, controller: MetadataController, disk: HeldDisk):
        self.controller = controller
        self.disk = disk
        self.timers = Timers(ManualClock())
        self.long_work = LongWork(self.timers)
        self.ended: dict[str, Any] = {}
        """Maps the name of each change that has ended to its result or error."""

    def begin(self, name: str, steps: Any) -> None:
        def done(error: Exception | None, result: Any) -> None:
            self.ended[name] = error or result

        self.long_work.start(steps, done)
        self.run()

    def create(self, *names: str) -> None:
        self.begin(names[0], self.controller.topics.create([NewTopic(name, 2) for name in names]))

    def run(self) -> None:
        while len(self.long_work):
            self.timers.run_due()

    def finish_sync(self, error: OSError | None = None) -> None:
        self.disk.finish(error)
        self.run()

    @property
    def topics(self) -> set[str]:
        return set(self.controller.image.topics)


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk(is_held=True)


@pytest.fixture
def changes(node: ControllerDirectory, disk: HeldDisk) -> Changes:
    return Changes(node.start(sync=disk.sync), disk)


def written_topics(node: ControllerDirectory) -> list[int]:
    """Return the offsets of the Topic records in the metadata log."""
    return [entry.offset for entry in read_log(node.log_dir) if entry.value[1:2] == b'\x02']


def test_a_change_takes_effect_once_it_is_durable(node: ControllerDirectory, changes: Changes) -> None:
    before = changes.controller.image
    changes.create('t')
    assert written_topics(node) and changes.controller.image is before and not changes.ended
    assert changes.timers.next_delay_ms() is None  # nothing asks again and again whether the sync is done
    changes.finish_sync()
    assert changes.topics == {'t'} and changes.ended['t'] == [changes.controller.image.topics['t']]


def test_a_failed_sync_changes_nothing_and_is_the_end_of_all_changes(
    node: ControllerDirectory, changes: Changes
) -> None:
    reasons: list[str] = []
    changes.controller.commits.on_failure = reasons.append
    before = changes.controller.image
    changes.create('t')
    changes.finish_sync(OSError(errno.EIO, 'the disk is gone'))
    assert changes.controller.image is before
    assert changes.ended['t'].code is ErrorCode.KAFKA_STORAGE_ERROR and 'the disk is gone' in str(changes.ended['t'])
    assert len(reasons) == 1 and 'the disk is gone' in reasons[0]
    changes.create('u')
    assert changes.ended['u'].code is ErrorCode.KAFKA_STORAGE_ERROR and not changes.disk.jobs
    with pytest.raises(KafkaError, match='the disk is gone'):
        allocate_producer_ids(changes.controller)


def test_a_change_at_once_makes_the_one_in_flight_durable_first(node: ControllerDirectory, changes: Changes) -> None:
    seen: list[int] = []
    changes.controller.commits.on_change.append(lambda records: seen.append(len(records)))
    changes.create('t', 'u', 'v')
    assert allocate_producer_ids(changes.controller) == range(1000)
    changes.run()
    assert seen == [9, 1] and len(changes.ended['t']) == 3
    offset, image = changes.controller.end_offset, changes.controller.image
    assert (image.metadata_offset, changes.topics, image.next_producer_id) == (offset - 1, {'t', 'u', 'v'}, 1000)
    changes.finish_sync()  # the thread reports, too late to count
    assert changes.controller.image is image
    assert create_topic(changes.controller, 'w', 1).name == 'w'
    assert set(node.open().image.topics) == {'t', 'u', 'v', 'w'}


def test_a_topic_created_at_once_knows_the_names_of_those_in_flight(changes: Changes) -> None:
    changes.create('t', 'a.b')
    for name, code in (('t', ErrorCode.TOPIC_ALREADY_EXISTS), ('a_b', ErrorCode.INVALID_TOPIC_EXCEPTION)):
        with pytest.raises(KafkaError) as refused:
            create_topic(changes.controller, name, 1)
        assert refused.value.code is code
    assert changes.topics == set() and len(changes.disk.jobs) == 1


def test_an_error_of_a_thread_counts_also_after_a_change_at_once(changes: Changes) -> None:
    """The sync in a thread and the sync on the loop run at the same time. The kernel reports a failed write to only one
    of them."""
    reasons: list[str] = []
    changes.controller.commits.on_failure = reasons.append
    changes.create('t')
    allocate_producer_ids(changes.controller)
    changes.finish_sync(OSError(errno.EIO, 'the disk is gone'))
    assert len(reasons) == 1
    with pytest.raises(KafkaError, match='the disk is gone'):
        create_topic(changes.controller, 'u', 1)


def test_a_change_at_once_does_not_miss_an_error_that_a_thread_got(
    tmp_path: pathlib.Path, disk: HeldDisk
) -> None:
    """The sync in the thread has failed, but the loop does not know this yet. The loop then syncs the second change
    itself, and this sync succeeds."""
    fs = ReportingFileSystem()
    changes = Changes(ControllerDirectory(tmp_path / 'other').start(fs, disk.sync), disk)
    changes.create('t')
    fs.fail_writes()
    (files, _), = disk.jobs
    with pytest.raises(OSError, match='Input/output error'):
        files[0].sync()
    with pytest.raises(KafkaError) as refused:
        create_topic(changes.controller, 'u', 1)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not changes.topics


def test_one_batch_at_a_time_is_in_flight(node: ControllerDirectory, changes: Changes) -> None:
    """With two batches in flight, a power cut could leave the second batch without the first. A start refuses to open
    such a log."""
    for name in 'abc':
        record = ConfigRecord(resource_type=GROUP, resource_name=name, name='k', value='v')
        changes.begin(name, changes.controller.commits.write([record]))
    end_offset = changes.controller.end_offset
    for number, name in enumerate('abc'):
        assert len(changes.disk.jobs) == 1 and changes.controller.end_offset == end_offset + number
        assert (GROUP, name) not in changes.controller.image.configs
        changes.finish_sync()
        assert name in changes.ended and (GROUP, name) in changes.controller.image.configs
    assert not changes.disk.jobs


def test_changes_that_are_written_meanwhile_are_part_of_a_change_in_preparation(
    node: ControllerDirectory, changes: Changes
) -> None:
    record = ConfigRecord(resource_type=GROUP, resource_name='g', name='k', value='v')
    steps = changes.controller.topics.create([NewTopic('t', 100)])
    next(steps)  # it has copied the image
    changes.begin('g', changes.controller.commits.write([record]))
    changes.begin('t', steps)
    assert len(changes.disk.jobs) == 1 and changes.topics == set()
    changes.finish_sync()
    assert (GROUP, 'g') in changes.controller.image.configs and changes.topics == set()
    changes.finish_sync()
    assert (GROUP, 'g') in changes.controller.image.configs and changes.topics == {'t'}


@pytest.mark.parametrize('seed', range(12))
@pytest.mark.parametrize('at_once', [False, True])
def test_a_power_cut_before_the_sync_loses_a_change_as_a_whole_or_keeps_it(
    tmp_path: pathlib.Path, seed: int, at_once: bool
) -> None:
    """A first change waits for its sync in a thread. With `at_once`, a second change is synced on the loop, which makes
    the first one durable, too."""
    (tmp_path / 'root').mkdir()
    fs = FreezingFileSystem(tmp_path / 'root')
    disk = HeldDisk(is_held=True)
    changes = Changes(ControllerDirectory(tmp_path / 'root' / 'data').start(fs, disk.sync), disk)
    changes.create('durable')
    changes.finish_sync()
    changes.create('t', 'u')
    if at_once:
        allocate_producer_ids(changes.controller)
    fs.crash(tmp_path / 'after', random.Random(seed))
    image = ControllerDirectory(tmp_path / 'after' / 'data').open().image
    assert set(image.topics) in ({'durable'}, {'durable', 't', 'u'})
    assert image.next_producer_id == 1000 * at_once
    if at_once:
        assert 'u' in image.topics


def test_a_start_writes_the_last_batch_again_whose_write_the_disk_has_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / 'root').mkdir()
    fs = FreezingFileSystem(tmp_path / 'root')
    directory = ControllerDirectory(tmp_path / 'root' / 'data')
    disk = HeldDisk(is_held=True)
    Changes(directory.start(fs, disk.sync), disk).create('t')
    fs.write_back_in_vain()
    create_topic(directory.start(fs), 'u', 1)
    fs.crash(tmp_path / 'after', None)
    assert set(ControllerDirectory(tmp_path / 'after' / 'data').open().image.topics) == {'t', 'u'}


def test_the_configs_of_many_resources_are_one_batch_and_wait_for_one_sync(
    node: ControllerDirectory, changes: Changes
) -> None:
    for name in ('a', 'b'):
        create_topic(changes.controller, name, 1)
    wanted = {
        (TOPIC, 'a'): {'retention.ms': '1'},
        (TOPIC, 'nope'): {'retention.ms': '1'},
        (TOPIC, 'b'): {'retention.ms': 'soon'},
        (GROUP, 'g'): {'consumer.session.timeout.ms': '46000'},
    }
    end_offset = changes.controller.end_offset
    changes.begin('configs', changes.controller.configs.alter(wanted))
    assert len(changes.disk.jobs) == 1 and not changes.ended
    changes.finish_sync()
    codes = {resource: error and error.code for resource, error in changes.ended['configs'].items()}
    assert codes == {
        (TOPIC, 'a'): None,
        (TOPIC, 'nope'): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (TOPIC, 'b'): ErrorCode.INVALID_CONFIG,
        (GROUP, 'g'): None,
    }
    assert {entry.batch_offset for entry in read_log(node.log_dir) if entry.offset >= end_offset} == {end_offset}
    configs = changes.controller.image.configs
    assert configs[TOPIC, 'a'] == {'retention.ms': '1'} and (TOPIC, 'b') not in configs
    assert configs[GROUP, 'g'] == {'consumer.session.timeout.ms': '46000'}


@pytest.mark.usefixtures('any_group_config')
def test_configs_that_no_single_batch_holds_are_several_and_a_resource_is_never_divided(
    node: ControllerDirectory, changes: Changes
) -> None:
    wanted = {
        (GROUP, f'group-{number}'): {f'key.{key}': 'v' for key in range(3_000)} for number in range(5)
    }
    changes.begin('configs', changes.controller.configs.alter(wanted))
    batches = [entry.batch_offset for entry in read_log(node.log_dir)[-9_000:]]
    assert len(set(batches)) == 1
    changes.finish_sync()
    assert len(changes.controller.image.configs) == 1 + 3 and not changes.ended
    changes.finish_sync()
    assert len(changes.controller.image.configs) == 1 + 5 and set(changes.ended['configs'].values()) == {None}


@pytest.mark.usefixtures('any_group_config')
def test_configs_that_were_not_written_have_an_error_of_their_own(changes: Changes) -> None:
    wanted = {(GROUP, f'group-{number}'): {f'key.{key}': 'v' for key in range(6_000)} for number in range(2)}
    changes.begin('configs', changes.controller.configs.alter(wanted))
    changes.finish_sync()
    changes.finish_sync(OSError(errno.EIO, 'the disk is gone'))
    first, second = changes.ended['configs'].values()
    assert first is None and second.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert set(changes.controller.image.configs) == {(4, ''), (GROUP, 'group-0')}


def test_a_stop_does_not_wait_for_the_threads(node: ControllerDirectory, changes: Changes) -> None:
    changes.create('t')
    changes.controller.commits.sync_here()
    changes.controller.commits.finish()
    changes.create('u')
    assert changes.topics == {'t', 'u'}
    node.stop(changes.controller)
    assert set(node.open().image.topics) == {'t', 'u'}


def test_turns_are_taken_in_the_order_of_the_changes() -> None:
    timers = Timers(ManualClock())
    long_work, turns, seen = LongWork(timers), Turns(), []

    def change(name: str) -> Any:
        yield from turns.take()
        try:
            seen.append(name)
            yield
            yield
        finally:
            turns.end()

    for name in 'abcd':
        long_work.start(change(name))
    assert (seen, len(long_work), long_work.paused) == (['a'], 1, 3)
    timers.run_due()
    assert seen == ['a', 'b', 'c', 'd'] and long_work.paused == 0


def test_a_change_that_is_given_up_gives_its_turn_away() -> None:
    turns = Turns()
    first, given_up, last = (turns.take() for _ in range(3))
    assert next(first, None) is None
    next(given_up)
    pause = next(last)
    given_up.close()
    assert not pause.is_over
    turns.end()
    assert pause.is_over
