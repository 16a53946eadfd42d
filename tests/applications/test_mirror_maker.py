"""MirrorMaker 2 copies each record of topics of kbroker and Apache Kafka to the other broker exactly once.

Each copy has the committed records of its original in their order, without the aborted ones. A consumer group that read
the original continues in the copy, at offsets that MirrorMaker translates (KIP-382, KIP-545, KIP-618).

Covers promises 1, 2, 4 and 5 of docs/design.md.
"""
import pathlib
import random
import time
from contextlib import ExitStack

import pytest
from killed_copies import MORE_S, ROUNDS, WAIT_S, KilledProcess, await_markers, java
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.kafka.apache_kafka import KafkaProcess
from support.runner.free_ports import free_port

from kbroker.client import Admin, Consumer, NewTopic, Producer

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

SOURCES = pathlib.Path(__file__).parent / 'mirror'
RELEASE = '4.3'
"""The newest release of connect-mirror that Maven Central returned: it did not have 4.4.0."""
TOPIC, PARTITIONS = 'orders', 2
GROUP, GROUP_BEHIND = 'readers', 'readers-behind'
TRANSACTIONS, BEHIND = 30, 8
TIMESTAMP_MS = 1_700_000_000_000
PAUSE_S = 0.1
COMMITTED = {'isolation_level': 'read_committed', 'auto_offset_reset': 'earliest'}


class MirroredCluster:
    """A broker with a topic of its own. `committed` has the committed records of the topic in their order:
    {partition: [(key, value, headers, timestamp in ms)]}.
    """

    def __init__(self, name, broker):
        self.name = name
        self.broker = broker
        self.committed = {partition: [] for partition in range(PARTITIONS)}

    @property
    def address(self):
        return self.broker.address

    def create_topic(self):
        with Admin(self.address) as admin:
            assert admin.create_topics([NewTopic(TOPIC, PARTITIONS)]) == {TOPIC: None}

    def write(self, transactions):
        """Write transactions with a record for each partition. Abort every third."""
        with Producer(self.address, transactional_id='writer') as producer:
            for number in range(transactions):
                is_aborted = number % 3 == 2
                producer.begin_transaction()
                for partition, records in self.committed.items():
                    place = b'%d-%d' % (partition, len(records))
                    value = b'aborted' if is_aborted else b'%s in %s' % (place, self.name.encode())
                    key, headers, timestamp_ms = place, [('place', place)], TIMESTAMP_MS + len(records)
                    producer.send(TOPIC, value, key, headers, partition=partition, timestamp_ms=timestamp_ms)
                    if not is_aborted:
                        records.append((key, value, headers, timestamp_ms))
                if is_aborted:
                    producer.flush()    # otherwise the records of the aborted transaction may never be written
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()


class Mirror(KilledProcess):
    """MirrorMaker 2 as one process for both directions. It stores its state in topics of both clusters."""

    def __init__(self, clusters, directory):
        super().__init__(directory / 'mirror.log')
        self._settings = directory / 'mirror.properties'
        names = [cluster.name for cluster in clusters]
        settings = {
            'clusters': ','.join(names), 'topics': TOPIC, 'groups': f'{GROUP}.*', 'offset.lag.max': 0,
            'sync.group.offsets.enabled': 'true', 'dedicated.mode.enable.internal.rest': 'true',
            'listeners': f'http://127.0.0.1:{free_port()}'}
        settings |= dict.fromkeys((f'{work}.interval.seconds' for work in (
            'refresh.topics', 'refresh.groups', 'sync.topic.configs', 'emit.checkpoints', 'sync.group.offsets')), 1)
        settings |= dict.fromkeys(('replication.factor', *(f'{kind}.replication.factor' for kind in (
            'checkpoints.topic', 'heartbeats.topic', 'offset-syncs.topic', 'config.storage', 'offset.storage',
            'status.storage'))), 1)
        for cluster in clusters:
            settings |= {f'{cluster.name}.{name}': value for name, value in {
                'bootstrap.servers': cluster.address, 'exactly.once.source.support': 'enabled',
                'consumer.isolation.level': 'read_committed', 'session.timeout.ms': 6000,
                'heartbeat.interval.ms': 500, 'scheduled.rebalance.max.delay.ms': 0}.items()}
        settings |= {f'{source}->{target}.enabled': 'true' for source in names for target in names if source != target}
        self._settings.write_text(''.join(f'{name}={value}\n' for name, value in settings.items()))

    def command(self):
        return [*java(SOURCES, '500m', release=RELEASE), 'org.apache.kafka.connect.mirror.MirrorMaker',
                str(self._settings)]

    def await_(self, condition, what):
        """Wait until the condition holds. MirrorMaker acts at intervals of a second, after a start of many seconds."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f'{what()}\n{self.output}'
            time.sleep(PAUSE_S)


class Copy:
    """The copy of the topic of `source` in `target`. `found` has its records in the form of
    `MirroredCluster.committed`.
    """

    def __init__(self, source, target, mirror):
        self.source = source
        self.target = target
        self.name = f'{source.name}.{TOPIC}'
        self.found = {partition: [] for partition in range(PARTITIONS)}
        self._partitions = [(self.name, partition) for partition in range(PARTITIONS)]
        self._next_offsets = {}
        self._mirror = mirror
        self._admin = Admin(target.address)
        self._consumer = Consumer(target.address, **COMMITTED)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._consumer.close()
        self._admin.close()

    def await_topic(self):
        self._mirror.await_(lambda: self.name in self._admin.cluster.topics(), lambda: f'no topic {self.name}')
        self._consumer.assign(self._partitions)

    def await_records(self):
        """Wait until the copy has all records of the original, and check that it has nothing else."""
        self._mirror.await_(lambda: self.read() >= count_of(self.source.committed),
                            lambda: f'{self.name} has {count_of(self.found)} of {count_of(self.source.committed)}')
        assert self.found == self.source.committed

    def check_is_transactional(self):
        """Check that MirrorMaker writes the copy in transactions, without which a kill could repeat records."""
        states = {listed.transactional_id: listed.state for listed in self._admin.list_transactions()}
        assert f'{self.source.name}-mm2-MirrorSourceConnector-0' in states, states

    def read(self):
        """Read more records. Return the number of records that were read so far."""
        for batch in self._consumer.poll(500):
            self.found[batch.partition] += contents_of(batch)
            self._next_offsets[self.name, batch.partition] = batch.records()[-1].offset + 1
        for partition, records in self.found.items():
            assert records == self.source.committed[partition][:len(records)], f'{self.name}-{partition}'
        return count_of(self.found)

    def await_group_at_the_end(self):
        """Wait until the group has the offsets after the last records."""
        self._mirror.await_(lambda: self._offsets_of(GROUP) == self._next_offsets,
                            lambda: f'{self._offsets_of(GROUP)}, expected {self._next_offsets}')

    def check_group_behind(self):
        """Commit offsets of a group that lags behind the copy. Check that its offsets in the copy skip no record."""
        timestamp_ms = TIMESTAMP_MS + BEHIND
        with Admin(self.source.address) as admin:
            found = admin.list_offsets(dict.fromkeys([(TOPIC, partition) for partition in range(PARTITIONS)],
                                                     timestamp_ms))
            admin.alter_group_offsets(GROUP_BEHIND, {at: listed.offset for at, listed in found.items()})
        limits = self._admin.list_offsets(dict.fromkeys(self._partitions, timestamp_ms))
        self._mirror.await_(lambda: self._offsets_of(GROUP_BEHIND).keys() == limits.keys(),
                            lambda: f'{self._offsets_of(GROUP_BEHIND)}, expected offsets of {limits.keys()}')
        for at, offset in self._offsets_of(GROUP_BEHIND).items():
            assert offset <= limits[at].offset, at

    def _offsets_of(self, group_id):
        return {at: committed.offset for at, committed in self._admin.list_group_offsets(group_id).items()
                if at[0] == self.name}

    def continue_group(self):
        """Read up to the end of the copy in the group. Return what it read, in the form of `found`."""
        return read_in_group(self.target.address, self.name, self.source.committed)

    def await_partitions_and_configs(self):
        """Add a partition to the original and set its retention. Wait until the copy has both."""
        with Admin(self.source.address) as admin:
            assert admin.create_partitions({TOPIC: PARTITIONS + 1}) == {TOPIC: None}
            admin.alter_config('topic', TOPIC, {'retention.ms': '86400001'})
        self._mirror.await_(lambda: self._partitions_and_retention() == (PARTITIONS + 1, '86400001'),
                            lambda: f'{self._partitions_and_retention()} of {self.name}')

    def _partitions_and_retention(self):
        return (len(self._admin.cluster.topics([self.name])[self.name].partitions),
                self._admin.describe_config('topic', self.name)['retention.ms'])


def read_in_group(address, topic, committed):
    """Read as a member of the group, until each partition's last record has arrived. Commit the offsets. Return what
    was read in the form of `MirroredCluster.committed`.
    """
    found = {partition: [] for partition in committed}
    end = time.monotonic() + WAIT_S
    with Consumer(address, group_id=GROUP, topics=[topic], **COMMITTED) as consumer:
        while any(records[-1:] != committed[partition][-1:] for partition, records in found.items()):
            assert time.monotonic() < end, f'the group has read {found} of {topic}'
            for batch in consumer.poll(500):
                found[batch.partition] += contents_of(batch)
        consumer.commit()
    return found


def write(clusters):
    """Write to both clusters, and read what they have in the group."""
    for cluster in clusters:
        cluster.write(TRANSACTIONS)
        read_in_group(cluster.address, TOPIC, cluster.committed)


def check_no_more_records(copies):
    end = time.monotonic() + MORE_S
    while time.monotonic() < end:
        for copy in copies:
            copy.read()
    for copy in copies:
        assert copy.found == copy.source.committed


def contents_of(batch):
    return [(record.key, record.value, record.headers, record.timestamp_ms) for record in batch.records()]


def count_of(records):
    return sum(map(len, records.values()))


@pytest.fixture
def clusters(tmp_path):
    with BrokerProcess(tmp_path / 'kbroker', PROMPT) as ours, KafkaProcess(tmp_path / 'kafka', PROMPT) as kafka:
        yield [MirroredCluster('kbroker', ours), MirroredCluster('kafka', kafka)]


@pytest.fixture
def mirror(clusters, tmp_path):
    for cluster in clusters:
        cluster.create_topic()
    with Mirror(clusters, tmp_path) as mirror:
        yield mirror


@pytest.fixture
def copies(clusters, mirror):
    with ExitStack() as stack:
        copies = [stack.enter_context(Copy(source, target, mirror))
                  for source, target in (clusters, reversed(clusters))]
        for copy in copies:
            copy.await_topic()
        yield copies


def test_each_cluster_has_the_committed_records_of_the_other_and_groups_continue_there(clusters, copies):
    write(clusters)
    for copy in copies:
        copy.await_records()
        copy.check_is_transactional()
    for copy in copies:
        copy.await_group_at_the_end()
        copy.check_group_behind()
    read = [{partition: len(records) for partition, records in copy.found.items()} for copy in copies]
    for cluster in clusters:
        cluster.write(TRANSACTIONS)
    for copy, counts in zip(copies, read, strict=True):
        copy.await_records()
        assert copy.continue_group() == {partition: copy.found[partition][count:]
                                         for partition, count in counts.items()}
    for copy in copies:
        copy.await_partitions_and_configs()
    check_no_more_records(copies)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_each_record_is_copied_once_while_the_mirror_and_both_brokers_are_killed(
        clusters, mirror, copies, soak_count, soak_seed, tally):
    rng, kills = random.Random(soak_seed), 0
    for _ in range(soak_count(ROUNDS, 5)):
        write(clusters)
        for process in rng.sample([mirror, *(cluster.broker for cluster in clusters)], rng.randrange(1, 3)):
            if process is mirror:
                process.kill()
            else:
                process.kill9()
            process.start()
            kills += 1
        if rng.random() < 0.5:
            for copy in copies:
                copy.await_records()
    for copy in copies:
        copy.await_records()
    for copy in copies:
        copy.await_group_at_the_end()
    check_no_more_records(copies)
    mirror.kill()
    for cluster in clusters:
        await_markers(cluster.address)
    tally('kills of a broker, a client or an application', kills)
