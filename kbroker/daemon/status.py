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
from collections.abc import Callable, Iterator, Sequence
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
MOST_SHOWN = 40
"""The most characters of a name in a table of the status."""

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


def lines_of(report: Report, before: Report | None = None) -> Iterator[str]:
    """Yield the lines of human-readable text for a report.

    The rates are those since the report `before`. If it is None or of another process, they are those since the start.
    """
    from kbroker.base.words import words_for_bytes, words_for_seconds  # the broker does not need it

    yield f'kbroker {report["version"]}, process {report["pid"]}, up {words_for_seconds(report["uptime_s"])}'
    yield f'address     {report["address"]}'
    yield f'directory   {report["directory"]}'
    yield f'durability  {report["durability"]}'
    resident, most = (words_for_bytes(report[name]) for name in ('resident_bytes', 'most_resident_bytes'))
    yield f'memory      {resident} resident, at most {most} so far'
    if report.get('control') is not None:
        yield f'CONTROL     http://{report["control"]} can stop, kill and falsify this broker'
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
    if 'counters' in report:
        yield from _lines_of_numbers(report, before)
    yield f'late        {report["refused_stale_requests"]:,} requests refused'
    letters = report.get('dead_letters', {})
    if any(letters.values()):
        yield (f'dead        {letters["waiting"]:,} letters wait, {letters["written"]:,} written, '
               f'{letters["refused"]:,} refused, {letters["failures"]:,} attempts failed')
    if 'counters' in report:
        yield from _tables_of_worst(report)
    yield ''
    table = [('STRUCTURE', 'NOW', 'BOUND', 'LIMITED BY')]
    for line in report['ledger']:
        write = words_for_bytes if line['unit'] == 'bytes' else '{:,}'.format
        bound = 'none' if line['bound'] is None else write(line['bound'])
        table.append((line['what'], write(line['now']), bound, line['limit']))
    yield from _aligned(table, '<>><')


def _lines_of_numbers(report: Report, before: Report | None) -> Iterator[str]:
    """Yield the lines of a report about the disk, rates, transactions, groups and topics."""
    from kbroker.base.words import words_for_bytes, words_for_duration

    now_ms, disk, topics, cleaner = (report[name] for name in ('time_ms', 'disk', 'topics', 'cleaner'))
    start, metadata = report['start'], report['metadata']
    yield (f'start       took {words_for_duration(start["took_ms"])}, after '
           f'{"a clean stop" if start["is_clean"] else "a stop that was not clean, or the first start"}')
    if disk['size_bytes']:
        yield f'disk        {words_for_bytes(disk["free_bytes"])} free of {words_for_bytes(disk["size_bytes"])}'
    yield (f'topics      {topics["topics"]:,} with {_count(topics["partitions"], "partition")}, '
           f'{words_for_bytes(topics["size_bytes"])} in {_count(topics["segments"], "segment")}')
    yield (f'cleaner     {_count(cleaner["cleanings"], "cleaning")}, from {words_for_bytes(cleaner["read_bytes"])} to '
           f'{words_for_bytes(cleaner["written_bytes"])}; the worst log is {cleaner["worst_dirty_ratio"]:.0%} dirty')
    if cleaner['failed_logs']:
        yield f'CLEANER     {_count(cleaner["failed_logs"], "log")} cannot be cleaned: the log of the broker says why'
    if metadata['snapshot_age_ms'] is not None:
        yield (f'metadata    ends at offset {metadata["end_offset"]:,}, the newest snapshot is '
               f'{words_for_duration(metadata["snapshot_age_ms"])} old')
    yield from lines_of_certificates(report['certificates'], now_ms)
    yield from lines_of_rates(report, before)
    found, counters = report['transactions'], report['counters']
    oldest = f', the oldest for {words_for_duration(found["oldest_age_ms"])}' if found['open'] else ''
    yield f'open        {_count(found["open"], "transaction")}{oldest}'
    yield (f'ended       {counters["transactions_committed"]:,} committed, '
           f'{counters["transactions_aborted"]:,} aborted ({found["timed_out"]:,} timed out, '
           f'{found["fenced"]:,} fenced), of {counters["transactions_begun"]:,} begun since the start')
    if found['held_partitions']:
        yield (f'held        {_count(found["held_partitions"], "partition")}, '
               f'{_count(found["held_offsets"], "offset")} that read_committed consumers cannot read yet')
    if found['hanging']:
        yield (f'HANGING     {_count(found["hanging"], "partition")} held by a transaction that the coordinator does '
               f'not know. do: kbroker-transactions --bootstrap-server {report["address"]} find-hanging --broker-id '
               f'{report["node_id"]}')
    groups, shares = report['groups'], report['share_groups']
    kinds = ', '.join(f'{row["groups"]:,} {row["kind"]} {row["state"]}' for row in groups['by_kind'])
    yield (f'groups      {groups["groups"]:,} with {_count(groups["members"], "member")}'
           + (f': {kinds}' if kinds else ''))
    if shares['acquired']:
        yield (f'share       {shares["in_flight"]:,} records in flight, {shares["acquired"]:,} records delivered, '
               f'{shares["redelivered"]:,} of them repeated')


def lines_of_certificates(certificates: list[Report], now_ms: int) -> Iterator[str]:
    """Yield the certificate that expires first, and all that have expired."""
    from kbroker.base.words import words_for_seconds
    from kbroker.security.escape import shown

    for number, row in enumerate(certificates):
        left_s = (row['expires_ms'] - now_ms) // 1000
        if number == 0 or left_s < 0:
            place = f'{shown(row["subject"])} of listener {row["listener"]}, {shown(row["place"])}'
            yield (f'certificate expires in {words_for_seconds(left_s)}: {place}' if left_s >= 0 else
                   f'CERTIFICATE has expired {words_for_seconds(-left_s)} ago: {place}')


def lines_of_rates(report: Report, before: Report | None) -> Iterator[str]:
    """Yield the lines of the rates."""
    from kbroker.base.words import words_for_bytes, words_for_duration

    if before is None or before.get('pid') != report['pid'] or before['uptime_ms'] >= report['uptime_ms']:
        before = {'uptime_ms': 0, 'counters': {}}
    passed_ms = max(1, report['uptime_ms'] - before['uptime_ms'])
    rates = {name: (count - before['counters'].get(name, 0)) * 1000 / passed_ms
             for name, count in report['counters'].items()}
    of_time = f'in the last {words_for_duration(passed_ms)}' if before['uptime_ms'] else 'since the start'
    yield (f'rates       {rates["requests"]:,.1f} requests/s, {rates["request_errors"]:,.1f} errors/s, '
           f'{rates["transactions_committed"]:,.1f} commits/s, {rates["transactions_aborted"]:,.1f} aborts/s, '
           f'{of_time}')
    yield (f'records     {rates["produced_records"]:,.1f}/s in ({words_for_bytes(rates["produced_bytes"])}/s), '
           f'{rates["fetched_records"]:,.1f}/s out ({words_for_bytes(rates["fetched_bytes"])}/s)')


def _tables_of_worst(report: Report) -> Iterator[str]:
    """Yield the tables of the oldest transactions, of the partitions that are held most, and of the greatest lags."""
    from kbroker.base.words import words_for_duration
    from kbroker.security.escape import shown

    now_ms, found, lags = report['time_ms'], report['transactions'], report['groups']['lags']
    if found['oldest']:
        yield ''
        table = [('OLDEST OPEN TRANSACTIONS', 'STATE', 'OPEN FOR', 'HOLDS', 'PARTITIONS')]
        for row in found['oldest']:
            left_out = row['partitions_count'] - len(row['partitions'])
            table.append((shown(row['transactional_id'], MOST_SHOWN), row['state'],
                          words_for_duration(max(0, now_ms - row['start_ms'])), f'{row["held_offsets"]:,}',
                          ', '.join(row['partitions']) + (f' and {left_out:,} more' if left_out else '')))
        yield from _aligned(table, '<<>><')
    if found['held']:
        yield ''
        held = [('HELD PARTITIONS', 'STABLE', 'END', 'DISTANCE', 'HELD BY')]
        held += [(f'{row["topic"]}-{row["partition"]}', f'{row["last_stable_offset"]:,}',
                  f'{row["high_watermark"]:,}', f'{row["distance"]:,}',
                  shown(row['transactional_id'], MOST_SHOWN) or f'producer {row["producer_id"]}')
                 for row in found['held']]
        yield from _aligned(held, '<>>><')
    if lags:
        yield ''
        rows = [('GREATEST LAGS', 'KIND', 'STATE', 'MEMBERS', 'PARTITIONS', 'LAG', 'STABLE LAG')]
        rows += [(shown(row['group'], MOST_SHOWN), row['kind'], row['state'], f'{row["members"]:,}',
                  f'{row["partitions"]:,}', f'{row["lag"]:,}', f'{row["stable_lag"]:,}') for row in lags]
        yield from _aligned(rows, '<<<>>>>')


def _count(number: int, what: str) -> str:
    return f'{number:,} {what}' if number == 1 else f'{number:,} {what}s'


def _aligned(table: Sequence[tuple[str, ...]], alignment: str) -> Iterator[str]:
    """Yield the rows of a table. `alignment` has < or > for each column."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield '  '.join(f'{cell:{side}{width}}'
                        for cell, side, width in zip(row, alignment, widths, strict=True)).rstrip()
