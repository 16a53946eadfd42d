"""kbroker-check finds no error in a directory that Apache Kafka or kbroker wrote, cleaned, compacted or recovered."""
from __future__ import annotations

import pytest
from support.brokers.broker_process import BrokerProcess
from support.disk.well_used_directory import SETTINGS, Work, create_topics
from support.kafka.apache_kafka import KafkaProcess
from support.runner.command_runner import run_command

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

KAFKA, KBROKER = KafkaProcess, BrokerProcess
CLEAN, KILLED = False, True
SOAK_SEEDS = 10
SOAK_CLEANINGS = 5


def errors_in(directory):
    """Return the lines of kbroker-check that report errors."""
    done = run_command('check', directory)
    lines = [line for line in done.stdout.splitlines() if line.startswith('error')]
    assert (done.returncode == 1) == bool(lines), done.stdout + done.stderr
    return lines


def work_in_turns(directory, turns, seed, cleanings):
    """Let one broker after the other work in the directory until it has cleaned logs. Run kbroker-check after each
    broker.
    """
    for number, (kind, is_killed) in enumerate(turns):
        with kind(directory, SETTINGS) as broker:
            if number == 0:
                create_topics(broker)
            work = Work(broker, seed + number)
            for _ in range(cleanings):
                work.run_until_cleaned()
            work.create_again('short')
            if is_killed:
                broker.kill9()
            else:
                broker.stop()
        assert errors_in(directory) == [], f'turn {number} of seed {seed}'


@pytest.mark.parametrize('turns', [
    [(KAFKA, CLEAN), (KAFKA, KILLED), (KBROKER, CLEAN)], [(KBROKER, CLEAN), (KBROKER, KILLED), (KAFKA, CLEAN)],
], ids=['from-apache-kafka', 'from-kbroker'])
def test_a_directory_that_was_used_for_everything_has_no_errors(tmp_path, turns):
    work_in_turns(tmp_path / 'data', turns, 1, 1)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize('seed', range(SOAK_SEEDS))
def test_a_directory_that_was_used_for_long_has_no_errors(tmp_path, seed):
    turns = [(KAFKA, CLEAN), (KAFKA, KILLED), (KBROKER, KILLED), (KAFKA, KILLED), (KBROKER, CLEAN), (KBROKER, KILLED),
             (KAFKA, CLEAN)]
    work_in_turns(tmp_path / 'data', turns, 100 * seed, SOAK_CLEANINGS)
