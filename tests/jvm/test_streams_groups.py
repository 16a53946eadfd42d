"""Kafka Streams counts exactly once with the broker's streams groups (KIP-1071), while instances and the broker are
killed and restarted."""
import collections
import contextlib
import random
import subprocess
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from support.brokers.broker_process import BrokerProcess
from support.clients.librdkafka import create_topics
from support.kafka.apache_kafka import java, run_tool

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

APPLICATION, WORDS, COUNTS = 'counting', 'words', 'counts'
PARTITIONS = 4
WAIT_S = 180
TOOL = 'org.apache.kafka.tools.streams.StreamsGroupCommand'
SETTINGS = {'group.streams.min.session.timeout.ms': 5000, 'group.streams.session.timeout.ms': 6000,
            'group.streams.min.heartbeat.interval.ms': 500, 'group.streams.heartbeat.interval.ms': 1000,
            'group.streams.initial.rebalance.delay.ms': 500, 'group.streams.num.standby.replicas': 1}


@pytest.fixture
def broker(tmp_path):
    """A broker that removes a killed member of a streams group within seconds."""
    process = BrokerProcess(tmp_path / 'broker', {name: str(value) for name, value in SETTINGS.items()})
    process.start()
    yield process
    assert not process.tracebacks()
    process.stop()


class Instance:
    """An instance of the application, in a separate virtual machine."""

    def __init__(self, address, directory):
        self._process = subprocess.Popen(
            java('kbroker.StreamsCount', address, APPLICATION, WORDS, COUNTS, str(directory)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._is_running = threading.Event()
        self._output = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._output.append(line)
            if line == 'RUNNING\n':
                self._is_running.set()

    def wait_until_running(self):
        assert self._is_running.wait(WAIT_S), ''.join(self._output)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def stop(self):
        """Close the application, which leaves the group."""
        self._process.terminate()
        self._process.wait(WAIT_S)

    @property
    def output(self):
        return ''.join(self._output)


def produce(address, words):
    producer = Producer({'bootstrap.servers': address, 'enable.idempotence': True})
    for number, word in enumerate(words):
        producer.produce(WORDS, key=str(number), value=word, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def read_counts(consumer, expected, instances):
    """Read counts until each word has its expected count. Check that the counts of each word only rise."""
    found = {}
    for _ in range(WAIT_S):
        for message in consumer.consume(1000, timeout=1):
            assert message.error() is None
            count = int.from_bytes(message.value(), 'big')
            word = message.key().decode()
            assert count > found.get(word, 0)
            found[word] = count
        if found == expected:
            return
    differing = {word: (found.get(word), count) for word, count in expected.items() if found.get(word) != count}
    raise AssertionError(f'{differing}\n' + '\n'.join(instance.output[-3000:] for instance in instances))


def await_description(broker, expected, *options):
    """Describe the group with Kafka's tool until the expected text appears. Members get standby tasks later than active
    tasks.
    """
    end = time.monotonic() + WAIT_S
    while expected not in (text := run_tool(TOOL, '--bootstrap-server', broker.address, '--describe', '--group',
                                            APPLICATION, *options)):
        assert time.monotonic() < end, text


def test_words_are_counted_exactly_once_while_an_instance_is_killed(broker, tmp_path):
    create_topics(broker.address, **{WORDS: PARTITIONS, COUNTS: PARTITIONS})
    rng = random.Random(7)
    words = [f'word{rng.randrange(50)}' for _ in range(6000)]
    with contextlib.ExitStack() as ends:
        instances = [Instance(broker.address, tmp_path / f'state{number}') for number in range(2)]
        for instance in instances:
            ends.callback(instance.kill)
        for instance in instances:
            instance.wait_until_running()
        await_description(broker, 'Stable', '--state')
        consumer = Consumer({'bootstrap.servers': broker.address, 'group.id': 'reader',
                             'isolation.level': 'read_committed', 'auto.offset.reset': 'earliest'})
        ends.callback(consumer.close)
        consumer.subscribe([COUNTS])
        produce(broker.address, words[:3000])
        described = run_tool(TOOL, '--bootstrap-server', broker.address, '--describe', '--group', APPLICATION,
                             '--members', '--verbose')
        assert described.count(f'{APPLICATION}-') >= 2, described
        instances[0].kill()
        produce(broker.address, words[3000:])
        read_counts(consumer, collections.Counter(words), instances)
        await_description(broker, 'Stable', '--state')
    assert {f'{APPLICATION}-words-repartition', f'{APPLICATION}-KSTREAM-AGGREGATE-STATE-STORE-0000000002-changelog'
            } <= set(AdminClient({'bootstrap.servers': broker.address}).list_topics(timeout=60).topics)


def test_words_are_counted_exactly_once_by_instances_with_standbys_while_the_broker_is_killed(broker, tmp_path):
    """The test kills the broker. Then it replaces each of three instances by a new instance on the same state
    directory.
    """
    create_topics(broker.address, **{WORDS: PARTITIONS, COUNTS: PARTITIONS})
    rng = random.Random(8)
    words = [f'word{rng.randrange(50)}' for _ in range(6000)]
    with contextlib.ExitStack() as ends:
        def start(number):
            instance = Instance(broker.address, tmp_path / f'state{number}')
            ends.callback(instance.kill)
            return instance

        instances = [start(number) for number in range(3)]
        for instance in instances:
            instance.wait_until_running()
        consumer = Consumer({'bootstrap.servers': broker.address, 'group.id': 'reader',
                             'isolation.level': 'read_committed', 'auto.offset.reset': 'earliest'})
        ends.callback(consumer.close)
        consumer.subscribe([COUNTS])
        produce(broker.address, words[:2000])
        broker.kill9()
        broker.start()
        produce(broker.address, words[2000:4000])
        read_counts(consumer, collections.Counter(words[:4000]), instances)
        await_description(broker, 'STANDBY:', '--members')
        for number in range(3):
            instances[number].stop()
            produce(broker.address, words[4000 + 600 * number:4600 + 600 * number])
            instances[number] = start(number)
            instances[number].wait_until_running()
        produce(broker.address, words[5800:])
        read_counts(consumer, collections.Counter(words), instances)
