"""kbroker opens a log directory of Apache Kafka, and Apache Kafka opens a log directory of kbroker."""
import json
import re
import shutil
import time
from contextlib import closing

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from raw_peer import RawPeer
from support.brokers.broker_process import BrokerProcess, killed_at_the_end
from support.clients.librdkafka import LIMIT_S, committed_offset, create_topics, values_of
from support.clients.raw_client import RawClient
from support.clients.sample_topic import sample_topic
from support.kafka.apache_kafka import KafkaProcess, dump_log, run_tools
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.record.batch import encode_batch

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

REASSIGN = 'org.apache.kafka.tools.reassign.ReassignPartitionsCommand'
PLAIN = {f'plain {number}' for number in range(20)}
QUOTAS = {(('client-id', 'app'), ('user', 'alice')): {'producer_byte_rate': 1048576.0, 'request_percentage': 25.5},
          (('user', None),): {'controller_mutation_rate': 0.5},
          (('ip', '10.0.0.1'),): {'connection_creation_rate': 5.0}}


def set_quotas(address):
    cluster = Cluster(ClientConfig.load(address))
    for entity, quotas in QUOTAS.items():
        assert Admin(cluster).alter_client_quotas(entity, quotas) is None
    cluster.close()


def quotas_of(address):
    cluster = Cluster(ClientConfig.load(address))
    found = Admin(cluster).describe_client_quotas()
    cluster.close()
    return {tuple(sorted(entity)): quotas for entity, quotas in found.items()}


def commit_once_more(address):
    """Restart the transactional producer of `sample_topic`, which aborts its open transaction, and commit a new
    transaction. Then start a second producer, because the broker may write the markers after its answer, and the start
    of a producer waits for them.
    """
    first, second = (confluent_kafka.Producer({'bootstrap.servers': address, 'transactional.id': 'history'})
                     for _ in range(2))
    first.init_transactions(LIMIT_S)
    first.begin_transaction()
    for partition in (0, 1):
        first.produce('orders', 'once more', partition=partition)
    first.commit_transaction(LIMIT_S)
    second.init_transactions(LIMIT_S)


@pytest.mark.parametrize(('first_type', 'second_type'), [(BrokerProcess, KafkaProcess), (KafkaProcess, BrokerProcess)],
                         ids=['apache-kafka-opens-it', 'kbroker-opens-it'])
def test_a_directory_that_was_stopped_cleanly_goes_to_the_other_broker(tmp_path, first_type, second_type):
    first, second = first_type(tmp_path / 'data'), second_type(tmp_path / 'data')
    with killed_at_the_end(first, second):
        first.start()
        with sample_topic(first.address):
            set_quotas(first.address)
            first.stop()
        second.start()
        assert quotas_of(second.address) == QUOTAS
        assert set(values_of(second.address, 'orders', (0, 1))) == PLAIN | {'commit_transaction'}
        assert committed_offset(second.address, 'readers', 'orders') == 10
        commit_once_more(second.address)
        values = values_of(second.address, 'orders', (0, 1))
        assert set(values) == PLAIN | {'commit_transaction', 'once more'}
        assert len(values) == len(PLAIN) + 4
        second.stop()
        assert not list((tmp_path / 'data').glob('*-stray'))
        text = dump_log(*sorted((tmp_path / 'data').glob('orders-*/*.log')))
        assert not re.search('corrupt|Exception', text), text
        first.start()
        assert quotas_of(first.address) == QUOTAS
        assert values_of(first.address, 'orders', (0, 1)) == values
        first.stop()


class KafkaOnTwoDisks(KafkaProcess):
    """Apache Kafka with a second log directory, as long as `uses_both`."""

    uses_both = True

    def _properties(self):
        directories = [self.directory, self.directory.with_name('second')][:1 + self.uses_both]
        return {**super()._properties(), 'log.dirs': ','.join(map(str, directories))}


def move_replicas_to(kafka, directory, **topics):
    """Move the replicas of all partitions of topics to one log directory. `topics` maps names to partition counts."""
    file = directory.with_name('moves.json')
    file.write_text(json.dumps({'version': 1, 'partitions': [
        {'topic': name, 'partition': partition, 'replicas': [1], 'log_dirs': [str(directory)]}
        for name, count in topics.items() for partition in range(count)]}))
    arguments = ['--bootstrap-server', kafka.address, '--reassignment-json-file', str(file)]
    started, = run_tools(REASSIGN, [*arguments, '--execute'])
    assert started.code == 0, started
    deadline = time.monotonic() + LIMIT_S
    verified, = run_tools(REASSIGN, [*arguments, '--verify'])
    while verified.output.count('completed successfully') < sum(topics.values()):
        assert time.monotonic() < deadline, verified
        verified, = run_tools(REASSIGN, [*arguments, '--verify'])


def test_kbroker_opens_one_of_two_log_directories_after_kafka_has_emptied_the_other(tmp_path):
    kafka, broker = KafkaOnTwoDisks(tmp_path / 'data'), BrokerProcess(tmp_path / 'data')
    with killed_at_the_end(kafka, broker):
        kafka.start()
        create_topics(kafka.address, orders=4)
        producer = confluent_kafka.Producer({'bootstrap.servers': kafka.address, 'log_level': 0})
        for partition in range(4):
            producer.produce('orders', f'value {partition}', partition=partition)
        assert producer.flush(LIMIT_S) == 0
        move_replicas_to(kafka, kafka.directory, orders=4)
        kafka.stop()
        with pytest.raises(AssertionError, match='found 2 log directories in use by broker 1, expected one'):
            broker.start()
        kafka.uses_both = False
        kafka.start()
        kafka.stop()
        broker.start()
        assert set(values_of(broker.address, 'orders', range(4))) == {f'value {partition}' for partition in range(4)}
        broker.stop()


def test_kafka_opens_what_a_killed_broker_left_without_index_files(tmp_path):
    """kbroker creates an index file when it writes the first entry, or at a clean stop."""
    killed, kafka = BrokerProcess(tmp_path / 'data'), KafkaProcess(tmp_path / 'data')
    with killed_at_the_end(killed, kafka):
        killed.start()
        create_topics(killed.address, orders=2)
        producer = confluent_kafka.Producer({'bootstrap.servers': killed.address, 'enable.idempotence': True})
        for partition in (0, 1):
            producer.produce('orders', f'plain {partition}', partition=partition)
        assert producer.flush(LIMIT_S) == 0
        killed.kill9()
        assert not list((tmp_path / 'data').glob('orders-*/*index'))
        kafka.start()
        assert set(values_of(kafka.address, 'orders', (0, 1))) == {'plain 0', 'plain 1'}
        kafka.stop()
        assert len(list((tmp_path / 'data').glob('orders-*/*index'))) == 4


@pytest.mark.parametrize('is_killed', [False, True])
def test_kafka_logs_no_error_on_deletions_in_progress_strays_and_empty_partitions(tmp_path, is_killed):
    """Kafka also loads the directories of deleted partitions. After a clean stop, it expects an index for each of their
    segments.
    """
    directory = tmp_path / 'data'
    first, kafka = BrokerProcess(directory), KafkaProcess(directory)
    with killed_at_the_end(first, kafka):
        first.start()
        admin = AdminClient({'bootstrap.servers': first.address, 'log_level': 0})
        create_topics(first.address, kept=2, deleted=2, empty=2, never=2)
        producer = confluent_kafka.Producer({'bootstrap.servers': first.address, 'enable.idempotence': True,
                                             'log_level': 0})
        for name in ('kept', 'deleted'):
            producer.produce(name, 'value', partition=0)
        assert producer.flush(LIMIT_S) == 0
        first.kill9()
        shutil.copytree(directory / 'kept-0', directory / 'lost-0')
        first.start()
        for deleted in admin.delete_topics(['deleted', 'empty']).values():
            deleted.result(LIMIT_S)
        if is_killed:
            first.kill9()
        else:
            first.stop()
        states = sorted(path.name.rpartition('-')[2] for path in directory.glob('*-[0-9].*'))
        assert states == ['delete'] * 4 + ['stray']
        kafka.start()
        kafka.stop()
        assert kafka.errors() == []
        assert [line for line in kafka.lines if ' WARN ' in line and re.search('index|[Cc]orrupt', line)] == []


def sent_batches(address, producer_id):
    """Send five batches of an idempotent producer to `orders`. Return (error code, base offset) of each answer."""
    with RawClient.at(address) as client:
        return [(answer.error_code, answer.base_offset) for number in range(5) for answer in client.ask(
            build('ProduceRequest', acks=-1, timeout_ms=5000, topic_data=[{'name': 'orders', 'partition_data': [
                {'index': 0, 'records': bytes(encode_batch(
                    [(now_ms(), None, b'value')] * 2, producer_id=producer_id, producer_epoch=0,
                    base_sequence=2 * number))}]}]), 9).responses[0].partition_responses]


def now_ms():
    return int(time.time() * 1000)


@pytest.mark.parametrize('second_type', [BrokerProcess, KafkaProcess], ids=['kbroker', 'apache-kafka'])
def test_batches_that_a_producer_repeats_after_a_clean_stop_are_recognised(tmp_path, second_type):
    """A producer snapshot at the end of the log has only the last batch of each producer. In an earlier version, the
    broker therefore refused the repetition of an older batch, which ended librdkafka's producer.
    """
    first, second = BrokerProcess(tmp_path / 'data'), second_type(tmp_path / 'data')
    with killed_at_the_end(first, second):
        first.start()
        create_topics(first.address, orders=1)
        answers = {}
        for producer_id in (1000, 1001):
            answers[producer_id] = sent_batches(first.address, producer_id)
        assert [answer for producer_id in answers for answer in answers[producer_id]] == [
            (0, 2 * number) for number in range(10)]
        first.stop()
        second.start()
        for producer_id in (1001, 1000):
            assert sent_batches(second.address, producer_id) == answers[producer_id]
        second.stop()


def bump(address, pair):
    """Ask for the next epoch of the transactional id `tx`. Return (error code, producer id, producer epoch)."""
    with closing(RawPeer(address, 'tx')) as peer:
        peer.prepare('FindCoordinator', 4, coordinator_keys=['tx'], key_type=1)
        answer = peer.ask_settled('InitProducerId', 4, transactional_id='tx', transaction_timeout_ms=60_000,
                                  producer_id=pair[0], producer_epoch=pair[1])
        return answer.error_code, answer.producer_id, answer.producer_epoch


def test_the_lost_answer_to_a_bump_is_repeated_after_a_start_unless_kafka_wrote_the_row(tmp_path):
    """The row has a tag that Kafka skips. Kafka fences the producer; kbroker does so after the next row of Kafka."""
    directory = tmp_path / 'data'
    kbroker, kafka = BrokerProcess(directory), KafkaProcess(directory)
    fenced = ErrorCode.PRODUCER_FENCED, -1, -1
    with killed_at_the_end(kbroker, kafka):
        kbroker.start()
        code, producer_id, epoch = bump(kbroker.address, (-1, -1))
        assert (code, epoch) == (0, 0)
        assert bump(kbroker.address, (producer_id, 0)) == (0, producer_id, 1)
        kbroker.stop()
        kbroker.start()
        assert bump(kbroker.address, (producer_id, 0)) == (0, producer_id, 1)
        kbroker.stop()
        kafka.start()
        assert bump(kafka.address, (producer_id, 0)) == fenced
        assert bump(kafka.address, (producer_id, 1)) == (0, producer_id, 2)
        kafka.stop()
        assert kafka.errors() == []
        text = dump_log(*directory.glob('__transaction_state-*/*.log'))
        assert not re.search('corrupt|Exception', text), text
        kbroker.start()
        assert bump(kbroker.address, (producer_id, 1)) == fenced
        assert bump(kbroker.address, (producer_id, 2)) == (0, producer_id, 3)
        assert bump(kbroker.address, (producer_id, 2)) == (0, producer_id, 3)
        kbroker.stop()
