"""Fixtures: a schema registry in this process, and its client, whose waits take no time."""
import pytest
from support.registry.scripted_registry import ScriptedRegistry

from kbroker_tools.registry.client import RegistryClient
from kbroker_tools.registry.settings import RegistrySettings


@pytest.fixture
def registry():
    with ScriptedRegistry().running() as running:
        yield running


@pytest.fixture
def connected(registry):
    """Return a function that returns a client with further settings. Its attribute `waits` has the seconds that the
    client waited."""
    def connect(clock=lambda: 0.0, **settings):
        waits = []
        names = {name.replace('_', '.'): value for name, value in settings.items()}
        client = RegistryClient(RegistrySettings.of({'schema.registry.url': registry.url, **names}), clock,
                                waits.append)
        client.waits = waits
        return client
    return connect
