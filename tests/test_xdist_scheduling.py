"""The tests of a run in several processes: what shares a Spark session stays in one."""
import pathlib
import re

from support.xdist_scheduling import LONGEST, SESSION

TESTS = pathlib.Path(__file__).parent


def test_whoever_uses_the_spark_session_is_dealt_with_the_others():
    users = {f'tests/spark/{path.name}' for path in (TESTS / 'spark').glob('test_*.py')
             if re.search(r'^(?:    )?def \w+\((?:.*, )?spark\b', path.read_text(), re.MULTILINE)}
    assert users == set(SESSION)


def test_what_takes_long_is_there():
    assert [place for place in LONGEST if not (TESTS.parent / place).exists()] == []


def test_no_two_files_of_tests_have_one_name():
    names = [path.name for path in TESTS.rglob('test_*.py')]
    assert sorted(names) == sorted(set(names))
