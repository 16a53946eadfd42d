"""Tests are distributed over processes. All files that share a Spark session run in one process."""
import pathlib
import re
from types import SimpleNamespace

import pytest
from support.runner.xdist_scheduling import APART, LONG_RUN, LONGEST, SESSION, Scheduler, priority

TESTS = pathlib.Path(__file__).parent


class Node:
    """A process that notes the tests that it receives."""

    gateway = SimpleNamespace(id='gw')
    shutting_down = False

    def __init__(self):
        self.sent = []

    def send_runtest_some(self, indexes):
        self.sent += indexes


@pytest.mark.parametrize(('count', 'expected'), [
    (2, [[SESSION[0], SESSION[1]], ['tests/hostile/test_a.py']]),
    (3, [[SESSION[0], SESSION[1]], ['tests/hostile/test_a.py'], ['tests/jvm/test_a.py']])])
def test_every_second_process_begins_with_files_that_are_busy_and_the_others_with_files_that_wait(count, expected):
    files = ['tests/log/test_a.py', 'tests/gates/test_a.py', 'tests/hostile/test_a.py', 'tests/jvm/test_a.py',
             SESSION[1], SESSION[0]]
    tests = [f'{file}::test_{number}' for file in sorted(files, key=priority) for number in range(3)]
    specifications = ['popen'] * count
    scheduler = Scheduler(SimpleNamespace(option=SimpleNamespace(), getvalue=lambda name: specifications))
    nodes = [Node() for _ in range(count)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    begun = [[tests[index].partition('::')[0] for index in node.sent[::3]] for node in nodes]
    assert begun == expected
    for index in nodes[1].sent[:]:
        scheduler.mark_test_complete(nodes[1], index)
    assert tests[nodes[1].sent[-1]].startswith('tests/gates/')


def test_the_test_that_takes_two_hours_in_a_soak_is_begun_at_once():
    files = ['tests/hostile/test_a.py', f'{LONG_RUN}test_a.py', 'tests/log/test_a.py']
    assert max(files, key=priority) == f'{LONG_RUN}test_a.py'


def test_the_long_tests_of_a_file_without_fixtures_may_run_in_different_processes():
    tests = [f'{file}::test_{number}' for file in APART for number in range(8)]
    scheduler = Scheduler(SimpleNamespace(option=SimpleNamespace(), getvalue=lambda name: ['popen'] * 2))
    nodes = [Node(), Node()]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    assert [tests[index].partition('::')[0] for node in nodes for index in node.sent[:1]] == [*APART, *APART]


def test_all_files_that_use_the_spark_session_share_a_process():
    users = {f'tests/spark/{path.name}' for path in (TESTS / 'spark').glob('test_*.py')
             if re.search(r'^(?:    )?def \w+\((?:.*, )?spark\b', path.read_text(), re.MULTILINE)}
    assert users == set(SESSION)


def test_the_places_listed_as_slow_exist():
    assert [place for place in (*LONGEST, *APART, LONG_RUN) if not (TESTS.parent / place).exists()] == []


def test_no_two_files_of_tests_have_one_name():
    names = [path.name for path in TESTS.rglob('test_*.py')]
    assert sorted(names) == sorted(set(names))
