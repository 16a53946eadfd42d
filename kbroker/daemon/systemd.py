"""The service manager's notification socket (sd_notify(3)). Without a service manager, every call does nothing."""
import contextlib
import os
import socket


def notify(*states: str) -> None:
    """Notify the service manager: `READY=1`, `STOPPING=1`, `WATCHDOG=1`, `STATUS=...`. Ignore failures."""
    address = os.environ.get('NOTIFY_SOCKET', '')
    if not address.startswith(('/', '@')):
        return
    # A leading @ means the NUL byte of the abstract namespace.
    path = '\0' + address[1:] if address[0] == '@' else address
    with (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
          contextlib.suppress(OSError)):
        sender.sendto('\n'.join(states).encode(), path)


def watchdog_interval_ms() -> int | None:
    """Return the interval of `WATCHDOG=1`: half of what the service manager allows, or None without a watchdog."""
    limit_us = os.environ.get('WATCHDOG_USEC', '')
    watched = os.environ.get('WATCHDOG_PID', str(os.getpid()))
    if not limit_us.isdecimal() or watched != str(os.getpid()):
        return None
    return max(1, int(limit_us) // 2000)
