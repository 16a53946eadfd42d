"""The scripts of the tests, which use kafkajs."""
import pathlib

from support.runner.node_packages import beside_packages

SOURCES = pathlib.Path(__file__).parent


def script(name):
    """Copy a script of this directory next to the packages that it needs, and return its path."""
    return beside_packages(SOURCES, name) / name
