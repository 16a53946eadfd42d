"""Runs of a story whose power fails, or whose disk fails, at a change of the disk; and the broker that comes after."""
from __future__ import annotations

import copy
import errno
import gc
import os
import pathlib
import random
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from support.busy_client import BusyClient
from support.faulty_file_systems import FreezingFileSystem, ShortWriteError
from support.in_process_broker import InProcessBroker
from support.promises import TOPIC, Promises, RefusedError, Step

from kbroker.clock import ManualClock
from kbroker.errors import KafkaError, LogDirectoryError
from kbroker.log.fs import FileSystem
from kbroker.log.swap import DELETED_SUFFIX
from kbroker_tools.checking.directory_check import DirectoryCheck, check_one

STOP: Step = ('stop', ())
"""In a story: a clean stop and a new start."""
FAULTS = ('ENOSPC', 'EIO', 'EINTR', 'short write')
SOURCE = ('source', 0)
OUT_OF_USE = DELETED_SUFFIX, '-delete', '-stray'


def transaction(number: int, committed: bool) -> list[Step]:
    """Return the steps of a transaction over three partitions with offsets."""
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
    """The directory that a failure left at one change, and the acknowledgements until then."""

    directory: pathlib.Path
    what: str
    step: int
    promises: Promises
    wall_ms: int


class Judge:
    """Judges moments while a broker runs, which must not see the errors. It keeps the first one."""

    def __init__(self, hold: Callable[[Moment], None]):
        self._hold = hold
        self._count = 0
        self._error: BaseException | None = None

    def hold(self, moment: Moment) -> None:
        if self._error is None:
            try:
                self._hold(moment)
            except BaseException as error:
                self._error = error
        shutil.rmtree(moment.directory)
        self._count += 1

    def count(self) -> int:
        """Return how many moments there were. Raise the first error."""
        if self._error is not None:
            raise self._error
        return self._count


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

    def moment(self, directory: pathlib.Path, what: str) -> Moment:
        return Moment(directory, f'{what}, in {self.case.story[self.step:self.step + 1]}', self.step,
                      copy.deepcopy(self.promises), self.clock.wall_ms())


@dataclass
class Case:
    """A story, the steps that made its directory before, and the settings of the broker."""

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

    def count_changes(self, base: pathlib.Path) -> int:
        """Run the story to its end. Return how many changes it makes to the disk, and one for the end."""
        changes: list[str] = []
        run = self.begin(base / 'counted')
        run.go(FreezingFileSystem(run.root, lambda change, path: changes.append(change)))
        shutil.rmtree(run.root)
        return len(changes) + 1

    def cut_power(self, base: pathlib.Path, chosen: Collection[int], seeds: int,
                  hold: Callable[[Moment], None]) -> int:
        """Run the story to its end. Pass `seeds` possible power cuts before each chosen change to `hold`.

        Return their number.
        """
        changes = 0
        run = self.begin(base / 'running')
        judge = Judge(hold)

        def freeze(change: str, path: str) -> None:
            nonlocal changes
            changes += 1
            for seed in range(seeds if changes - 1 in chosen else 0):
                directory = base / f'{changes - 1}-{seed}'
                fs.crash(directory, random.Random(f'{changes - 1} {seed}'))
                where = pathlib.Path(path).relative_to(run.root)
                judge.hold(run.moment(directory, f'change {changes - 1}, {change} of {where}, seed {seed}'))

        fs = FreezingFileSystem(run.root, freeze)
        run.go(fs)
        freeze('the end', str(run.root))
        shutil.rmtree(run.root)
        return judge.count()

    def cut_power_in_recovery(self, first: Moment, choose: Callable[[int], bool],
                              hold: Callable[[Moment], None]) -> int:
        """Open what a power cut left. Pass a second power cut before each chosen change to `hold`."""
        changes = 0
        judge = Judge(hold)

        def freeze(change: str, path: str) -> None:
            nonlocal changes
            changes += 1
            if not choose(changes - 1):
                return
            directory = first.directory.with_name(f'{first.directory.name}-{changes - 1}')
            fs.crash(directory, random.Random(changes - 1))
            what = f'{first.what}; then in the recovery, change {changes - 1}, {change} of {path}'
            judge.hold(Moment(directory, what, first.step, copy.deepcopy(first.promises), first.wall_ms))

        fs = FreezingFileSystem(first.directory, freeze)
        with InProcessBroker(first.directory, self.settings, clock=ManualClock(first.wall_ms), fs=fs) as broker:
            broker.crash()
        return judge.count()

    def fail_change(self, base: pathlib.Path, number: int, fault: str, *, lasts: bool) -> Moment | None:
        """Run the story until the change with this number fails, and as far as it goes on. Then the power fails.

        If the fault `lasts`, all later changes fail, too. Return None if the story ended before.
        """
        run = self.begin(base / f'failing-{number}')
        changes = 0
        failed: list[str] = []

        def fail(change: str, path: str) -> None:
            nonlocal changes
            changes += 1
            if changes - 1 == number or (lasts and changes > number):
                failed.append(f'{change} of {pathlib.Path(path).relative_to(run.root)}')
                raise fault_of(fault, path, is_write=change == 'write')

        fs = FreezingFileSystem(run.root, fail)
        refused = ''
        try:
            run.go(fs)
        except (RefusedError, OSError, KafkaError, LogDirectoryError) as error:
            refused = repr(error)
        if not failed:
            return None
        directory = base / f'failed-{number}'
        fs.before_change = lambda change, path: None
        fs.crash(directory, random.Random(number))
        shutil.rmtree(run.root)
        return run.moment(directory, f'change {number}, {failed[0]}, failed with {fault}; {refused}')

    def hold(self, moment: Moment, *, goes_on: bool) -> None:
        """Open the rest and check every promise. Then the client continues, or a new one replaces it."""
        try:
            with InProcessBroker(moment.directory, self.settings, clock=ManualClock(moment.wall_ms)) as broker:
                self._check(BusyClient(broker, moment.promises, self.transaction_version), moment, goes_on=goes_on)
            assert findings_of_check(str(moment.directory)) == []
            gc.collect()    # a broker is a reference cycle, and holds its files open until it is collected
        except BaseException as error:
            error.add_note(moment.what)
            raise

    def _check(self, client: BusyClient, moment: Moment, *, goes_on: bool) -> None:
        client.pass_time()
        client.check_topics()
        client.check_records()
        client.check_everything_else()
        if goes_on:
            steps = [step for step in self.story[moment.step:] if step != STOP]
        elif moment.promises.producer is not None:
            client.replace()
            steps = transaction(9, committed=True) if TOPIC in moment.promises.topics else []
        else:
            steps = []
        for step in steps:
            client.do(step)
        client.pass_time()
        client.check_topics()
        client.check_records()
        client.check_transactions()
        client.check_everything_else()
        client.check_stable_offsets()


def fault_of(fault: str, path: str, *, is_write: bool) -> OSError:
    """Return the error of a fault. Only a write can be short: it ends with a full disk."""
    code = {'EIO': errno.EIO, 'EINTR': errno.EINTR}.get(fault, errno.ENOSPC)
    kind = ShortWriteError if fault == 'short write' and is_write else OSError
    return kind(code, os.strerror(code), path)


def spread(count: int, most: int) -> range:
    """Return up to about `most` of the numbers below `count`, at equal distances, with the last one."""
    return range(count - 1, -1, -max(1, count // most))


def findings_of_check(directory: str) -> list[str]:
    """Return what `kbroker-check` finds in the directory of a stopped broker, besides what waits for its removal."""
    fs = FileSystem()
    check = DirectoryCheck(fs, directory)
    check.list_tasks()
    for task in check.tasks:
        check.add(task, check_one(fs, task))
    return [str(finding) for finding in check.conclude() if not finding.file.endswith(OUT_OF_USE)]
