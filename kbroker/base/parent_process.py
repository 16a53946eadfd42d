"""A process that ends with its parent."""
from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that lets the kernel send a signal when the parent ends."""


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent, the process `parent`, ends. Only Linux can do that.

    Raise SystemExit if the parent has ended already.
    """
    if sys.platform == 'linux':
        import ctypes  # slow to import, and not every build of Python has it

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(f'the process {parent}, which started this one, has ended')
