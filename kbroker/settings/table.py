"""The table of all settings. The parser, DescribeConfigs, `kbroker config` and the man page are derived from its rows.

Names, types, bounds and defaults are those of Apache Kafka 4.4, with these exceptions:

- defaults that a single node cannot meet: replication factors and in-sync minimums of the internal topics are 1;
- defaults that bind to every interface (`listeners`) or put data under /tmp (`log.dir`);
- the default of `socket.listen.backlog.size`, which suffices for all clients that connect again after a restart;
- the default of `queued.max.request.bytes`, which suits a machine with 512 MB of memory;
- the lower bound of the internal topics' segment sizes: Kafka accepts smaller sizes, but then cannot create the topics.
"""
import ipaddress
import re
from typing import Any

from kbroker.settings.groups import MODERN_GROUPS
from kbroker.settings.rows import (
    INT_MAX,
    LONG_MAX,
    MIN_SEGMENT_BYTES,
    Rule,
    Scope,
    Setting,
    Type,
    Update,
)
from kbroker.settings.rows import boolean_row as _boolean_row
from kbroker.settings.rows import int_row as _int
from kbroker.settings.rows import long_row as _long
from kbroker.settings.rows import string_row as _string
from kbroker.settings.tls import CONVERT_TO_PEM, NO_STORE_PASSWORD, TLS_VERSIONS

MINUTE_MS = 60_000
HOUR_MS = 3_600_000

SASL_MECHANISMS = ('PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER')
KERBEROS = 'GSSAPI'
LARGEST_BODY_BYTES = INT_MAX - 8
"""The largest byte array of a JVM, in bytes."""
COMPRESSION_TYPES = ('uncompressed', 'gzip', 'snappy', 'lz4', 'zstd', 'producer')
STANDARD_AUTHORIZER = 'org.apache.kafka.metadata.authorizer.StandardAuthorizer'
PRINCIPAL_BUILDER = 'org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder'
OAUTH_VALIDATOR = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler'
JWT_VALIDATOR = 'org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator'

CLUSTER = Update.CLUSTER_WIDE
PER_LISTENER = Scope.LISTENER
RELOADED = Update.PER_BROKER
PER_MECHANISM = Scope.MECHANISM


def _is_login_module(text: str) -> bool:
    from kbroker.settings.jaas import parse_jaas  # needed only by listeners with a login

    try:
        parse_jaas(text)
    except ValueError as error:     # the error names the position, and contains no part of the text
        raise ValueError(f'{ONE_LOGIN_MODULE.expected} ({error})') from None
    return True


def addresses_with_limits(text: str) -> dict[str, int]:
    """Parse ADDRESS:NUMBER,... and return {address: number}. Raise ValueError for any other text."""
    found = {}
    for entry in text.split(','):
        if entry.strip():
            address, _, limit = entry.strip().rpartition(':')
            found[str(ipaddress.ip_address(address.strip('[]')))] = int(limit)
    return found


def _is_metrics_address(text: str) -> bool:
    found = re.fullmatch(r'(https?://)?([^\s/:]*|\[[0-9a-fA-F:]+\]):(\d{1,5})', text)
    return not text or (found is not None and int(found[3]) <= 65535)


def _are_addresses_with_limits(text: str) -> bool:
    try:
        return min(addresses_with_limits(text).values(), default=0) >= 0
    except ValueError:
        return False


def _password(name: str, doc: str, scope: Scope, **more: Any) -> Setting:
    return Setting(name, Type.PASSWORD, None, doc, scope=scope, **more)


DEFAULT_OR_1_TO_9 = Rule(lambda level: level == -1 or 1 <= level <= 9, '-1 or a whole number from 1 to 9')
LIMIT_OR_NONE = Rule(lambda value: value == -1 or value > 0, '-1 for no limit, or a positive whole number')
ONE_DIRECTORY = Rule(lambda value: len(value) == 1 and value[0] != '',
                     'one directory: kbroker keeps everything in one log directory')
THROTTLED_REPLICAS = Rule(lambda value: value == ('*',) or all(re.fullmatch(r'\d+:\d+', replica) for replica in value),
                          '* or a list of PARTITION:BROKER')
ONLY_PEM = Rule(lambda value: value.upper() == 'PEM', f'PEM: {CONVERT_TO_PEM}')
ONE_LOGIN_MODULE = Rule(_is_login_module, 'one login module, as MODULE required NAME="VALUE" ...;')
AUTHORIZERS = Rule(lambda value: value in ('', 'StandardAuthorizer', STANDARD_AUTHORIZER),
                   'nothing, StandardAuthorizer, or Kafka\'s name of it')
PRINCIPALS = Rule(
    lambda value: all(all(part.strip().partition(':')) for part in value.split(';') if part.strip()),
    'a list of TYPE:NAME, separated by semicolons, such as User:alice;User:bob')
UMASK = Rule(lambda value: re.fullmatch('0?[0-7]{3}', value) is not None and int(value, 8) & 0o700 == 0,
             'an octal number that leaves the owner all rights, such as 077')
ADDRESSES_WITH_LIMITS = Rule(_are_addresses_with_limits, 'ADDRESS:NUMBER,... with numbers from 0 up')
METRICS_ADDRESS = Rule(
    _is_metrics_address,
    'HOST:PORT, or https://HOST:PORT with the keys of listener.name.metrics.ssl.keystore.location')
ONLY_FALSE = Rule(lambda value: not value, 'false: kbroker has no tiered storage')

# The broker's identity, its listeners and its log directory.
IDENTITY = (
    _int('node.id', 1, 'The id of this node in the metadata log and in responses to clients.', 0,
         fallbacks=(('broker.id', 1),)),
    _int('broker.id', None, 'The older name of node.id.', 0),
    _string('broker.rack', None, 'The rack of this broker in Metadata responses.'),
    Setting('listeners', Type.LIST, ('PLAINTEXT://127.0.0.1:9092',),
            'The addresses to bind, as NAME://HOST:PORT. An empty host binds every interface, port 0 a free port.'),
    Setting('advertised.listeners', Type.LIST, None,
            'The addresses that clients connect to, as the broker reports them. Default: listeners.'),
    Setting('listener.security.protocol.map', Type.LIST,
            ('PLAINTEXT:PLAINTEXT', 'SSL:SSL', 'SASL_PLAINTEXT:SASL_PLAINTEXT', 'SASL_SSL:SASL_SSL'),
            'The security protocol of each listener name, as NAME:PROTOCOL. The protocols are PLAINTEXT, SSL, '
            'SASL_PLAINTEXT and SASL_SSL.'),
    Setting('controller.listener.names', Type.LIST, (),
            'Listeners with these names are not bound: the controller runs in this process.'),
    Setting('process.roles', Type.LIST, ('broker', 'controller'),
            'The roles of the process, which is always both broker and controller.',
            values=('broker', 'controller')),
    Setting('log.dirs', Type.LIST, None, 'The log directory. It holds every topic and the metadata log.',
            rule=ONE_DIRECTORY, fallbacks=(('log.dir', 1),)),
    Setting('log.dir', Type.LIST, ('data',), 'The log directory, if log.dirs is not set.', rule=ONE_DIRECTORY),
)

# The settings that only kbroker has.
OWN = (
    _string('kbroker.durability', 'disk',
            'When a record becomes visible and is acknowledged with acks=all. disk: after an fdatasync has covered it. '
            'page-cache: at once; if the machine crashes, acknowledged records may be lost.',
            values=('disk', 'page-cache')),
    _string('kbroker.replication.factor.accept', 'any',
            'The replication factors that a topic may request. any: all, but it gets one replica; strict: only 1.',
            values=('any', 'strict')),
    _boolean_row('kbroker.measure.turns', False,
                 'Measure each turn of the loop in processor time, and log those above 10 ms: for tests.',
                 internal=True),
    _long('kbroker.group.memory.max.bytes', 268435456,
          'The memory in bytes that groups may take with their members and offsets. Members and offsets that exceed it '
          'are refused with COORDINATOR_LOAD_IN_PROGRESS.', 1),
    _boolean_row('kbroker.allow.insecure.listener', False,
                 'Allow a listener beyond loopback on which clients do not authenticate, or on which they write their '
                 'OAUTHBEARER tokens themselves.'),
    _boolean_row('kbroker.end.sessions.of.changed.users', False,
                 'Close the connections of a user whose SCRAM credential changes or goes. Otherwise a change applies '
                 'from the next login.'),
    _boolean_row('kbroker.allow.readable.secrets', False,
                 'Start although every user of the machine may read the settings file, if it holds passwords, or a '
                 'file with a private key.'),
    _string('kbroker.file.umask', '077',
            'The permissions that new files and directories do not get, as an octal number. 027 lets the group read '
            'them.', rule=UMASK),
    _string('metrics.listen', '',
            'The address of metrics and health for Prometheus, and of the page for browsers: HOST:PORT, or '
            'https://HOST:PORT with the ssl settings of the listener named metrics. Empty: there is none.',
            rule=METRICS_ADDRESS),
    _string('metrics.token.file', None,
            'The file with the token that requests for metrics and the page have to bring. Requests for /livez and '
            '/readyz need none.'),
    _string('kbroker.audit.log', '',
            'The audit of logins, denials and administrative changes: the path of its file, or log for the log of the '
            'broker. Empty: there is none.'),
)

# The TLS settings of listeners whose protocol is SSL or SASL_SSL. Keys and certificates are PEM texts, in files or in
# the settings themselves (KIP-651).
TLS = (
    _string('ssl.keystore.type', 'PEM', 'The format of the key and its certificate chain.', rule=ONLY_PEM,
            scope=PER_LISTENER, update=RELOADED),
    _string('ssl.keystore.location', None, 'The file with the private key and its certificate chain.',
            scope=PER_LISTENER, update=RELOADED),
    _password('ssl.keystore.key', 'The private key itself, instead of a file.', PER_LISTENER, update=RELOADED),
    _password('ssl.keystore.certificate.chain', 'The certificate chain for ssl.keystore.key.', PER_LISTENER,
              update=RELOADED),
    _password('ssl.key.password', 'The password of an encrypted private key.', PER_LISTENER, update=RELOADED),
    _string('ssl.truststore.type', 'PEM', 'The format of the trusted certificates.', rule=ONLY_PEM, scope=PER_LISTENER,
            update=RELOADED),
    _string('ssl.truststore.location', None,
            'The file with the certificates that client certificates are verified against.', scope=PER_LISTENER,
            update=RELOADED),
    _password('ssl.truststore.certificates', 'The trusted certificates themselves, instead of a file.', PER_LISTENER,
              update=RELOADED),
    _string('ssl.crl.location', None,
            'The file with the revoked certificates (CRLs) of all authorities that sign clients. A client whose '
            'certificate is in it, or whose authority has no valid list in it, is refused.', scope=PER_LISTENER,
            update=RELOADED),
    _string('ssl.client.auth', 'none',
            'Client certificates: required, requested but optional, or none (not requested).',
            values=('required', 'requested', 'none'), scope=PER_LISTENER, update=RELOADED),
    Setting('ssl.enabled.protocols', Type.LIST, TLS_VERSIONS, 'The TLS versions that are accepted.',
            values=TLS_VERSIONS, scope=PER_LISTENER, update=RELOADED),
    _string('ssl.principal.mapping.rules', 'DEFAULT',
            'How the subject of a client certificate becomes a principal: RULE:pattern/replacement/[LU],...,DEFAULT.',
            scope=PER_LISTENER),
    _long('kbroker.ssl.reload.interval.ms', 10000,
          'The milliseconds between two checks of the files of TLS. New connections use files that have changed. 0: '
          'only on SIGHUP and when a setting of TLS changes.', 0),
)

SASL = (
    Setting('sasl.enabled.mechanisms', Type.LIST, (),
            'The mechanisms by which clients of a SASL listener may log in.', values=SASL_MECHANISMS,
            scope=PER_LISTENER, update=Update.PER_BROKER),
    _password('sasl.jaas.config',
              'The login module of a mechanism and its options, such as the users of PLAIN. It has an effect only as '
              'listener.name.LISTENER.MECHANISM.sasl.jaas.config.', Scope.ONLY_MECHANISM, rule=ONE_LOGIN_MODULE,
              update=Update.PER_BROKER),
    Setting('sasl.server.callback.handler.class', Type.CLASS, None,
            'The class that validates the tokens of OAUTHBEARER. Default: unsecured tokens, for development.',
            values=(OAUTH_VALIDATOR,), scope=PER_MECHANISM),
    _long('connections.max.reauth.ms', 0,
          'The milliseconds after which a client has to log in again on its connection; 0: never.', 0,
          scope=PER_MECHANISM),
    _int('sasl.server.max.receive.size', 524288,
         'The largest frame in bytes before a client has logged in. Unless it is set, 65536 is the limit.', 1,
         scope=PER_LISTENER),
    _int('connection.failed.authentication.delay.ms', 100,
         'The milliseconds by which the answer to a failed login and the end of its connection are delayed.', 0),
    _string('sasl.oauthbearer.jwks.endpoint.url', None,
            'The keys that sign the tokens of OAUTHBEARER: an https:, http: or file: URL.', scope=PER_MECHANISM),
    _long('sasl.oauthbearer.jwks.endpoint.refresh.ms', 3600000,
          'How often, in milliseconds, the keys are fetched again.', 1, scope=PER_MECHANISM),
    _long('sasl.oauthbearer.jwks.endpoint.retry.backoff.ms', 100,
          'The pause in milliseconds after the first fetch that failed; it doubles with each.', 1,
          scope=PER_MECHANISM),
    _long('sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms', 10000, 'The longest such pause in milliseconds.', 1,
          scope=PER_MECHANISM),
    Setting('sasl.oauthbearer.expected.audience', Type.LIST, (),
            'The audiences of which a token has to name one. Required with signed tokens, unless '
            'sasl.oauthbearer.allow.unverified.audience is true.',
            scope=PER_MECHANISM),
    _string('sasl.oauthbearer.expected.issuer', None,
            'The issuer that a token has to be from. Required with signed tokens, unless '
            'sasl.oauthbearer.allow.unverified.issuer is true.',
            scope=PER_MECHANISM),
    _boolean_row('sasl.oauthbearer.allow.unverified.audience', False,
                 'Accept signed tokens for any audience if sasl.oauthbearer.expected.audience is not set.',
                 scope=PER_MECHANISM),
    _boolean_row('sasl.oauthbearer.allow.unverified.issuer', False,
                 'Accept signed tokens of any issuer if sasl.oauthbearer.expected.issuer is not set.',
                 scope=PER_MECHANISM),
    _int('sasl.oauthbearer.clock.skew.seconds', 30,
         'By how many seconds the clocks of the broker and of the issuer may differ.', 0, scope=PER_MECHANISM),
    _string('sasl.oauthbearer.scope.claim.name', 'scope', 'The claim of a token that holds its scope.',
            scope=PER_MECHANISM),
    _string('sasl.oauthbearer.sub.claim.name', 'sub', 'The claim of a token that names its user.',
            scope=PER_MECHANISM),
    Setting('sasl.oauthbearer.jwt.validator.class', Type.CLASS, JWT_VALIDATOR, 'Accepted for compatibility.',
            values=(JWT_VALIDATOR,), scope=PER_MECHANISM),
)

ACCESS = (
    Setting('authorizer.class.name', Type.STRING, '',
            'Access control by ACLs: StandardAuthorizer, or Kafka\'s name of it. Empty: every client may do '
            'everything.', rule=AUTHORIZERS),
    _string('super.users', '', 'The users who may do everything, as User:NAME;User:NAME.', rule=PRINCIPALS),
    _boolean_row('allow.everyone.if.no.acl.found', False,
                 'Allow every client to use a resource that no ACL concerns.'),
    Setting('principal.builder.class', Type.CLASS, PRINCIPAL_BUILDER, 'Accepted for compatibility.',
            values=(PRINCIPAL_BUILDER,), scope=PER_LISTENER),
)

NETWORK = (
    _int('socket.request.max.bytes', 104857600, 'The largest request in bytes; a larger one closes the connection.', 1),
    _int('socket.send.buffer.bytes', -1, 'SO_SNDBUF of connections in bytes; -1: sized by the system.', -1),
    _int('socket.receive.buffer.bytes', -1, 'SO_RCVBUF of connections in bytes; -1: sized by the system.', -1),
    _int('socket.listen.backlog.size', 4096,
         'The most connections that may wait to be accepted. The system lowers it to net.core.somaxconn.', 1),
    _long('connections.max.idle.ms', 600000, 'A connection without a request for this many milliseconds is closed.'),
    _int('max.connections', INT_MAX, 'The most connections open at the same time.', 0, update=CLUSTER,
         scope=PER_LISTENER),
    _int('max.connections.per.ip', INT_MAX, 'The most connections from one IP address.', 0, update=CLUSTER),
    _string('max.connections.per.ip.overrides', '',
            'Other limits for single addresses, as ADDRESS:NUMBER,...; host names are not resolved.',
            rule=ADDRESSES_WITH_LIMITS, update=CLUSTER),
    _int('max.connection.creation.rate', INT_MAX,
         'The connections that are accepted in a second. Beyond it, accepting pauses for up to a window of '
         'quota.window.size.seconds.', 0, update=CLUSTER, scope=PER_LISTENER),
    _int('quota.window.num', 11, 'The samples over which the rate of a client is measured.', 1),
    _int('quota.window.size.seconds', 1,
         'The length of a sample in seconds. No quota but those of bytes throttles a client for longer.', 1),
    _int('controller.quota.window.num', 11,
         'The windows whose quota of created and deleted partitions a client may use up at once.', 1),
    _int('controller.quota.window.size.seconds', 1, 'The length of a window of controller.quota.window.num.', 1),
    _long('queued.max.request.bytes', 134217728,
          'The bytes of requests and responses in memory above which long requests are not read; -1: no limit.'),
    _int('fetch.max.bytes', 57671680,
         'The most bytes in one Fetch response; a larger first batch is still returned.', 1024),
    _int('max.incremental.fetch.session.cache.slots', 1000, 'The most incremental fetch sessions that are kept.', 0),
    _int('max.request.partition.size.limit', 2000, 'The most partitions in one DescribeTopicPartitions response.', 1),
)

TOPICS = (
    _boolean_row('auto.create.topics.enable', True, 'Create a missing topic when a client requests its metadata.'),
    _boolean_row('delete.topic.enable', True, 'Allow topics to be deleted.'),
    _int('num.partitions', 1, 'The number of partitions of a topic that is created without one.', 1),
    _int('min.insync.replicas', 1, 'The in-sync replicas that acks=all requires.', 1, topic_name='min.insync.replicas',
         update=CLUSTER),
    _boolean_row('unclean.leader.election.enable', False,
                 'Accepted for compatibility; the only replica is always in sync.',
                 topic_name='unclean.leader.election.enable', update=CLUSTER),
)

LOG = (
    _int('log.segment.bytes', 1073741824, 'The size in bytes at which a new segment begins.', MIN_SEGMENT_BYTES,
         topic_name='segment.bytes', update=CLUSTER),
    _long('log.roll.ms', None, 'The age in milliseconds at which a new segment begins.', 1, topic_name='segment.ms',
          update=CLUSTER, fallbacks=(('log.roll.hours', HOUR_MS),)),
    _int('log.roll.hours', 168, 'The age in hours at which a new segment begins, if log.roll.ms is not set.', 1),
    _long('log.roll.jitter.ms', None, 'The most milliseconds by which the age of segments is randomly reduced.', 0,
          topic_name='segment.jitter.ms', update=CLUSTER, fallbacks=(('log.roll.jitter.hours', HOUR_MS),)),
    _int('log.roll.jitter.hours', 0, 'The same in hours, if log.roll.jitter.ms is not set.', 0),
    _long('log.retention.ms', None, 'How long records are kept, in milliseconds; -1: forever.', rule=LIMIT_OR_NONE,
          topic_name='retention.ms', update=CLUSTER,
          fallbacks=(('log.retention.minutes', MINUTE_MS), ('log.retention.hours', HOUR_MS))),
    _int('log.retention.minutes', None, 'The same in minutes, if log.retention.ms is not set.', rule=LIMIT_OR_NONE),
    _int('log.retention.hours', 168, 'The same in hours, if log.retention.minutes is not set.', rule=LIMIT_OR_NONE),
    _long('log.retention.bytes', -1, 'The size in bytes above which old segments are deleted; -1: no limit.',
          topic_name='retention.bytes', update=CLUSTER),
    _long('log.retention.check.interval.ms', 300000, 'How often, in milliseconds, old segments are deleted.', 1),
    _int('log.index.size.max.bytes', 10485760, 'The largest index in bytes; a full index begins a new segment.', 4,
         topic_name='segment.index.bytes', update=CLUSTER),
    _int('log.index.interval.bytes', 4096, 'The bytes of log between two index entries.', 0,
         topic_name='index.interval.bytes', update=CLUSTER),
    _long('log.flush.interval.messages', LONG_MAX, 'The number of records after which a partition is flushed.', 1,
          topic_name='flush.messages', update=CLUSTER),
    _long('log.flush.interval.ms', None, 'The milliseconds after which a partition is flushed.', 0,
          topic_name='flush.ms', update=CLUSTER, fallbacks=(('log.flush.scheduler.interval.ms', 1),)),
    _long('log.flush.scheduler.interval.ms', LONG_MAX, 'How often, in milliseconds, log.flush.interval.ms is checked.'),
    _int('log.flush.offset.checkpoint.interval.ms', 60000,
         'How often, in milliseconds, recovery points are written.', 0),
    _int('log.flush.start.offset.checkpoint.interval.ms', 60000,
         'How often, in milliseconds, log start offsets are written.', 0),
    _long('replica.high.watermark.checkpoint.interval.ms', 5000,
          'How often, in milliseconds, high watermarks are written.'),
    _long('log.segment.delete.delay.ms', 60000, 'How long, in milliseconds, a deleted file stays on disk.', 0,
          topic_name='file.delete.delay.ms', update=CLUSTER),
    _boolean_row('log.preallocate', False,
                 'Allocate the full size of a new segment in advance.', topic_name='preallocate',
                 update=CLUSTER),
    _int('message.max.bytes', 1048588, 'The largest batch in bytes.', 0, topic_name='max.message.bytes',
         update=CLUSTER),
    _int('max.decompressed.message.bytes', LARGEST_BODY_BYTES,
         'The largest record of a compressed batch in bytes, after decompression.', 1, high=LARGEST_BODY_BYTES,
         topic_name='max.decompressed.message.bytes', update=CLUSTER),
    _string('log.message.timestamp.type', 'CreateTime',
            'The origin of a timestamp: CreateTime: the producer, LogAppendTime: the broker.',
            values=('CreateTime', 'LogAppendTime'), topic_name='message.timestamp.type', update=CLUSTER),
    _long('log.message.timestamp.before.max.ms', LONG_MAX,
          'The most milliseconds that a timestamp may be in the past.', 0,
          topic_name='message.timestamp.before.max.ms', update=CLUSTER),
    _long('log.message.timestamp.after.max.ms', 3600000,
          'The most milliseconds that a timestamp may be in the future.', 0,
          topic_name='message.timestamp.after.max.ms', update=CLUSTER),
    Setting('log.cleanup.policy', Type.LIST, ('delete',),
            'delete removes old segments; compact keeps the last record of each key. Both may be set.',
            values=('delete', 'compact'), topic_name='cleanup.policy', update=CLUSTER),
    _string('compression.type', 'producer',
            'The compression of stored batches; producer keeps the compression of the producer.',
            values=COMPRESSION_TYPES, topic_name='compression.type', update=CLUSTER),
    _int('compression.gzip.level', -1,
         'The compression level of gzip; -1: the default of gzip.', rule=DEFAULT_OR_1_TO_9,
         topic_name='compression.gzip.level', update=CLUSTER),
    _int('compression.lz4.level', 9, 'The compression level of lz4.', 1, high=17, topic_name='compression.lz4.level',
         update=CLUSTER),
    _int('compression.zstd.level', 3,
         'The compression level of zstd.', -131072, high=22, topic_name='compression.zstd.level',
         update=CLUSTER),
    _long('log.remote.copy.lag.ms', 0, 'Accepted for compatibility; there is no tiered storage.', -1,
          topic_name='remote.copy.lag.ms', update=CLUSTER),
    _long('log.remote.copy.lag.bytes', -1, 'Accepted for compatibility; there is no tiered storage.', -1,
          topic_name='remote.copy.lag.bytes', update=CLUSTER),
)

CLEANER = (
    _boolean_row('log.cleaner.enable', True, 'Run the log cleaner, which compacted topics need.'),
    _long('log.cleaner.dedupe.buffer.size', 134217728,
          'The bytes of memory for the cleaner\'s map from keys to offsets.',
          update=CLUSTER),
    Setting('log.cleaner.io.buffer.load.factor', Type.DOUBLE, 0.9,
            'The share of the cleaner\'s map that may be filled.',
            update=CLUSTER),
    _int('log.cleaner.io.buffer.size', 524288, 'The size in bytes of the cleaner\'s read and write buffers.', 0,
         update=CLUSTER),
    _long('log.cleaner.backoff.ms', 15000,
          'How long, in milliseconds, the cleaner waits when there is nothing to clean.', 0,
          update=CLUSTER),
    Setting('log.cleaner.min.cleanable.ratio', Type.DOUBLE, 0.5,
            'The share of dirty bytes from which a log is cleaned.',
            low=0, high=1, topic_name='min.cleanable.dirty.ratio', update=CLUSTER),
    _long('log.cleaner.delete.retention.ms', 86400000,
          'How long, in milliseconds, a tombstone is kept after it was cleaned.', 0,
          topic_name='delete.retention.ms', update=CLUSTER),
    _long('log.cleaner.min.compaction.lag.ms', 0, 'The milliseconds for which a new record is not compacted.', 0,
          topic_name='min.compaction.lag.ms', update=CLUSTER),
    _long('log.cleaner.max.compaction.lag.ms', LONG_MAX,
          'The milliseconds after which a record becomes due for compaction.', 1,
          topic_name='max.compaction.lag.ms', update=CLUSTER),
)

GROUPS = (
    _int('group.min.session.timeout.ms', 6000,
         'The shortest session timeout, in milliseconds, that a member may request.'),
    _int('group.max.session.timeout.ms', 1800000,
         'The longest session timeout, in milliseconds, that a member may request.'),
    _int('group.initial.rebalance.delay.ms', 3000, 'How long, in milliseconds, a new group waits for more members.'),
    _int('group.max.size', INT_MAX, 'The largest number of members in a group.', 1),
    _int('offset.metadata.max.bytes', 4096, 'The longest metadata of an offset commit.'),
    _int('offsets.topic.num.partitions', 50, 'The number of partitions of __consumer_offsets when it is created.', 1),
    _int('offsets.topic.segment.bytes', 104857600, 'The segment size of __consumer_offsets in bytes.',
         MIN_SEGMENT_BYTES),
    _int('offsets.retention.minutes', 10080, 'How long, in minutes, the offsets of an empty group are kept.', 1),
    _long('offsets.retention.check.interval.ms', 600000, 'How often, in milliseconds, expired offsets are removed.', 1),
)

TRANSACTIONS = (
    _int('transaction.max.timeout.ms', 900000,
         'The longest transaction timeout, in milliseconds, that a producer may request.', 1),
    _int('transactional.id.expiration.ms', 604800000,
         'How long, in milliseconds, an unused transactional id is kept.', 1),
    _int('transaction.abort.timed.out.transaction.cleanup.interval.ms', 10000,
         'How often, in milliseconds, timed-out transactions are aborted.', 1),
    _int('transaction.remove.expired.transaction.cleanup.interval.ms', 3600000,
         'How often, in milliseconds, expired transactional ids are removed.', 1),
    _int('transaction.state.log.num.partitions', 50, 'The partitions of __transaction_state, fixed when it is created.',
         1),
    _int('transaction.state.log.min.isr', 1, 'min.insync.replicas of __transaction_state.', 1),
    _int('transaction.state.log.segment.bytes', 104857600, 'The segment size of __transaction_state in bytes.',
         MIN_SEGMENT_BYTES),
    _boolean_row('kbroker.transaction.stale.request.check.enable', True,
                 'Refuse a request that reaches a transaction late: its producer has moved to a newer connection.'),
    _boolean_row('transaction.two.phase.commit.enable', False,
                 'Let producers take part in two-phase commit (KIP-939): their transactions never time out, and wait '
                 'for an external coordinator to decide. InitProducerId is served up to version 6, which is not final '
                 'in Kafka.'),
    _boolean_row('transaction.partition.verification.enable', True,
                 'Check with the coordinator that a partition belongs to the transaction before its first append.',
                 update=CLUSTER),
    _int('producer.id.expiration.ms', 86400000,
         'How long, in milliseconds, a partition keeps the state of an idle producer.', 1,
         update=CLUSTER),
    _int('producer.id.expiration.check.interval.ms', 600000,
         'How often, in milliseconds, expired producers are removed.', 1,
         internal=True),
)

METADATA = (
    _int('metadata.log.segment.bytes', 1073741824, 'The size in bytes at which the metadata log rolls.', 8388608),
    _long('metadata.log.segment.ms', 604800000,
          'Accepted for compatibility: the metadata log begins a segment with each snapshot.'),
    _long('metadata.log.max.record.bytes.between.snapshots', 20971520,
          'The bytes of metadata records between two snapshots.', 1),
    _long('metadata.log.max.snapshot.interval.ms', 3600000,
          'The most milliseconds between two snapshots; 0: no limit.', 0),
    _long('metadata.max.retention.bytes', 104857600,
          'The size in bytes above which old metadata segments are deleted.'),
    _long('metadata.max.retention.ms', 604800000,
          'The age in milliseconds above which old metadata segments are deleted.'),
)

SETTINGS: dict[str, Setting] = {
    row.name: row
    for group in (IDENTITY, OWN, NETWORK, TLS, SASL, ACCESS, TOPICS, LOG, CLEANER, GROUPS, MODERN_GROUPS,
                  TRANSACTIONS, METADATA)
    for row in group
}

TOPIC_ONLY = (
    Setting('leader.replication.throttled.replicas', Type.LIST, (),
            'Accepted for compatibility; nothing is replicated.',
            rule=THROTTLED_REPLICAS),
    Setting('follower.replication.throttled.replicas', Type.LIST, (),
            'Accepted for compatibility; nothing is replicated.',
            rule=THROTTLED_REPLICAS),
    _boolean_row('remote.storage.enable', False,
                 'Accepted for compatibility; there is no tiered storage.', rule=ONLY_FALSE),
    _boolean_row('remote.log.copy.disable', False, 'Accepted for compatibility; there is no tiered storage.'),
    _boolean_row('remote.log.delete.on.disable', False, 'Accepted for compatibility; there is no tiered storage.'),
    _long('local.retention.bytes', -2, 'Accepted for compatibility; there is no tiered storage.', -2),
    _long('local.retention.ms', -2, 'Accepted for compatibility; there is no tiered storage.', -2),
    _boolean_row('errors.deadletterqueue.group.enable', False,
                 'Let share groups use the topic as their dead-letter topic.'),
    _int('internal.segment.bytes', None, 'Replaces segment.bytes, without its lower bound.', 1,
         internal=True),
)


def _as_topic_setting(row: Setting) -> Setting:
    assert row.topic_name is not None
    # A topic may set retention.ms=0, although the broker's setting may not be 0.
    low, rule = (-1, None) if row.rule is LIMIT_OR_NONE else (row.low, row.rule)
    return Setting(row.topic_name, row.type, row.default, row.doc, low=low, high=row.high, values=row.values, rule=rule,
                   update=Update.CLUSTER_WIDE)


TOPIC_SETTINGS: dict[str, Setting] = {
    row.name: row
    for row in (*(_as_topic_setting(row) for row in SETTINGS.values() if row.topic_name), *TOPIC_ONLY)
}
BROKER_NAME_OF: dict[str, str] = {row.topic_name: row.name for row in SETTINGS.values() if row.topic_name}
"""Maps a topic-level setting to the broker-level setting that holds its default, if there is one."""

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
    'metadata.log.dir': 'the metadata log is in the log directory',
    'auto.leader.rebalance.enable': 'the only node leads every partition',
    'leader.imbalance.*': 'the only node leads every partition',
    'unclean.leader.election.interval.ms': 'the only node leads every partition',
    'inter.broker.listener.name': 'there is no other broker',
    'security.inter.broker.protocol': 'there is no other broker',
    'sasl.mechanism.inter.broker.protocol': 'there is no other broker',
    'sasl.mechanism.controller.protocol': 'there is no other broker',
    'ssl.allow.dn.changes': 'a new key may have any subject',
    'ssl.allow.san.changes': 'a new key may have any alternative names',
    'sasl.login.*': 'the broker logs in nowhere',
    'sasl.client.*': 'the broker logs in nowhere',
    'sasl.oauthbearer.token.endpoint.url': 'the broker logs in nowhere',
    'sasl.oauthbearer.assertion.*': 'the broker logs in nowhere',
    'sasl.oauthbearer.client.*': 'the broker logs in nowhere',
    'sasl.oauthbearer.header.urlencode': 'the broker logs in nowhere',
    'sasl.oauthbearer.jwt.retriever.class': 'the broker logs in nowhere',
    'sasl.oauthbearer.scope': 'the broker logs in nowhere',
    'controlled.shutdown.enable': 'there is no other broker',
    'broker.heartbeat.interval.ms': 'the controller runs in this process',
    'broker.session.timeout.ms': 'the controller runs in this process',
    'initial.broker.registration.timeout.ms': 'the controller runs in this process',
    'controller.quorum.*': 'the only node is the quorum',
    'controller.socket.timeout.ms': 'the controller runs in this process',
    'controller.performance.*': 'the controller runs in this process',
    'early.start.listeners': 'the controller runs in this process',
    'server.max.startup.time.ms': 'the controller runs in this process',
    'metadata.max.idle.interval.ms': 'the only node is the quorum',
    'socket.connection.setup.timeout.*': 'the broker opens no connections',
    'num.network.threads': 'one thread serves all connections',
    'num.io.threads': 'one thread serves all connections',
    'queued.max.requests': 'one thread serves all connections; see queued.max.request.bytes',
    'background.threads': 'one thread owns all state',
    'num.recovery.threads.per.data.dir': 'one thread owns all state',
    'log.cleaner.threads': 'one worker cleans',
    'log.cleaner.io.max.bytes.per.second': 'the cleaner is not throttled',
    'group.coordinator.*': 'the coordinators run in the only thread',
    'group.*.assignor.offload.enable': 'assignments are computed in the only thread, in small parts',
    'group.share.persister.class.name': 'no JVM is available to load it',
    'group.share.dlq.manager.class.name': 'no JVM is available to load it',
    'group.streams.topology.description.plugin.class': 'no JVM is available to load it',
    'group.share.initialize.retry.interval.ms': 'the share coordinator runs in this process',
    'share.coordinator.threads': 'the coordinators run in the only thread',
    'share.coordinator.append.linger.ms': 'the coordinators run in the only thread',
    'share.coordinator.cached.buffer.max.bytes': 'the coordinators run in the only thread',
    'share.coordinator.load.buffer.size': 'the coordinators read the log in place',
    'share.coordinator.write.timeout.ms': 'a write of the share state ends when it is durable or has failed',
    'share.coordinator.state.topic.compression.codec': 'the share state is written uncompressed',
    'share.coordinator.state.topic.replication.factor': 'every partition has one replica',
    'request.timeout.ms': 'an administrative request has no time limit',
    'log.initial.task.delay.ms': 'periodic tasks begin one interval after the start',
    'offsets.commit.timeout.ms': 'an offset commit ends when its write is durable or has failed',
    'offsets.topic.compression.codec': 'offsets are written uncompressed',
    'offsets.load.buffer.size': 'the coordinators read the log in place',
    'transaction.state.log.load.buffer.size': 'the coordinators read the log in place',
    'add.partitions.to.txn.retry.*': 'the coordinator runs in this process',
    '*.purgatory.purge.interval.requests': 'finished waiters are removed at once',
    'remote.*': 'there is no tiered storage',
    'log.local.retention.*': 'there is no tiered storage',
    'follower.fetch.last.tiered.offset.enable': 'there is no tiered storage',
    'quota.*': 'nothing is replicated',
    'metric.reporters': 'no JVM is available to load it',
    'metrics.*': 'no JVM is available to load it',
    'kafka.metrics.*': 'no JVM is available to load it',
    'auto.include.jmx.reporter': 'there is no JVM',
    'telemetry.max.bytes': 'client telemetry is not collected',
    'config.providers*': 'values are used as written',
    'unstable.*.versions.enable': 'only stable versions are served',
    'internal.metadata.*': 'internal to Kafka',
}
"""Maps settings of Kafka that have no effect in kbroker to the reason. The broker accepts them with a warning."""

REFUSED: dict[str, str] = {
    'ssl.keystore.password': NO_STORE_PASSWORD,
    'ssl.truststore.password': NO_STORE_PASSWORD,
    'ssl.*': 'this part of TLS is not served',
    'sasl.kerberos.*': 'GSSAPI is not served',
    'sasl.*': 'this part of SASL is not served',
    'delegation.token.*': 'delegation tokens are not served',
    'security.providers': 'no JVM is available to load it',
    'client.quota.callback.class': 'no JVM is available to load it',
    'alter.config.policy.class.name': 'no JVM is available to load it',
    'create.topic.policy.class.name': 'no JVM is available to load it',
}
"""Maps settings of Kafka that kbroker lacks, and on which an operator would rely, to the reason.

Each of them prevents the start.
"""
