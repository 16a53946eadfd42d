"""Plans of chains: programs that open one log directory one after the other, each after a clean stop or a kill.

A plan is a function of its number. The 30 fixed plans together have every pair of programs, after a clean stop and
after a kill. A default run takes CHAINS_OF_A_RUN of them: the number of commits chooses them, so consecutive commits
take different ones.
"""
from __future__ import annotations

import subprocess
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

KBROKER = 'kbroker'
LEVELS = {'4.2': 29, '4.3': 30, '4.4': 33}
"""Maps a release of Apache Kafka to the metadata.version that it finalizes in a new directory. A release does not open
a directory with a higher one. kbroker opens all of them.
"""
PROGRAMS = (KBROKER, *LEVELS)
FIXED_COUNT = 30
FIXED_LENGTH = 4
FIRST_SEED = 134
"""The first seed whose fixed plans have every pair, every birth and every kind of link."""
RANDOM_LENGTHS = (6, 7, 8)
CHAINS_OF_A_RUN = 2
TEST = 'tests/jvm/test_chains.py::test_a_directory_keeps_all_data_through_a_fixed_chain'
OTHERS_AFTER = 3
"""A pair of two releases of Kafka is taken again only after this many pairs with kbroker."""


class Birth(NamedTuple):
    """The program that formats the directory, and the release whose levels it finalizes."""

    program: str
    release: str
    is_dynamic: bool
    """True if the directory has kraft.version 1 (KIP-853). Directories that kbroker formats always have."""


class Link(NamedTuple):
    """The work of one program. The next program opens the directory after it."""

    program: str
    is_killed: bool = False
    is_handed_over: bool = False
    """True if `kbroker hand-over` completes the transactions of a killed kbroker before Kafka opens the directory."""
    raised_to: str = ''
    """The release whose levels the program finalizes at the end of its work."""


class Plan(NamedTuple):
    birth: Birth
    links: tuple[Link, ...]
    has_lasting_clients: bool
    """True if the same clients go on at the next program, false if new clients with their transactional ids replace
    them.
    """
    has_groups: bool
    """True if members of groups of every kind go on at each program."""

    def __str__(self) -> str:
        kind = 'dynamic' if self.birth.is_dynamic else 'static'
        names = [''.join([link.program, ' to ' + link.raised_to if link.raised_to else '',
                          ' killed' if link.is_killed else '', ' and handed over' if link.is_handed_over else ''])
                 for link in self.links]
        return f'formatted by {self.birth.program} for {self.birth.release} ({kind}), then {", ".join(names)}'

    @property
    def pairs(self) -> list[tuple[str, str, bool]]:
        """The pairs of programs: (from, to, whether the first one was killed)."""
        return [(first.program, second.program, first.is_killed) for first, second in pairwise(self.links)]


BIRTHS = (
    Birth('4.4', '4.4', False), Birth(KBROKER, '4.3', True), Birth('4.2', '4.2', False), Birth('4.3', '4.3', True),
    Birth('4.2', '4.2', True), Birth('4.4', '4.4', True), Birth('4.4', '4.3', False), Birth(KBROKER, '4.4', True),
    Birth('4.2', '4.2', False), Birth('4.3', '4.3', False))
"""Some are listed twice: only a directory of Kafka 4.2 goes to Kafka 4.2."""


@cache
def fixed_plans() -> tuple[Plan, ...]:
    """Return the fixed plans. Each pair is the one that the plans before it have least often."""
    used: Counter[tuple[str, str, bool]] = Counter()
    return tuple(_plan(Random(FIRST_SEED + number), BIRTHS[number % len(BIRTHS)], FIXED_LENGTH, used)
                 for number in range(FIXED_COUNT))


def random_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = Random(f'chain {seed}')
    return _plan(rng, rng.choice(BIRTHS), rng.choice(RANDOM_LENGTHS), Counter())


def _plan(rng: Random, birth: Birth, length: int, used: Counter[tuple[str, str, bool]]) -> Plan:
    release = birth.release
    # Kafka 4.3 finalizes only metadata.version in a directory that Kafka 4.4 formatted for it, so 4.4 starts first.
    program = KBROKER if rng.random() < 0.3 else birth.program
    links: list[Link] = []
    for number in range(1, length):
        higher = [each for each in LEVELS if LEVELS[release] < LEVELS[each]
                  and (program == KBROKER or LEVELS[each] <= LEVELS[program])]
        raised_to = rng.choice(higher) if higher and number > 1 and rng.random() < 0.25 else ''
        release = raised_to or release
        is_without_kbroker = KBROKER not in (program, *(link.program for link in links))
        pair = _next_pair(rng, program, release, used, (KBROKER,) if is_without_kbroker and number == length - 1
                          else PROGRAMS)
        used[pair] += 1 if KBROKER in pair else OTHERS_AFTER
        _, following, is_killed = pair
        is_handed_over = program == KBROKER and is_killed and following != KBROKER and rng.random() < 0.5
        links.append(Link(program, is_killed, is_handed_over, raised_to))
        program = following
    return Plan(birth, (*links, Link(program)), rng.random() < 0.5, rng.random() < 0.35)


def _next_pair(rng: Random, program: str, release: str, used: Counter[tuple[str, str, bool]],
               programs: Iterable[str]) -> tuple[str, str, bool]:
    """Choose one of the least used pairs of `program` with a program that opens a directory with these levels."""
    pairs = [(program, following, is_killed) for following in programs for is_killed in (False, True)
             if following == KBROKER or LEVELS[following] >= LEVELS[release]]
    least = min(used[pair] for pair in pairs)
    return rng.choice([pair for pair in pairs if used[pair] == least])


def chains_of_text(text: str) -> set[int]:
    """Parse the value of --chains: `all`, or numbers such as `3,17`. Raise ArgumentTypeError for another text."""
    if text == 'all':
        return set(range(FIXED_COUNT))
    numbers = {int(word) if word.isascii() and word.isdigit() else FIXED_COUNT for word in text.split(',')}
    if max(numbers) >= FIXED_COUNT:
        raise ArgumentTypeError(f'found {text}, expected all, or numbers from 0 to {FIXED_COUNT - 1}')
    return numbers


def chains_of_run(commit_count: int) -> set[int]:
    """Return the numbers of the fixed chains that a default run takes."""
    return {(commit_count * CHAINS_OF_A_RUN + number) % FIXED_COUNT for number in range(CHAINS_OF_A_RUN)}


def count_commits(directory: Path) -> int:
    """Return the number of commits of the checkout in a directory, 0 if git does not know it."""
    try:
        done = subprocess.run(['git', '-C', str(directory), 'rev-list', '--count', 'HEAD'], capture_output=True,
                              text=True, check=False)
    except OSError:
        return 0
    return int(done.stdout) if done.returncode == 0 else 0


def chains_left_out(nodeids: Iterable[str], chosen: Set[int] | None, directory: Path, named: Sequence[str]) -> set[str]:
    """Return the ids of the fixed chains that a run omits. The run keeps the chains `chosen`, by default those of the
    checkout in `directory`, and the chains whose ids the arguments `named` contain.
    """
    numbers = {nodeid: int(nodeid.rpartition('-')[2].rstrip(']')) for nodeid in nodeids if nodeid.startswith(TEST)}
    if not numbers:
        return set()
    kept = chains_of_run(count_commits(directory)) if chosen is None else chosen
    return {nodeid for nodeid, number in numbers.items()
            if number not in kept and not any(each.endswith(nodeid) for each in named)}
