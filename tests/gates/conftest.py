"""Fixtures of the gates, which import modules of the benches."""
import sys

import pytest
from support.brokers.broker_process import ROOT

from kbroker.wire import crc32c

sys.path.append(str(ROOT / 'bench'))


def pytest_collection_modifyitems(items):
    """Skip gates on other builds than users run: a module contains the options of its compiler."""
    with open(crc32c.__file__, 'rb') as file:
        if b' -O0 ' in file.read():
            skip = pytest.mark.skip('gates: this is a debug build, the bounds are for a release build')
            for item in items:
                if 'gates' in item.path.parts:
                    item.add_marker(skip)
