"""Log directories of releases. This program adds the directories of a new release, whose version the package has:

    python tests/support/brokers/release_directory.py 1.0.0

It starts a broker, lets clients of several libraries use it, and writes four files to `tests/data/releases`:

- `VERSION-killed.tar.xz`, the directory of the broker after a kill, and `VERSION-killed.json`, what its clients saw
  before
- the same for `VERSION-stopped`, after a start on that directory and a clean stop

The directories of a published release never change, so the program does not replace files.
"""
from __future__ import annotations

import json
import pathlib
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from typing import Any

import confluent_kafka

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parents[3])]

from support.brokers.broker_process import PROMPT, BrokerProcess  # noqa: E402
from support.brokers.release_broker import OPEN, PREPARED, RELEASES, SETTINGS  # noqa: E402
from support.clients.observed_cluster import observe  # noqa: E402
from support.clients.raw_client import RawClient  # noqa: E402
from support.messages.message_builder import build  # noqa: E402

from kbroker import __version__  # noqa: E402
from kbroker.client import Acl, Admin, Consumer, NewTopic, Producer, ScramCredentialUpsertion  # noqa: E402
from kbroker.client.cluster import Cluster  # noqa: E402
from kbroker.client.config import ClientConfig  # noqa: E402
from kbroker.client.share_consumer import ShareConsumer  # noqa: E402
from kbroker.client.share_sessions import AcknowledgeType  # noqa: E402
from kbroker.client.stream_settings import ShareConsumerSettings  # noqa: E402
from kbroker.security.scram import salted_password  # noqa: E402

LIMIT_S = 60
AT_ONCE = {'log.cleaner.backoff.ms': '100', 'log.cleaner.delete.retention.ms': '100',
           'log.flush.offset.checkpoint.interval.ms': '500', 'log.flush.start.offset.checkpoint.interval.ms': '500'}
QUIET = {'log_level': 0, 'log.connection.close': False}
PASSWORD, SALT = 'a secret of a test', b'salt of this test'
RELEASED = 2
"""The offset of the record that the share group will deliver again."""


class Maker:
    """The clients of a running broker."""

    def __init__(self, broker: BrokerProcess, stack: ExitStack):
        self.address, self.directory = broker.address, broker.directory
        self.raw = stack.enter_context(RawClient.at(broker.address))
        self.admin = stack.enter_context(Admin(broker.address))
        self.stack = stack

    def use(self) -> None:
        """Let the clients of each library write, read and administer."""
        self.admin.create_topics([
            NewTopic('orders', 2, 1, configs={'retention.ms': '-1'}),
            NewTopic('table', 1, 1, configs={'cleanup.policy': 'compact', 'segment.ms': '100',
                                             'min.cleanable.dirty.ratio': '0.01', 'retention.ms': '-1'}),
            NewTopic('cut', 1, 1, configs={'retention.ms': '-1', 'max.message.bytes': '90000'}),
            NewTopic('gone', 1, 1)])
        self.use_confluent()
        self.use_kafka_python()
        self.use_kbroker()
        self.use_share_group()
        self.use_streams_group()
        self.use_administration()

    def use_confluent(self) -> None:
        """Write with each codec, commit and abort transactions with offsets, leave a transaction open, and fill the
        table.
        """
        for codec in ('none', 'gzip', 'snappy', 'lz4', 'zstd'):
            producer = self.confluent({'enable.idempotence': True, 'compression.type': codec})
            for number in range(6):
                producer.produce('orders', f'{codec} {number}' * 20, f'key {number}', partition=number % 2,
                                 headers={'codec': codec})
            assert producer.flush(LIMIT_S) == 0
        reader = confluent_kafka.Consumer({'bootstrap.servers': self.address, 'group.id': 'confluent-classic', **QUIET,
                                           'auto.offset.reset': 'earliest', 'session.timeout.ms': '45000'})
        reader.subscribe(['orders'])
        read_with_confluent(reader)
        modern = confluent_kafka.Consumer({'bootstrap.servers': self.address, 'group.id': 'confluent-consumer', **QUIET,
                                           'group.protocol': 'consumer', 'auto.offset.reset': 'earliest'})
        modern.subscribe(['orders', 'cut'])
        read_with_confluent(modern)
        writer = self.confluent({'transactional.id': 'committed-and-aborted', 'linger.ms': 0})
        writer.init_transactions(LIMIT_S)
        for number in range(6):
            self.begin_with_confluent(writer, f'transaction {number}', reader, 100 + number)
            (writer.abort_transaction if number % 2 else writer.commit_transaction)(LIMIT_S)
        left = self.confluent({'transactional.id': OPEN, 'linger.ms': 0, 'transaction.timeout.ms': 600_000})
        left.init_transactions(LIMIT_S)
        self.begin_with_confluent(left, 'left open', reader, 999)
        self.fill_table()

    def confluent(self, settings: dict[str, Any]) -> confluent_kafka.Producer:
        return confluent_kafka.Producer({'bootstrap.servers': self.address, **QUIET, **settings})

    @staticmethod
    def begin_with_confluent(writer: confluent_kafka.Producer, value: str, reader: confluent_kafka.Consumer,
                             offset: int) -> None:
        writer.begin_transaction()
        for partition in (0, 1):
            writer.produce('orders', value, 'key', partition=partition)
        assert writer.flush(LIMIT_S) == 0
        writer.send_offsets_to_transaction([confluent_kafka.TopicPartition('orders', 0, offset)],
                                           reader.consumer_group_metadata(), LIMIT_S)

    def fill_table(self) -> None:
        """Write keys several times, until the cleaner has cleaned the topic. The last values are in a part that it has
        not cleaned.
        """
        producer, deadline, turn = self.confluent({'linger.ms': 0}), time.monotonic() + LIMIT_S, 0
        while 'table 0' not in self.checkpoint('cleaner-offset-checkpoint'):
            assert time.monotonic() < deadline, 'the cleaner does nothing'
            for number in range(8):
                producer.produce('table', None if (number + turn) % 5 == 0 else f'value {turn}', f'key {number}')
            assert producer.flush(LIMIT_S) == 0
            turn += 1
            time.sleep(0.3)     # so that the segment rolls
        producer.produce('table', 'the newest', 'key 0')
        assert producer.flush(LIMIT_S) == 0

    def checkpoint(self, name: str) -> str:
        path = self.directory / name
        return path.read_text() if path.exists() else ''

    def use_kafka_python(self) -> None:
        from kafka import KafkaConsumer, KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.address)
        for number in range(4):
            producer.send('cut', b'python %d' % number, b'key', partition=0)
        producer.flush(LIMIT_S)
        producer.close()
        consumer = KafkaConsumer('cut', bootstrap_servers=self.address, group_id='python-classic',
                                 auto_offset_reset='earliest', enable_auto_commit=False)
        poll_for_one(consumer)
        consumer.commit()
        consumer.close()

    def use_kbroker(self) -> None:
        """Prepare a transaction (KIP-939) without ending it, and create a group of the consumer protocol."""
        writer = Producer(self.address, transactional_id=PREPARED, two_phase_commit=True)
        writer.init_transactions()
        writer.begin_transaction()
        writer.send('orders', b'left prepared', partition=0)
        writer.prepare_transaction()
        writer.close()
        reader = Consumer(self.address, group_id='kbroker-consumer', group_protocol='consumer',
                          auto_offset_reset='earliest')
        reader.subscribe(['cut'])
        poll_for_one(reader)
        reader.commit()
        reader.close()

    def use_share_group(self) -> None:
        """Acknowledge some records."""
        self.admin.alter_config('group', 'sharers', {'share.auto.offset.reset': 'earliest'})
        cluster = Cluster(ClientConfig.load(self.address))
        self.stack.callback(cluster.close)
        consumer = ShareConsumer(cluster, ShareConsumerSettings(group_id='sharers'))
        consumer.subscribe(['cut'])
        delivered = poll_for_one(consumer)
        for record in delivered[0].records:
            is_released = record.offset == RELEASED
            consumer.acknowledge('cut', 0, record.offset,
                                 AcknowledgeType.RELEASE if is_released else AcknowledgeType.ACCEPT)
        consumer.commit()
        consumer.close()

    def use_streams_group(self) -> None:
        """Heartbeat until the member has tasks."""
        epoch, deadline = 0, time.monotonic() + LIMIT_S
        tasks: Any = None
        while not tasks:
            assert time.monotonic() < deadline, 'the member gets no tasks'
            joins = {'rebalance_timeout_ms': 60_000, 'process_id': 'process', 'active_tasks': [], 'standby_tasks': [],
                     'warmup_tasks': [], 'topology': {'epoch': 0, 'subtopologies': [
                         {'subtopology_id': '0', 'source_topics': ['orders'], 'source_topic_regex': [],
                          'repartition_sink_topics': [], 'repartition_source_topics': [], 'copartition_groups': [],
                          'state_changelog_topics': []}]}} if epoch == 0 else {}
            answer = self.raw.ask(build(
                'StreamsGroupHeartbeatRequest', group_id='streams', member_id='streamer', member_epoch=epoch,
                endpoint_information_epoch=0, shutdown_application=False, **joins), 0)
            epoch = answer.member_epoch if answer.error_code == 0 else 0
            tasks = answer.active_tasks

    def use_administration(self) -> None:
        """Set rights, credentials, quotas and configs. Delete one topic, and the first records of a second topic."""
        self.admin.create_acls([Acl('topic', 'orders', 'literal', 'User:alice', '*', 'read', 'allow'),
                                Acl('group', 'con', 'prefixed', 'User:bob', '10.0.0.1', 'all', 'deny')])
        for mechanism in ('SCRAM-SHA-256', 'SCRAM-SHA-512'):
            salted = salted_password(mechanism, PASSWORD, SALT, 4096)
            assert self.admin.alter_scram_credentials('alice', upsertions=[
                ScramCredentialUpsertion(mechanism, 4096, SALT, salted)]) is None
        self.admin.alter_client_quotas([('user', 'alice')], {'producer_byte_rate': 1e6})
        self.admin.alter_config('group', 'confluent-consumer', {'consumer.session.timeout.ms': '50000'})
        self.admin.alter_config('topic', 'orders', {'max.message.bytes': '100000'})
        self.admin.delete_records({('cut', 0): 2})
        self.admin.delete_topics(['gone'])
        deadline = time.monotonic() + LIMIT_S
        while 'cut 0 2' not in self.checkpoint('log-start-offset-checkpoint'):
            assert time.monotonic() < deadline, 'no checkpoint of start offsets'
            time.sleep(0.1)     # until then, a kill brings the records back, as in Kafka


def poll_for_one(consumer: Any) -> Any:
    """Poll until records arrive, and return them."""
    deadline, records = time.monotonic() + LIMIT_S, None
    while not records:
        assert time.monotonic() < deadline, 'no record arrives'
        records = consumer.poll(1000)
    return records


def read_with_confluent(consumer: confluent_kafka.Consumer) -> None:
    """Read a record, and commit. The member stays in its group."""
    message = None
    while message is None or message.error():
        message = consumer.poll(LIMIT_S)
    consumer.commit(message, asynchronous=False)


def observed(broker: BrokerProcess) -> dict[str, Any]:
    """Return the state that a client sees, and the time."""
    with RawClient.at(broker.address) as client:
        return {'wall_ms': int(time.time() * 1000), **observe(client.ask)}


def save(archive: pathlib.Path, directory: pathlib.Path, manifest: dict[str, Any]) -> None:
    """Write `archive`.tar.xz with the directory, and `archive`.json with the manifest."""
    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ''
        return info

    with tarfile.open(f'{archive}.tar.xz', 'w:xz', preset=9) as files:
        files.add(directory, 'data', filter=anonymous)
    pathlib.Path(f'{archive}.json').write_text(json.dumps(manifest, indent=1, sort_keys=True) + '\n')


def make(version: str, releases: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        broker = BrokerProcess(pathlib.Path(place) / 'data', PROMPT | SETTINGS | AT_ONCE)
        try:
            broker.start()
            with ExitStack() as stack:
                Maker(broker, stack).use()
                manifest = observed(broker)
                broker.kill9()
            save(releases / f'{version}-killed', broker.directory, manifest)
            broker.start()
            manifest = observed(broker)
            broker.stop()
            save(releases / f'{version}-stopped', broker.directory, manifest)
        finally:
            broker.kill9()


if __name__ == '__main__':
    if sys.argv[1:] != [__version__]:
        sys.exit(f'found {sys.argv[1:]}, expected the version of the package: {__version__}')
    found = sorted(path.name for path in RELEASES.glob(f'{__version__}-*'))
    if found:
        sys.exit(f'found {", ".join(found)}, expected none of {__version__}: raise the version of the package '
                 'first')
    make(__version__, RELEASES)
