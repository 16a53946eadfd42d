"""Groups run a random history, and the power fails at its syncs. A broker that opens the resulting directory keeps
every promise.

No accepted or rejected record of a share group is delivered again, and no acquired record is lost. The earlier answers
allow each delivery count. The rows of all groups and the committed offsets are as before or as after the step in which
the power failed. If the broker answered this step, they are as after it.

Covers KIP-848, KIP-932 and KIP-1071, and promise 2 of docs/design.md.
"""
from __future__ import annotations

import copy
import math
import pathlib
import random
import shutil
from dataclasses import dataclass
from typing import Any

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import findings_in
from support.disk.crash_points import judging
from support.disk.faulty_file_systems import FreezingFileSystem
from support.worlds.group_promises import NEVER, PARTITIONS, GroupPromises, Members, Step, prepare

SETTINGS = {
    'offsets.topic.num.partitions': '1', 'share.coordinator.state.topic.num.partitions': '2',
    'share.coordinator.snapshot.update.records.per.snapshot': '4', 'log.index.size.max.bytes': '4096',
    'group.streams.initial.rebalance.delay.ms': '0',
    **{f'group.{kind}.{name}.ms': '0' for kind in ('share', 'consumer', 'streams')
       for name in ('assignment.interval', 'min.assignment.interval')}}
STEPS = 60
CUTS, BARE_CUTS = 6, 30
SOAK_HISTORIES = 20
KINDS = ('share', 'consumer', 'streams')


def history(rng: random.Random, length: int) -> list[Step]:
    """Return random steps of two members of each group. No member's session times out."""
    steps: list[Step] = [('find_coordinator',)]
    joined: dict[str, set[str]] = {kind: set() for kind in KINDS}

    def join_or_stay(kind: str, name: str) -> None:
        steps.append((f'{"stay_in" if name in joined[kind] else "join"}_{kind}_group', name))
        joined[kind].add(name)

    for partition in range(PARTITIONS):
        steps.append(('produce', partition, 6))
    for kind in KINDS:
        join_or_stay(kind, 'a')
    while len(steps) < length:
        name = rng.choice('ab')
        action = rng.choice(['fetch', 'fetch', 'fetch', 'acknowledge', 'acknowledge', 'produce', 'locks', 'end',
                             'members', 'members', 'leave', 'commit'])
        kind = rng.choice(KINDS)
        if action == 'fetch':
            steps.append(('fetch', name, rng.choice([1, 4, 20])))
        elif action == 'acknowledge':
            steps.append(('acknowledge', name))
        elif action == 'produce':
            steps.append(('produce', rng.randrange(PARTITIONS), rng.randrange(1, 6)))
        elif action == 'locks':
            steps.append(('let_locks_end',))
            for each in KINDS:
                for member in sorted(joined[each]):
                    join_or_stay(each, member)
        elif action == 'end':
            steps.append((rng.choice(['disconnect', 'close_session']), name))
        elif action == 'members':
            join_or_stay(kind, name)
        elif action == 'leave' and len(joined[kind]) == 2:
            joined[kind].discard(name)
            steps.append((f'leave_{kind}_group', name))
        elif action == 'commit' and joined['consumer']:
            steps.append(('commit', rng.choice(sorted(joined['consumer'])), rng.randrange(PARTITIONS), len(steps)))
    return steps


@dataclass
class Cut:
    """A directory that a power cut left, the step in which the power failed, and the promises that the broker had made
    by then.
    """

    directory: pathlib.Path
    what: str
    step: int
    promises: GroupPromises
    is_bare: bool
    """True if the cut lost all unsynced bytes. Then every answer that the broker sent before its sync shows as a broken
    promise.
    """


class History:
    """A history on a file system that records what is durable. `cuts` has the power cuts at the syncs of the run."""

    def __init__(self, base: pathlib.Path, seed: int, length: int):
        self.rng = random.Random(seed)
        self.base = base
        self.steps = history(self.rng, length)
        self.cuts: list[Cut] = []
        self.observed: list[dict[str, Any]] = []
        """The broker's reports of its state: before each step, and after the last step."""
        self.topic_id = b''

    def run(self) -> None:
        root = self.base / 'running'
        root.mkdir()
        promises = GroupPromises()
        with InProcessBroker(root, SETTINGS) as broker:
            self.topic_id = prepare(broker)

        def freeze(change: str, path: str) -> None:
            if change != 'sync':
                return
            relative = pathlib.Path(path).relative_to(root)
            step = max(0, len(self.observed) - 1)
            for is_bare in (False, True) if is_log_of_groups(relative) else (False,):
                number = len(self.cuts)
                directory = self.base / str(number)
                fs.crash(directory, None if is_bare else random.Random(number))
                what = f'cut {number}{" of all that is unsynced" * is_bare}, at a sync of {relative}'
                self.cuts.append(Cut(directory, f'{what}, in {self.steps[step:step + 1]}', step,
                                     copy.deepcopy(promises), is_bare))

        fs = FreezingFileSystem(root, freeze)
        with InProcessBroker(root, SETTINGS, fs=fs) as broker:
            members = Members(broker, promises, self.topic_id, self.rng)
            self.observed.append(members.observe())
            for step in self.steps:
                members.do(step)
                self.observed.append(members.observe())
            broker.crash()
        freeze('sync', str(root))
        self.observed.append(self.observed[-1])

    def hold(self, cut: Cut) -> None:
        """Open the directory of a cut and check every promise. One member accepts all remaining records. After a
        restart, another member gets no record.
        """
        with judging(cut.what):
            with InProcessBroker(cut.directory, SETTINGS) as broker:
                members = Members(broker, cut.promises, self.topic_id, self.rng)
                members.settle()
                for name, value in members.observe().items():
                    before, after = (self.observed[cut.step + number].get(name) for number in (0, 1))
                    if name in cut.promises.answered:
                        before = after
                    assert may_be(value, before, after), f'{name}: found {value}, expected {before} or {after}'
                members.take_everything('last')
                lost = {place for place, counts in cut.promises.counts.items() if NEVER not in counts}
                assert lost == set(), 'records were lost'
            with InProcessBroker(cut.directory, SETTINGS) as broker:
                assert Members(broker, cut.promises, self.topic_id, self.rng).take_everything('after the last') == set()
            assert findings_in(str(cut.directory)) == []


def may_be(value: Any, before: Any, after: Any) -> bool:
    """Return whether a power cut may leave this entry. Several rows of one step may raise a start offset, so it may
    also have a value between those before and after the step.
    """
    if isinstance(value, int) and isinstance(before, int):
        return before <= value <= after
    return value in (before, after)


def is_log_of_groups(path: pathlib.Path) -> bool:
    return path.suffix == '.log' and path.parent.name.startswith(('__consumer_offsets', '__share_group_state'))


def spread(cuts: list[Cut], count: int) -> list[Cut]:
    """Return at most `count` of the cuts, evenly distributed and including the last one."""
    return cuts[::-math.ceil(len(cuts) / count)]


@pytest.mark.usefixtures('many_brokers')
def test_what_groups_were_answered_outlives_a_power_cut(memory_path):
    run = History(memory_path, 1, STEPS)
    run.run()
    bare, others = ([cut for cut in run.cuts if cut.is_bare is wanted] for wanted in (True, False))
    for cut in spread(bare, BARE_CUTS) + spread(others, CUTS):
        run.hold(cut)


@pytest.mark.soak
@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('seed', range(2, 2 + SOAK_HISTORIES))
def test_what_groups_were_answered_outlives_a_power_cut_at_any_sync(memory_path, seed, tally):
    run = History(memory_path, seed, STEPS)
    run.run()
    for cut in run.cuts:
        run.hold(cut)
        shutil.rmtree(cut.directory)
    tally('power cuts', len(run.cuts))
