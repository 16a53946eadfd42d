"""Kafka Connect copies lines of files to a topic exactly once while the test kills its worker and the broker.

The offsets of a source are written in the transaction of its records (KIP-618).

Covers promises 1, 2, 4 and 5 of docs/design.md.
"""
import contextlib
import json
import pathlib
import subprocess
import urllib.request

import pytest
from killed_copies import OUTPUT, ROUNDS, Application, check_copies, create_topics, java
from support.runner.free_ports import free_port

pytestmark = [pytest.mark.jvm, pytest.mark.soak, pytest.mark.timeout(3600)]

SOURCES = pathlib.Path(__file__).parent / 'connect'
RELEASE = '4.3'
"""The newest release of connect-file that Maven Central returned: it did not have 4.4.0."""
FILES = 2
TEXT = 'org.apache.kafka.connect.storage.StringConverter'


class Connect(Application):
    """A worker with a connector for each file. A worker that starts again finds its connectors in the worker's
    topics."""

    def __init__(self, address, directory):
        super().__init__(directory / 'connect.log')
        self._files = [directory / f'lines-{number}' for number in range(FILES)]
        self._listener = f'http://127.0.0.1:{free_port()}'
        self._settings = directory / 'worker.properties'
        storage = {f'{kind}.storage.{name}': value for kind in ('config', 'offset', 'status')
                   for name, value in (('topic', f'connect-{kind}'), ('replication.factor', 1))}
        self._settings.write_text(''.join(f'{name}={value}\n' for name, value in {
            'bootstrap.servers': address, 'group.id': 'connect', **storage, 'key.converter': TEXT,
            'value.converter': TEXT, 'listeners': self._listener, 'exactly.once.source.support': 'enabled',
            'session.timeout.ms': 6000, 'heartbeat.interval.ms': 500, 'scheduled.rebalance.max.delay.ms': 0}.items()))

    def command(self):
        return [*java(SOURCES, '500m', release=RELEASE), 'org.apache.kafka.connect.cli.ConnectDistributed',
                str(self._settings)]

    def add_connectors(self):
        for number, path in enumerate(self._files):
            path.touch()
            self._put(f'/connectors/lines-{number}/config', {
                'connector.class': 'org.apache.kafka.connect.file.FileStreamSourceConnector', 'tasks.max': '1',
                'file': str(path), 'topic': OUTPUT, 'exactly.once.support': 'required'})

    def _put(self, path, content):
        """Send a request until the worker accepts it, which takes a while after its start."""
        request = urllib.request.Request(self._listener + path, json.dumps(content).encode(),
                                         {'Content-Type': 'application/json'}, method='PUT')
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
                break
        raise AssertionError(self.output)

    def feed(self, numbers):
        for place, path in enumerate(self._files):
            with open(path, 'a') as lines:
                lines.writelines(f'{number}\n' for number in numbers if number % FILES == place)


def test_connect_copies_each_line_once_while_it_and_the_broker_are_killed(start_broker, tmp_path, soak_count, tally):
    broker = start_broker()
    create_topics(broker.address)
    with Connect(broker.address, tmp_path) as application:
        application.add_connectors()
        check_copies(broker, application, 'connect', soak_count(ROUNDS, 5))
    tally('kills of a broker, a client or an application', soak_count(ROUNDS, 5))
