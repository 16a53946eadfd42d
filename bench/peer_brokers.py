"""The brokers that the benches compare, each a process on this machine with its own directory."""
from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

from load_generator import OUT, LoadError, Measurement, build_floor, has_tls, run  # noqa: E402
from stopping import Stopped  # noqa: E402
from support.brokers.broker_process import BrokerProcess, Process  # noqa: E402
from support.clients.certificates import make_certificates  # noqa: E402
from support.kafka.apache_kafka import NEWEST, RELEASES, KafkaProcess, classpath  # noqa: E402

ADMIN_LIMIT_S = 300
READY_LIMIT_S = 120
TRANSIENT = ('UNKNOWN_TOPIC_OR_PARTITION', 'NOT_LEADER_OR_FOLLOWER', 'LEADER_NOT_AVAILABLE')
"""The errors that a broker returns for a topic that it is still creating."""
MOST_AT_ONCE = 5000  # partitions; Kafka rejects a change of more than 10,000 metadata records
GO_LIMIT_S = 600
DELETE_AT_ONCE = {'log.segment.delete.delay.ms': '100'}
"""With this setting, a broker removes the files of one cell before the next cell is measured."""

# The Java options of kafka-run-class.sh, and the options that kafka-server-start.sh adds.
KAFKA_JAVA = ('-server', '-XX:+UseG1GC', '-XX:MaxGCPauseMillis=20',
              '-XX:InitiatingHeapOccupancyPercent=35', '-XX:+ExplicitGCInvokesConcurrent',
              '-XX:MaxInlineLevel=15', '-Djava.awt.headless=true', '-Djava.net.preferIPv4Stack=true',
              '-Dorg.slf4j.simpleLogger.defaultLogLevel=info')
SERVER_HEAP, TOOL_HEAP = ('-Xmx1G', '-Xms1G'), ('-Xmx512M',)


class Unavailable(Exception):
    """Raised if a program that a compared broker needs is missing on this machine."""


class Broker(Protocol):
    address: str
    directory: pathlib.Path
    tls_address: str | None
    has_only_tls: bool

    @property
    def pid(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill9(self) -> None: ...


class WithTls:
    """A broker with a TLS address, which it has in addition to `address` or as its only address."""

    tls_address: str | None = None
    has_only_tls = False


class ServerKafka(WithTls, KafkaProcess):
    """Apache Kafka with the JVM options of its own server script, instead of the small heap that the tests use."""

    def launch(self, arguments: list[str]) -> None:
        main = arguments.index('kafka.Kafka')
        super().launch(['java', *SERVER_HEAP, *KAFKA_JAVA, '-cp', classpath(), *arguments[main:]])


class Kbroker(WithTls, BrokerProcess):
    pass


class BenchServer(WithTls, Process):
    """A server that is built from source files in bench/. At its first start it chooses a port, and prints
    `ready ADDRESS`."""

    def __init__(self, directory: pathlib.Path, *options: str):
        super().__init__()
        self.directory = directory
        self.address = '127.0.0.1:0'
        self._options = options

    def is_ready_line(self, line: str) -> bool:
        if not line.startswith('ready '):
            return False
        self.address = line.split()[1]
        return True


class Kfake(BenchServer):
    """The fake broker of bench/kfake, with its data in a directory."""

    def start(self) -> None:
        port = self.address.rpartition(':')[2]
        self.launch([str(kfake_program()), '-data-dir', str(self.directory), '-port', port, *self._options])

    def stop(self) -> None:
        code = self.end_by(signal.SIGTERM)
        assert code == 0, f'exit code {code}:\n' + ''.join(self.lines[-50:])


class Floor(BenchServer):
    """The server of bench/load/floor.c. It is not a broker: its speed is the upper bound for every broker on this
    machine."""

    def start(self) -> None:
        self.launch([str(build_floor()), self.address.rpartition(':')[2], *self._options])

    def stop(self) -> None:
        self.kill9()


def floor_with_files(directory: pathlib.Path) -> Broker:
    directory.mkdir(parents=True)
    return Floor(directory, str(directory))


def kafka_tool(main_class: str, *arguments: str) -> list[str]:
    """Return the command that runs one of Kafka's performance tools with the JVM options of the tool's script."""
    return java_tool(f'org.apache.kafka.tools.{main_class}', *arguments)


def java_tool(main: str, *arguments: str) -> list[str]:
    """Return the command that runs a class or a source file with a main method, with the options of Kafka's tools."""
    quiet = '-Dorg.slf4j.simpleLogger.defaultLogLevel=error'
    return ['java', *TOOL_HEAP, *KAFKA_JAVA, quiet, '-cp', classpath(), main, *arguments]


def kfake_program() -> pathlib.Path:
    """Build kfake if it is out of date, and return its path."""
    program = OUT / 'kfake'
    if shutil.which('go') is None:
        raise Unavailable('go was not found')
    OUT.mkdir(exist_ok=True)
    done = subprocess.run(['go', 'build', '-o', str(program), '.'], cwd=pathlib.Path(__file__).parent / 'kfake',
                          capture_output=True, text=True, timeout=GO_LIMIT_S, check=False)
    if done.returncode:
        raise Unavailable(f'kfake does not compile: {done.stderr.strip()}')
    return program


def _kafka(directory: pathlib.Path, **settings: str) -> Broker:
    if missing := [tool for tool in ('java', 'javac', 'mvn') if shutil.which(tool) is None]:
        raise Unavailable(f'{", ".join(missing)} not found')
    return ServerKafka(directory, {**DELETE_AT_ONCE, **settings})


def _flushing_kafka(directory: pathlib.Path) -> Broker:
    return _kafka(directory, **{'log.flush.interval.messages': '1'})


def _kfake(*options: str) -> Callable[[pathlib.Path], Broker]:
    def make(directory: pathlib.Path) -> Broker:
        kfake_program()
        return Kfake(directory, *options)
    return make


def _kbroker(durability: str) -> Callable[[pathlib.Path], Broker]:
    return lambda directory: Kbroker(directory, {'kbroker.durability': durability, **DELETE_AT_ONCE})


# A broker with TLS also has a plaintext listener, through which the bench creates topics. No client presents a
# certificate.

def _kafka_with_tls(directory: pathlib.Path) -> Broker:
    controller, plain, tls = (f'127.0.0.1:{free_port()}' for _ in range(3))
    broker = _kafka(directory, **{
        'listeners': f'PLAINTEXT://{plain},SSL://{tls},CONTROLLER://{controller}',
        'controller.quorum.voters': f'1@{controller}',
        'listener.security.protocol.map': 'PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT',
        'ssl.keystore.type': 'PEM', 'ssl.keystore.location': certificate(directory)})
    broker.address, broker.tls_address = plain, tls
    return broker


def _kbroker_with_tls(directory: pathlib.Path) -> Broker:
    plain, tls = (f'127.0.0.1:{free_port()}' for _ in range(2))
    broker = Kbroker(directory, {
        **DELETE_AT_ONCE, 'kbroker.durability': 'page-cache', 'listeners': f'PLAINTEXT://{plain},SSL://{tls}',
        'ssl.keystore.location': certificate(directory)})
    broker.tls_address = tls
    return broker


def _kfake_with_tls(directory: pathlib.Path) -> Broker:
    kfake_program()
    broker = Kfake(directory, '-certificate', certificate(directory))
    broker.has_only_tls = True
    return broker


def certificate(directory: pathlib.Path) -> str:
    """Write a file with a key and its certificate next to a broker's directory, and return the path of the file."""
    if shutil.which('openssl') is None or not has_tls():
        raise Unavailable('openssl and its headers were not found')
    place = directory.parent / f'certificate-{directory.name}'
    place.mkdir(parents=True)
    return str(make_certificates(place) / 'server.pem')


def free_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Peer:
    """One of the compared brokers. Peers of the same division are compared with each other."""

    name: str
    division: str
    family: str
    make: Callable[[pathlib.Path], Broker]
    needs_warm_up: bool = False

    @property
    def is_floor(self) -> bool:
        return self.family == 'floor'


PEERS = {peer.name: peer for peer in (
    Peer('kafka', 'page-cache', 'kafka', _kafka, needs_warm_up=True),
    Peer('kfake', 'page-cache', 'kfake', _kfake()),
    Peer('kbroker', 'page-cache', 'kbroker', _kbroker('page-cache')),
    Peer('floor', 'page-cache', 'floor', Floor),
    Peer('floor-files', 'page-cache', 'floor', floor_with_files),
    Peer('kafka-flush', 'disk', 'kafka', _flushing_kafka, needs_warm_up=True),
    Peer('kfake-sync', 'disk', 'kfake', _kfake('-sync')),
    Peer('kbroker-disk', 'disk', 'kbroker', _kbroker('disk')),
    Peer('kafka-tls', 'TLS', 'kafka', _kafka_with_tls, needs_warm_up=True),
    Peer('kfake-tls', 'TLS', 'kfake', _kfake_with_tls),
    Peer('kbroker-tls', 'TLS', 'kbroker', _kbroker_with_tls),
)}


class Site:
    """A compared broker that is running, and its topics."""

    def __init__(self, peer: Peer, work: pathlib.Path):
        self.peer = peer
        self.broker = peer.make(work / peer.name)
        self.broker.start()
        self._tls_address = self.broker.address if self.broker.has_only_tls else self.broker.tls_address

    @functools.cached_property
    def _admin(self) -> AdminClient:
        security = {'security.protocol': 'SSL', 'enable.ssl.certificate.verification': False}
        return AdminClient({'bootstrap.servers': self.broker.address, 'log_level': 0,
                            **(security if self.broker.has_only_tls else {})})

    def load(self, loads: list[str], seconds: float, warm_up_s: float | None = None) -> Measurement:
        """Run loads on this peer, with TLS if it is a TLS peer. Raise LoadError if a load fails."""
        if self._tls_address is not None:
            loads = [f'{load},tls=1' for load in loads]
        return run(self._tls_address or self.broker.address, loads, seconds, warm_up_s, self.broker.pid)

    @contextlib.contextmanager
    def topic(self, name: str, partitions: int) -> Iterator[str]:
        """Create a topic, wait until every partition accepts records, and delete it at the end."""
        self.create_topic(name, partitions)
        try:
            yield name
        except Stopped:
            raise  # the broker may be gone, and a client would wait for it
        except BaseException:
            if self.broker.is_running:
                self.delete_topic(name)
            raise
        self.delete_topic(name)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic. Raise LoadError if the topic does not exist afterwards, or accepts no records."""
        try:
            self._admin.create_topics([NewTopic(name, min(partitions, MOST_AT_ONCE))], request_timeout=ADMIN_LIMIT_S,
                                      operation_timeout=ADMIN_LIMIT_S)[name].result(ADMIN_LIMIT_S)
            for count in range(2 * MOST_AT_ONCE, partitions + MOST_AT_ONCE, MOST_AT_ONCE):
                more = NewPartitions(name, min(partitions, count))
                self._admin.create_partitions([more], request_timeout=ADMIN_LIMIT_S)[name].result(ADMIN_LIMIT_S)
        except KafkaException as fault:
            raise LoadError(f'topic {name}: {fault}') from None
        self.wait_until_taken(name, partitions)

    def delete_topic(self, name: str) -> None:
        try:
            self._admin.delete_topics([name], request_timeout=ADMIN_LIMIT_S)[name].result(ADMIN_LIMIT_S)
        except KafkaException as fault:
            raise LoadError(f'topic {name} is not deleted: {fault}') from None

    def wait_until_taken(self, topic: str, partitions: int) -> None:
        """Wait until every partition has accepted a record. Raise LoadError after READY_LIMIT_S."""
        each = min(partitions, 1000)
        count = -(-partitions // each)
        deadline = time.monotonic() + READY_LIMIT_S
        while True:
            try:
                self.load([f'produce:topic={topic},partitions={partitions},each={each},record=0,size=1,count={count}'],
                          READY_LIMIT_S, 0)
                return
            except LoadError as fault:
                if not any(word in str(fault) for word in TRANSIENT) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)    # a broker notifies no client when a partition becomes ready

    def close(self) -> None:
        self.broker.kill9()


class FloorSite(Site):
    """A running floor server. It has no topics, so any name works. If it writes files, deleting a topic removes all of
    them."""

    def create_topic(self, name: str, partitions: int) -> None:
        self.wait_until_taken(name, partitions)

    def delete_topic(self, name: str) -> None:
        os.kill(self.broker.pid, signal.SIGHUP)


def site_of(peer: Peer, work: pathlib.Path) -> Site:
    """Start the peer. Raise AssertionError, LoadError or Unavailable if it does not start."""
    return (FloorSite if peer.is_floor else Site)(peer, work)


def drop_from_page_cache(directory: pathlib.Path, topic: str) -> None:
    """Evict the files of a topic, so that the next read goes to the disk."""
    for place, _, names in os.walk(directory):  # files that are deleted meanwhile are skipped
        for name in names if topic in os.path.relpath(place, directory) else []:
            handle = os.open(os.path.join(place, name), os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def system_calls(pid: int, action: Callable[[], int]) -> float | None:
    """Run `action`, which returns a count. Return the number of system calls of a process and its threads divided by
    this count. Return None if strace is missing."""
    if shutil.which('strace') is None:
        return None
    with subprocess.Popen(['strace', '-c', '-f', '-p', str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as tracer:
        assert tracer.stderr is not None
        try:
            if 'attached' not in tracer.stderr.readline():
                return None
            time.sleep(0.2)  # threads are attached one by one
            count = action()
        finally:
            tracer.send_signal(signal.SIGINT)
            summary = tracer.stderr.read()
    total = re.search(r'^\s*100\.00\s+\S+\s+\S*\s+(\d+).*total$', summary, re.MULTILINE)
    return int(total[1]) / count if total and count else None


def versions() -> str:
    """Return the versions of the compared programs that are installed."""
    found = [f'Apache Kafka {RELEASES[NEWEST]} on {_first_line(["java", "-version"])}'
             if shutil.which('java') else 'no Java']
    with open(pathlib.Path(__file__).parent / 'kfake' / 'go.mod') as file:
        kfake = re.search(r'pkg/kfake (\S+)', file.read())
    found.append(f'kfake {kfake[1] if kfake else "?"}, {_first_line(["go", "version"])}' if shutil.which('go')
                 else 'no Go')
    commit = subprocess.run(['git', 'describe', '--always', '--dirty'], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.strip()
    found.append(f'kbroker {commit or "of no commit"}')
    found.append(f'Python {sys.version.split()[0]}, {_first_line(["cc", "--version"])}')
    return '; '.join(found)


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).partition('\n')[0]
