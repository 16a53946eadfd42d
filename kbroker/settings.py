"""Every setting, once: parser, DescribeConfigs, `kbroker config` and the man page are derived from these rows.

Names, types, bounds and defaults are Apache Kafka 4.3's. The defaults that a single node cannot keep differ
(replication factors and in-sync minimums of the internal topics are 1), as do those that bind to every interface
(`listeners`) or put data under /tmp (`log.dir`).
"""
import enum
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.tls_settings import CONVERT_TO_PEM, NO_STORE_PASSWORD, TLS_VERSIONS

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


class Type(enum.IntEnum):
    """The type of a value; the numbers are DescribeConfigs' `ConfigType`."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Update(enum.Enum):
    """How a setting may change while the broker runs."""

    READ_ONLY = 'read-only'
    PER_BROKER = 'per-broker'
    CLUSTER_WIDE = 'cluster-wide'


INTEGER_BOUNDS = {Type.INT: (-2**31, INT_MAX), Type.LONG: (-2**63, LONG_MAX)}


@dataclass(frozen=True, slots=True)
class Rule:
    """What bounds and lists of values cannot say: which values hold, and how that is put in words."""

    holds: Callable[[Any], bool]
    expected: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One row.

    `fallbacks` are the settings asked, in order, when this one is not given, each with the factor that turns its unit
    into this one's. `topic_name` is the topic-level setting of which this one is the default.
    """

    name: str
    type: Type
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    rule: Rule | None = None
    topic_name: str | None = None
    update: Update = Update.READ_ONLY
    fallbacks: tuple[tuple[str, int], ...] = ()
    internal: bool = False
    """Left out of DescribeConfigs, help and man page."""

    @property
    def attribute(self) -> str:
        """The name under which `Config` and `LogConfig` carry the value."""
        return self.name.replace('.', '_')

    def parse(self, text: str) -> Any:
        """The value that `text` stands for. ValueError says what was expected."""
        text = text.strip() if self.type is not Type.PASSWORD else text
        value = PARSERS[self.type](text)
        bounds = INTEGER_BOUNDS.get(self.type)
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise ValueError(self.expected())
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ValueError(self.expected())
        if self.values is not None:
            unknown = set(value if self.type is Type.LIST else [value]) - set(self.values)
            if unknown:
                raise ValueError(self.expected())
        if self.rule is not None and not self.rule.holds(value):
            raise ValueError(self.rule.expected)
        return value

    def expected(self) -> str:
        """What a value must be, for help and error messages."""
        if self.rule is not None:
            return self.rule.expected
        if self.values is not None:
            return f'{"a list of" if self.type is Type.LIST else "one of"} {", ".join(self.values)}'
        kind = {Type.BOOLEAN: 'true or false', Type.STRING: 'text', Type.LIST: 'a list', Type.PASSWORD: 'text',
                Type.DOUBLE: 'a number'}.get(self.type, 'a whole number')
        if self.low is None and self.high is None:
            return kind
        default_low, default_high = INTEGER_BOUNDS.get(self.type, (-math.inf, math.inf))
        low = default_low if self.low is None else self.low
        high = default_high if self.high is None else self.high
        return f'{kind} of at least {low}' if high in (LONG_MAX, math.inf) else f'{kind} from {low} to {high}'

    def text(self, value: Any) -> str | None:
        """How a value is written in a file and in DescribeConfigs; None for a value that is not set."""
        if value is None:
            return None
        if self.type is Type.BOOLEAN:
            return 'true' if value else 'false'
        return ','.join(value) if self.type is Type.LIST else str(value)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ('true', 'false'):
        raise ValueError('true or false')
    return lowered == 'true'


def _integer(text: str) -> int:
    # int() would take 1_000 and other scripts' digits, which Kafka does not.
    if not re.fullmatch(r'[+-]?[0-9]+', text):
        raise ValueError('a whole number')
    return int(text)


def _double(text: str) -> float:
    if not re.fullmatch(r'[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?', text):
        raise ValueError('a number')
    return float(text)


def _list(text: str) -> tuple[str, ...]:
    return tuple(element.strip() for element in text.split(',')) if text else ()


PARSERS: dict[Type, Callable[[str], Any]] = {
    Type.BOOLEAN: _boolean, Type.STRING: str, Type.INT: _integer, Type.LONG: _integer,
    Type.DOUBLE: _double, Type.LIST: _list, Type.PASSWORD: str,
}

COMPRESSION_TYPES = ('uncompressed', 'gzip', 'snappy', 'lz4', 'zstd', 'producer')


DEFAULT_OR_1_TO_9 = Rule(lambda level: level == -1 or 1 <= level <= 9, '-1 or a whole number from 1 to 9')
LIMIT_OR_NONE = Rule(lambda value: value == -1 or value > 0, '-1 for no limit, or a positive whole number')
ONE_DIRECTORY = Rule(lambda value: len(value) == 1 and value[0] != '',
                     'one directory: kbroker keeps everything in one log directory')
THROTTLED_REPLICAS = Rule(lambda value: value == ('*',) or all(re.fullmatch(r'\d+:\d+', replica) for replica in value),
                          '* or a list of PARTITION:BROKER')
ONLY_PEM = Rule(lambda value: value.upper() == 'PEM',
                f'PEM: {CONVERT_TO_PEM}')
ONLY_FALSE = Rule(lambda value: not value, 'false: kbroker has no tiered storage')


def _boolean_row(name: str, default: bool, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.BOOLEAN, default, doc, **more)


def _int(name: str, default: int | None, doc: str, low: int | None = None, **more: Any) -> Setting:
    return Setting(name, Type.INT, default, doc, low=low, **more)


def _long(name: str, default: int | None, doc: str, low: int | None = None, **more: Any) -> Setting:
    return Setting(name, Type.LONG, default, doc, low=low, **more)


def _string(name: str, default: str | None, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.STRING, default, doc, **more)


def _password(name: str, doc: str) -> Setting:
    return Setting(name, Type.PASSWORD, None, doc)


CLUSTER = Update.CLUSTER_WIDE

# Who the broker is, where it listens, where its data lies.
IDENTITY = (
    _int('node.id', 1, 'The id of this node in the metadata log and in answers to clients.', 0,
         fallbacks=(('broker.id', 1),)),
    _int('broker.id', None, 'The older name of node.id.', 0),
    _string('broker.rack', None, 'The rack that Metadata answers name for this broker.'),
    Setting('listeners', Type.LIST, ('PLAINTEXT://127.0.0.1:9092',),
            'The addresses to bind, as NAME://HOST:PORT. An empty host binds every interface, port 0 a free port.'),
    Setting('advertised.listeners', Type.LIST, None,
            'The addresses that clients are told to connect to. Default: listeners.'),
    Setting('listener.security.protocol.map', Type.LIST, ('PLAINTEXT:PLAINTEXT', 'SSL:SSL'),
            'The security protocol of each listener name, as NAME:PROTOCOL. PLAINTEXT and SSL are served.'),
    Setting('controller.listener.names', Type.LIST, (),
            'Listeners of these names are not bound: the controller lives in this process.'),
    Setting('process.roles', Type.LIST, ('broker', 'controller'), 'One process is broker and controller at once.',
            values=('broker', 'controller')),
    Setting('log.dirs', Type.LIST, None, 'The log directory. It holds every topic and the metadata log.',
            rule=ONE_DIRECTORY, fallbacks=(('log.dir', 1),)),
    Setting('log.dir', Type.LIST, ('data',), 'The log directory, if log.dirs is not set.', rule=ONE_DIRECTORY),
)

# What an acknowledgement means, and what a single node makes of a replicated world.
OWN = (
    _string('kbroker.durability', 'disk',
            'What makes a record visible and acknowledged with acks=all: disk waits until an fdatasync has covered it, '
            'page-cache does not wait (a crash of the machine may then lose what was acknowledged).',
            values=('disk', 'page-cache')),
    _string('kbroker.replication.factor.accept', 'any',
            'any: a topic may ask for any replication factor and gets its one replica; strict: only 1 is accepted.',
            values=('any', 'strict')),
)

# TLS of listeners whose protocol is SSL (KIP-651: PEM, in files or in the settings themselves).
TLS = (
    _string('ssl.keystore.type', 'PEM', 'The form of the key and its certificate chain.', rule=ONLY_PEM),
    _string('ssl.keystore.location', None, 'The file with the private key and its certificate chain.'),
    _password('ssl.keystore.key', 'The private key itself, in place of a file.'),
    _password('ssl.keystore.certificate.chain', 'The certificate chain that goes with ssl.keystore.key.'),
    _password('ssl.key.password', 'What opens an encrypted private key.'),
    _string('ssl.truststore.type', 'PEM', 'The form of the certificates.', rule=ONLY_PEM),
    _string('ssl.truststore.location', None, 'The file with the certificates that clients are held against.'),
    _password('ssl.truststore.certificates', 'Those certificates themselves, in place of a file.'),
    _string('ssl.client.auth', 'none', 'Whether a client must, may or need not show a certificate.',
            values=('required', 'requested', 'none')),
    Setting('ssl.enabled.protocols', Type.LIST, TLS_VERSIONS, 'The versions of TLS that are spoken.',
            values=TLS_VERSIONS),
)

NETWORK = (
    _int('socket.request.max.bytes', 104857600, 'The largest request in bytes; a larger one closes the connection.', 1),
    _int('socket.send.buffer.bytes', -1, 'SO_SNDBUF of connections in bytes; -1: the system sizes it by use.', -1),
    _int('socket.receive.buffer.bytes', -1, 'SO_RCVBUF of connections in bytes; -1: the system sizes it by use.', -1),
    _int('socket.listen.backlog.size', 50, 'How many connections may wait to be accepted.', 1),
    _long('connections.max.idle.ms', 600000, 'A connection without a request for this long is closed.'),
    _int('max.connections', INT_MAX, 'The most connections at a time.', 0, update=CLUSTER),
    _int('max.connections.per.ip', INT_MAX, 'The most connections from one address.', 0, update=CLUSTER),
    _long('queued.max.request.bytes', -1,
          'The most bytes of requests and replies in memory before long requests are no longer read; -1: no limit.'),
    _int('fetch.max.bytes', 57671680, 'The most bytes that one Fetch answers, but for a first batch above it.', 1024),
    _int('max.incremental.fetch.session.cache.slots', 1000, 'The most incremental fetch sessions kept.', 0),
    _int('max.request.partition.size.limit', 2000, 'The most partitions in one DescribeTopicPartitions answer.', 1),
)

TOPICS = (
    _boolean_row('auto.create.topics.enable', True, 'Create a topic when a client asks for its metadata.'),
    _boolean_row('delete.topic.enable', True, 'Allow topics to be deleted.'),
    _int('num.partitions', 1, 'The partitions of a topic that is created without a number of them.', 1),
    _int('min.insync.replicas', 1, 'The in-sync replicas that acks=all needs.', 1, topic_name='min.insync.replicas',
         update=CLUSTER),
    _boolean_row('unclean.leader.election.enable', False, 'Kept for Kafka; one replica is always in sync.',
                 topic_name='unclean.leader.election.enable', update=CLUSTER),
)

LOG = (
    _int('log.segment.bytes', 1073741824, 'The size in bytes at which a new segment begins.', 1048576,
         topic_name='segment.bytes', update=CLUSTER),
    _long('log.roll.ms', None, 'The age in milliseconds at which a new segment begins.', 1, topic_name='segment.ms',
          update=CLUSTER, fallbacks=(('log.roll.hours', HOUR_MS),)),
    _int('log.roll.hours', 168, 'The age in hours at which a new segment begins, if log.roll.ms is not set.', 1),
    _long('log.roll.jitter.ms', None, 'The most milliseconds taken at random from the age at which segments roll.', 0,
          topic_name='segment.jitter.ms', update=CLUSTER, fallbacks=(('log.roll.jitter.hours', HOUR_MS),)),
    _int('log.roll.jitter.hours', 0, 'As log.roll.jitter.ms, in hours, if that is not set.', 0),
    _long('log.retention.ms', None, 'How long records are kept, in milliseconds; -1: for ever.', rule=LIMIT_OR_NONE,
          topic_name='retention.ms', update=CLUSTER,
          fallbacks=(('log.retention.minutes', MINUTE_MS), ('log.retention.hours', HOUR_MS))),
    _int('log.retention.minutes', None, 'As log.retention.ms, in minutes, if that is not set.', rule=LIMIT_OR_NONE),
    _int('log.retention.hours', 168, 'As log.retention.minutes, in hours, if that is not set.', rule=LIMIT_OR_NONE),
    _long('log.retention.bytes', -1, 'The size in bytes above which old segments are deleted; -1: no limit.',
          topic_name='retention.bytes', update=CLUSTER),
    _long('log.retention.check.interval.ms', 300000, 'How often old segments are looked for.', 1),
    _int('log.index.size.max.bytes', 10485760, 'The largest index in bytes; a full one begins a new segment.', 4,
         topic_name='segment.index.bytes', update=CLUSTER),
    _int('log.index.interval.bytes', 4096, 'The bytes of log between two index entries.', 0,
         topic_name='index.interval.bytes', update=CLUSTER),
    _long('log.flush.interval.messages', LONG_MAX, 'The records after which a partition is flushed.', 1,
          topic_name='flush.messages', update=CLUSTER),
    _long('log.flush.interval.ms', None, 'The milliseconds after which a partition is flushed.', 0,
          topic_name='flush.ms', update=CLUSTER, fallbacks=(('log.flush.scheduler.interval.ms', 1),)),
    _long('log.flush.scheduler.interval.ms', LONG_MAX, 'How often log.flush.interval.ms is looked at.'),
    _int('log.flush.offset.checkpoint.interval.ms', 60000, 'How often recovery points are written.', 0),
    _int('log.flush.start.offset.checkpoint.interval.ms', 60000, 'How often log start offsets are written.', 0),
    _long('replica.high.watermark.checkpoint.interval.ms', 5000, 'How often high watermarks are written.'),
    _long('log.segment.delete.delay.ms', 60000, 'How long a deleted file stays on disk.', 0,
          topic_name='file.delete.delay.ms', update=CLUSTER),
    _boolean_row('log.preallocate', False, 'Give a new segment its whole size at once.', topic_name='preallocate',
                 update=CLUSTER),
    _int('message.max.bytes', 1048588, 'The largest batch in bytes.', 0, topic_name='max.message.bytes',
         update=CLUSTER),
    _string('log.message.timestamp.type', 'CreateTime', 'Whose time a record carries: producer or broker.',
            values=('CreateTime', 'LogAppendTime'), topic_name='message.timestamp.type', update=CLUSTER),
    _long('log.message.timestamp.before.max.ms', LONG_MAX, 'How far a timestamp may lie behind the broker\'s time.', 0,
          topic_name='message.timestamp.before.max.ms', update=CLUSTER),
    _long('log.message.timestamp.after.max.ms', 3600000, 'How far a timestamp may lie ahead of the broker\'s time.', 0,
          topic_name='message.timestamp.after.max.ms', update=CLUSTER),
    Setting('log.cleanup.policy', Type.LIST, ('delete',), 'delete old segments, compact by key, or both.',
            values=('delete', 'compact'), topic_name='cleanup.policy', update=CLUSTER),
    _string('compression.type', 'producer', 'How batches are stored; producer keeps what the producer chose.',
            values=COMPRESSION_TYPES, topic_name='compression.type', update=CLUSTER),
    _int('compression.gzip.level', -1, 'The level of gzip; -1: its default.', rule=DEFAULT_OR_1_TO_9,
         topic_name='compression.gzip.level', update=CLUSTER),
    _int('compression.lz4.level', 9, 'The level of lz4.', 1, high=17, topic_name='compression.lz4.level',
         update=CLUSTER),
    _int('compression.zstd.level', 3, 'The level of zstd.', -131072, high=22, topic_name='compression.zstd.level',
         update=CLUSTER),
)

CLEANER = (
    _boolean_row('log.cleaner.enable', True, 'Run the log cleaner; compacted topics need it.'),
    _long('log.cleaner.dedupe.buffer.size', 134217728, 'The bytes of memory for the map from keys to offsets.',
          update=CLUSTER),
    Setting('log.cleaner.io.buffer.load.factor', Type.DOUBLE, 0.9, 'How full the cleaner\'s key map may become.',
            update=CLUSTER),
    _int('log.cleaner.io.buffer.size', 524288, 'The bytes of the cleaner\'s read and write buffers.', 0,
         update=CLUSTER),
    _long('log.cleaner.backoff.ms', 15000, 'How long the cleaner waits when there is nothing to clean.', 0,
          update=CLUSTER),
    Setting('log.cleaner.min.cleanable.ratio', Type.DOUBLE, 0.5,
            'The share of dirty bytes that makes a log worth cleaning.',
            low=0, high=1, topic_name='min.cleanable.dirty.ratio', update=CLUSTER),
    _long('log.cleaner.delete.retention.ms', 86400000, 'How long a tombstone stays after it was cleaned.', 0,
          topic_name='delete.retention.ms', update=CLUSTER),
    _long('log.cleaner.min.compaction.lag.ms', 0, 'How long a record is safe from compaction.', 0,
          topic_name='min.compaction.lag.ms', update=CLUSTER),
    _long('log.cleaner.max.compaction.lag.ms', LONG_MAX, 'After how long a record must be up for compaction.', 1,
          topic_name='max.compaction.lag.ms', update=CLUSTER),
)

GROUPS = (
    _int('group.min.session.timeout.ms', 6000, 'The shortest session timeout that a member may ask for.'),
    _int('group.max.session.timeout.ms', 1800000, 'The longest session timeout that a member may ask for.'),
    _int('group.initial.rebalance.delay.ms', 3000, 'How long a new group waits for more members.'),
    _int('group.max.size', INT_MAX, 'The most members of a group.', 1),
    _int('offset.metadata.max.bytes', 4096, 'The longest metadata of an offset commit.'),
    _int('offsets.topic.num.partitions', 50, 'The partitions of __consumer_offsets, fixed when it is created.', 1),
    _int('offsets.topic.segment.bytes', 104857600, 'The segment size of __consumer_offsets.', 1),
    _int('offsets.retention.minutes', 10080, 'How long offsets of an empty group are kept.', 1),
    _long('offsets.retention.check.interval.ms', 600000, 'How often expired offsets are looked for.', 1),
)

TRANSACTIONS = (
    _int('transaction.max.timeout.ms', 900000, 'The longest transaction timeout that a producer may ask for.', 1),
    _int('transactional.id.expiration.ms', 604800000, 'How long an unused transactional id is remembered.', 1),
    _int('transaction.abort.timed.out.transaction.cleanup.interval.ms', 10000,
         'How often transactions past their timeout are aborted.', 1),
    _int('transaction.remove.expired.transaction.cleanup.interval.ms', 3600000,
         'How often expired transactional ids are removed.', 1),
    _int('transaction.state.log.num.partitions', 50, 'The partitions of __transaction_state, fixed when it is created.',
         1),
    _int('transaction.state.log.min.isr', 1, 'min.insync.replicas of __transaction_state.', 1),
    _int('transaction.state.log.segment.bytes', 104857600, 'The segment size of __transaction_state.', 1),
    _boolean_row('transaction.partition.verification.enable', True,
                 'Check with the coordinator that a partition belongs to the transaction before its first append.',
                 update=CLUSTER),
    _int('producer.id.expiration.ms', 86400000, 'How long a partition remembers a producer that no longer writes.', 1,
         update=CLUSTER),
    _int('producer.id.expiration.check.interval.ms', 600000, 'How often expired producers are forgotten.', 1,
         internal=True),
)

METADATA = (
    _int('metadata.log.segment.bytes', 1073741824, 'The size in bytes at which the metadata log rolls.', 8388608),
    _long('metadata.log.segment.ms', 604800000, 'The age at which the metadata log rolls.'),
    _long('metadata.log.max.record.bytes.between.snapshots', 20971520,
          'The bytes of metadata records after which a snapshot is written.', 1),
    _long('metadata.log.max.snapshot.interval.ms', 3600000, 'The longest time between two snapshots; 0: no limit.', 0),
    _long('metadata.max.retention.bytes', 104857600, 'The size above which old metadata segments are deleted.'),
    _long('metadata.max.retention.ms', 604800000, 'The age above which old metadata segments are deleted.'),
)

SETTINGS: dict[str, Setting] = {
    row.name: row
    for group in (IDENTITY, OWN, NETWORK, TLS, TOPICS, LOG, CLEANER, GROUPS, TRANSACTIONS, METADATA) for row in group
}

TOPIC_ONLY = (
    Setting('leader.replication.throttled.replicas', Type.LIST, (), 'Kept for Kafka; nothing is replicated here.',
            rule=THROTTLED_REPLICAS),
    Setting('follower.replication.throttled.replicas', Type.LIST, (), 'Kept for Kafka; nothing is replicated here.',
            rule=THROTTLED_REPLICAS),
    _boolean_row('remote.storage.enable', False, 'Kept for Kafka; there is no tiered storage.', rule=ONLY_FALSE),
    _boolean_row('remote.log.copy.disable', False, 'Kept for Kafka; there is no tiered storage.'),
    _boolean_row('remote.log.delete.on.disable', False, 'Kept for Kafka; there is no tiered storage.'),
    _long('local.retention.bytes', -2, 'Kept for Kafka; there is no tiered storage.', -2),
    _long('local.retention.ms', -2, 'Kept for Kafka; there is no tiered storage.', -2),
    _int('internal.segment.bytes', None, 'Takes the place of segment.bytes, without its lower bound.', 1,
         internal=True),
)


def _as_topic_setting(row: Setting) -> Setting:
    assert row.topic_name is not None
    # A topic may keep nothing (retention.ms=0); the broker's own setting refuses that.
    low, rule = (-1, None) if row.rule is LIMIT_OR_NONE else (row.low, row.rule)
    return Setting(row.topic_name, row.type, row.default, row.doc, low=low, high=row.high, values=row.values, rule=rule,
                   update=Update.CLUSTER_WIDE)


TOPIC_SETTINGS: dict[str, Setting] = {
    row.name: row
    for row in (*(_as_topic_setting(row) for row in SETTINGS.values() if row.topic_name), *TOPIC_ONLY)
}
BROKER_NAME_OF: dict[str, str] = {row.topic_name: row.name for row in SETTINGS.values() if row.topic_name}
"""The broker-level setting that gives the default of a topic-level one."""

IGNORED: dict[str, str] = {
    'replica.fetch.*': 'nothing is replicated',
    'replica.socket.*': 'nothing is replicated',
    'replica.lag.time.max.ms': 'nothing is replicated',
    'replica.selector.class': 'nothing is replicated',
    'replication.quota.*': 'nothing is replicated',
    'num.replica.fetchers': 'nothing is replicated',
    'default.replication.factor': 'every partition has one replica',
    'offsets.topic.replication.factor': 'every partition has one replica',
    'transaction.state.log.replication.factor': 'every partition has one replica',
    'num.replica.alter.log.dirs.threads': 'there is one log directory',
    'alter.log.dirs.replication.quota.*': 'there is one log directory',
    'cordoned.log.dirs': 'there is one log directory',
    'log.dir.failure.timeout.ms': 'there is one log directory',
    'metadata.log.dir': 'the metadata log lies in the log directory',
    'auto.leader.rebalance.enable': 'the only node leads every partition',
    'leader.imbalance.*': 'the only node leads every partition',
    'unclean.leader.election.interval.ms': 'the only node leads every partition',
    'inter.broker.listener.name': 'there is no other broker',
    'security.inter.broker.protocol': 'there is no other broker',
    'controlled.shutdown.enable': 'there is no other broker',
    'broker.heartbeat.interval.ms': 'the controller lives in this process',
    'broker.session.timeout.ms': 'the controller lives in this process',
    'initial.broker.registration.timeout.ms': 'the controller lives in this process',
    'controller.quorum.*': 'the only node is the quorum',
    'controller.socket.timeout.ms': 'the controller lives in this process',
    'controller.performance.*': 'the controller lives in this process',
    'early.start.listeners': 'the controller lives in this process',
    'server.max.startup.time.ms': 'the controller lives in this process',
    'metadata.max.idle.interval.ms': 'the only node is the quorum',
    'socket.connection.setup.timeout.*': 'the broker connects to nobody',
    'num.network.threads': 'one thread serves all connections',
    'num.io.threads': 'one thread serves all connections',
    'queued.max.requests': 'one thread serves all connections; see queued.max.request.bytes',
    'background.threads': 'one thread owns all state',
    'num.recovery.threads.per.data.dir': 'one thread owns all state',
    'log.cleaner.threads': 'one worker cleans',
    'log.cleaner.io.max.bytes.per.second': 'the cleaner is not throttled',
    'group.coordinator.*': 'the coordinators live in the one thread',
    'request.timeout.ms': 'an administrative request ends when it is done',
    'log.initial.task.delay.ms': 'periodic tasks begin one interval after the start',
    'offsets.commit.timeout.ms': 'an offset commit ends when the disk has it, or has failed',
    'offsets.topic.compression.codec': 'offsets are written uncompressed',
    'offsets.load.buffer.size': 'the coordinators read the log in place',
    'transaction.state.log.load.buffer.size': 'the coordinators read the log in place',
    'add.partitions.to.txn.retry.*': 'the coordinator lives in this process',
    '*.purgatory.purge.interval.requests': 'finished waiters are removed at once',
    'transaction.two.phase.commit.enable': 'two-phase commit is not served',
    'group.consumer.*': 'the consumer rebalance protocol (KIP-848) is not served',
    'group.share.*': 'share groups are not served',
    'group.streams.*': 'streams groups are not served',
    'share.*': 'share groups are not served',
    'remote.*': 'there is no tiered storage',
    'log.local.retention.*': 'there is no tiered storage',
    'follower.fetch.last.tiered.offset.enable': 'there is no tiered storage',
    'quota.*': 'there are no quotas',
    'controller.quota.*': 'there are no quotas',
    'client.quota.callback.class': 'there are no quotas',
    'max.connection.creation.rate': 'there are no quotas',
    'max.connections.per.ip.overrides': 'max.connections.per.ip holds for every address',
    'metric.reporters': 'there is no JVM to load it into',
    'metrics.*': 'there is no JVM to load it into',
    'kafka.metrics.*': 'there is no JVM to load it into',
    'auto.include.jmx.reporter': 'there is no JVM',
    'telemetry.max.bytes': 'client telemetry is not collected',
    'config.providers*': 'values are taken as they stand',
    'unstable.*.versions.enable': 'only stable versions are served',
    'internal.metadata.*': 'internal to Kafka',
}
"""Kafka's names that mean nothing here, and why: accepted with a warning."""

REFUSED: dict[str, str] = {
    'ssl.keystore.password': NO_STORE_PASSWORD,
    'ssl.truststore.password': NO_STORE_PASSWORD,
    'ssl.*': 'this part of TLS is not served',
    'sasl.*': 'SASL is not served',
    'listener.name.*': 'all listeners have the same settings, and SASL is not served',
    'connections.max.reauth.ms': 'SASL is not served',
    'connection.failed.authentication.delay.ms': 'SASL is not served',
    'delegation.token.*': 'delegation tokens are not served',
    'authorizer.class.name': 'access control is not served',
    'super.users': 'access control is not served',
    'allow.everyone.if.no.acl.found': 'access control is not served',
    'principal.builder.class': 'access control is not served',
    'security.providers': 'there is no JVM to load it into',
    'alter.config.policy.class.name': 'there is no JVM to load it into',
    'create.topic.policy.class.name': 'there is no JVM to load it into',
}
"""Kafka's names that an operator counts on and that are not there: a broker without them must not start."""
