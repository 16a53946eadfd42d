"""`python -m kbroker.page.with_parent PID MODULE [ARGUMENT...]`: runs a module as `python -m` does, and ends with the
process PID, which is its parent.

A server that is killed cannot end its children. Linux ends them for it, if they ask for that. Elsewhere, a child whose
server was killed runs to its end.
"""
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1    # of linux/prctl.h


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, the process `parent`, ends. End now if it has ended already."""
    if sys.platform == 'linux':
        import ctypes  # slow to import, and not every build of Python has it

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(f'the process {parent}, which started this command, has ended')


if __name__ == '__main__':
    end_with(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
