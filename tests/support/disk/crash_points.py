"""Runs of a story in which the power or the disk fails at one change of the disk. The next broker on the directory is
then checked.
"""
from __future__ import annotations

import copy
import errno
import gc
import os
import pathlib
import random
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.brokers.in_process_broker import InProcessBroker
from support.clients.busy_client import BusyClient
from support.clients.promises import TOPIC, Promises, RefusedError, Step
from support.disk.faulty_file_systems import FreezingFileSystem, ShortWriteError

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.fs import FileSystem
from kbroker.log.swap import DELETED_SUFFIX
from kbroker_tools.check.directory_check import DirectoryCheck, check_one

STOP: Step = ('stop', ())
"""A step of a story: a clean stop of the broker and a new start."""
FAULTS = ('ENOSPC', 'EIO', 'EINTR', 'short write')
REFUSALS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""The error codes with which a broker answers when its log directory is offline."""
SOURCE = ('source', 0)
OUT_OF_USE = DELETED_SUFFIX, '-delete', '-stray'


def transaction(number: int, committed: bool) -> list[Step]:
    """Return the steps of a transaction that writes to three partitions and commits offsets."""
    a, b, c = ((TOPIC, partition) for partition in range(3))
    return [
        ('begin', ()),
        ('produce_in_transaction', ({a: [f'{number}-a0', f'{number}-a1']},)),
        ('produce_in_transaction', ({b: [f'{number}-b'], c: [f'{number}-c']},)),
        ('send_offsets', ({SOURCE: 10 * number},)),
        ('produce_in_transaction', ({a: [f'{number}-a2']},)),
        ('end', (committed,)),
    ]


@dataclass
class Moment:
    """The directory as a failure at one change left it, and what the broker had acknowledged by then."""

    directory: pathlib.Path
    what: str
    step: int
    promises: Promises
    wall_ms: int


def cut_power(root: pathlib.Path, choose: Callable[[int], int], run: Callable[[FileSystem], None],
              hold: Callable[[pathlib.Path, str], None]) -> tuple[int, int]:
    """Call `run` with a file system over `root`. Return (number of changes that it made, number of power cuts).

    `choose(number)` returns how many power cuts to simulate before a change. The changes are numbered from 0. The end
    counts as one more change. `hold` checks the directory that a cut leaves. The first error of `hold` is raised when
    `run` has returned, because the running broker must not see it.
    """
    changes = cuts = 0
    errors: list[BaseException] = []

    def freeze(change: str, path: str) -> None:
        nonlocal changes, cuts
        for seed in range(choose(changes)):
            directory = root.with_name(f'{root.name}-{changes}-{seed}')
            fs.crash(directory, random.Random(f'{changes} {seed}'))
            if not errors:
                try:
                    where = pathlib.Path(path).relative_to(root)
                    hold(directory, f'change {changes}, {change} of {where}, seed {seed}')
                except BaseException as error:
                    errors.append(error)
            shutil.rmtree(directory)
            cuts += 1
        changes += 1

    fs = FreezingFileSystem(root, freeze)
    run(fs)
    freeze('the end', str(root))
    if errors:
        raise errors[0]
    return changes, cuts


@contextmanager
def judging(what: str) -> Iterator[None]:
    """Add `what` to an error. Free the brokers at the end of the block, because each is a reference cycle that keeps
    its files open.
    """
    try:
        yield
        gc.collect()
    except BaseException as error:
        error.add_note(what)
        raise


@dataclass
class Run:
    """A run of a story over a file system. `step` is the step in progress."""

    case: Case
    root: pathlib.Path
    clock: ManualClock
    promises: Promises
    step: int = 0

    def go(self, fs: FileSystem) -> None:
        """Run the story to its end, and end the broker without a clean stop."""
        story = self.case.story
        while True:
            with InProcessBroker(self.root, self.case.settings, clock=self.clock, fs=fs) as broker:
                try:
                    client = BusyClient(broker, self.promises, self.case.transaction_version)
                    while self.step < len(story) and story[self.step] != STOP:
                        client.do(story[self.step])
                        self.step += 1
                except BaseException:
                    broker.crash()
                    raise
                if self.step == len(story):
                    broker.crash()
                    return
            self.step += 1

    def restart(self, fs: FileSystem) -> None:
        """Restart the broker, check every promise, and run the rest of the story, omitting its stops."""
        with InProcessBroker(self.root, self.case.settings, clock=self.clock, fs=fs) as broker:
            try:
                client = BusyClient(broker, self.promises, self.case.transaction_version)
                self.case.check(client, self.step, goes_on=True)
            finally:
                broker.crash()
        self.step = len(self.case.story)

    def moment(self, directory: pathlib.Path, what: str) -> Moment:
        return Moment(directory, f'{what}, in {self.case.story[self.step:self.step + 1]}', self.step,
                      copy.deepcopy(self.promises), self.clock.wall_ms())


@dataclass
class Case:
    """A story, the steps that prepare its directory, and the settings of the broker."""

    story: list[Step]
    transaction_version: int
    settings: dict[str, str]
    before: list[Step] = field(default_factory=list)

    def begin(self, root: pathlib.Path) -> Run:
        root.mkdir()
        run = Run(self, root, ManualClock(), Promises())
        if self.before:
            with InProcessBroker(root, self.settings, clock=run.clock) as broker:
                client = BusyClient(broker, run.promises, self.transaction_version)
                for step in self.before:
                    client.do(step)
        return run

    def list_changes(self, base: pathlib.Path) -> list[str]:
        """Run the story to its end. Return the changes that it makes to the disk."""
        changes: list[str] = []
        run = self.begin(base / 'counted')
        run.go(FreezingFileSystem(run.root, lambda change, path: changes.append(change)))
        shutil.rmtree(run.root)
        return changes

    def count_changes(self, base: pathlib.Path) -> int:
        """Run the story to its end. Return how many changes it makes to the disk, plus one for the end."""
        return len(self.list_changes(base)) + 1

    def cut_power(self, base: pathlib.Path, chosen: Collection[int], seeds: int,
                  hold: Callable[[Moment], None]) -> int:
        """Run the story to its end. Before each chosen change, pass the results of `seeds` possible power cuts to
        `hold`. Return the number of power cuts.
        """
        run = self.begin(base / 'running')
        _, cuts = cut_power(run.root, lambda change: seeds * (change in chosen), run.go,
                            lambda directory, what: hold(run.moment(directory, what)))
        shutil.rmtree(run.root)
        return cuts

    def cut_power_in_recovery(self, first: Moment, choose: Callable[[int], bool],
                              hold: Callable[[Moment], None]) -> int:
        """Open the directory that a power cut left. Before each chosen change of the recovery, pass the result of a
        second power cut to `hold`.
        """
        def recover(fs: FileSystem) -> None:
            with InProcessBroker(first.directory, self.settings, clock=ManualClock(first.wall_ms), fs=fs) as broker:
                broker.crash()

        _, cuts = cut_power(first.directory, choose, recover, lambda directory, what: hold(Moment(
            directory, f'{first.what}; then in the recovery, {what}', first.step, copy.deepcopy(first.promises),
            first.wall_ms)))
        return cuts

    def fail_change(self, base: pathlib.Path, number: int, fault: str, *, lasts: bool = False,
                    restarts: bool = False) -> Moment | None:
        """Run the story until the change with this number fails, and then as long as the broker serves its steps. Then
        cut the power. If the fault `lasts`, all later changes fail, too. With `restarts`, the broker restarts before
        the power cut, and the story continues to its end. The machine keeps running, so its page cache may have data
        that the disk lacks. Return None if the story ended before this change.
        """
        run = self.begin(base / f'failing-{number}')
        changes = 0
        failed: list[str] = []
        faults: list[OSError] = []

        def fail(change: str, path: str) -> None:
            nonlocal changes
            changes += 1
            if changes - 1 == number or (lasts and changes > number):
                failed.append(f'{change} of {pathlib.Path(path).relative_to(run.root)}')
                if (fault, change) != ('EINTR', 'write'):       # `File` repeats an interrupted write
                    faults.append(fault_of(fault, path, is_write=change == 'write'))
                    raise faults[-1]

        fs = FreezingFileSystem(run.root, fail)
        fs.fate_of_failed_syncs = random.Random(number) if number % 2 else None
        refused = ''
        try:
            run.go(fs)
        except (RefusedError, OSError, KafkaError) as error:
            if not is_effect(error, faults):
                raise
            refused = repr(error)
        if not failed:
            return None
        directory = base / f'failed-{number}'
        fs.before_change = lambda change, path: None
        if restarts:
            run.restart(fs)
        fs.crash(directory, random.Random(number))
        shutil.rmtree(run.root)
        return run.moment(directory, f'change {number}, {failed[0]}, failed with {fault}; {refused}')

    def hold(self, moment: Moment, *, goes_on: bool) -> None:
        """Open the directory of a moment and check every promise. With `goes_on`, the client then continues. Otherwise
        a new client replaces it.
        """
        with judging(moment.what):
            with InProcessBroker(moment.directory, self.settings, clock=ManualClock(moment.wall_ms)) as broker:
                self.check(BusyClient(broker, moment.promises, self.transaction_version), moment.step, goes_on=goes_on)
            assert findings_of_check(str(moment.directory)) == []

    def check(self, client: BusyClient, step: int, *, goes_on: bool) -> None:
        """Check every promise now. With `goes_on`, run the steps from `step` and check again. Otherwise run a
        transaction of a new client and check again.
        """
        client.pass_time()
        client.check_topics()
        client.check_records()
        client.check_everything_else()
        if goes_on:
            steps = [following for following in self.story[step:] if following != STOP]
        elif client.promises.producer is not None:
            client.replace()
            steps = transaction(9, committed=True) if TOPIC in client.promises.topics else []
        else:
            steps = []
        for following in steps:
            client.do(following)
        client.pass_time()
        client.check_topics()
        client.check_records()
        client.check_transactions()
        client.check_everything_else()
        client.check_stable_offsets()


def fault_of(fault: str, path: str, *, is_write: bool) -> OSError:
    """Return the error that a fault raises. `short write` makes a write fail after half of its bytes, and any other
    change fail as on a full disk.
    """
    code = {'EIO': errno.EIO, 'EINTR': errno.EINTR}.get(fault, errno.ENOSPC)
    kind = ShortWriteError if fault == 'short write' and is_write else OSError
    return kind(code, os.strerror(code), path)


def is_effect(error: RefusedError | OSError | KafkaError, faults: list[OSError]) -> bool:
    """Return whether an error is one of the faults, or the broker's reaction to one."""
    if isinstance(error, RefusedError):
        return bool(faults) and error.code in REFUSALS
    if isinstance(error, KafkaError):
        return error.code is ErrorCode.KAFKA_STORAGE_ERROR and any(str(fault) in str(error) for fault in faults)
    return error in faults


def spread(count: int, most: int) -> range:
    """Return about `most` of the numbers below `count`, at equal distances and including the last one."""
    return range(count - 1, -1, -max(1, count // most))


def findings_of_check(directory: str) -> list[str]:
    """Return the findings of `kbroker-check` in a stopped directory, except for files that wait to be deleted."""
    fs = FileSystem()
    check = DirectoryCheck(fs, directory)
    check.list_tasks()
    for task in check.tasks:
        check.add(task, check_one(fs, task))
    return [str(finding) for finding in check.conclude() if not finding.file.endswith(OUT_OF_USE)]
