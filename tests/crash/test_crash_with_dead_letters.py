"""A broker is killed, or its power fails, at each change of the disk while a share group has a dead-letter queue. Each
rejected record has exactly one dead letter then, and is never delivered again.

The scripted stories have snapshots between the rows of a record, clocks that are set back, and offsets that are reset.
After a reset, the same records are rejected again.

Covers KIP-1191.
"""
from __future__ import annotations

import copy
import errno
import os
import pathlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from support.disk.crash_points import cut_power, findings_of_check, judging, spread
from support.disk.faulty_file_systems import FreezingFileSystem
from support.worlds.dead_letter_world import ACCEPT, DELIVERY_LIMIT, PARTITIONS, RELEASE, DeadLetterWorld, Place

from kbroker.base.clock import ManualClock
from kbroker.base.errors import KafkaError
from kbroker.daemon.hand_over import WITHOUT_DELETIONS, hand_over
from kbroker.log.fs import FileSystem
from kbroker.settings.config import Config

RECORDS = 6
HOUR_MS = 3_600_000
LOCK_MS = 30_000
SETTINGS = {'share.coordinator.snapshot.update.records.per.snapshot': '2'}
KILLS, CUTS, NESTED, FAILURES = 30, 20, 6, 16
STEPS = 25
SOAK_STORIES = 60


@dataclass
class Promises:
    """The number of dead letters that each record must have, and what may be otherwise for a moment."""

    letters: Counter[Place] = field(default_factory=Counter)
    finished: set[Place] = field(default_factory=set)
    doubtful: set[Place] = field(default_factory=set)
    """The records with an unanswered rejection. They may have one dead letter more."""
    unsure: set[Place] = field(default_factory=set)
    """The records with an unanswered acceptance."""
    is_resetting: bool = False

    def check(self, found: Counter[Place]) -> None:
        for place in {*found, *self.letters}:
            expected = {self.letters[place], self.letters[place] + (place in self.doubtful)}
            assert found[place] in expected, f'{place} has {found[place]} dead letters, expected {expected}'

    def check_deliveries(self, found: Counter[Place], delivered: set[Place]) -> None:
        if self.is_resetting:
            return
        assert delivered & self.finished == set(), 'finished records were delivered again'
        rejected = {place for place in self.doubtful if found[place] > self.letters[place]}
        assert delivered & rejected == set(), 'records with a dead letter were delivered again'
        everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)}
        assert everything - delivered - self.finished - rejected - self.unsure == set(), 'records were lost'


class Story:
    """The requests of a member, with the promises that the broker's answers make."""

    def __init__(self, world: DeadLetterWorld, promises: Promises):
        self.world, self.promises = world, promises

    def reject(self, *places: Place) -> None:
        self.promises.doubtful |= set(places)
        self.world.reject(*places, answered=lambda: self._rejected(*places))

    def _rejected(self, *places: Place) -> None:
        self.promises.letters.update(places)
        self.promises.finished |= set(places)
        self.promises.doubtful -= set(places)

    def accept(self, *places: Place) -> None:
        self.promises.unsure |= set(places)
        self.world.acknowledge(dict.fromkeys(places, ACCEPT), answered=lambda: self.promises.finished.update(places))

    def release(self, *places: Place) -> None:
        """Release records. Those at the limit of deliveries get dead letters."""
        last = [place for place in places if self.world.held[place] == DELIVERY_LIMIT]
        self.promises.doubtful |= set(last)
        self.world.acknowledge(dict.fromkeys(places, RELEASE), answered=lambda: self._rejected(*last))

    def let_locks_end(self) -> None:
        self._let_end(lambda: self.world.pass_time(LOCK_MS + 1))

    def disconnect(self) -> None:
        self._let_end(self.world.disconnect)

    def _let_end(self, end: Callable[[], None]) -> None:
        """Let the acquisition of all records end. Those at the limit of deliveries get dead letters."""
        last = {place for place, count in self.world.held.items() if count == DELIVERY_LIMIT}
        self.promises.doubtful |= last
        end()
        self.world.held.clear()
        if self.world.broker.logs.failure is None:
            self._rejected(*last)

    def reset(self, state_epoch: int) -> None:
        """Let the group read all records again."""
        self.disconnect()
        self.promises.is_resetting = True
        self.world.initialize(state_epoch=state_epoch)
        self.promises.finished.clear()
        self.promises.unsure.clear()
        self.promises.is_resetting = False

    def set_clock_back(self) -> None:
        self.world.broker.clock.set_wall_ms(self.world.broker.clock.wall_ms() - HOUR_MS)


def first_half(story: Story) -> None:
    world = story.world
    world.fetch()
    story.reject((0, 0), (0, 1), (1, 0))
    story.reject((0, 4))
    story.release((0, 2))
    world.fetch()
    story.release((0, 2))
    story.set_clock_back()
    story.accept((0, 3))
    story.reject(*((2, offset) for offset in range(RECORDS)))


def second_half(story: Story) -> None:
    world = story.world
    world.fetch()
    story.reject((1, 3))
    story.let_locks_end()
    world.fetch()
    story.let_locks_end()
    story.reset(2)
    world.fetch()
    story.reject((0, 0), (1, 0))
    story.set_clock_back()
    story.reset(3)
    world.fetch()
    story.reject((0, 0), (2, 5))


@dataclass
class RandomStory:
    """Random steps of the member, with stops of the broker, and a worker that is held during some of the steps."""

    seed: int
    epochs: int = 1

    def run(self, root: pathlib.Path, clock: ManualClock, fs: FileSystem, promises: Promises) -> None:
        rng = random.Random(self.seed)
        for _ in range(rng.randrange(2, 4)):
            with DeadLetterWorld(root, clock, fs, SETTINGS) as world:
                world.settle()
                story = Story(world, promises)
                free = None
                for _ in range(STEPS):
                    if rng.random() < 0.3:
                        free = free() if free else world.hold_worker()
                    self.step(story, rng)

    def step(self, story: Story, rng: random.Random) -> None:
        world = story.world
        action = rng.choice(['fetch', 'fetch', 'reject', 'reject', 'reject', 'accept', 'release', 'release', 'locks',
                             'clock', 'reset', 'disconnect'])
        chosen = [place for place in sorted(world.held) if rng.random() < 0.4]
        if action == 'fetch':
            world.fetch(rng.choice([1, 5, 100]))
        elif action == 'reject' and chosen:
            story.reject(*chosen)
        elif action == 'accept' and chosen:
            story.accept(*chosen)
        elif action == 'release' and chosen:
            story.release(*chosen)
        elif action == 'locks':
            story.let_locks_end()
        elif action == 'clock':
            story.set_clock_back()
        elif action == 'disconnect':
            story.disconnect()
        elif action == 'reset' and rng.random() < 0.3 and not world.worker.is_held:
            self.epochs += 1
            story.reset(self.epochs)


def with_a_stop(root: pathlib.Path, clock: ManualClock, fs: FileSystem, promises: Promises,
                settings: Mapping[str, str] = SETTINGS) -> None:
    """Run both halves, with a clean stop between them and at the end."""
    for part in first_half, second_half:
        with DeadLetterWorld(root, clock, fs, settings) as world:
            world.settle()
            part(Story(world, promises))


def prepared(base: pathlib.Path, settings: Mapping[str, str] = SETTINGS) -> pathlib.Path:
    root = base / 'running'
    root.mkdir()
    with DeadLetterWorld(root, settings=settings) as world:
        world.prepare()
        for partition in range(PARTITIONS):
            world.produce(partition, *[(b'k', b'v')] * RECORDS)
    return root


def hold(directory: pathlib.Path, wall_ms: int, promises: Promises, what: str, *, set_back: bool = False) -> None:
    """Open a directory that a crash left, and check every promise. A new member accepts all remaining records."""
    promises = copy.deepcopy(promises)
    with judging(what):
        with DeadLetterWorld(directory, ManualClock(wall_ms - HOUR_MS * set_back), settings=SETTINGS) as world:
            world.settle()
            assert world.archiving() == set(), 'records still wait for their dead letters'
            found = world.places()
            promises.check(found)
            world.member = 'the next one'
            delivered: set[Place] = set()
            while world.fetch():
                delivered |= set(world.held)
                world.acknowledge(dict.fromkeys(world.held, ACCEPT))
            promises.check_deliveries(found, delivered)
        with DeadLetterWorld(directory, ManualClock(wall_ms), settings=SETTINGS) as world:
            world.settle()
            world.member = 'the last one'
            assert world.fetch() == {} and world.places() == found
        assert findings_of_check(str(directory)) == []


def kill_at_each_change(root: pathlib.Path, run: Callable[[FileSystem], None],
                        choose: Callable[[int], bool], check: Callable[[pathlib.Path, str], None]) -> int:
    """Call `run` with a file system over `root`. Pass copies of the directory, as a kill before a chosen change leaves
    it, to `check`. Return the number of changes."""
    changes = 0
    errors: list[BaseException] = []

    def kill(change: str, path: str) -> None:
        nonlocal changes
        if choose(changes) and not errors:
            directory = root.with_name(f'{root.name}-killed-{changes}')
            shutil.copytree(root, directory)
            try:
                check(directory, f'killed before change {changes}, {change} of {pathlib.Path(path).relative_to(root)}')
            except BaseException as error:
                errors.append(error)
            shutil.rmtree(directory)
        changes += 1

    run(FreezingFileSystem(root, kill))
    kill('the end', str(root))
    if errors:
        raise errors[0]
    return changes


def count_changes(base: pathlib.Path) -> int:
    (base / 'counted').mkdir()
    root = prepared(base / 'counted')
    return kill_at_each_change(root, lambda fs: with_a_stop(root, ManualClock(), fs, Promises()), lambda _: False,
                               lambda directory, what: None)


def run_kills(base: pathlib.Path, chosen: range, *, set_back: bool = False) -> None:
    root, clock, promises = prepared(base), ManualClock(), Promises()
    kill_at_each_change(root, lambda fs: with_a_stop(root, clock, fs, promises), lambda change: change in chosen,
                        lambda directory, what: hold(directory, clock.wall_ms(), promises, what, set_back=set_back))
    assert sum(promises.letters.values()) > 20


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('set_back', [False, True])
def test_a_rejected_record_has_one_dead_letter_after_a_kill(memory_path, set_back):
    run_kills(memory_path, spread(count_changes(memory_path), KILLS), set_back=set_back)


@pytest.mark.usefixtures('many_brokers')
def test_a_rejected_record_has_one_dead_letter_after_a_power_cut(memory_path):
    chosen = spread(count_changes(memory_path), CUTS)
    root, clock, promises = prepared(memory_path), ManualClock(), Promises()
    cut_power(root, lambda change: change in chosen, lambda fs: with_a_stop(root, clock, fs, promises),
              lambda directory, what: hold(directory, clock.wall_ms(), promises, what))


@pytest.mark.usefixtures('many_brokers')
def test_a_rejected_record_has_one_dead_letter_after_kills_of_the_next_start_too(memory_path):
    """The second kill comes while the broker continues with the dead letters that the first kill has interrupted."""
    chosen = random.Random(7).sample(range(count_changes(memory_path)), NESTED)
    root, clock, promises = prepared(memory_path), ManualClock(), Promises()

    def kill_again(directory: pathlib.Path, what: str) -> None:
        def resume(fs: FileSystem) -> None:
            with DeadLetterWorld(directory, ManualClock(clock.wall_ms()), fs, SETTINGS) as world:
                world.settle()
                world.broker.crash()

        kill_at_each_change(directory, resume, lambda change: True, lambda second, then: hold(
            second, clock.wall_ms(), promises, f'{what}; then {then}'))

    kill_at_each_change(root, lambda fs: with_a_stop(root, clock, fs, promises), lambda change: change in chosen,
                        kill_again)


def fail_change(base: pathlib.Path, number: int) -> str:
    """Run the stories on a disk on which the change with this number fails. Then check the directory. Return the change
    that failed, or '' if the stories ended before it."""
    (base / str(number)).mkdir()
    root, clock, promises = prepared(base / str(number)), ManualClock(), Promises()
    changes, failed = 0, ''

    def fail(change: str, path: str) -> None:
        nonlocal changes, failed
        changes += 1
        if changes - 1 == number:
            failed = f'{change} of {pathlib.Path(path).relative_to(root)}'
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    fs = FreezingFileSystem(root, fail)
    try:
        with_a_stop(root, clock, fs, promises)
    except (AssertionError, OSError, KafkaError):
        assert failed
    fs.before_change = lambda change, path: None
    if failed:
        fs.crash(base / str(number) / 'failed', random.Random(number))
        hold(base / str(number) / 'failed', clock.wall_ms(), promises, f'change {number}, {failed}, has failed')
    shutil.rmtree(base / str(number))
    return failed


@pytest.mark.usefixtures('many_brokers')
def test_a_rejected_record_has_one_dead_letter_after_a_failed_change_of_the_disk(memory_path):
    failed = [fail_change(memory_path, number) for number in spread(count_changes(memory_path), FAILURES)]
    assert any('dlq.jobs' in change for change in failed), failed


@pytest.mark.usefixtures('many_brokers')
def test_a_hand_over_archives_records_whose_dead_letters_exist_and_writes_none(memory_path):
    """Apache Kafka writes the dead letters of all ARCHIVING records, so those with a letter must not remain. The
    hand-over has not the prefix of the broker, with which it would refuse all dead letters."""
    settings = {**SETTINGS, 'errors.deadletterqueue.topic.name.prefix': ''}
    chosen = spread(count_changes(memory_path), CUTS)
    root, clock, promises = prepared(memory_path, settings), ManualClock(), Promises()
    left: list[int] = []

    def check(directory: pathlib.Path, what: str) -> None:
        with judging(what):
            hand_over(Config({'log.dirs': str(directory), **WITHOUT_DELETIONS,
                              'errors.deadletterqueue.topic.name.prefix': 'refuses all'}))
            with DeadLetterWorld(directory, ManualClock(clock.wall_ms()), settings=settings) as world:
                waiting = world.archiving()
                left.append(len(waiting))
                found = world.places()
                for place in waiting:
                    assert found[place] <= promises.letters[place] - (place not in promises.doubtful), what
                world.broker.share_partitions.stop_dead_letters()
        hold(directory, clock.wall_ms(), promises, what)

    kill_at_each_change(root, lambda fs: with_a_stop(root, clock, fs, promises, settings),
                        lambda change: change in chosen, check)
    assert max(left) > 0


def run_random(base: pathlib.Path, seed: int, chance: float) -> int:
    """Run a random story. Kill the broker or cut its power at random changes. Return the number of crashes."""
    base.mkdir()
    root, clock, promises = prepared(base), ManualClock(), Promises()
    chooser = random.Random(seed)
    crashes = 0

    def check(directory: pathlib.Path, what: str) -> None:
        hold(directory, clock.wall_ms(), promises, f'seed {seed}, {what}', set_back=chooser.random() < 0.5)

    def freeze(change: str, path: str) -> None:
        nonlocal crashes
        if chooser.random() >= chance or errors:
            return
        crashes += 1
        directory = base / str(crashes)
        if chooser.random() < 0.5:
            shutil.copytree(root, directory)
        else:
            fs.crash(directory, random.Random(crashes))
        try:
            check(directory, f'crash {crashes}, before {change} of {pathlib.Path(path).relative_to(root)}')
        except BaseException as error:
            errors.append(error)
        shutil.rmtree(directory)

    errors: list[BaseException] = []
    fs = FreezingFileSystem(root, freeze)
    RandomStory(seed).run(root, clock, fs, promises)
    if errors:
        raise errors[0]
    return crashes


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('seed', range(3))
def test_rejected_records_of_a_random_history_have_one_dead_letter_after_a_crash(memory_path, seed):
    run_random(memory_path / 'one', seed, 0.05)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.usefixtures('many_brokers')
def test_a_rejected_record_has_one_dead_letter_after_a_kill_at_any_change(memory_path, soak_count, tally):
    changes = count_changes(memory_path)
    run_kills(memory_path, range(changes))
    crashes = sum(run_random(memory_path / str(seed), seed, 0.2) for seed in range(100, 100 + soak_count(SOAK_STORIES)))
    tally('kills of a broker, a client or an application', changes + crashes)
