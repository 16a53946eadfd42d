"""A broker keeps all promises in random histories. Its applications, network, disk and power are simulated.

Covers promises 1, 2, 3, 4 and 5 of docs/design.md.
"""
from __future__ import annotations

import gc
import logging
import multiprocessing
import random
import shutil
import uuid
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import pytest
from support.clients.simulated_applications import World
from support.disk.crash_points import findings_of_check

SETTINGS = {
    'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '2',
    'log.index.size.max.bytes': '4096', 'transaction.abort.timed.out.transaction.cleanup.interval.ms': '200',
    'transaction.two.phase.commit.enable': 'true'}
ROLLS_ALWAYS = {'log.roll.ms': '1'}
CLEANS_ALWAYS = {
    **ROLLS_ALWAYS, 'log.cleaner.backoff.ms': '100', 'log.cleaner.min.cleanable.ratio': '0.01',
    'log.cleaner.delete.retention.ms': '100'}
LIVES, STEPS = 4, 1500
HISTORIES, HISTORIES_OF_A_TEST, SOAK_HISTORIES, HISTORIES_OF_A_PROCESS = 40, 10, 4000, 50


def simulate(base, seed, settings):
    """Run a broker several times on one directory. Each run begins with the directory that the previous run left."""
    base.mkdir()
    rng = random.Random(seed)
    world = World(base, rng, SETTINGS | settings | rng.choice([{}, {}, ROLLS_ALWAYS, CLEANS_ALWAYS]))
    try:
        with mock.patch('uuid.uuid4', lambda: uuid.UUID(int=rng.getrandbits(128), version=4)):
            world.prepare()
            for life in range(LIVES):
                world.live(rng.randrange(STEPS))
                if life == LIVES - 1 or rng.random() < 0.5:
                    world.settle()
                    assert findings_of_check(str(world.directory)) == []
        gc.collect()    # a broker is a reference cycle, and holds its files open until it is collected
    except BaseException as error:
        error.add_note(f'seed {seed}, life {world.lives}, {dict(world.steps)}')
        raise
    finally:
        shutil.rmtree(base)


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('part', range(HISTORIES // HISTORIES_OF_A_TEST))
def test_transactions_stay_whole_whatever_interleaves_and_wherever_the_power_fails(memory_path, part):
    for number in range(HISTORIES_OF_A_TEST):
        simulate(memory_path / 'lives', part * HISTORIES_OF_A_TEST + number, {})


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_transactions_stay_whole_in_thousands_of_histories(memory_path, soak_count, soak_seed, tally):
    """Child processes run the histories, because a broker that ends with requests in flight is never freed and holds 3
    MB.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn'), logging.disable, (logging.WARNING,),
                             max_tasks_per_child=HISTORIES_OF_A_PROCESS) as process:
        for number in range(soak_count(SOAK_HISTORIES)):
            process.submit(simulate, memory_path / 'lives', f'{soak_seed} {number}', {}).result()
    tally('simulated histories', soak_count(SOAK_HISTORIES))


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize(('setting', 'value', 'histories'), [
    ('kbroker.durability', 'page-cache', 10), ('kbroker.transaction.stale.request.check.enable', 'false', 200)])
def test_the_simulation_finds_a_broker_that_keeps_less(memory_path, setting, value, histories):
    """One setting makes the broker acknowledge records before the sync. The other lets a late request end a newer
    transaction.
    """
    for seed in range(histories):
        try:
            simulate(memory_path / 'lives', seed, {setting: value})
        except AssertionError:
            return
    raise AssertionError(f'none of {histories} histories breaks a promise')
