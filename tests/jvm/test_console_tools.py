"""The commands of kbroker's producer and consumer do the same on Apache Kafka as Kafka's console tools."""
import subprocess
import threading
import time

import pytest
from support.kafka.apache_kafka import KafkaProcess, java
from support.runner.command_runner import ROOT, command_line

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ConsumerSettings, ProducerSettings
from kbroker.client.transaction_manager import OffsetAndMetadata
from kbroker.client.transaction_state import FatalProducerError

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

CONSUMER = 'org.apache.kafka.tools.consumer.ConsoleConsumer'
PRODUCER = 'org.apache.kafka.tools.ConsoleProducer'
LIMIT_S = 120


@pytest.fixture(scope='module')
def kafka(tmp_path_factory):
    with KafkaProcess(tmp_path_factory.mktemp('kafka') / 'data', {'group.initial.rebalance.delay.ms': '0'}) as broker:
        yield broker


@pytest.fixture
def cluster(kafka):
    found = Cluster(ClientConfig.load(kafka.address))
    yield found
    found.close()


def create(cluster, topic, partitions=1):
    assert Admin(cluster).create_topics([NewTopic(topic, partitions)]) == {topic: None}


def run_both(main_class, name, kafka, *options, stdin=b''):
    """Run Kafka's tool and kbroker's command with the same options. Return both completed processes."""
    options = ('--bootstrap-server', kafka.address, *options)
    return tuple(subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S, check=False, cwd=ROOT)
                 for command in (java(main_class, *options), command_line(name, *options)))


def read(cluster, topic, count, isolation_level='read_uncommitted'):
    """Return (key, value, headers) of `count` records."""
    consumer = Consumer(cluster, ConsumerSettings(isolation_level=isolation_level, auto_offset_reset='earliest'))
    consumer.assign((topic, partition) for partition in cluster.topics([topic])[topic].partitions)
    found, deadline = [], time.monotonic() + LIMIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [(record.key, record.value, record.headers)
                  for batch in consumer.poll(1000) for record in batch.records()]
    consumer.close()
    return found


def switched_on(*names):
    return [option for name in names for option in ('--formatter-property', f'{name}=true')]


EVERYTHING = switched_on('print.timestamp', 'print.partition', 'print.offset', 'print.delivery', 'print.epoch',
                         'print.headers', 'print.key', 'print.value')


def test_records_are_shown_byte_for_byte_as_by_kafkas_console_consumer(kafka, cluster):
    create(cluster, 'shown')
    producer = Producer(cluster, ProducerSettings(transactional_id='shown'))
    producer.init_transactions()
    producer.begin_transaction()
    for key, value, headers in [(None, b'plain', []), (b'k', None, [('a', b'1'), ('b', None)]), (b'', b'', []),
                                (b'\xff\x00', b'\xc3(\x80', [('\u00e9', b'\xff'), ('', b'')]), (b'k\t', b'a\nb', [])]:
        producer.send('shown', value, key, headers, timestamp_ms=int(time.time() * 1000))
    producer.commit_transaction()
    for options in ([], EVERYTHING,
                    [*switched_on('print.headers', 'print.key'), '--formatter-property', 'print.value=false',
                     '--formatter-property', 'headers.separator=;', '--formatter-property', 'null.literal=-',
                     '--formatter-property', 'key.separator= = ', '--formatter-property', 'line.separator=|']):
        theirs, ours = run_both(CONSUMER, 'consume', kafka, '--topic', 'shown', '--from-beginning', '--max-messages',
                                '5', '--isolation-level', 'read_committed', *options)
        assert ours.stdout == theirs.stdout
        assert ours.stdout
        assert ours.stderr.splitlines()[-1] == theirs.stderr.splitlines()[-1] == b'Processed a total of 5 messages'


LINES = (b'h:1,i:N\tk\tv\nN\tN\tN\r\na:b:c,d:\tkey\tv1\tv2\rh:\xc3\xa9\t\t\nno separator\nx\ty\th,j:2,,\tk\tlast')


@pytest.mark.parametrize(('lines', 'properties', 'count'), [
    (LINES, ['parse.key=true', 'parse.headers=true', 'null.marker=N', 'ignore.error=true'], 6),
    (b'a=1|b=2;k:v\n|a=3;k:', ['parse.key=true', 'parse.headers=true', 'headers.delimiter=;', 'key.separator=:',
                               r'headers.separator=\|', 'headers.key.separator==', 'ignore.error=true'], 2),
])
def test_lines_become_the_records_that_kafkas_console_producer_makes_of_them(kafka, cluster, lines, properties, count):
    topics = [f'{name}-{count}' for name in ('theirs', 'ours')]
    options = [option for entry in properties for option in ('--reader-property', entry)]
    found = []
    for topic, command in zip(topics, (java(PRODUCER), command_line('produce')), strict=True):
        create(cluster, topic)
        done = subprocess.run([*command, '--bootstrap-server', kafka.address, '--topic', topic, *options], input=lines,
                              capture_output=True, timeout=LIMIT_S, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        found.append(read(cluster, topic, count))
    theirs, ours = found
    assert ours == theirs
    assert len(ours) == count


def test_a_line_in_error_is_reported_in_the_words_of_kafkas_console_producer(kafka, cluster):
    create(cluster, 'error')
    theirs, ours = run_both(PRODUCER, 'produce', kafka, '--topic', 'error', '--reader-property', 'parse.key=true',
                            stdin=b'k\tv\nbad line\n')
    words = b"No key separator found on line number 2: 'bad line'"
    assert words in theirs.stderr
    assert ours.stderr.strip() == b'kbroker-produce: ' + words
    assert ours.returncode == 1


def test_transactions_end_on_apache_kafka_as_they_should(kafka, cluster):
    create(cluster, 'transactions', 2)
    settings = ProducerSettings(transactional_id='ours', batch_size_bytes=0, linger_ms=0)
    producer = Producer(cluster, settings)
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send('transactions', b'%d' % number, partition=partition)
        producer.send_offsets_to_transaction({('transactions', 0): OffsetAndMetadata(number)},
                                             Consumer(cluster, ConsumerSettings(group_id='exactly')).group_metadata)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert producer.transactions.is_version_2
    assert producer.transactions.producer.producer_epoch == 6
    values = sorted(value for _, value, _ in read(cluster, 'transactions', 6, 'read_committed'))
    assert values == sorted([b'0', b'2', b'4'] * 2)
    assert Admin(cluster).list_group_offsets('exactly', require_stable=True)['transactions', 0].offset == 4
    producer.begin_transaction()
    producer.send('transactions', b'zombie', partition=0)
    producer.flush()
    newer = Producer(cluster, settings)
    newer.init_transactions()
    with pytest.raises(FatalProducerError):
        producer.commit_transaction()


def test_the_older_protocol_of_transactions_works_on_apache_kafka_too(kafka, cluster):
    from kbroker.client.cluster import KeyType
    create(cluster, 'older')
    cluster.coordinator(KeyType.TRANSACTION, 'older').finalized_features['transaction.version'] = 1
    producer = Producer(cluster, ProducerSettings(transactional_id='older'))
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send('older', b'%d' % number)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert producer.transactions.producer.producer_epoch == 0
    assert [value for _, value, _ in read(cluster, 'older', 2, 'read_committed')] == [b'0', b'2']


def test_a_group_is_shared_with_kafkas_console_consumer(kafka, cluster):
    create(cluster, 'shared', 4)
    quick = ['--command-property', 'session.timeout.ms=6000', '--command-property', 'heartbeat.interval.ms=200']
    java_member = subprocess.Popen(java(CONSUMER, '--bootstrap-server', kafka.address, '--topic', 'shared', '--group',
                                        'both', *quick), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    theirs = []
    reader = threading.Thread(target=lambda: theirs.extend(java_member.stdout), daemon=True)
    reader.start()
    consumer = Consumer(cluster, ConsumerSettings(group_id='both', session_timeout_ms=6000, heartbeat_interval_ms=200,
                                                  auto_offset_reset='earliest'))
    consumer.subscribe(['shared'])
    ours, deadline = [], time.monotonic() + LIMIT_S

    def poll_until(condition):
        while not condition():
            assert time.monotonic() < deadline, (consumer.assignment, ours, theirs)
            ours.extend(record.value for batch in consumer.poll(100) for record in batch.records())
    try:
        poll_until(lambda: len(consumer.assignment) == 4)
        poll_until(lambda: len(consumer.assignment) == 2)
        producer = Producer(Cluster(ClientConfig.load(kafka.address)))
        # Kafka's consumer may send its first fetch only when some of these records are written. The group still reads
        # the records that were written before the fetch.
        for number in range(40):
            producer.send('shared', b'%d' % number, partition=number % 4)
        producer.flush()
        poll_until(lambda: len(ours) >= 20)
        java_member.terminate()
        java_member.wait(LIMIT_S)
        reader.join(LIMIT_S)
        poll_until(lambda: len(consumer.assignment) == 4)
        poll_until(lambda: {int(value) for value in [*ours, *theirs]} == set(range(40)))
        consumer.close()
    finally:
        java_member.kill()
        java_member.stdout.close()
