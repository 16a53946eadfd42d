"""The power fails at every sync of a story. A broker opens the rest, and keeps everything that was acknowledged.

The file system of these tests records what is durable. Before each sync takes effect, it writes the directories that a
power cut may leave at that moment: with all unsynced writes, with none, or with some of them, some torn. So one run of
a story gives all its crashes.
"""
from __future__ import annotations

import copy
import gc
import pathlib
import random
import shutil
from dataclasses import dataclass

import pytest
from support.faulty_file_systems import FreezingFileSystem
from support.in_process_broker import InProcessBroker
from support.promises import TOPIC, Client, Promises, Step, findings_in

SETTINGS = {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1',
            'log.index.size.max.bytes': '4096'}
SEEDS_PER_SYNC = 1
SOAK_SEEDS = 50
RECOVERIES, SOAK_RECOVERIES = 4, 12
A, B, C = ((TOPIC, partition) for partition in range(3))
SOURCE = ('source', 0)
AGAIN = ('again', 0)
CLEANER_BACKOFF_MS = 15_000


def transaction(number: int, committed: bool) -> list[Step]:
    """Return the steps of a transaction over three partitions with offsets."""
    return [
        ('begin', ()),
        ('produce_in_transaction', ({A: [f'{number}-a0', f'{number}-a1']},)),
        ('produce_in_transaction', ({B: [f'{number}-b'], C: [f'{number}-c']},)),
        ('send_offsets', ({SOURCE: 10 * number},)),
        ('produce_in_transaction', ({A: [f'{number}-a2']},)),
        ('end', (committed,)),
    ]


def before_transactions() -> list[Step]:
    return [
        ('create_topic', (TOPIC, 3)),
        ('create_topic', ('source', 2)),
        ('find_coordinators', ()),
        ('init_idempotent', ()),
        ('produce', ({A: ['plain 0'], B: ['plain 1', 'plain 2']},)),
        ('commit_offsets', ({SOURCE: 1},)),
        ('produce', ({A: ['plain 3']},)),
        ('init_transactions', ()),
    ]


STORIES: dict[str, list[Step]] = {
    'committed': [*before_transactions(), *transaction(1, True), *transaction(2, True)],
    'aborted': [*before_transactions(), *transaction(1, False), *transaction(2, True)],
    'topics': [
        ('create_topic', (TOPIC, 3)),
        ('init_idempotent', ()),
        ('produce', ({A: ['kept 0'], B: ['kept 1']},)),
        ('create_topic', ('short', 2)),
        ('produce', ({('short', 0): ['short 0'], ('short', 1): ['short 1']},)),
        ('delete_topic', ('short',)),
        ('produce', ({C: ['kept 2']},)),
        ('create_topic', ('again', 1)),
        ('delete_topic', ('again',)),
        ('create_topic', ('again', 2)),
    ],
    'a topic of the same name': [
        ('create_topic', ('again', 1)),
        ('init_idempotent', ()),
        ('produce', ({AGAIN: [f'old {number}' for number in range(10)]},)),
        ('delete_records', (AGAIN, 8)),
        ('let_pass', (60_000,)),
        ('delete_topic', ('again',)),
        ('create_topic', ('again', 1)),
        ('init_idempotent', ()),
        ('produce', ({AGAIN: ['new']},)),
    ],
    'compaction': [
        *before_transactions(),
        *transaction(1, True),
        ('let_pass', (CLEANER_BACKOFF_MS,)),
        *transaction(2, False),
        ('commit_offsets', ({('source', 1): 7},)),
        *transaction(3, True),
        ('let_pass', (CLEANER_BACKOFF_MS,)),
        ('let_pass', (CLEANER_BACKOFF_MS,)),
        *transaction(4, True),
    ],
}


@dataclass
class Moment:
    """The directory that a power cut left at one sync, and the acknowledgements until then."""

    directory: pathlib.Path
    what: str
    step: int
    promises: Promises


@dataclass
class Case:
    story: list[Step]
    transaction_version: int
    settings: dict[str, str]

    def crash_everywhere(self, base: pathlib.Path, seeds: int) -> list[Moment]:
        """Run the story to its end. Return `seeds` possible crashes for each sync."""
        root = base / 'running'
        root.mkdir()
        moments: list[Moment] = []
        promises = Promises()
        step = 0

        def freeze(path: str) -> None:
            sync = len(moments) // seeds
            for seed in range(seeds):
                directory = base / f'{sync}-{seed}'
                fs.crash(directory, random.Random(f'{sync} {seed}'))
                where = pathlib.Path(path).relative_to(root)
                what = f'sync {sync}, of {where}, seed {seed}, in {self.story[step:step + 1]}'
                moments.append(Moment(directory, what, step, copy.deepcopy(promises)))

        fs = FreezingFileSystem(root, freeze)
        with InProcessBroker(root, self.settings, fs=fs) as broker:
            client = Client(broker, promises, self.transaction_version)
            while step < len(self.story):
                client.do(self.story[step])
                step += 1
            broker.crash()
        freeze(str(root))
        return moments

    def crash_in_recovery(self, first: Moment, rng: random.Random) -> list[Moment]:
        """Open the rest. Return a crash at each sync of the recovery."""
        moments: list[Moment] = []

        def freeze(path: str) -> None:
            directory = first.directory.with_name(f'{first.directory.name}-{len(moments)}')
            fs.crash(directory, rng)
            what = f'{first.what}; then in the recovery, sync {len(moments)} of {path}'
            moments.append(Moment(directory, what, first.step, copy.deepcopy(first.promises)))

        fs = FreezingFileSystem(first.directory, freeze)
        with InProcessBroker(first.directory, self.settings, fs=fs) as broker:
            broker.crash()
        return moments

    def hold(self, moment: Moment, *, goes_on: bool) -> None:
        """Open the rest and check every promise. Then the client continues, or a new one replaces it."""
        try:
            with InProcessBroker(moment.directory, self.settings) as broker:
                self._check(Client(broker, moment.promises, self.transaction_version), moment, goes_on=goes_on)
            assert findings_in(str(moment.directory)) == []
            gc.collect()    # a broker is a reference cycle, and holds its files open until it is collected
        except BaseException as error:
            error.add_note(moment.what)
            raise

    def _check(self, client: Client, moment: Moment, *, goes_on: bool) -> None:
        client.pass_time()
        client.check_topics()
        client.check_records()
        if goes_on:
            steps = self.story[moment.step:]
        elif moment.promises.producer is not None:
            client.replace()
            steps = transaction(9, committed=True)
        else:
            steps = []
        for step in steps:
            client.do(step)
        client.pass_time()
        client.check_topics()
        client.check_records()
        client.check_transactions()


ROLLS_ALWAYS = {'log.roll.ms': '1'}
CASES = [
    Case(STORIES['committed'], 2, SETTINGS), Case(STORIES['committed'], 1, SETTINGS | ROLLS_ALWAYS),
    Case(STORIES['aborted'], 1, SETTINGS), Case(STORIES['aborted'], 2, SETTINGS | ROLLS_ALWAYS),
    Case(STORIES['topics'], 2, SETTINGS),
    Case(STORIES['a topic of the same name'], 2, SETTINGS),
    Case(STORIES['compaction'], 2, SETTINGS | ROLLS_ALWAYS),
]
each_case = pytest.mark.parametrize('case', CASES, ids=[
    'committed', 'committed with version 1 and rolls', 'aborted with version 1', 'aborted with rolls', 'topics',
    'a topic of the same name', 'compaction'])


@pytest.mark.usefixtures('many_brokers')
@each_case
def test_what_was_answered_outlives_a_power_cut_at_any_sync(memory_path, case):
    for number, moment in enumerate(case.crash_everywhere(memory_path, SEEDS_PER_SYNC)):
        case.hold(moment, goes_on=number % 2 == 0)


@pytest.mark.soak
@pytest.mark.usefixtures('many_brokers')
@each_case
def test_what_was_answered_outlives_many_power_cuts_at_any_sync(memory_path, case):
    for number, moment in enumerate(case.crash_everywhere(memory_path, SOAK_SEEDS)):
        case.hold(moment, goes_on=number % 2 == 0)
        shutil.rmtree(moment.directory)


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('recoveries', [RECOVERIES, pytest.param(SOAK_RECOVERIES, marks=pytest.mark.soak)])
@each_case
def test_what_was_answered_outlives_a_power_cut_in_a_recovery(memory_path, case, recoveries):
    rng = random.Random(1)
    moments = case.crash_everywhere(memory_path, 1)
    for moment in moments[::len(moments) // recoveries]:
        for number, second in enumerate(case.crash_in_recovery(moment, rng)):
            case.hold(second, goes_on=number % 2 == 0)
