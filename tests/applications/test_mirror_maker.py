"""MirrorMaker 2 copies each record of topics of kbroker and Apache Kafka to the other broker exactly once.

Each copy has the committed records of its original in their order, without the aborted ones. A consumer group that read
the original continues in the copy, at offsets that MirrorMaker translates (KIP-382, KIP-545, KIP-618).

Covers promises 1, 2, 4 and 5 of docs/design.md.
"""
import pathlib
import random
import time
from contextlib import ExitStack, contextmanager

import pytest
from killed_copies import MORE_S, ROUNDS, WAIT_S, KilledProcess, await_markers, java
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.kafka.apache_kafka import KafkaProcess
from support.kafka.authorized_kafka import PLAIN, AuthorizedBroker, AuthorizedKafka, password_of
from support.runner.free_ports import free_port

from kbroker.client import Admin, Consumer, NewTopic, Producer
from kbroker.client.acl import Acl

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

SOURCES = pathlib.Path(__file__).parent / 'mirror'
RELEASE = '4.3'
"""The newest release of connect-mirror that Maven Central returned: it did not have 4.4.0."""
TOPIC, GROUP, PARTITIONS = 'orders', 'readers', 2
TRANSACTIONS, BURST = 30, 150
FIRST_TIMESTAMP_MS = int(time.time() * 1000) - 3_600_000
"""The timestamp of the first record of a partition. Retention must not delete records during the test."""
PAUSE_S = 0.1
COMMITTED = {'isolation_level': 'read_committed', 'auto_offset_reset': 'earliest'}


class MirroredCluster:
    """A broker with a topic of its own. `committed` has the committed records of the topic in their order:
    {partition: [(key, value, headers, timestamp in ms)]}. If `user` is given, all clients log in.
    """

    def __init__(self, name, broker, user=None):
        self.name = name
        self.broker = broker
        self.user = user
        self.committed = {partition: [] for partition in range(PARTITIONS)}

    @property
    def client(self):
        """The servers and the login, as kbroker's clients take them."""
        login = {} if self.user is None else {
            'security_protocol': 'SASL_PLAINTEXT', 'sasl_mechanism': 'PLAIN', 'sasl_username': self.user,
            'sasl_password': password_of(self.user)}
        return {'servers': self.broker.address} | login

    def java_settings(self):
        """Return the servers and the login, as settings of Java's clients."""
        login = {} if self.user is None else {
            'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'PLAIN',
            'sasl.jaas.config': f'{PLAIN} required username="{self.user}" password="{password_of(self.user)}";'}
        return {'bootstrap.servers': self.broker.address} | login

    def create_topic(self):
        with Admin(**self.client) as admin:
            assert admin.create_topics([NewTopic(TOPIC, PARTITIONS)]) == {TOPIC: None}

    def write(self, transactions):
        """Write transactions with a record for each partition. Abort every third."""
        with Producer(**self.client, transactional_id='writer') as producer:
            for number in range(transactions):
                is_aborted = number % 3 == 2
                producer.begin_transaction()
                for partition, records in self.committed.items():
                    place = b'%d-%d' % (partition, len(records))
                    value = b'aborted' if is_aborted else b'%s in %s' % (place, self.name.encode())
                    key, headers, timestamp_ms = place, [('place', place)], FIRST_TIMESTAMP_MS + len(records)
                    producer.send(TOPIC, value, key, headers, partition=partition, timestamp_ms=timestamp_ms)
                    if not is_aborted:
                        records.append((key, value, headers, timestamp_ms))
                if is_aborted:
                    producer.flush()    # otherwise the records of the aborted transaction may never be written
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()


class Mirror(KilledProcess):
    """MirrorMaker 2 as one process for all `directions`, which are pairs of clusters. It stores its state in topics of
    the clusters. `more` has further settings.
    """

    def __init__(self, directions, directory, more=()):
        super().__init__(directory / 'mirror.log')
        self._settings = directory / 'mirror.properties'
        clusters = directions[0]
        settings = {
            'clusters': ','.join(cluster.name for cluster in clusters), 'topics': TOPIC, 'groups': GROUP,
            'offset.lag.max': 0, 'sync.group.offsets.enabled': 'true', 'dedicated.mode.enable.internal.rest': 'true',
            'listeners': f'http://127.0.0.1:{free_port()}'}
        settings |= dict.fromkeys((f'{work}.interval.seconds' for work in (
            'refresh.topics', 'refresh.groups', 'sync.topic.configs', 'emit.checkpoints', 'sync.group.offsets')), 1)
        settings |= dict.fromkeys(('replication.factor', *(f'{kind}.replication.factor' for kind in (
            'checkpoints.topic', 'heartbeats.topic', 'offset-syncs.topic', 'config.storage', 'offset.storage',
            'status.storage'))), 1)
        for cluster in clusters:
            settings |= {f'{cluster.name}.{name}': value for name, value in {
                **cluster.java_settings(), 'exactly.once.source.support': 'enabled',
                'consumer.isolation.level': 'read_committed', 'session.timeout.ms': 6000,
                'heartbeat.interval.ms': 500, 'scheduled.rebalance.max.delay.ms': 0}.items()}
        settings |= {f'{source.name}->{target.name}.enabled': 'true' for source, target in directions} | dict(more)
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
    """The copy of the topic of `source` in `target`. Its name has the prefix of MirrorMaker's default policy, unless
    `name` is given. `found` has its records in the form of `MirroredCluster.committed`.
    """

    def __init__(self, source, target, mirror, name=None):
        self.source = source
        self.target = target
        self.name = name or f'{source.name}.{TOPIC}'
        self.found = {partition: [] for partition in range(PARTITIONS)}
        self._partitions = [(self.name, partition) for partition in range(PARTITIONS)]
        self._next_offsets = {}
        self._mirror = mirror
        self._admin = Admin(**target.client)
        self._consumer = Consumer(**target.client, **COMMITTED)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._consumer.close()
        self._admin.close()

    def await_topic(self):
        self._mirror.await_(lambda: self.name in self._admin.cluster.topics(), lambda: f'no topic {self.name}')
        self._consumer.assign(self._partitions)

    def await_records(self, missing=0):
        """Wait until the copy has the committed records of the original except the last `missing` ones. Check that it
        has nothing else.
        """
        expected = count_of(self.source.committed) - missing
        self._mirror.await_(lambda: self.read() >= expected, lambda: f'{self.name} has {self.read()} of {expected}')

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
        self._mirror.await_(lambda: self._group_offsets() == self._next_offsets,
                            lambda: f'{self._group_offsets()}, expected {self._next_offsets}')

    def _group_offsets(self):
        return {at: committed.offset for at, committed in self._admin.list_group_offsets(GROUP).items()
                if at[0] == self.name}

    def continue_group(self):
        """Read up to the end of the copy in the group. Return what it read, in the form of `found`."""
        return read_in_group(self.target, self.name, self.source.committed)

    def await_acls(self, expected):
        def found():
            return [acl for acl in self._admin.describe_acls() if acl.resource_name == self.name]

        self._mirror.await_(lambda: found() == expected, lambda: f'{found()}, expected {expected}')

    def await_partitions_and_configs(self):
        """Add a partition to the original and set its retention. Wait until the copy has both."""
        with Admin(**self.source.client) as admin:
            assert admin.create_partitions({TOPIC: PARTITIONS + 1}) == {TOPIC: None}
            admin.alter_config('topic', TOPIC, {'retention.ms': '86400001'})
        self._mirror.await_(lambda: self._partitions_and_retention() == (PARTITIONS + 1, '86400001'),
                            lambda: f'{self._partitions_and_retention()} of {self.name}')

    def _partitions_and_retention(self):
        return (len(self._admin.cluster.topics([self.name])[self.name].partitions),
                self._admin.describe_config('topic', self.name)['retention.ms'])


def read_in_group(cluster, topic, committed):
    """Read as a member of the group, until each partition's last record has arrived. Commit the offsets. Return what
    was read in the form of `MirroredCluster.committed`.
    """
    found = {partition: [] for partition in committed}
    end = time.monotonic() + WAIT_S
    with Consumer(**cluster.client, group_id=GROUP, topics=[topic], **COMMITTED) as consumer:
        while any(records[-1:] != committed[partition][-1:] for partition, records in found.items()):
            assert time.monotonic() < end, f'the group has read {found} of {topic}'
            for batch in consumer.poll(500):
                found[batch.partition] += contents_of(batch)
        consumer.commit()
    return found


def both_directions(clusters):
    return [tuple(clusters), tuple(reversed(clusters))]


@contextmanager
def opened_copies(clusters, mirror):
    """Yield the two copies, when MirrorMaker has created both."""
    with ExitStack() as stack:
        copies = [stack.enter_context(Copy(source, target, mirror)) for source, target in both_directions(clusters)]
        for copy in copies:
            copy.await_topic()
        yield copies


def write(clusters, transactions=TRANSACTIONS):
    """Write to both clusters, and read all that is new in the group."""
    for cluster in clusters:
        cluster.write(transactions)
        read_in_group(cluster, TOPIC, cluster.committed)


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
    with Mirror(both_directions(clusters), tmp_path) as mirror:
        yield mirror


@pytest.fixture
def copies(clusters, mirror):
    with opened_copies(clusters, mirror) as copies:
        yield copies


def test_each_cluster_has_the_committed_records_of_the_other_and_groups_continue_there(clusters, copies):
    write(clusters)
    for copy in copies:
        copy.await_records()
        copy.check_is_transactional()
    for copy in copies:
        copy.await_group_at_the_end()
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
        clusters, tmp_path, soak_count, soak_seed, tally):
    rng, kills = random.Random(soak_seed), 0
    for cluster in clusters:
        cluster.create_topic()
    small_transactions = {f'{cluster.name}.consumer.max.poll.records': 10 for cluster in clusters}
    with (Mirror(both_directions(clusters), tmp_path, small_transactions) as mirror,
          opened_copies(clusters, mirror) as copies):
        for _ in range(soak_count(ROUNDS, 5)):
            mirror.kill()       # so that its next start has much to copy
            write(clusters, BURST)
            mirror.start()
            copy = rng.choice(copies)
            copy.await_records(missing=rng.randrange(BURST))
            for process in rng.sample([mirror, *(cluster.broker for cluster in clusters)], rng.randrange(1, 3)):
                if process is mirror:
                    process.kill()
                else:
                    process.kill9()
                process.start()
                kills += 1
        for copy in copies:
            copy.await_records()
        for copy in copies:
            copy.await_group_at_the_end()
        check_no_more_records(copies)
    for cluster in clusters:
        await_markers(cluster.broker.address)
    tally('kills of a broker, a client or an application', kills)


@pytest.mark.soak
@pytest.mark.parametrize('source', ['kbroker', 'kafka'])
def test_applications_move_to_the_other_cluster_and_keep_the_names_of_topics_and_groups(clusters, tmp_path, source):
    if source == 'kafka':
        clusters.reverse()
    old, new = clusters
    old.create_topic()
    old.write(TRANSACTIONS)
    read_in_group(old, TOPIC, old.committed)
    policy = 'org.apache.kafka.connect.mirror.IdentityReplicationPolicy'
    with (Mirror([(old, new)], tmp_path, {'replication.policy.class': policy}) as mirror,
          Copy(old, new, mirror, TOPIC) as copy):
        copy.await_topic()
        old.write(TRANSACTIONS)
        copy.await_records()
        read_in_group(old, TOPIC, old.committed)
        copy.await_group_at_the_end()
    copied = {partition: len(records) for partition, records in old.committed.items()}
    new.committed = old.committed
    new.write(TRANSACTIONS)
    assert read_in_group(new, TOPIC, new.committed) == {partition: records[copied[partition]:]
                                                        for partition, records in new.committed.items()}


@pytest.mark.soak
def test_clusters_with_logins_are_copied_with_the_rights_to_read(tmp_path):
    mirroring, reading = 'mirror', Acl('topic', TOPIC, 'literal', 'User:reader', '*', 'read', 'allow')
    with (AuthorizedBroker(tmp_path / 'kbroker', PROMPT, [mirroring], [mirroring]) as ours,
          AuthorizedKafka(tmp_path / 'kafka', PROMPT, [mirroring], [mirroring]) as kafka):
        clusters = [MirroredCluster('kbroker', ours, mirroring), MirroredCluster('kafka', kafka, mirroring)]
        for cluster in clusters:
            cluster.create_topic()
            with Admin(**cluster.client) as admin:
                admin.create_acls([reading, reading._replace(operation='write')])
        with (Mirror(both_directions(clusters), tmp_path, {'sync.topic.acls.interval.seconds': 1}) as mirror,
              opened_copies(clusters, mirror) as copies):
            write(clusters)
            for copy in copies:
                copy.await_records()
                copy.await_group_at_the_end()
                copy.await_acls([reading._replace(resource_name=copy.name)])
