"""What the tests of topics share: a partition on a real log whose flushes the test holds in its hand."""
import pytest

from kbroker.clock import ManualClock
from kbroker.config import Config, LogConfig
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.topics.flusher import Flusher
from kbroker.topics.partition import Partition


class HeldDisk:
    """Takes the flusher's syncs; `finish` makes the oldest one, or answers it with an error instead."""

    def __init__(self):
        self.jobs = []

    def sync(self, files, done):
        self.jobs.append((files, done))

    def finish(self, error=None):
        files, done = self.jobs.pop(0)
        if error is None:
            for file in files:
                file.sync()
        done(error)


@pytest.fixture
def disk():
    return HeldDisk()


@pytest.fixture
def flusher(disk):
    return Flusher(disk.sync)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def open_partition(tmp_path, flusher, clock):
    """Opens `orders-INDEX`, with topic settings by name."""

    def opener(index=0, *, page_cache=False, clean_shutdown=True, **settings):
        overrides = {name.replace('_', '.'): str(value) for name, value in settings.items()}
        log = Log(FileSystem(), str(tmp_path / f'orders-{index}'), 'orders', index, LogConfig(Config({}), overrides),
                  clock, clean_shutdown=clean_shutdown)
        return Partition(log, bytes(16), 0, flusher, page_cache)

    return opener
