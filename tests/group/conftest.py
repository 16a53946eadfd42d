"""Fixtures of the tests of groups. A test file that needs another world defines its own fixture `world`."""
import pytest
from support.worlds.group_coordinator import World


@pytest.fixture
def world():
    """Return a group coordinator on held partitions, with the default settings."""
    return World()
