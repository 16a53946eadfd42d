"""Each soak adds its counts to a table of docs/proof.md."""
import shlex
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT
from support.runner.soak_totals import KINDS, PROPERTY, added, counts_of

PAGE = 'Before\n\n| done | total |\n|---|--:|\n| power cuts | 1,234 |\n| fuzz runs | 7 |\n\nAfter\n'


def test_a_soak_adds_what_its_tests_did_to_the_totals():
    counts = counts_of([(PROPERTY, ('power cuts', 1000)), ('another property', 3), (PROPERTY, ['power cuts', 6])])
    assert added(PAGE, counts) == PAGE.replace('1,234', '2,240')


def test_a_kind_without_a_row_is_refused_by_its_name():
    with pytest.raises(ValueError, match='found no row for kills'):
        added(PAGE, {'kills': 1})


def test_the_page_has_a_row_for_each_kind():
    page = (ROOT / 'docs' / 'proof.md').read_text('utf-8')
    assert all(page.count(f'| {kind} | ') == 1 for kind in KINDS)
    assert added(page, dict.fromkeys(KINDS, 0)) == page


def test_a_test_can_only_tally_a_known_kind(tally):
    with pytest.raises(AssertionError, match='unknown kind'):
        tally('unknown kind', 1)


def test_make_soak_runs_without_paths_of_tests():
    """In an earlier version, the option had no `=`. pytest therefore read the path of the totals page as a path of
    tests, and then did not know the project's options.
    """
    plan = subprocess.run(['make', '--dry-run', 'soak'], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    command = shlex.split(plan.replace('\\\n', '')[plan.index('-m pytest'):])
    done = subprocess.run([sys.executable, *command, '--markers'], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
