"""Where the tests of crashes work."""
import gc
import logging
import pathlib
import tempfile
from collections.abc import Iterator

import pytest

MEMORY = pathlib.Path('/dev/shm')


@pytest.fixture
def memory_path(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory where a sync costs nothing, for tests that sync often and lose the power only in a model."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as directory:
        yield pathlib.Path(directory)


@pytest.fixture
def many_brokers() -> Iterator[None]:
    """For a test that opens hundreds of brokers: what is kept of one must go, for it holds its files open.

    Records of the log would keep errors, and errors the frames that they passed; objects of other tests are not
    looked at by the garbage collections that each broker needs.
    """
    logging.disable(logging.WARNING)
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)
