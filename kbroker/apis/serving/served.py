"""The APIs that the broker serves: every module of `apis` that declares an `API`."""
from __future__ import annotations

import functools
import importlib
import pkgutil

from kbroker import apis
from kbroker.apis.serving.request import Api
from kbroker.settings.config import Config


def apis_under(config: Config) -> list[Api]:
    """Return every Api by key, with the versions that are served under these settings."""
    return [api.under(config) for api in served_apis()]


@functools.cache
def served_apis() -> list[Api]:
    """Return every declared Api, by key, with the versions that each broker serves."""
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(apis.__path__, 'kbroker.apis.')]
    return sorted((module.API for module in modules if hasattr(module, 'API')), key=lambda api: api.key)
