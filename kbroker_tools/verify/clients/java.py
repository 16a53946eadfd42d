"""The adapter for the Java client. One virtual machine runs the program JavaClients.java, which has all Java producers
and consumers of the run.

The operator provides Kafka's jars. Java compiles the program when it starts.
"""
from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kbroker_tools.verify.clients.face import (
    CALL_TIMEOUT_S,
    DELIVERY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    ClientFailure,
    Membership,
    Place,
    Reads,
    member_settings,
    transaction_settings,
)
from kbroker_tools.verify.lines import ACKNOWLEDGED_WITHOUT_OFFSET

NAME = 'java'
PROGRAM = Path(__file__).with_name('JavaClients.java')
MACHINE = ('java', '-Xmx512m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-Djava.net.preferIPv4Stack=true',
           '-Dorg.slf4j.simpleLogger.defaultLogLevel=off')
LAST_CHARACTERS = 500
STOP_LIMIT_S = 10
NO_MEMBER = ('-1', '-')
"""The generation and the member id in a commit without a member. They are not empty, because a line of the protocol
cannot contain an empty word."""
RANGE_ASSIGNOR = 'org.apache.kafka.clients.consumer.RangeAssignor'
COMMON = {'request.timeout.ms': REQUEST_TIMEOUT_MS, 'default.api.timeout.ms': CALL_TIMEOUT_S * 1000,
          'retry.backoff.ms': 20, 'retry.backoff.max.ms': 200, 'reconnect.backoff.ms': 20,
          'reconnect.backoff.max.ms': 200}


class JavaEnded(Exception):
    """The virtual machine did not start, or it closed the connection of a client. This is a fault of the run, not of
    the broker."""


class Machine:
    """A virtual machine that serves Java clients at a port. The constructor raises JavaEnded or OSError if it does not
    start."""

    def __init__(self, classpath: str):
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen([*MACHINE, '-cp', classpath, str(PROGRAM)], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._complaints)
        except OSError:
            self._complaints.close()
            raise
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode('utf-8', 'replace').strip()
        if not port.isdecimal():
            words = f'found {port!r} in the first line of java, expected its port' if port else self.last_words()
            self.close()
            raise JavaEnded(words)
        self.address = '127.0.0.1', int(port)

    def last_words(self) -> str:
        """Return the reason why the virtual machine closed the connection of a client."""
        try:
            end = f'java ended with code {self._process.wait(STOP_LIMIT_S)}'
        except subprocess.TimeoutExpired:
            end = 'java closed a connection'
        self._complaints.seek(0)
        text = self._complaints.read().decode('utf-8', 'replace').strip()
        return f'{end}: {text[-LAST_CHARACTERS:]}'

    def close(self) -> None:
        """End the virtual machine and its clients."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._complaints.close()


class _JavaClient:
    def __init__(self, machine: Machine, places: Sequence[Place], kind: str, settings: Mapping[str, object]):
        self.acknowledged: dict[int, int] = {}
        self._places = places
        self._machine = machine
        try:
            self._connection = socket.create_connection(machine.address)
        except OSError:
            raise JavaEnded(machine.last_words()) from None
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._connection.makefile('rw')
        try:
            self._call(kind, *(f'{name}={value}' for name, value in (COMMON | dict(settings)).items()))
        except BaseException:
            self._disconnect()
            raise

    def _call(self, *words: object) -> list[str]:
        """Send a command to the virtual machine, and return the words of its answer. Raise ClientFailure if the Java
        client failed, and JavaEnded if the virtual machine ended."""
        answer = ''
        with suppress(OSError):
            print(*words, file=self._lines, flush=True)
            answer = self._lines.readline()
        if not answer:
            raise JavaEnded(self._machine.last_words())
        status, acknowledged, *result = answer.split()
        for pair in filter(None, acknowledged.strip('[]').split(',')):
            number, _, offset = pair.partition(':')
            self.acknowledged[int(number)] = int(offset) if int(offset) >= 0 else ACKNOWLEDGED_WITHOUT_OFFSET
        if status != 'ok':
            raise ClientFailure(' '.join(result))
        return result

    def _positions(self, positions: Mapping[int, int]) -> list[object]:
        return [word for index, offset in positions.items() for word in (*self._places[index], offset)]

    def close(self) -> None:
        try:
            with suppress(ClientFailure):
                self._call('close')
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        with suppress(OSError):
            self._lines.close()
        self._connection.close()


class JavaWriter(_JavaClient):
    def __init__(self, machine: Machine, servers: str, places: Sequence[Place], transactional_id: str | None):
        settings: dict[str, object] = {
            'bootstrap.servers': servers, 'linger.ms': 1, 'delivery.timeout.ms': DELIVERY_TIMEOUT_MS,
            'max.block.ms': CALL_TIMEOUT_S * 1000, **transaction_settings(transactional_id)}
        super().__init__(machine, places, 'producer', settings)

    def claim(self) -> None:
        self._call('claim')

    def begin(self) -> None:
        self._call('begin')

    def send(self, partition: int, number: int) -> None:
        self._call('send', *self._places[partition], number)

    def flush(self) -> None:
        self._call('flush')

    def send_offsets(self, group: str | tuple[str, ...], offsets: Mapping[int, int]) -> None:
        self._call('offsets', *((group, *NO_MEMBER) if isinstance(group, str) else group), *self._positions(offsets))

    def commit(self) -> None:
        self._call('commit')

    def abort(self) -> None:
        self._call('abort')


class JavaGetter(_JavaClient):
    def __init__(self, machine: Machine, servers: str, places: Sequence[Place], isolation: str):
        self._indexes = {place: index for index, place in enumerate(places)}
        super().__init__(machine, places, 'consumer', {
            'bootstrap.servers': servers, 'isolation.level': isolation, 'auto.offset.reset': 'none',
            'enable.auto.commit': 'false', 'fetch.max.wait.ms': 100})

    def seek(self, positions: Mapping[int, int]) -> None:
        self._call('seek', *self._positions(positions))

    def poll(self, timeout_s: float) -> Reads:
        return _polled(self._indexes, self._call('poll', round(timeout_s * 1000)))


class JavaMember(_JavaClient):
    def __init__(self, machine: Machine, servers: str, places: Sequence[Place], membership: Membership):
        self.changes = 0
        self._indexes = {place: index for index, place in enumerate(places)}
        super().__init__(machine, places, 'member', {'bootstrap.servers': servers, 'fetch.max.wait.ms': 100,
                                                     **member_settings(membership, RANGE_ASSIGNOR)})
        self._call('subscribe', membership.topic)

    def poll(self, timeout_s: float) -> Reads:
        words = self._call('poll', round(timeout_s * 1000))
        self.changes = int(words[0])
        return _polled(self._indexes, words[1:])

    def metadata(self) -> tuple[str, ...]:
        metadata = tuple(self._call('metadata'))
        if metadata[1:] == NO_MEMBER:   # a commit with it would be accepted from a former member
            raise ClientFailure('the consumer has lost its place in the group')
        return metadata

    def rewind(self, positions: Mapping[int, int]) -> None:
        self._call('rewind', *self._positions(positions))


def _polled(indexes: Mapping[Place, int], rows: Sequence[str]) -> Reads:
    words = iter(rows)
    reads = []
    for topic in words:
        place, count = Place(topic, int(next(words))), int(next(words))
        records = [(int(next(words)), int(next(words))) for _ in range(count)]
        reads.append((indexes[place], [offset for offset, _ in records], [number for _, number in records]))
    return reads
