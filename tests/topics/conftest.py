"""Fixtures for the tests of topics: a partition with a real log, and a disk whose syncs finish only when the test says
so."""
import pytest
from support.disk.held_disk import HeldDisk

from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.log.recovery import LogOptions
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig
from kbroker.topics.flusher import Flusher
from kbroker.topics.partition import Partition


@pytest.fixture
def disk():
    return HeldDisk(is_held=True)


@pytest.fixture
def flusher(disk):
    return Flusher(disk.sync)


@pytest.fixture
def open_partition(tmp_path, flusher, clock):
    """Return a function that opens the partition `orders-INDEX`. Its keyword arguments are topic settings, and its
    attribute `log` is the log that it opened last."""

    def opener(index=0, *, page_cache=False, clean_shutdown=True, **settings):
        overrides = {name.replace('_', '.'): str(value) for name, value in settings.items()}
        log = Log(FileSystem(), str(tmp_path / f'orders-{index}'), 'orders', index, LogConfig(Config({}), overrides),
                  clock, LogOptions(clean_shutdown=clean_shutdown))
        opener.log = log
        return Partition(log, bytes(16), 0, flusher, page_cache)

    return opener
