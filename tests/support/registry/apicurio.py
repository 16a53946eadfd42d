"""Apicurio Registry from Maven Central: a schema registry with the API of Confluent's, and a database in memory."""
from __future__ import annotations

import functools
import pathlib
import re
import subprocess
import tarfile

from support.brokers.broker_process import Process
from support.kafka.apache_kafka import temporary_files
from support.runner.machine_requirements import JUDGES, fetching

VERSION = '2.6.13.Final'
ARTIFACT = f'io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all'
RUNNER = f'apicurio-registry-app-{VERSION}-runner.jar'
MAVEN_LIMIT_S = 900
READY = re.compile(r'Listening on: (http://127\.0\.0\.1:\d+)')


@functools.cache
def runner() -> pathlib.Path:
    """Return the jar that starts the registry. Fetch and unpack it if it is missing."""
    directory = JUDGES / 'registry' / VERSION
    with fetching():
        if not (directory / 'unpacked').exists():
            directory.mkdir(parents=True, exist_ok=True)
            subprocess.run(['mvn', '-q', '-B', 'dependency:copy', f'-Dartifact={ARTIFACT}',
                            f'-DoutputDirectory={directory}'], check=True, stdin=subprocess.DEVNULL,
                           timeout=MAVEN_LIMIT_S)
            archive, = directory.glob('*.tar.gz')
            with tarfile.open(archive) as files:
                files.extractall(directory, filter='data')
            archive.unlink()
            (directory / 'unpacked').touch()
    return directory / RUNNER


class ApicurioProcess(Process):
    """A registry on a free port of 127.0.0.1. It forgets its schemas when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._address = ''

    def start(self) -> None:
        self.launch(['java', '-Xmx300m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', temporary_files(),
                     '-Dquarkus.http.host=127.0.0.1', '-Dquarkus.http.port=0', '-jar', str(runner())])

    def is_ready_line(self, line: str) -> bool:
        found = READY.search(line)
        if found:
            self._address = found[1]
        return found is not None

    @property
    def url(self) -> str:
        """The URL of Confluent's API."""
        return f'{self._address}/apis/ccompat/v7'
