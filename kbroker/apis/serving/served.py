"""The APIs that the broker serves: every module of `apis` that declares an `API`."""
from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator

from kbroker import apis
from kbroker.apis.serving.request import Api
from kbroker.settings.config import Config


def apis_under(config: Config) -> list[Api]:
    """Return all Apis, sorted by key, with the versions that are served under these settings."""
    return [api.under(config) for api in served_apis()]


@functools.cache
def served_apis() -> list[Api]:
    """Return all Apis, sorted by key, with the versions that their modules declare."""
    modules = map(importlib.import_module, sorted(set(_modules_in(apis.__path__[0], apis.__name__))))
    return sorted((module.API for module in modules if hasattr(module, 'API')), key=lambda api: api.key)


def _modules_in(folder: str, package: str) -> Iterator[str]:
    """Yield the names of all modules in a package except those of `serving`, which serve APIs and are none. Listing
    them with pkgutil instead would add 6 million instructions to a start."""
    for entry in os.scandir(folder):
        name, _, suffix = entry.name.partition('.')
        if name in ('__pycache__', 'serving'):      # root's __pycache__ may be closed to the user of the broker
            continue
        if entry.is_dir():
            yield from _modules_in(entry.path, f'{package}.{name}')
        elif suffix == 'py' or suffix.endswith('so'):
            yield f'{package}.{name}'.removesuffix('.__init__')
