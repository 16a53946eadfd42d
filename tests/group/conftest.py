"""Fixtures for the tests of groups. A test file that needs a world with other settings defines its own fixture
`world`."""
import pytest
from support.worlds.group_coordinator import World


@pytest.fixture
def world():
    """Return a world: a group coordinator with the default settings, whose partitions are held in memory."""
    return World()
