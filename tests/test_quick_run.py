"""`make quick` leaves out the tests that it names, and no others."""
import pytest
from support.brokers.broker_process import ROOT
from support.runner.quick_run import SLOW


@pytest.mark.parametrize('place', SLOW)
def test_each_place_that_the_quick_run_leaves_out_exists(place):
    file, _, name = place.partition('::')
    assert (ROOT / file).exists()
    assert not name or f'def {name}(' in (ROOT / file).read_text()
