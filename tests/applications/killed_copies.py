"""An application that copies numbered records to a topic while the test kills it and its broker."""
import collections
import random
import subprocess
import time
from abc import ABC, abstractmethod

from support.clients.markers import await_markers
from support.kafka.apache_kafka import NEWEST, compiled, temporary_files

from kbroker.client import Admin, Consumer, NewTopic

OUTPUT, PARTITIONS = 'output', 4
ROUNDS, RECORDS = 25, 500
WAIT_S = 240
MORE_S = 5
"""A duplicate record would arrive within this time, in which the application commits several times."""


class KilledProcess(ABC):
    """A process that the test kills and starts again. It then continues from the state that it has saved.

    It runs during a `with` block.
    """

    def __init__(self, log):
        self._log = log
        self.process = None

    @abstractmethod
    def command(self):
        """Return the words of the command that starts the process."""

    def start(self):
        with open(self._log, 'ab') as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.kill()

    @property
    def output(self):
        return self._log.read_text()[-5000:]


class Application(KilledProcess):
    """An application that copies records, in its own process."""

    @abstractmethod
    def feed(self, numbers):
        """Write records for the application to copy."""


def java(sources, heap, *options, release=NEWEST):
    """Return the command of a small Java machine with the jars and classes of `sources`, without the main class."""
    return ['java', *options, f'-Xmx{heap}', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1',
            '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn', temporary_files(), '-cp', compiled(sources, release)]


def create_topics(address, *others):
    with Admin(address) as admin:
        names = [OUTPUT, *others]
        assert admin.create_topics([NewTopic(name, PARTITIONS) for name in names]) == dict.fromkeys(names)


def read(consumer, found, count, limit_s=WAIT_S):
    """Read until `found` has `count` records. Return False if the time limit ends first."""
    end = time.monotonic() + limit_s
    while sum(found.values()) < count:
        if time.monotonic() > end:
            return False
        found.update(record.value for batch in consumer.poll(500) for record in batch.records())
    return True


def check_copies(broker, application, seed, rounds):
    """Check that the output has each record once, and that each decided transaction has its markers."""
    rng = random.Random(seed)
    sent, found = 0, collections.Counter()
    with Consumer(broker.address, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign([(OUTPUT, partition) for partition in range(PARTITIONS)])
        for _ in range(rounds):
            application.feed(range(sent, sent + RECORDS))
            sent += RECORDS
            assert read(consumer, found, sent - rng.randrange(2 * RECORDS)), application.output
            if rng.random() < 0.4:
                broker.kill9()
                broker.start()
            if rng.random() < 0.7:
                application.kill()
                application.start()
        assert read(consumer, found, sent), application.output
        assert found == collections.Counter(b'%d' % number for number in range(sent))
        assert not read(consumer, found, sent + 1, MORE_S), found.most_common(3)
    application.kill()
    await_markers(broker.address)
