"""`python -m kbroker.page.with_parent PID MODULE [ARGUMENT...]`: runs a module as `python -m` does, and ends with the
process PID, which is its parent.

A server that is killed cannot end its children. Linux ends them for it, if they ask for that. Elsewhere, a child whose
server was killed runs to its end.
"""
import runpy
import sys

from kbroker.base.parent_process import end_with_parent

if __name__ == '__main__':
    end_with_parent(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
