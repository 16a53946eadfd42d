"""Hides from each Python process what only Linux has. Python imports this file at its start if its directory is in
PYTHONPATH.

A process that serves (`kbroker serve`) stays on Linux: it is the broker that the client and the tools meet from afar.
"""
import sys

if 'serve' not in sys.orig_argv:
    import pathlib

    sys.path.append(str(pathlib.Path(__file__).parents[2]))
    from support.without_linux.hiding import hide_linux

    hide_linux()
    sys.path.pop()
