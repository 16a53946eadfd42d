"""`python -m kbroker.testing.keeper`: the process that starts the brokers of one test process, and cleans up after it.

The keeper imports the broker once, then forks for each new broker: a start without the imports takes a fifth of the
processor time. It keeps one broker with the default settings started ahead.

The keeper runs in a session of its own, so that Ctrl-C does not reach it. It ends when the test process ends, for any
reason: it holds a descriptor of that process, which becomes readable at its end. It then kills all of its brokers, and
removes their directories. The kernel kills the brokers of a keeper that is killed itself.

The test process sends one end of a socket pair for each of its brokers, over a channel. A message is one packet of
JSON. When the pair of a broker is closed, the keeper closes that broker.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kbroker.base.clone import clone_directory
from kbroker.base.parent_process import end_with_parent

MOST_BYTES = 1 << 20
"""The most bytes of a message."""
PREFIX = 'kbroker-testing-'
"""The first part of the names of all temporary directories."""
LOCK_FILE = 'keeper.lock'
BROKER_LOCK_FILE = '.lock'
"""The file of a log directory that a broker locks while it runs, kbroker as well as Apache Kafka."""
CONTROL = 'control'
"""The name of the control port among the ports of a broker."""
DEFAULT_LISTENERS = {'PLAINTEXT': 'PLAINTEXT'}
DEFAULT_SETTINGS = {'group.initial.rebalance.delay.ms': '0', 'group.min.session.timeout.ms': '1000',
                    'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1',
                    'share.coordinator.state.topic.num.partitions': '1'}
"""The settings of all brokers of tests, unless the test gives others. The first member of a group gets its partitions
at once, and the internal topics of a new directory have one partition, which is created faster than the usual fifty.
"""
FOREIGN_VARIABLES = ('KBROKER_', 'WATCHDOG_', 'LISTEN_')
"""The first parts of the names of variables that a broker of a test must not obey."""

Spec = dict[str, Any]
"""The part of a broker that does not change between its starts. `spec_of` has its fields."""


def spec_of(data_dir: str | None = None, listeners: dict[str, str] | None = None,
            settings: dict[str, str] | None = None, has_control: bool = True, copy_of: str | None = None) -> Spec:
    return {'data_dir': data_dir, 'listeners': listeners or DEFAULT_LISTENERS,
            'settings': {**DEFAULT_SETTINGS, **(settings or {})}, 'has_control': has_control, 'copy_of': copy_of}


def reserve_port() -> socket.socket:
    """Reserve a free port of 127.0.0.1 for a server that sets SO_REUSEADDR, until the returned socket is closed.

    A client that connects while no server runs is refused.
    """
    reservation = socket.socket()
    reservation.bind(('127.0.0.1', 0))      # without SO_REUSEADDR, so no other socket has the port
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def lock_root(root: Path) -> int:
    """Lock a directory of a keeper until the descriptor is closed. The lock file appears with its lock."""
    new = root / f'{LOCK_FILE}.new'
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    new.rename(root / LOCK_FILE)
    return descriptor


def remove_left_over(temporary: Path) -> None:
    """Remove the directories of keepers that were killed themselves. The lock of each of them is free."""
    for lock_file in temporary.glob(f'{PREFIX}*/{LOCK_FILE}'):
        with contextlib.suppress(OSError):
            descriptor = os.open(lock_file, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
            finally:
                os.close(descriptor)


def copy_directory(source: str, target: str) -> None:
    """Copy the log directory of a broker that does not run. Raise OSError if it runs, or if the copy fails."""
    with contextlib.ExitStack() as opened:
        if os.path.exists(os.path.join(source, BROKER_LOCK_FILE)):
            lock = opened.enter_context(open(os.path.join(source, BROKER_LOCK_FILE), 'rb'))
            try:
                fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                raise OSError(error.errno, 'found a running broker on this directory, expected a stopped or killed '
                              'one: stop it, or copy it with snapshot()', source) from None
        clone_directory(source, target, lambda name: name != BROKER_LOCK_FILE)


class Instance:
    """A broker with its directory and ports, which outlive its processes."""

    def __init__(self, spec: Spec, directory: Path):
        self.spec = spec
        self.directory = directory
        directory.mkdir()
        self.data_dir = spec['data_dir'] or str(directory / 'data')
        self.log_path = directory / 'broker.log'
        names = [*spec['listeners'], *([CONTROL] if spec['has_control'] else [])]
        self._reservations = {name: reserve_port() for name in names}
        self.ports = {name: each.getsockname()[1] for name, each in self._reservations.items()}
        self.state = 'ended'
        self.pid: int | None = None
        self.pid_descriptor = -1
        self.exit_code: int | None = None
        self.notified: socket.socket | None = None

    def command(self, arguments: list[str]) -> list[str]:
        listeners = ','.join(f'{name}://127.0.0.1:{self.ports[name]}' for name in self.spec['listeners'])
        protocols = ','.join(f'{name}:{protocol}' for name, protocol in self.spec['listeners'].items())
        settings = {'listeners': listeners, 'listener.security.protocol.map': protocols, **self.spec['settings']}
        control = ['--control', f'127.0.0.1:{self.ports[CONTROL]}'] if self.spec['has_control'] else []
        assignments = [word for name, value in settings.items() for word in ('--set', f'{name}={value}')]
        return ['serve', '--log-json', '--data-dir', self.data_dir, *control, *assignments, *arguments]

    def facts(self) -> dict[str, Any]:
        return {'pid': self.pid, 'directory': str(self.directory), 'data_dir': self.data_dir, 'ports': self.ports,
                'log_path': str(self.log_path), 'state': self.state, 'exit_code': self.exit_code}

    def release(self) -> None:
        """Give the ports back."""
        for reservation in self._reservations.values():
            reservation.close()


class Connection:
    """The keeper's end of the socket pair of one broker. At most one request waits for its reply."""

    def __init__(self, pair: socket.socket):
        self.pair = pair
        self.instance: Instance | None = None
        self.waits_for: tuple[int, str] | None = None
        """The number of the request that waits, and the state that it waits for."""

    def reply(self, number: int, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):      # the test process has closed its end
            self.pair.send(json.dumps({'number': number, **answer}).encode())


class Keeper:
    """The brokers of one test process. `run` returns when that process has ended, and everything is removed."""

    def __init__(self, channel: socket.socket, parent: int, temporary: str):
        """`parent` is a descriptor of the test process."""
        self._pid = os.getpid()
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        remove_left_over(Path(temporary))
        self._root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary))
        self._lock = lock_root(self._root)
        self._instances: set[Instance] = set()
        self._connections: set[Connection] = set()
        self._spare: Instance | None = None
        self._wants_spare = False
        self._count = 0
        self._is_running = True
        self._watch(channel, self._accept)
        self._watch(parent, self._end)

    def run(self) -> None:
        try:
            import_broker()
            gc.collect()
            gc.freeze()     # the collector of a fork must not copy the pages of all imported modules
            while self._is_running:
                for key, _ in self._selector.select():
                    # An earlier callback may have closed the source, and its descriptor may have a new source.
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                if self._wants_spare and self._is_running:
                    self._wants_spare = False
                    self._spare = self._create(spec_of())
                    self._launch(self._spare, [], '/')
        finally:
            self._clean_up()

    def _watch(self, source: socket.socket | int, callback: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, callback)

    def _end(self) -> None:
        self._is_running = False

    def _clean_up(self) -> None:
        for instance in self._instances:
            self._kill(instance)
        shutil.rmtree(self._root, ignore_errors=True)

    # ---- messages of the test process

    def _accept(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        if not message:
            self._end()
            return
        connection = Connection(socket.socket(fileno=descriptors[0]))
        self._connections.add(connection)
        self._watch(connection.pair, lambda: self._receive(connection))

    def _receive(self, connection: Connection) -> None:
        try:
            message = connection.pair.recv(MOST_BYTES)
        except ConnectionError:
            message = b''
        if not message:
            self._selector.unregister(connection.pair)
            connection.pair.close()
            self._connections.discard(connection)
            if connection.instance is not None:
                self._close(connection.instance)
            return
        request = json.loads(message)
        connection.waits_for = None
        try:
            getattr(self, f'_do_{request["do"]}')(connection, request)
        except OSError as error:
            connection.reply(request['number'], {'error': f'{error.filename or self._root}: {error.strerror}'})

    def _do_open(self, connection: Connection, request: dict[str, Any]) -> None:
        """Give the test process a started broker: the spare if it has the same spec."""
        spec = request['spec']
        if self._spare is not None and self._spare.spec == spec and self._spare.state != 'ended':
            connection.instance, self._spare = self._spare, None
        else:
            connection.instance = self._create(spec)
            self._launch(connection.instance, [], request['working_directory'])
        self._await(connection, request['number'], 'running')
        self._wants_spare = self._spare is None

    def _do_start(self, connection: Connection, request: dict[str, Any]) -> None:
        """Start the process again, on the same directory and ports."""
        instance = self._instance_of(connection)
        if instance.state == 'ended':
            self._launch(instance, request['arguments'], request['working_directory'])
        self._await(connection, request['number'], 'running')

    def _do_signal(self, connection: Connection, request: dict[str, Any]) -> None:
        instance = self._instance_of(connection)
        if instance.pid is not None:
            os.kill(instance.pid, request['signal'])
        self._await(connection, request['number'], request['waits_for'])

    def _do_await(self, connection: Connection, request: dict[str, Any]) -> None:
        self._instance_of(connection)
        self._await(connection, request['number'], request['waits_for'])

    def _do_close(self, connection: Connection, request: dict[str, Any]) -> None:
        """End the broker. Move its directory to `keep_as`, or remove the directory if that is None."""
        instance, connection.instance = self._instance_of(connection), None
        try:
            if request['keep_as'] is not None:
                self._kill(instance)
                if os.path.lexists(request['keep_as']):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), request['keep_as'])
                shutil.move(instance.data_dir, request['keep_as'])
        finally:
            self._close(instance)
        connection.reply(request['number'], {})

    def _instance_of(self, connection: Connection) -> Instance:
        assert connection.instance is not None, 'the first message of a connection is `open`'
        return connection.instance

    def _await(self, connection: Connection, number: int, state: str | None) -> None:
        """Reply when the process has reached the state, or has ended."""
        connection.waits_for = (number, state or self._instance_of(connection).state)
        self._reply_if_reached(connection)

    def _reply_if_reached(self, connection: Connection) -> None:
        instance = self._instance_of(connection)
        if connection.waits_for is not None and instance.state in (connection.waits_for[1], 'ended'):
            connection.reply(connection.waits_for[0], instance.facts())
            connection.waits_for = None

    # ---- processes

    def _create(self, spec: Spec) -> Instance:
        self._count += 1
        instance = Instance(spec, self._root / str(self._count))
        self._instances.add(instance)
        return instance

    def _launch(self, instance: Instance, arguments: list[str], working_directory: str) -> None:
        """Start a process. It notifies the keeper as it would notify a service manager."""
        notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notified.bind('')       # the kernel chooses an abstract name
        name = notified.getsockname()
        command = instance.command(arguments)
        pid = os.fork()
        if not pid:
            self._run_broker(instance, command, working_directory, name[1:].decode())
        instance.pid, instance.state, instance.exit_code = pid, 'starting', None
        instance.notified = notified
        instance.pid_descriptor = os.pidfd_open(pid)
        self._watch(notified, lambda: self._hear(instance, notified))
        self._watch(instance.pid_descriptor, lambda: self._reap(instance))

    def _run_broker(self, instance: Instance, command: list[str], working_directory: str,
                    notify_name: str) -> NoReturn:
        """Be the broker: the same as `kbroker serve` in a process of its own."""
        code: Any = 1
        try:
            end_with_parent(self._pid)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(working_directory)
            log = os.open(instance.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, sys.stdout.fileno())
            os.dup2(log, sys.stderr.fileno())
            os.closerange(sys.stderr.fileno() + 1, os.sysconf('SC_OPEN_MAX'))
            for name in list(os.environ):
                if name.startswith(FOREIGN_VARIABLES):
                    del os.environ[name]
            os.environ['NOTIFY_SOCKET'] = f'@{notify_name}'
            if instance.spec['copy_of'] is not None and not os.path.exists(instance.data_dir):
                copy_directory(instance.spec['copy_of'], instance.data_dir)
            from kbroker.daemon.main import main

            main(command, prog_name='kbroker')
        except SystemExit as exit_of_broker:
            code = exit_of_broker.code
        except OSError as error:        # before the broker itself began
            sys.stderr.write(f'{error.filename or instance.directory}: {error.strerror}\n')
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else code is not None)

    def _hear(self, instance: Instance, notified: socket.socket) -> None:
        if b'READY=1' in notified.recv(MOST_BYTES):
            self._reach(instance, 'running')

    def _reap(self, instance: Instance) -> None:
        """Note the end of a process."""
        assert instance.pid is not None and instance.notified is not None
        _, status = os.waitpid(instance.pid, 0)
        instance.exit_code = os.waitstatus_to_exitcode(status)
        for source in (instance.notified, instance.pid_descriptor):
            self._selector.unregister(source)
        instance.notified.close()
        os.close(instance.pid_descriptor)
        instance.pid = instance.notified = None
        self._reach(instance, 'ended')

    def _reach(self, instance: Instance, state: str) -> None:
        instance.state = state
        for connection in self._connections:
            if connection.instance is instance:
                self._reply_if_reached(connection)

    def _kill(self, instance: Instance) -> None:
        if instance.pid is not None:
            os.kill(instance.pid, signal.SIGKILL)
            self._reap(instance)

    def _close(self, instance: Instance) -> None:
        self._kill(instance)
        self._instances.discard(instance)
        instance.release()
        shutil.rmtree(instance.directory, ignore_errors=True)


def import_broker() -> None:
    """Import every module that a start of the broker needs, so that a fork has them."""
    importlib.import_module('ctypes')       # for `end_with_parent`
    importlib.import_module('kbroker.daemon.main')
    importlib.import_module('kbroker.daemon.broker')
    for room in ('kbroker.apis', 'kbroker.control'):
        for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f'{room}.'):
            importlib.import_module(module.name)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent_pid = int(sys.argv[2])
    try:
        parent = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        return
    if os.getppid() != parent_pid:      # the test process has ended, and another process has its id
        return
    keeper = Keeper(socket.socket(fileno=int(sys.argv[1])), parent, sys.argv[3])
    keeper.run()


if __name__ == '__main__':
    main()
