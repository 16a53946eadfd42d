"""Runs a function in a new process, because the function changes or uses up something that a process has only once,
such as its file descriptors. In a process that ran other tests, threads of client libraries and the garbage collector
open and close descriptors at any time.
"""
from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable

TESTS = pathlib.Path(__file__).parents[2]
LIMIT_S = 300
PROGRAM = """
import importlib, pathlib, sys
sys.path[:0] = [sys.argv[1], str(pathlib.Path(sys.argv[1]).parent)]
getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(pathlib.Path(sys.argv[4]))
"""


def run_alone(function: Callable[[pathlib.Path], None], directory: pathlib.Path) -> None:
    """Call a function of a module below `tests` in a new process, with `directory` as its argument. Raise
    AssertionError if it fails.
    """
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM, str(TESTS), function.__module__, function.__name__, str(directory)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
