"""The APIs that this room serves: every module of it that declares an `API`."""
from __future__ import annotations

import functools
import importlib
import pkgutil

from kbroker import apis
from kbroker.apis.request import Api


@functools.cache
def served_apis() -> list[Api]:
    """Return every declared Api, by key."""
    modules = [importlib.import_module(f'{apis.__name__}.{found.name}')
               for found in pkgutil.iter_modules(apis.__path__)]
    return sorted((module.API for module in modules if hasattr(module, 'API')), key=lambda api: api.key)
