"""`make quick` omits exactly the tests that support/runner/quick_run.py names."""
import pytest
from support.brokers.broker_process import ROOT
from support.runner.quick_run import SLOW


@pytest.mark.parametrize('place', SLOW)
def test_each_place_that_the_quick_run_leaves_out_exists(place):
    file, _, name = place.partition('::')
    assert (ROOT / file).exists()
    assert not name or f'def {name}(' in (ROOT / file).read_text()
