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
    """A directory in memory, where a sync costs nothing. It is for tests with many syncs whose power cuts are
    simulated.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as directory:
        yield pathlib.Path(directory)


@pytest.fixture(scope='module')
def memory_path_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A directory like `memory_path` that all tests of a module share."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path_factory.mktemp('memory')) as directory:
        yield pathlib.Path(directory)


@pytest.fixture
def many_brokers() -> Iterator[None]:
    """Let a test open hundreds of brokers. A broker keeps its files open until it is garbage-collected. Logging is off:
    log records would keep errors alive, and errors keep their stack frames alive. The fixture exempts all older objects
    from garbage collection, so that the collection after each broker is fast.
    """
    logging.disable(logging.WARNING)
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)
