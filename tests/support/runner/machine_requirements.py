"""The programs that tests need besides Python, and the lock under which a process fetches and compiles them."""
from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from support.brokers.broker_process import ROOT

JUDGES = ROOT / 'build' / 'judges'
"""The directory that keeps fetched and compiled judges between runs."""

TOOLS = {'jvm': ('java', 'javac', 'mvn'), 'node': ('node', 'npm'), 'go': ('go',), 'browser': ('chromium',),
         'valgrind': ('valgrind',), 'strace': ('strace',), 'fish': ('fish',), 'zsh': ('zsh',), 'mandoc': ('mandoc',),
         'prometheus': ('prometheus', 'promtool')}
"""Maps a marker to the programs that its tests need."""


def check_tools(item: pytest.Item) -> None:
    for marker in {mark.name for mark in item.iter_markers()} & TOOLS.keys():
        missing = [tool for tool in TOOLS[marker] if shutil.which(tool) is None]
        if missing:
            do_without(marker, f'{", ".join(missing)} not found')


def do_without(marker: str, reason: str) -> NoReturn:
    """Skip the test with the reason. If the variable KBROKER_REQUIRE (for example `jvm,node`) lists the marker, fail
    the test instead.
    """
    if marker in os.environ.get('KBROKER_REQUIRE', '').split(','):
        pytest.fail(f'{marker}: {reason}', pytrace=False)
    pytest.skip(f'{marker}: {reason}')


@contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Create a file and hold its lock, which only one process can hold at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def fetching() -> Iterator[None]:
    """Hold the lock under which a process fetches or compiles a judge. Processes that waited for the lock find the
    result.
    """
    with locked(JUDGES / 'lock'):
        yield
