"""The service manager's notification socket (sd_notify(3)). Without a service manager, every call does nothing."""
import contextlib
import os
import socket


def notify(*states: str) -> None:
    """Send states such as `READY=1`, `STOPPING=1`, `WATCHDOG=1` or `STATUS=...` to the service manager.

    Ignore failures.
    """
    address = os.environ.get('NOTIFY_SOCKET', '')
    if not address.startswith(('/', '@')):
        return
    # A leading @ stands for the NUL byte with which abstract names begin.
    path = '\0' + address[1:] if address[0] == '@' else address
    with (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
          contextlib.suppress(OSError)):
        sender.sendto('\n'.join(states).encode(), path)


def watchdog_interval_ms() -> int | None:
    """Return the milliseconds between two `WATCHDOG=1`: half of the time that the service manager allows.

    Return None if there is no watchdog.
    """
    limit_us = os.environ.get('WATCHDOG_USEC', '')
    watched = os.environ.get('WATCHDOG_PID', str(os.getpid()))
    if not limit_us.isdecimal() or watched != str(os.getpid()):
        return None
    return max(1, int(limit_us) // 2000)
