"""Apache Kafka from Maven Central. Its tools check kbroker's files. Its broker runs tests, to show whether the tests
themselves are right.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from support.brokers.broker_process import PROMPT, ROOT, Process
from support.runner.class_archive import archive_options
from support.runner.free_ports import free_port
from support.runner.machine_requirements import JUDGES, fetching

SOURCES = ROOT / 'tests' / 'jvm'
CACHE = JUDGES / 'jvm'
RELEASES = {'4.2': '4.2.2', '4.3': '4.3.1', '4.4': '4.4.0'}
"""Maps the name of each release that judges kbroker to its version on Maven Central."""
NEWEST = '4.4'
"""The release that judges where a test names none."""
NOT_FOR_THE_RELEASE = {'4.2': {'RecordReader.java', 'TwoPhase.java'}}
"""Maps a release to the sources that use internals of later releases."""
CLUSTER_ID = 'a2Jyb2tlci1qdWRnZXMtMA'
MAVEN_LIMIT_S = 900
TRAINING_LIMIT_S = 500
TOOL_LIMIT_S = 120


def classpath(release: str = NEWEST) -> str:
    """Return the class path of Kafka's jars and of the compiled program `judge`."""
    return compiled(SOURCES, release)


@functools.cache
def compiled(place: pathlib.Path, release: str = NEWEST) -> str:
    """Return the class path of a directory's compiled sources and of the jars that its pom.xml names. Fetch and compile
    them if the pom.xml, a source or the release has changed. The release sets the Maven property `kafka.version`.
    """
    version = RELEASES[release]
    sources = sorted(path for path in place.rglob('*.java') if path.name not in NOT_FOR_THE_RELEASE.get(release, ()))
    digest = hashlib.sha256(b''.join(path.read_bytes() for path in [place / 'pom.xml', *sources])
                            + version.encode()).hexdigest()
    directory = CACHE / digest[:16]
    listing = directory / 'classpath'
    with fetching():
        if not listing.exists():
            classes = directory / 'classes'
            classes.mkdir(parents=True, exist_ok=True)
            jars = directory / 'jars'
            _run(['mvn', '-q', '-B', '-f', str(place / 'pom.xml'), 'dependency:build-classpath',
                  f'-Dkafka.version={version}', f'-Dmdep.outputFile={jars}'], MAVEN_LIMIT_S)
            if sources:
                _run(['javac', '-d', str(classes), '-cp', jars.read_text(), *map(str, sources)], TOOL_LIMIT_S)
            _run(['jar', '--create', '--file', str(directory / 'judge.jar'), '-C', str(classes), '.'], TOOL_LIMIT_S)
            listing.write_text(f'{directory / "judge.jar"}:{jars.read_text()}')
    return listing.read_text()


def config_command(release: str = NEWEST) -> str:
    """Return the class of the tool kafka-configs. Kafka 4.4 moved the class."""
    return 'kafka.admin.ConfigCommand' if release in ('4.2', '4.3') else 'org.apache.kafka.tools.ConfigCommand'


def java(main_class: str, *arguments: str, log_level: str = 'error', release: str = NEWEST) -> list[str]:
    """Return the command that runs a class of Kafka, or the judge, in a small virtual machine."""
    return _java(release, _archive(release), log_level, main_class, *arguments)


def _java(release: str, options: Sequence[str], log_level: str, main_class: str, *arguments: str) -> list[str]:
    return ['java', *options, '-Xmx512m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1',
            '-Djava.net.preferIPv4Stack=true', f'-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}',
            temporary_files(), '-cp', classpath(release), main_class, *arguments]


@functools.cache
def temporary_files() -> str:
    """Return the option that sets the directory of a virtual machine's temporary files. This process deletes the
    directory when it ends, because a killed virtual machine leaves its files, such as a native library of 15 MB for
    each instance of Kafka Streams.
    """
    directory = tempfile.mkdtemp(prefix='kbroker-java-')
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return f'-Djava.io.tmpdir={directory}'


@functools.cache
def _archive(release: str) -> list[str]:
    jars = [pathlib.Path(jar) for jar in classpath(release).split(':')]
    return archive_options(CACHE, jars, functools.partial(_train, release))


def _train(release: str, options: list[str]) -> None:
    """Run the program whose classes the class archive will contain. It uses a broker, clients and tools in one virtual
    machine.
    """
    with tempfile.TemporaryDirectory() as directory:
        kafka = KafkaProcess(pathlib.Path(directory) / 'data', PROMPT, release)
        _run(_java(release, options, 'error', 'kbroker.Training', str(kafka.write_settings()), str(kafka.directory),
                   kafka.address, _dump_log_segments(release)), TRAINING_LIMIT_S)


def run_tool(main_class: str, *arguments: str, release: str = NEWEST) -> str:
    """Run one of Kafka's tools and return its output on both streams. Raise AssertionError if it fails."""
    done, = run_tools(main_class, arguments, release=release)
    assert done.code == 0, f'{main_class} exited with {done.code}:\n{done.output}{done.errors}'
    return done.output + done.errors


class ToolRun(NamedTuple):
    code: int
    output: str
    errors: str


def run_tools(main_class: str, *runs: Sequence[str], release: str = NEWEST) -> list[ToolRun]:
    """Run one of Kafka's tools several times in one virtual machine. A failing run is a result, not an error."""
    return run_several_tools([[main_class, *run] for run in runs], release)


def run_several_tools(runs: Sequence[Sequence[str]], release: str = NEWEST) -> list[ToolRun]:
    """Run several of Kafka's tools in one virtual machine. The first word of each run is the class of its tool."""
    machine = _tool_machine(release)
    return [machine.run(run) for run in runs]


class ToolMachine:
    """A virtual machine that runs tools of one release, one after the other. The first run is slow: it loads the common
    classes.
    """

    def __init__(self, release: str) -> None:
        self._lock = threading.Lock()
        self._complaints = tempfile.TemporaryFile('w+')  # noqa: SIM115
        self._process = subprocess.Popen(java('kbroker.ToolRuns', release=release), stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._complaints, text=True)

    def run(self, run: Sequence[str]) -> ToolRun:
        """Run a tool. If the run takes too long, kill the virtual machine. Raise AssertionError if the machine ends."""
        with self._lock:
            return self._run(run)

    def _run(self, run: Sequence[str]) -> ToolRun:
        assert self._process.stdin is not None and self._process.stdout is not None
        watch = threading.Timer(TOOL_LIMIT_S, self._process.kill)
        watch.start()
        try:
            with contextlib.suppress(BrokenPipeError):      # the machine has ended, so the answer is empty
                self._process.stdin.write(json.dumps(list(run)) + '\n')
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not answer:
            _tool_machine.cache_clear()
            self.close()
            self._complaints.seek(0)
            raise AssertionError(f'{run} ended with the virtual machine:\n{self._complaints.read()}')
        return ToolRun(**json.loads(answer))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@functools.cache
def _tool_machine(release: str) -> ToolMachine:
    machine = ToolMachine(release)
    atexit.register(machine.close)
    return machine


def dump_log(*files: pathlib.Path, decode: str | None = None, release: str = NEWEST) -> str:
    """Run kafka-dump-log on files of a partition; `decode` is transaction-log, offsets or cluster-metadata."""
    options = ['--print-data-log', '--deep-iteration', *([f'--{decode}-decoder'] if decode else [])]
    return run_tool(_dump_log_segments(release), *options, '--files', ','.join(map(str, files)), release=release)


def _dump_log_segments(release: str) -> str:
    """Return the class of the tool kafka-dump-log. Kafka 4.3 moved the class."""
    return 'kafka.tools.DumpLogSegments' if release == '4.2' else 'org.apache.kafka.tools.DumpLogSegments'


def _run(command: list[str], limit_s: int) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, f'{command[0]} exited with {done.returncode}:\n{done.stdout}'
    return done.stdout


class KafkaProcess(Process):
    """Apache Kafka as one broker and controller, with the interface of `BrokerProcess`. Unlike kbroker's log, its log
    is not checked for tracebacks.

    A new directory is formatted by the release's own tool. Kafka finds its quorum by `controller.quorum.voters`
    (kraft.version 0), or with `dynamic` by `controller.quorum.bootstrap.servers` (kraft.version 1, KIP-853).
    """

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str] | None = None, release: str = NEWEST, *,
                 address: str | None = None, dynamic: bool = False):
        super().__init__()
        self.directory = directory
        self.settings = {name: value for name, value in (settings or {}).items() if not name.startswith('kbroker.')}
        self.release = release
        self.address = address or f'127.0.0.1:{free_port()}'
        self._controller = f'127.0.0.1:{free_port()}'
        self._dynamic = dynamic

    def start(self) -> None:
        """Start on the directory. Format the directory first if it is new."""
        file = self.write_settings()
        if not (self.directory / 'meta.properties').exists():
            standalone = ['--standalone'] if self._dynamic else []
            formatted, = run_tools('kafka.tools.StorageTool', ['format', '--cluster-id', CLUSTER_ID, *standalone,
                                                               '--config', str(file)], release=self.release)
            assert formatted.code == 0, formatted
        self.launch(java('kafka.Kafka', str(file), log_level='info', release=self.release))

    def write_settings(self) -> pathlib.Path:
        """Write the settings file next to the directory. Return its path."""
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory.parent / f'{self.directory.name}.properties'
        file.write_text(''.join(f'{name}={value}\n' for name, value in self._properties().items()))
        return file

    def _properties(self) -> dict[str, str]:
        return {
            'process.roles': 'broker,controller', 'node.id': '1',
            **({'controller.quorum.bootstrap.servers': self._controller} if self._dynamic
               else {'controller.quorum.voters': f'1@{self._controller}'}),
            'controller.listener.names': 'CONTROLLER',
            'listeners': f'PLAINTEXT://{self.address},CONTROLLER://{self._controller}',
            'log.dirs': str(self.directory), 'offsets.topic.replication.factor': '1',
            'transaction.state.log.replication.factor': '1', 'transaction.state.log.min.isr': '1',
            'share.coordinator.state.topic.replication.factor': '1', 'share.coordinator.state.topic.min.isr': '1',
            **self.settings,
        }

    def is_ready_line(self, line: str) -> bool:
        return 'Kafka Server started' in line

    def stop(self) -> None:
        """Shut down cleanly; Java exits with 143 after SIGTERM."""
        code = self.end_by(signal.SIGTERM)
        assert code in (0, 143), f'exit code {code}:\n' + ''.join(self.lines[-50:])

    def restart(self) -> None:
        self.stop()
        self.start()

    def errors(self) -> list[str]:
        """Return the error lines of the log. Skip one error of the start: on a slow machine, the controller registers
        with itself before it is active, logs an error, and tries again.
        """
        return [line for line in self.lines if ' ERROR ' in line and 'apiKey=CONTROLLER_REGISTRATION' not in line]
