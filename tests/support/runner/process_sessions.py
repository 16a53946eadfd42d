"""Functions that find processes in /proc: the members of a session, the owner of a port, and the virtual machine above
a Python worker.
"""
from __future__ import annotations

import os
import pathlib
import signal
from contextlib import suppress

PROC = pathlib.Path('/proc')
STATE_FIELD, PARENT_FIELD, SESSION_FIELD = 0, 1, 3
"""The indexes of fields in /proc/PID/stat. Index 0 is the field after the program's name in brackets."""
GONE = ('Z', 'X')


def kill_session(session: int) -> None:
    """Kill all processes of a session with SIGKILL, and wait until none of them runs.

    A process that sets its own process group stays in its session. The function lists the session repeatedly, until it
    finds no process. It therefore also kills children that were started between two lists.
    """
    while members := _with_field(SESSION_FIELD, session):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _with_field(field: int, value: int) -> list[int]:
    """Return the ids of the running processes that have this value in a field of /proc/PID/stat."""
    found = []
    for place in PROC.glob('[0-9]*'):
        with suppress(OSError):
            fields = _fields(place)
            if int(fields[field]) == value and fields[STATE_FIELD] not in GONE:
                found.append(int(place.name))
    return found


def _fields(place: pathlib.Path) -> list[str]:
    return (place / 'stat').read_text().rpartition(')')[2].split()


def children_of(parent: int) -> list[int]:
    """Return the ids of the running child processes of a process."""
    return _with_field(PARENT_FIELD, parent)


def virtual_machine_above(pid: int) -> int:
    """Return the id of the nearest ancestor that runs Java. For a Python worker of Spark, this is its executor."""
    while (PROC / str(pid) / 'comm').read_text().strip() != 'java':
        pid = int(_fields(PROC / str(pid))[PARENT_FIELD])
        assert pid > 1, 'no ancestor runs Java'
    return pid


def pid_of_port(port: int) -> int:
    """Return the id of the process that has a TCP socket of 127.0.0.1 with this local port. Raise AssertionError if
    there is no such process.
    """
    rows = [line.split() for line in (PROC / 'net/tcp').read_text().splitlines()[1:]]
    sockets = {f'socket:[{row[9]}]' for row in rows if int(row[1].rpartition(':')[2], 16) == port}
    for place in PROC.glob('[0-9]*'):
        with suppress(OSError):
            if any(os.readlink(each) in sockets for each in (place / 'fd').iterdir()):
                return int(place.name)
    raise AssertionError(f'no process has a socket on port {port}')
