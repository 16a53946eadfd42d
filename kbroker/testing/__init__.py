"""A broker for each test: kbroker's test kit. The names below are the public interface, and each is loaded at its
first use. The modules that define these names are private.
"""
from typing import TYPE_CHECKING

__all__ = [
    'Broker',
    'BrokerError',
    'BrokerFactory',
    'ClientConfig',
    'Clock',
    'Control',
    'ExplorationFailed',
    'FactoryBroker',
    'Fault',
    'FoundRecord',
    'Hold',
    'NotReachedError',
    'PartitionOffsets',
    'Proxy',
    'Report',
    'SharedBroker',
    'Snapshot',
    'Step',
    'explore',
]

if TYPE_CHECKING:
    from kbroker.testing.access import ClientConfig
    from kbroker.testing.broker import Broker
    from kbroker.testing.control import Clock, Control, Fault, Hold, Step
    from kbroker.testing.errors import BrokerError, NotReachedError
    from kbroker.testing.exploring.exploration import explore
    from kbroker.testing.exploring.report import ExplorationFailed, Report
    from kbroker.testing.fixtures import BrokerFactory, FactoryBroker, SharedBroker
    from kbroker.testing.proxies import Proxy
    from kbroker.testing.questions import FoundRecord, PartitionOffsets
    from kbroker.testing.snapshots import Snapshot
else:
    _HOMES = {
        'Broker': 'kbroker.testing.broker',
        'BrokerError': 'kbroker.testing.errors',
        'BrokerFactory': 'kbroker.testing.fixtures',
        'ClientConfig': 'kbroker.testing.access',
        'Clock': 'kbroker.testing.control',
        'Control': 'kbroker.testing.control',
        'ExplorationFailed': 'kbroker.testing.exploring.report',
        'FactoryBroker': 'kbroker.testing.fixtures',
        'Fault': 'kbroker.testing.control',
        'FoundRecord': 'kbroker.testing.questions',
        'Hold': 'kbroker.testing.control',
        'NotReachedError': 'kbroker.testing.errors',
        'PartitionOffsets': 'kbroker.testing.questions',
        'Proxy': 'kbroker.testing.proxies',
        'Report': 'kbroker.testing.exploring.report',
        'SharedBroker': 'kbroker.testing.fixtures',
        'Snapshot': 'kbroker.testing.snapshots',
        'Step': 'kbroker.testing.control',
        'explore': 'kbroker.testing.exploring.exploration',
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        from importlib import import_module
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
