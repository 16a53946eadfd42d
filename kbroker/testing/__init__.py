"""A broker for each test: kbroker's test kit. The names below are the public interface, and each is loaded at its
first use. The modules that define these names are private.
"""
from typing import TYPE_CHECKING

__all__ = ['Broker', 'BrokerError', 'FoundRecord']

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker
    from kbroker.testing.errors import BrokerError
    from kbroker.testing.questions import FoundRecord
else:
    _HOMES = {
        'Broker': 'kbroker.testing.broker',
        'BrokerError': 'kbroker.testing.errors',
        'FoundRecord': 'kbroker.testing.questions',
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        from importlib import import_module
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
