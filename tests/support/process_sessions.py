"""Processes found in /proc: the members of a session, and the owner of a socket."""
from __future__ import annotations

import os
import pathlib
import signal
from contextlib import suppress

PROC = pathlib.Path('/proc')
SESSION_FIELD, STATE_FIELD = 3, 0
"""The places of the fields in /proc/PID/stat, counted after the name in brackets."""
GONE = ('Z', 'X')


def kill_session(session: int) -> None:
    """Kill all processes of a session with SIGKILL, and wait until none of them runs.

    A process that sets its own process group stays in its session. A child that is born meanwhile is found again.
    """
    while members := _members(session):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _members(session: int) -> list[int]:
    found = []
    for place in PROC.glob('[0-9]*'):
        with suppress(OSError):
            fields = (place / 'stat').read_text().rpartition(')')[2].split()
            if int(fields[SESSION_FIELD]) == session and fields[STATE_FIELD] not in GONE:
                found.append(int(place.name))
    return found


def pid_of_port(port: int) -> int:
    """Return the process that has a TCP socket of 127.0.0.1 with this local port. AssertionError for none."""
    rows = [line.split() for line in (PROC / 'net/tcp').read_text().splitlines()[1:]]
    sockets = {f'socket:[{row[9]}]' for row in rows if int(row[1].rpartition(':')[2], 16) == port}
    for place in PROC.glob('[0-9]*'):
        with suppress(OSError):
            if any(os.readlink(each) in sockets for each in (place / 'fd').iterdir()):
                return int(place.name)
    raise AssertionError(f'no process has a socket on port {port}')
