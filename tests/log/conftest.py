"""Fixtures of the log tests."""
import pathlib

import pytest

from kbroker.base.long_work import run_to_end
from kbroker.log.fs import FileSystem
from kbroker.log.jobs import run_inline
from kbroker.log.log import Log
from kbroker.log.recovery import LogOptions
from kbroker.log.removals import Removals
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig


@pytest.fixture
def fs() -> FileSystem:
    return FileSystem()


@pytest.fixture
def open_log(fs, clock, tmp_path: pathlib.Path):
    """Return a function that opens the partition `topic-0` in the test's directory. The keyword arguments of the
    function are topic settings.
    """

    def opener(clean_shutdown: bool = True, *, file_system: FileSystem = fs, name: str = 'topic-0', timers=None,
               log_start_offset: int = 0, recovery_point: int = 0, high_watermark: int = 0, start_work=run_to_end,
               root: pathlib.Path = tmp_path,
               **settings: object) -> Log:
        overrides = {key.replace('_', '.'): str(value) for key, value in settings.items()}
        topic, _, partition = name.rpartition('-')
        removals = None if timers is None else Removals(file_system, timers, run_inline)
        return Log(file_system, str(root / name), topic, int(partition), LogConfig(Config({}), overrides), clock,
                   LogOptions(clean_shutdown=clean_shutdown, removals=removals, log_start_offset=log_start_offset,
                              recovery_point=recovery_point, high_watermark=high_watermark, start_work=start_work))

    return opener
