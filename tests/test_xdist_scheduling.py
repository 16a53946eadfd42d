"""The distribution of tests over processes: all files that share a Spark session run in one."""
import pathlib
import re

from support.xdist_scheduling import LONGEST, SESSION

TESTS = pathlib.Path(__file__).parent


def test_all_files_that_use_the_spark_session_share_a_process():
    users = {f'tests/spark/{path.name}' for path in (TESTS / 'spark').glob('test_*.py')
             if re.search(r'^(?:    )?def \w+\((?:.*, )?spark\b', path.read_text(), re.MULTILINE)}
    assert users == set(SESSION)


def test_the_places_listed_as_slow_exist():
    assert [place for place in LONGEST if not (TESTS.parent / place).exists()] == []


def test_no_two_files_of_tests_have_one_name():
    names = [path.name for path in TESTS.rglob('test_*.py')]
    assert sorted(names) == sorted(set(names))
