"""Remedies for addresses that the broker cannot listen on. The module is imported only after an error."""
from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

LOWEST_PORT = Path('/proc/sys/net/ipv4/ip_unprivileged_port_start')
USUAL_LOWEST_PORT = 1024
LISTENING = '0A'
"""The state of a listening socket in /proc/net/tcp (proc(5))."""


def remedy(error: OSError, address: tuple[Any, ...]) -> str:
    """Return the end of a message about a failed `bind` or `listen`: the details and the remedy, after a colon.

    Return an empty string if nothing more is known. `address` begins with the numeric address and the port.
    """
    host, port = address[:2]
    if error.errno == errno.EACCES:
        return (f': only a process with CAP_NET_BIND_SERVICE may use a port below {_lowest_port()}. Choose a higher '
                'port, or grant the capability (systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE; container: '
                f'--cap-add NET_BIND_SERVICE), or run as root: sysctl net.ipv4.ip_unprivileged_port_start={port}')
    if error.errno == errno.EADDRINUSE:
        holder = _process_on(port)
        return f': {holder} listens there. Stop it, or choose another port' if holder else ': choose another port'
    if error.errno == errno.EADDRNOTAVAIL:
        if ':' in host and _ipv6_is_off():
            return ': IPv6 is off on this machine (net.ipv6.conf.all.disable_ipv6=1). Listen on an IPv4 address'
        return ': this machine has no such address. `ip -brief address` lists those that it has'
    if error.errno == errno.EAFNOSUPPORT:
        return ': the kernel runs without IPv6. Listen on an IPv4 address'
    return ''


def _lowest_port() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(LOWEST_PORT.read_text())
    return USUAL_LOWEST_PORT


def _ipv6_is_off() -> bool:
    with contextlib.suppress(OSError):
        return Path('/proc/sys/net/ipv6/conf/all/disable_ipv6').read_text().strip() == '1'
    return True


def _process_on(port: int) -> str:
    """Return the process that listens on a port, in words. Return an empty string if this user cannot see it."""
    links = {f'socket:[{inode}]' for inode in _listening_inodes(port)}
    for process in Path('/proc').glob('[0-9]*') if links else ():
        with contextlib.suppress(OSError):      # the process of another user, or one that has just ended
            if any(os.readlink(descriptor) in links for descriptor in (process / 'fd').iterdir()):
                return f'process {process.name} ({(process / "comm").read_text().strip()})'
    return ''


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ('/proc/net/tcp', '/proc/net/tcp6'):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
                if state == LISTENING and int(local.rpartition(':')[2], 16) == port:
                    inodes.add(inode)
    return inodes
