"""What tests need of the machine beside Python: programs, and what is fetched and compiled once."""
from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from support.broker_process import ROOT

JUDGES = ROOT / 'build' / 'judges'
"""Where fetched and compiled judges stay from run to run."""

TOOLS = {'jvm': ('java', 'javac', 'mvn'), 'node': ('node', 'npm'), 'browser': ('chromium',),
         'valgrind': ('valgrind',), 'strace': ('strace',)}
"""The marker of a test, and the programs that it needs."""


def check_tools(item: pytest.Item) -> None:
    for marker, tools in TOOLS.items():
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if item.get_closest_marker(marker) and missing:
            do_without(marker, f'{", ".join(missing)} not found')


def do_without(marker: str, reason: str) -> NoReturn:
    """Skip the test with the reason; KBROKER_REQUIRE=jvm,node makes it fail instead."""
    if marker in os.environ.get('KBROKER_REQUIRE', '').split(','):
        pytest.fail(f'{marker}: {reason}', pytrace=False)
    pytest.skip(f'{marker}: {reason}')


@contextmanager
def fetching() -> Iterator[None]:
    """While one process of the run fetches or compiles a judge, the others wait, and then find it."""
    JUDGES.mkdir(parents=True, exist_ok=True)
    with open(JUDGES / 'lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
