"""Apache Kafka reads the metadata snapshots that kbroker writes, and a metadata log that begins at a snapshot."""
import itertools
import re
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from support.brokers.broker_process import BrokerProcess, killed_at_the_end
from support.kafka.apache_kafka import KafkaProcess, dump_log
from support.runner.command_runner import run_command

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

LIMIT_S = 120
SETTINGS = {'metadata.log.max.record.bytes.between.snapshots': '2000', 'metadata.max.retention.bytes': '6000',
            'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1'}


def done(futures):
    for future in futures.values():
        future.result(LIMIT_S)


def change_metadata(address, rounds):
    """Create and delete topics, change configs, and allocate producer ids."""
    admin = AdminClient({'bootstrap.servers': address})
    for number in rounds:
        done(admin.create_topics([NewTopic(f'{kind}-{number}', 3, 1) for kind in ('kept', 'deleted')]))
        done(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, f'kept-{number}', incremental_configs=[
            ConfigEntry('retention.ms', '604800001', incremental_operation=AlterConfigOpType.SET)])]))
        done(admin.delete_topics([f'deleted-{number}']))
        producer = confluent_kafka.Producer({'bootstrap.servers': address, 'enable.idempotence': True})
        producer.produce(f'kept-{number}', f'value {number}', partition=0)
        assert producer.flush(LIMIT_S) == 0
        await_changes(admin, number)


def await_changes(admin, number):
    """Wait until the broker shows the changes of a round. A broker of Kafka applies changes later than its controller.
    """
    deadline = time.monotonic() + LIMIT_S
    topics = {}
    while f'kept-{number}' not in topics or f'deleted-{number}' in topics:
        assert time.monotonic() < deadline, topics
        topics = admin.list_topics(timeout=LIMIT_S).topics


def state_of(address):
    """Return the topics with their partitions, ids and retention."""
    admin = AdminClient({'bootstrap.servers': address})
    topics = {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=LIMIT_S).topics.items()}
    described = admin.describe_topics(confluent_kafka.TopicCollection([name for name in topics if 'kept' in name]))
    ids = {name: str(future.result(LIMIT_S).topic_id) for name, future in described.items()}
    wanted = [ConfigResource(ResourceType.TOPIC, name) for name in ids]
    configs = {resource.name: future.result(LIMIT_S)['retention.ms'].value
               for resource, future in admin.describe_configs(wanted).items()}
    return topics, ids, configs


def first_offset(directory):
    return min(int(path.stem) for path in (directory / '__cluster_metadata-0').glob('*.log'))


@pytest.mark.parametrize('is_killed', [False, True])
def test_kafka_opens_a_directory_whose_metadata_log_begins_at_a_snapshot(tmp_path, is_killed):
    directory = tmp_path / 'data'
    kbroker, kafka = BrokerProcess(directory, SETTINGS), KafkaProcess(directory)
    rounds = itertools.count(15)
    with killed_at_the_end(kbroker, kafka):
        kbroker.start()
        change_metadata(kbroker.address, range(15))
        while first_offset(directory) == 0:     # a worker removes the beginning of the log, whenever it has the time
            change_metadata(kbroker.address, [next(rounds)])
        before = state_of(kbroker.address)
        if is_killed:
            kbroker.kill9()
        else:
            kbroker.stop()
        assert not kbroker.tracebacks()
        check = run_command('check', directory)
        assert check.returncode == 0, check.stdout + check.stderr
        snapshots = sorted((directory / '__cluster_metadata-0').glob('*.checkpoint'))
        text = dump_log(*snapshots[1:], decode='cluster-metadata')
        assert not re.search('corrupt|Exception|unexpected', text, re.IGNORECASE), text
        assert text.count('SnapshotHeader') == text.count('SnapshotFooter') == len(snapshots) - 1
        assert '"type":"TOPIC_RECORD"' in text and '"type":"PRODUCER_IDS_RECORD"' in text
        kafka.start()
        assert state_of(kafka.address) == before
        change_metadata(kafka.address, itertools.islice(rounds, 2))
        after = state_of(kafka.address)
        kafka.stop()
        assert is_killed or kafka.errors() == []
        assert not list(directory.glob('*-stray'))
        kbroker.start()
        assert state_of(kbroker.address) == after
        change_metadata(kbroker.address, itertools.islice(rounds, 4))
        kbroker.stop()
