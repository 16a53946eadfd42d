"""Fixtures of the stores of tables."""
import pytest
from support.lake.object_store import ObjectStore


@pytest.fixture(scope='session')
def object_store():
    """Yield an S3 server without faults. A test that turns on faults turns them off."""
    with ObjectStore() as store:
        yield store
