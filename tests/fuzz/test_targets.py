"""The targets of `make fuzz` run on the ordinary build, with their seeds, their corpus, former faults, and a few
mutations.
"""
import pathlib
import random
import re
import subprocess
from itertools import chain

import pytest
from fuzz import run
from fuzz.corpus import chosen, kept_inputs
from fuzz.targets import TARGETS, close
from support.brokers.broker_process import ROOT

FAULTS = pathlib.Path(__file__).parent / 'faults'
"""Inputs that once caused faults, in a folder for each target."""


def mutated(chance: random.Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        match chance.randrange(3):
            case 0:
                data[at:at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at:at] = chance.randbytes(chance.randint(1, 5))
            case _:
                del data[at:at + chance.randint(1, 9)]
    return bytes(data)


@pytest.fixture(scope='module', autouse=True)
def _closed():
    yield
    close()


def test_a_run_takes_every_target():
    assert tuple(TARGETS) == run.TARGETS


def test_the_seeds_are_the_same_in_each_run():
    first = [list(target.seeds()) for target in TARGETS.values()]
    close()     # the next broker has other ids
    assert [list(target.seeds()) for target in TARGETS.values()] == first


def test_the_corpus_keeps_the_inputs_that_a_run_began_with(tmp_path):
    for name, data in (('0a1b', b'found'), ('seed-0', b'kept'), ('seed-1', b'of the target'), ('fault-crash-0', b'!')):
        (tmp_path / name).write_bytes(data)
    assert chosen(tmp_path, [b'kept']) == [b'kept', b'found']


@pytest.mark.parametrize('name', TARGETS)
def test_a_reader_of_foreign_bytes_raises_what_it_documents(name, request):
    target, chance, count = TARGETS[name], random.Random(17), request.config.getoption('fuzz_mutations')
    seeds = [*target.seeds(), *kept_inputs(name)]
    faults = (file.read_bytes() for file in sorted(FAULTS.glob(f'{name}/*')))
    for data in chain(seeds, faults, [b''], (mutated(chance, chance.choice(seeds)) for _ in range(count))):
        target.run(data)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_fuzzing_that_follows_coverage_finds_no_fault(soak_minutes, tally):
    """The targets run on a build with sanitizers. Together they use the processor time that the soak allows."""
    seconds = round(soak_minutes * 60 / len(TARGETS))
    done = subprocess.run(['make', 'fuzz', f'FUZZ_SECONDS={seconds}'], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r'^(\w+): clean', done.stdout, re.MULTILINE)) == sorted(TARGETS)
    tally('fuzz runs', sum(map(int, re.findall(r'(\d+) runs in', done.stdout))))
    tally('minutes of processor time of fuzzing',
          sum(map(int, re.findall(r'in (\d+) s of processor', done.stdout))) // 60)
