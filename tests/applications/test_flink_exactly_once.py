"""Apache Flink copies a topic exactly once while the test kills it and the broker.

After each kill, Flink continues from its last checkpoint. It commits the transactions that the checkpoint has prepared,
and aborts later ones.

Covers promises 1, 2, 4 and 5 of docs/design.md.
"""
import pathlib

import pytest
from killed_copies import OUTPUT, PARTITIONS, ROUNDS, Application, check_copies, create_topics, java

from kbroker.client import Producer

pytestmark = [pytest.mark.jvm, pytest.mark.soak, pytest.mark.timeout(3600)]

INPUT = 'input'
SOURCES = pathlib.Path(__file__).parent / 'flink'
OPENED = ('java.lang', 'java.util')
"""The packages of Java whose private fields Flink reads."""


class Flink(Application):
    def __init__(self, address, producer, directory, naming):
        super().__init__(directory / 'flink.log')
        self._address = address
        self._producer = producer
        self._checkpoints = directory / 'checkpoints'
        self._naming = naming

    def command(self):
        options = [word for package in OPENED for word in ('--add-opens', f'java.base/{package}=ALL-UNNAMED')]
        words = [*java(SOURCES, '700m', *options), 'kbroker.FlinkCopy', self._address, INPUT, OUTPUT,
                 self._checkpoints.as_uri(), self._naming]
        written = list(self._checkpoints.glob('*/chk-*/_metadata'))
        if written:
            last = max(written, key=lambda path: path.stat().st_mtime_ns)
            words.append(last.parent.as_uri())
        return words

    def feed(self, numbers):
        for number in numbers:
            self._producer.send(INPUT, b'%d' % number, partition=number % PARTITIONS)
        self._producer.flush()


@pytest.mark.parametrize('naming', ['INCREMENTING', 'POOLING'])
def test_flink_copies_each_record_once_while_it_and_the_broker_are_killed(
        start_broker, tmp_path, naming, soak_count, tally):
    broker = start_broker()
    create_topics(broker.address, INPUT)
    with (Producer(broker.address) as producer,
          Flink(broker.address, producer, tmp_path, naming) as application):
        check_copies(broker, application, naming, soak_count(ROUNDS, 5))
    tally('kills of a broker, a client or an application', soak_count(ROUNDS, 5))
