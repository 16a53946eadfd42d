"""Fixtures of the tests of groups. A test file with a world of its own defines it."""
import pytest
from support.worlds.group_coordinator import World


@pytest.fixture
def world():
    """A group coordinator on held partitions, with the default settings."""
    return World()
