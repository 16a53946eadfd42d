"""The build backend: that of setuptools, which first checks for a C compiler.

`requires` of pyproject.toml is empty, so pip asks this file what a build needs before it fetches anything. Without a
compiler, the build thus ends in its first second. Until the packages are fetched, only the standard library is there.
"""
import pathlib
import tomllib

import compiler


def requirements():
    """Return the packages that a build needs, from pyproject.toml."""
    return tomllib.loads(pathlib.Path('pyproject.toml').read_text())['dependency-groups']['build']


def get_requires_for_build_sdist(config_settings=None):
    return requirements()


def get_requires_for_build_wheel(config_settings=None):
    compiler.check()
    return requirements()


get_requires_for_build_editable = get_requires_for_build_wheel


def build_sdist(sdist_directory, config_settings=None):
    return setuptools().build_sdist(sdist_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return setuptools().build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return setuptools().build_editable(wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return setuptools().prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    return setuptools().prepare_metadata_for_build_editable(metadata_directory, config_settings)


def setuptools():
    """Return the backend of setuptools, which is there once the requirements are fetched."""
    from setuptools import build_meta
    return build_meta
