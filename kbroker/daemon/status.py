"""The status socket: a Unix socket on which a running broker describes itself.

The socket has an abstract name, which contains the device and inode of the log directory. A socket file in the
directory would disturb every copy of the directory, and remain after a broker is killed. Abstract names belong to a
network namespace, so a broker in a container can be reached only from inside the container. The broker replies only to
its own user and to root.

The request is one JSON object. It ends where the client ends its side of the connection. The reply is one JSON object,
too, after which the broker closes the connection.
"""
from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.log.directory_names import LOCK_FILE
from kbroker.log.fs import FileSystem

if TYPE_CHECKING:
    from kbroker.base.long_work import LongWork
    from kbroker.metadata.changes import Steps
    from kbroker.network.reactor import EventHandler, Reactor

PEER = struct.Struct('iII')
"""(process id, user id, group id) of the other end of a Unix socket: `struct ucred` of unix(7)."""
ROOT = 0
ACCEPTED_PER_TICK = 4
BACKLOG = 128
MOST_PEERS = 64
"""The most clients connected to the status socket. A further client replaces the oldest."""
MOST_QUESTION_BYTES = 1 << 16
READ_BYTES = 1 << 14
LIMIT_S = 10
"""The time in seconds for which `read_status` waits for the reply of a busy broker."""

logger = logging.getLogger('kbroker')

Report = dict[str, Any]


class NoBrokerError(OSError):
    """Raised if no broker runs on the directory."""


class Peer:
    """A client of the status socket."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.question = b''
        """The part of the request that has arrived."""
        self.unsent = memoryview(b'')
        """The part of the reply for which the socket had no room. A reply has at most 64 KiB."""


class StatusSocket:
    """Replies to the request of each connection with the result of `answer(request)`."""

    def __init__(self, reactor: Reactor, long_work: LongWork, directory: str,
                 answer: Callable[[Report], Steps[Report]]):
        """Start to listen.

        If another process uses the name of the socket, log a warning. The broker then runs without a status socket.
        """
        self._reactor = reactor
        self._long_work = long_work
        self._answer = answer
        self._peers: dict[Peer, EventHandler] = {}      # a Peer that refers to its handler would form a cycle
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(socket_name(directory))
            self._listener.listen(BACKLOG)
        except OSError as error:
            logger.warning('`kbroker status` cannot reach this broker: the status socket of %s: %s', directory,
                           error.strerror)
            self._listener.close()
            return
        self._handler = reactor.watch(self._listener.fileno(), self._accept)

    def __len__(self) -> int:
        """Return the number of connected clients."""
        return len(self._peers)

    def close(self) -> None:
        """Listen no more."""
        for peer in list(self._peers):
            self._drop(peer)
        if self._listener.fileno() < 0:
            return
        self._reactor.unregister(self._handler)
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TICK):
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            if user_of_peer(accepted) not in (ROOT, os.geteuid()):
                accepted.close()
                continue
            accepted.setblocking(False)
            if len(self._peers) == MOST_PEERS:
                self._drop(next(iter(self._peers)))
            peer = Peer(accepted)
            self._peers[peer] = self._reactor.watch(accepted.fileno(), partial(self._read, peer))

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        peer.question += data
        if len(peer.question) > MOST_QUESTION_BYTES:
            self._drop(peer)
        elif not data:
            self._reactor.unregister(self._peers[peer])
            self._begin_answer(peer)

    def _begin_answer(self, peer: Peer) -> None:
        try:
            question = json.loads(peer.question or b'{}')
        except (ValueError, RecursionError):
            question = None
        if isinstance(question, dict):
            self._long_work.start(self._answer(question), partial(self._end_answer, peer))
        else:
            self._drop(peer)

    def _end_answer(self, peer: Peer, error: Exception | None, report: Report) -> None:
        if error is not None:
            raise error
        if peer in self._peers:
            peer.unsent = memoryview(json.dumps(report).encode())
            self._peers[peer] = self._reactor.watch_room(peer.connection.fileno(), partial(self._send, peer))

    def _send(self, peer: Peer) -> None:
        """Send as much of the reply as the socket has room for.

        The rest is sent after the client has read some of it.
        """
        try:
            peer.unsent = peer.unsent[peer.connection.send(peer.unsent):]
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        if not peer.unsent:
            self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        self._reactor.unregister(self._peers.pop(peer))
        peer.connection.close()


def read_status(directory: str, question: Report | None = None) -> Report:
    """Return the reply of the broker that runs on `directory`. If `question` is None, the broker describes itself.

    Raise NoBrokerError if no broker runs. Raise OSError, with a text for the operator, if the broker cannot be reached
    or does not reply.
    """
    if sys.platform != 'linux':     # only Linux has abstract names, and kbroker serves only there
        raise unreachable(directory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LIMIT_S)
        try:
            connection.connect(socket_name(directory))
            check_peer(connection, directory)
            connection.sendall(json.dumps(question or {}).encode())
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile('rb') as answer:
                report: Report = json.load(answer)
        except FileNotFoundError:
            raise NoBrokerError(f'no broker runs on {directory}') from None
        except ConnectionRefusedError:
            raise unreachable(directory) from None
        except BlockingIOError:
            raise OSError(f'more than {BACKLOG} processes ask the broker on {directory} at once') from None
        except TimeoutError:
            raise OSError(f'the broker on {directory} did not answer within {LIMIT_S} s') from None
        except (ValueError, ConnectionResetError, BrokenPipeError):
            raise OSError(f'the broker on {directory} ended while it answered') from None
    return report


def socket_name(directory: str) -> str:
    """Return the abstract name of the status socket for a log directory.

    Raise OSError if the directory cannot be read.
    """
    state = os.stat(directory)
    return f'\0kbroker-status-{state.st_dev:x}-{state.st_ino:x}'


def user_of_peer(connection: socket.socket) -> int:
    """Return the id of the user whose process is at the other end of a Unix socket."""
    user: int = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1]
    return user


def check_peer(connection: socket.socket, directory: str) -> None:
    """Raise OSError unless the process that listens may be the broker and replies to this user.

    Any user can bind an abstract name. The broker's user owns the directory, or at least the lock file in it.
    """
    user = user_of_peer(connection)
    expected = {ROOT, os.geteuid(), os.stat(directory).st_uid}
    with contextlib.suppress(OSError):
        expected.add(os.stat(os.path.join(directory, LOCK_FILE)).st_uid)
    if user not in expected:
        raise OSError(f'found a process of user {user} at the status socket of {directory}, expected one of user '
                      f'{", ".join(map(str, sorted(expected)))}')
    if os.geteuid() not in (ROOT, user):
        raise OSError(f'the broker on {directory} only answers its own user and root')


def unreachable(directory: str) -> OSError:
    """Return the error to raise if the status socket of a directory does not exist in this network namespace.

    Raise PermissionError if this user may not read the directory, and so cannot know whether a broker runs.
    """
    holder = None
    with contextlib.suppress(FileNotFoundError):
        holder = FileSystem().lock_holder(os.path.join(directory, LOCK_FILE))
    if holder is None:
        return NoBrokerError(f'no broker runs on {directory}')
    return OSError(f'a broker runs on {directory}, and its status socket cannot be reached from here: it is Apache '
                   'Kafka, or runs in a container, in which the command has to run')


def lines_of(report: Report) -> Iterator[str]:
    """Yield the lines of human-readable text for a report."""
    from kbroker.base.words import words_for_bytes, words_for_seconds  # the broker does not need it

    yield f'kbroker {report["version"]}, process {report["pid"]}, up {words_for_seconds(report["uptime_s"])}'
    yield f'address     {report["address"]}'
    yield f'directory   {report["directory"]}'
    yield f'durability  {report["durability"]}'
    resident, most = (words_for_bytes(report[name]) for name in ('resident_bytes', 'most_resident_bytes'))
    yield f'memory      {resident} resident, at most {most} so far'
    if report['failure'] is not None:
        yield f'OFFLINE     {report["failure"]}'
    offline = report.get('offline', ())     # a broker of an earlier version has no such entry
    for row in offline:
        yield f'OFFLINE     {row["topic"]}-{row["partition"]}: {row["reason"]}'
    if offline:
        from shlex import quote  # the broker does not need it

        left_out = report['offline_partitions'] - len(offline)
        more = f'{left_out:,} more partitions are offline. ' if left_out else ''
        yield f'            {more}do: kbroker-check {quote(report["directory"])}'
    yield f'late        {report["refused_stale_requests"]:,} requests refused'
    letters = report.get('dead_letters', {})
    if any(letters.values()):
        yield (f'dead        {letters["waiting"]:,} letters wait, {letters["written"]:,} written, '
               f'{letters["refused"]:,} refused, {letters["failures"]:,} attempts failed')
    yield ''
    table = [('STRUCTURE', 'NOW', 'BOUND', 'LIMITED BY')]
    for line in report['ledger']:
        write = words_for_bytes if line['unit'] == 'bytes' else '{:,}'.format
        bound = 'none' if line['bound'] is None else write(line['bound'])
        table.append((line['what'], write(line['now']), bound, line['limit']))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for what, now, bound, limit in table:
        yield f'{what:<{widths[0]}}  {now:>{widths[1]}}  {bound:>{widths[2]}}  {limit}'
