"""`kbroker status`: a running broker describes itself on a Unix socket in its log directory.

The broker's user and root may open the socket, and each user that may open it may ask. The answer is one JSON object;
then the broker closes the connection. Kafka ignores the file.
"""
from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

from kbroker.network.reactor import Reactor

SOCKET_NAME = '.kbroker-status'
ANSWERS_PER_TICK = 4
BACKLOG = 128
LIMIT_S = 10
"""The time that `read_status` waits for a broker that is busy."""

logger = logging.getLogger('kbroker')

Report = dict[str, Any]


class StatusSocket:
    """Answers each connection with `report()`, as JSON."""

    def __init__(self, reactor: Reactor, directory: str, report: Callable[[], Report]):
        """Listen. A file system without sockets costs a warning: the broker serves without them."""
        self._reactor = reactor
        self._directory = directory
        self._report = report
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with short_path(directory) as path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)     # of a broker that was killed: this one holds the directory's lock
                self._listener.bind(path)
                os.chmod(path, 0o600)   # clients cannot connect before `listen`
            self._listener.listen(BACKLOG)
        except OSError as error:
            logger.warning('`kbroker status` cannot reach this broker: %s: %s',
                           os.path.join(directory, SOCKET_NAME), error.strerror)
            self._listener.close()
            return
        self._handler = reactor.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Listen no more, and remove the socket from the directory."""
        if self._listener.fileno() < 0:
            return
        self._reactor.unregister(self._handler)
        self._listener.close()
        with contextlib.suppress(OSError), short_path(self._directory) as path:
            os.unlink(path)

    def _accept(self) -> None:
        for _ in range(ANSWERS_PER_TICK):
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError):
                accepted.setblocking(False)
                accepted.send(json.dumps(self._report()).encode())     # shorter than the smallest socket buffer


def read_status(directory: str) -> Report:
    """Return the report of the broker that runs on `directory`. Raises OSError with a text for the operator."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LIMIT_S)
        try:
            with short_path(directory) as path:
                connection.connect(path)
            with connection.makefile('rb') as answer:
                report: Report = json.load(answer)
        except (FileNotFoundError, ConnectionRefusedError):
            raise OSError(f'no broker runs on {directory}') from None
        except PermissionError:
            raise OSError(f'the broker on {directory} only answers its own user and root') from None
        except BlockingIOError:
            raise OSError(f'more than {BACKLOG} processes ask the broker on {directory} at once') from None
        except TimeoutError:
            raise OSError(f'the broker on {directory} did not answer within {LIMIT_S} s') from None
        except ValueError:
            raise OSError(f'the broker on {directory} ended while it answered') from None
    return report


@contextlib.contextmanager
def short_path(directory: str) -> Iterator[str]:
    """Give a path of the socket that fits into a socket address, which has room for 107 bytes."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f'/proc/self/fd/{descriptor}/{SOCKET_NAME}'
    finally:
        os.close(descriptor)


def lines_of(report: Report) -> Iterator[str]:
    """Yield a report as lines of text for people."""
    yield f'kbroker {report["version"]}, process {report["pid"]}, up {duration(report["uptime_s"])}'
    yield f'address     {report["address"]}'
    yield f'directory   {report["directory"]}'
    yield f'durability  {report["durability"]}'
    yield f'memory      {size(report["resident_bytes"])} resident, at most {size(report["most_resident_bytes"])} so far'
    if report['failure'] is not None:
        yield f'OFFLINE     {report["failure"]}'
    yield ''
    table = [('STRUCTURE', 'NOW', 'BOUND', 'LIMITED BY')]
    for line in report['ledger']:
        write = size if line['unit'] == 'bytes' else '{:,}'.format
        bound = 'none' if line['bound'] is None else write(line['bound'])
        table.append((line['what'], write(line['now']), bound, line['limit']))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for what, now, bound, limit in table:
        yield f'{what:<{widths[0]}}  {now:>{widths[1]}}  {bound:>{widths[2]}}  {limit}'


def size(size_bytes: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, scale in (('GiB', 1 << 30), ('MiB', 1 << 20), ('KiB', 1 << 10)):
        if size_bytes >= scale:
            return f'{size_bytes / scale:.1f} {unit}'
    return f'{size_bytes} B'


def duration(seconds: int) -> str:
    """Return a time span in its two largest units."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f'{number} {unit}' for number, unit in ((days, 'd'), (hours, 'h'), (minutes, 'min'), (seconds, 's'))
             if number]
    return ' '.join(parts[:2]) or '0 s'
