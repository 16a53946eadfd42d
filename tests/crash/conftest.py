"""Fixtures of the crash tests."""
import gc
import logging
import pathlib
import tempfile
from collections.abc import Iterator

import pytest

MEMORY = pathlib.Path('/dev/shm')


@pytest.fixture
def memory_path(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory on which a sync costs nothing, for tests with many syncs and only simulated power cuts."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as directory:
        yield pathlib.Path(directory)


@pytest.fixture(scope='module')
def memory_path_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A directory as `memory_path`, for all tests of a module."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path_factory.mktemp('memory')) as directory:
        yield pathlib.Path(directory)


@pytest.fixture
def many_brokers() -> Iterator[None]:
    """Let a test open hundreds of brokers. Each must be garbage-collected, because it holds its files open.

    Logging is off: log records would keep errors alive, and errors keep their stack frames alive. Objects of other
    tests are frozen, which makes the collection after each broker fast.
    """
    logging.disable(logging.WARNING)
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)
