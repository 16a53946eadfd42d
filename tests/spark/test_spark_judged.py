"""Spark's own connector, librdkafka and kbroker's source return the same rows.

kbroker's source reads both from the broker and from its files. Each test runs with kbroker and with Apache Kafka as the
broker.
"""
import os
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess

from kbroker_tools.spark.options import parse_options
from kbroker_tools.spark.tasks import open_place

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

COLUMNS = ['topic', 'partition', 'offset', 'key', 'value', 'timestamp', 'timestampType', 'headers']
CODECS = ('none', 'gzip', 'snappy', 'lz4', 'zstd')
TOPICS = {'plain': {}, 'stamped': {'message.timestamp.type': 'LogAppendTime'}, 'mixed': {'segment.bytes': str(1 << 20)},
          'empty': {}, 'aborted': {}, 'cut': {}}
WHEN_MS = 1_700_000_000_000


@pytest.fixture(scope='module', params=['kbroker', 'apache-kafka'])
def broker(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp('judged') / 'data'
    # With the default interval, it may take a minute until the checkpoint file has a new log start.
    settings = {'log.flush.start.offset.checkpoint.interval.ms': '100'}
    if request.param == 'apache-kafka':
        started = KafkaProcess(directory, {**settings, 'log.initial.task.delay.ms': '100'})
    else:
        started = BrokerProcess(directory, settings)
    started.start()
    fill(started.address)
    yield started
    started.kill9()
    assert started.tracebacks() == []


def fill(address):
    admin = AdminClient({'bootstrap.servers': address})
    for created in admin.create_topics([NewTopic(name, 3, 1, config=config)
                                        for name, config in TOPICS.items()]).values():
        created.result(120)
    for codec in CODECS:
        plain = confluent_kafka.Producer({'bootstrap.servers': address, 'compression.type': codec, 'linger.ms': 20,
                                          'topic.metadata.refresh.interval.ms': 1000})
        for number in range(60):
            plain.produce('plain', f'{codec}-{number}' * 5, b'k%d' % (number % 7), number % 2,
                          timestamp=WHEN_MS + number)
            plain.produce('stamped', codec, partition=number % 3, timestamp=5)
        plain.produce('plain', None, b'null', 0, headers=[('a', b'1'), ('a', None), ('', b'')])
        plain.produce('plain', b'', None, 0, headers=[('b', b'')])
        plain.produce('cut', codec, partition=0)
        assert plain.flush(120) == 0
    transact(address)
    admin.delete_records([confluent_kafka.TopicPartition('cut', 0, 2)])[
        confluent_kafka.TopicPartition('cut', 0, 2)].result(120)


def transact(address):
    """Write concurrent transactions of several producers: committed, aborted and, at the end, open."""
    producers = []
    for name in 'abc':
        producers.append(confluent_kafka.Producer({'bootstrap.servers': address, 'transactional.id': name,
                                                   'compression.type': 'lz4', 'transaction.timeout.ms': 600_000}))
        producers[-1].init_transactions(120)
    for turn in range(8):
        for producer in producers:
            producer.begin_transaction()
        for number in range(30):
            for which, producer in enumerate(producers):
                producer.produce('mixed', b'%d-%d-%d ' % (turn, which, number) + os.urandom(6000), partition=number % 3)
                if number % 10 == 9:
                    producer.flush(120)
        for which, producer in enumerate(producers):
            if turn == 7 and which == 2:
                producer.produce('mixed', b'open', partition=1)
                producer.flush(120)
            elif (turn + which) % 2:
                producer.commit_transaction(120)
            else:
                producer.abort_transaction(120)
    producers[0].begin_transaction()
    for number in range(20):
        producers[0].produce('aborted', str(number), partition=number % 2)
    producers[0].flush(120)
    producers[0].abort_transaction(120)


def consumed(address, isolation):
    consumer = confluent_kafka.Consumer({
        'bootstrap.servers': address, 'group.id': 'judge', 'isolation.level': isolation, 'enable.partition.eof': True,
        'enable.auto.commit': False, 'auto.offset.reset': 'earliest'})
    left = {(topic, partition) for topic in TOPICS for partition in range(3)}
    consumer.assign([confluent_kafka.TopicPartition(*each, confluent_kafka.OFFSET_BEGINNING) for each in left])
    rows, until = [], time.monotonic() + 120
    while left and time.monotonic() < until:
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                kind, at_ms = message.timestamp()
                rows.append((message.topic(), message.partition(), message.offset(), message.key(), message.value(),
                             at_ms, kind - 1, message.headers()))
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                left.discard((message.topic(), message.partition()))
    consumer.close()
    assert not left
    return sorted(rows, key=lambda row: row[:3])


def shown(frame):
    rows = frame.selectExpr(*COLUMNS[:5], 'unix_millis(timestamp) AS timestamp', *COLUMNS[6:]).toArrow().to_pylist()
    plain = [(*(row[name] for name in COLUMNS[:7]),
              row['headers'] and [(header['key'], header['value']) for header in row['headers']]) for row in rows]
    return sorted(plain, key=lambda row: row[:3])


@pytest.mark.parametrize('isolation', ['read_committed', 'read_uncommitted'])
def test_all_readers_give_the_same_rows(spark, broker, isolation):
    expected = consumed(broker.address, isolation)
    at_broker = {'kafka.bootstrap.servers': broker.address, 'subscribe': ','.join(TOPICS)}
    reads = {
        'connector': ('kafka', {**at_broker, 'kafka.isolation.level': isolation}),
        'broker': ('kbroker', {**at_broker, 'isolation': isolation}),
        'broker in pieces': ('kbroker', {**at_broker, 'isolation': isolation, 'maxRecordsPerPartition': '100'}),
        'files': ('kbroker', {'path': str(broker.directory), 'isolation': isolation}),
        'files in pieces': ('kbroker', {'path': str(broker.directory), 'isolation': isolation, 'splitBytes': '64k'}),
    }
    if isolation == 'read_committed':
        assert {row[0] for row in expected} == {'plain', 'stamped', 'mixed', 'cut'}
    for name, (source, options) in reads.items():
        found = shown(spark.read.format(source).options(includeHeaders='true', **options).load())
        assert found == expected, name


def test_offsets_offline_are_those_of_the_broker(broker):
    for isolation in ('read_committed', 'read_uncommitted'):
        files = open_place(parse_options({'path': str(broker.directory), 'isolation': isolation}))
        live = open_place(parse_options({'kafka.bootstrap.servers': broker.address, 'isolation': isolation,
                                         'subscribe': ','.join(TOPICS)}))
        for topic in TOPICS:
            for partition in range(3):
                assert files.bounds(topic, partition) == live.bounds(topic, partition)


def test_outcomes_are_the_same_from_a_broker_and_from_files(spark, broker):
    options = {'subscribe': 'mixed,aborted', 'isolation': 'read_uncommitted', 'includeTransactions': 'true'}
    frames = [spark.read.format('kbroker').options(**options, **place).load().drop('leader_epoch') for place in (
        {'path': str(broker.directory)}, {'kafka.bootstrap.servers': broker.address},
        {'kafka.bootstrap.servers': broker.address, 'maxRecordsPerPartition': '50'})]
    found = [sorted(frame.toArrow().to_pylist(), key=lambda row: (row['topic'], row['partition'], row['offset']))
             for frame in frames]
    assert found[0] == found[1] == found[2]
    assert {row['outcome'] for row in found[0]} == {'committed', 'aborted', 'open'}
    by_value = {row['value'][:5]: row['outcome'] for row in found[0] if row['topic'] == 'mixed'}
    assert by_value[b'0-0-0'] == 'aborted' and by_value[b'0-1-0'] == 'committed' and by_value[b'7-2-0'] == 'open'


def test_a_query_for_the_connector_works_after_its_format_is_changed(spark, broker):
    options = {'kafka.bootstrap.servers': broker.address, 'subscribePattern': 'plain|stamped', 'minPartitions': '6',
               'startingOffsets': '{"plain":{"0":3,"1":-2,"2":-2},"stamped":{"0":-2,"1":5,"2":-2}}',
               'endingOffsets': '{"plain":{"0":-1,"1":20,"2":-1},"stamped":{"0":-1,"1":-1,"2":9}}',
               'failOnDataLoss': 'true', 'kafkaConsumer.pollTimeoutMs': '20000', 'fetchOffset.numRetries': '3',
               'groupIdPrefix': 'judge', 'kafka.max.poll.records': '100', 'includeHeaders': 'true'}
    assert shown(spark.read.format('kbroker').options(**options).load()) == shown(
        spark.read.format('kafka').options(**options).load())
    by_time = {'kafka.bootstrap.servers': broker.address, 'assign': '{"plain":[0,1]}', 'includeHeaders': 'true',
               'startingTimestamp': str(WHEN_MS + 40), 'endingOffsetsByTimestamp':
                   f'{{"plain":{{"0":{WHEN_MS + 50},"1":{WHEN_MS + 50}}}}}'}
    found = [shown(spark.read.format(source).options(**by_time).load()) for source in ('kbroker', 'kafka')]
    assert found[0] == found[1] == [row for row in found[0] if row[0] == 'plain'] != []
    offline = {name: text for name, text in by_time.items() if not name.startswith('kafka.')}
    assert shown(spark.read.format('kbroker').options(**offline, path=str(broker.directory)).load()) == found[0]
