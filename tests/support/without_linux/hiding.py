"""Makes a process on Linux lack what macOS lacks: modules of the broker, functions of the standard library, and /proc.

It shows what the client and the tools use, not how macOS behaves.
"""
from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import resource
import runpy
import select
import signal
import socket
import sys
import types

ROOT = pathlib.Path(__file__).parents[3]

NAMES_OF_LINUX = {
    select: ('epoll', 'EPOLL'),
    os: ('EFD_', 'GRND_', 'MFD_', 'O_LARGEFILE', 'O_NOATIME', 'O_PATH', 'O_RSYNC', 'O_TMPFILE',
         'POSIX_FADV_', 'RWF_', 'SCHED_', 'SPLICE_', 'copy_file_range', 'eventfd', 'fdatasync', 'getrandom', 'getxattr',
         'listxattr', 'memfd_create', 'pidfd_open', 'pipe2', 'posix_fadvise', 'posix_fallocate', 'removexattr',
         'sched_getaffinity', 'sched_setaffinity', 'setns', 'setxattr', 'splice', 'unshare'),
    fcntl: ('F_ADD_SEALS', 'F_GETLEASE', 'F_GETPIPE_SZ', 'F_GETSIG', 'F_GET_SEALS', 'F_NOTIFY', 'F_OFD_', 'F_SEAL_',
            'F_SETLEASE', 'F_SETPIPE_SZ', 'F_SETSIG'),
    resource: ('RUSAGE_THREAD', 'prlimit'),
    signal: ('SIGPWR', 'SIGRTMAX', 'SIGRTMIN', 'sigtimedwait', 'sigwaitinfo'),
    socket: ('AF_NETLINK', 'AF_PACKET', 'AF_VSOCK', 'SOCK_CLOEXEC', 'SOCK_NONBLOCK', 'SO_DOMAIN', 'SO_PEERCRED',
             'SO_PRIORITY', 'SO_PROTOCOL', 'TCP_CORK', 'TCP_DEFER_ACCEPT', 'TCP_INFO', 'TCP_KEEPIDLE', 'TCP_QUICKACK',
             'TCP_USER_TIMEOUT'),
}
"""The beginnings of the names that macOS lacks, by the module of the standard library."""


class MissingModules:
    """A finder that raises ModuleNotFoundError for the modules that setup.py leaves out on macOS."""

    def __init__(self) -> None:
        self._is_left_out = runpy.run_path(str(ROOT / 'setup.py'))['needs_linux']

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if self._is_left_out(name) and (ROOT / name.replace('.', '/')).with_suffix('.pyx').exists():
            raise ModuleNotFoundError(f'{name} is left out on macOS', name=name)


def refuse_proc(event: str, arguments: tuple[object, ...]) -> None:
    """Raise FileNotFoundError if an audited call opens or lists a path below /proc."""
    if event in ('open', 'os.listdir', 'os.scandir') and str(arguments[0]).startswith('/proc'):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


def hide_linux() -> None:
    """Hide what only Linux has from this process. This cannot be undone."""
    for module, beginnings in NAMES_OF_LINUX.items():
        for name in [name for name in vars(module) if name.startswith(beginnings)]:
            delattr(module, name)
    sys.meta_path.insert(0, MissingModules())
    sys.addaudithook(refuse_proc)
    # On macOS, urllib.request asks the system for proxies.
    proxies = types.ModuleType('_scproxy')
    proxies._get_proxies = proxies._get_proxy_settings = dict       # type: ignore[attr-defined]
    sys.modules['_scproxy'] = proxies
    sys.platform = 'darwin'
