"""The packages that pyproject.toml does not require on this version of Python, because they have no wheels for it yet.
"""
from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from support.brokers.broker_process import ROOT

MODULES = {'google-re2': ('re2',), 'moto': ('moto', 'boto3')}
"""Maps a package to its module, for packages whose module has a different name."""


def packages_left_out(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return {name of the module: package} for the packages that the tests require, but not in this environment."""
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    requirements = map(Requirement, project['optional-dependencies']['test'])
    return {module: each.name for each in requirements
            if each.marker is not None and not each.marker.evaluate(dict(environment or {}))
            for module in MODULES.get(each.name, (each.name.replace('-', '_'),))}


class SkipImports:
    """A module finder that skips the test, or the test file, that imports one of these packages. Python calls this
    finder last. The import of any other missing module still fails.
    """

    def __init__(self, packages: Mapping[str, str]):
        self._packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package = self._packages.get(name)
        if package is not None:
            pytest.skip(f'{package} has no wheel for Python {sys.version_info.major}.{sys.version_info.minor}',
                        allow_module_level=True)
        return None
