"""The options of `format("kbroker")`, read and checked: Spark's own names wherever its Kafka connector has one."""
from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.errors import ConfigError

EARLIEST = -2
LATEST = -1
MIB = 1024 * 1024

PROTECTED = {
    'kafka.auto.offset.reset': 'use startingOffsets',
    'kafka.key.deserializer': 'keys are binary; cast them in the query',
    'kafka.value.deserializer': 'values are binary; cast them in the query',
    'kafka.enable.auto.commit': 'nothing is committed to a group',
    'kafka.interceptor.classes': 'there are no interceptors',
}
WITHOUT_EFFECT = {
    'groupidprefix': 'no group is used',
    'kafka.group.id': 'no group is used: offsets are kept by the plan and by checkpoints',
    'kafkaconsumer.polltimeoutms': 'there is no poll; kafka.request.timeout.ms bounds a request',
    'fetchoffset.numretries': 'kafka.default.api.timeout.ms bounds the attempts',
    'fetchoffset.retryintervalms': 'kafka.retry.backoff.ms is the pause between attempts',
}
"""Options of Spark's own connector that a query written for it may bring along."""
CLIENT_SETTINGS = frozenset((
    'bootstrap.servers', 'client.id', 'isolation.level', 'security.protocol', 'request.timeout.ms',
    'default.api.timeout.ms', 'socket.connection.setup.timeout.ms', 'retry.backoff.ms', 'retry.backoff.max.ms',
    'fetch.max.bytes',
    # What the Java consumer knows too, and what changes nothing here.
    'allow.auto.create.topics', 'auto.commit.interval.ms', 'check.crcs', 'client.dns.lookup', 'client.rack',
    'connections.max.idle.ms', 'enable.metrics.push', 'exclude.internal.topics', 'fetch.max.wait.ms',
    'fetch.min.bytes', 'group.instance.id', 'group.protocol', 'group.remote.assignor', 'heartbeat.interval.ms',
    'max.partition.fetch.bytes', 'max.poll.interval.ms', 'max.poll.records', 'metadata.max.age.ms',
    'metadata.recovery.rebootstrap.trigger.ms', 'metadata.recovery.strategy', 'metric.reporters',
    'metrics.num.samples', 'metrics.recording.level', 'metrics.sample.window.ms',
    'partition.assignment.strategy', 'receive.buffer.bytes', 'reconnect.backoff.max.ms', 'reconnect.backoff.ms',
    'security.providers', 'send.buffer.bytes', 'session.timeout.ms', 'socket.connection.setup.timeout.max.ms',
))
CLIENT_PREFIXES = ('ssl.', 'sasl.')

logger = logging.getLogger(__name__)


class OptionError(ConfigError):
    """An option is unknown, missing, or says what it must not."""

    def __init__(self, name: str, problem: str):
        super().__init__(name, f'option {name}: {problem}')


@dataclass(frozen=True)
class Row:
    """One option: `parse` turns its text into a value or raises ValueError that says what was expected."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    doc: str
    place: str = ''
    """Where alone it makes sense: `path`, `broker`, `stream`, `batch`, or `path batch`; '' everywhere."""


def _boolean(text: str) -> bool:
    if text.lower() not in ('true', 'false'):
        raise ValueError('true or false')
    return text.lower() == 'true'


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for word in allowed:
            if text.lower() == word.lower():
                return word
        raise ValueError(' or '.join(allowed))
    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError('a whole number above 0')
    return int(text)


def _timestamp(text: str) -> int:
    if not re.fullmatch(r'-?\d{1,19}', text):
        raise ValueError('milliseconds since the epoch')
    return int(text)


def parse_bytes(text: str) -> int:
    """`128m`, `1g`, `65536`: bytes, in binary units as in Spark."""
    match = re.fullmatch(r'(\d+)\s*([kmgt]?)i?b?', text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError('a size such as 128m')
    return int(match[1]) << {'': 0, 'k': 10, 'm': 20, 'g': 30, 't': 40}[match[2]]


def parse_duration_ms(text: str) -> int:
    """`15m`, `30s`, `100ms`: in milliseconds. A bare number is milliseconds, as in Spark."""
    match = re.fullmatch(r'(\d+)\s*(ms|s|m|min|h|d|)', text.strip().lower())
    if match is None:
        raise ValueError('a time such as 15m')
    return int(match[1]) * {'': 1, 'ms': 1, 's': 1000, 'm': 60_000, 'min': 60_000, 'h': 3_600_000,
                            'd': 86_400_000}[match[2]]


def _offsets(word: str) -> Callable[[str], str | dict[tuple[str, int], int]]:
    def parse(text: str) -> str | dict[tuple[str, int], int]:
        if text.lower() in ('earliest', 'latest'):
            if word == 'ending' and text.lower() == 'earliest':
                raise ValueError('latest, or JSON such as {"topic":{"0":100,"1":-1}}')
            return text.lower()
        return _offset_numbers(text)
    return parse


def parse_partition_numbers(text: str, what: str) -> dict[tuple[str, int], int]:
    """`{"orders":{"0":23,"1":-2}}` as {(topic, partition): number}; ValueError says what was expected."""
    expected = f'JSON such as {{"topic":{{"0":100}}}}, a number ({what}) for each partition'
    try:
        topics = json.loads(text)
        return {(topic, _partition(number)): _number(value)
                for topic, partitions in topics.items() for number, value in partitions.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError(expected) from None


def _offset_numbers(text: str) -> dict[tuple[str, int], int]:
    found = parse_partition_numbers(text, 'offset')
    for value in found.values():
        if value < EARLIEST:
            raise ValueError(f'offsets from 0 on, -1 (latest) or -2 (earliest), not {value}')
    return found


def _partition(text: str) -> int:
    if not re.fullmatch(r'\d{1,9}', text):
        raise ValueError
    return int(text)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return value


def _by_timestamp(text: str) -> dict[tuple[str, int], int]:
    return parse_partition_numbers(text, 'milliseconds since the epoch')


def _assignment(text: str) -> dict[str, list[int]]:
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not found:
            raise ValueError
        return {str(topic): sorted({_number(partition) for partition in partitions})
                for topic, partitions in found.items()}
    except (ValueError, TypeError):
        raise ValueError('JSON such as {"topic":[0,1]}') from None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f'a regular expression ({error})') from None


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(',') if name.strip()]
    if not names:
        raise ValueError('names separated by commas')
    return names


def _directory(text: str) -> str:
    path = text.removeprefix('file://')
    if not path.startswith('/'):
        raise ValueError('a directory, from the root on')
    return path


def _locations(text: str) -> list[str]:
    """Of `load([...])`, from which Spark makes JSON."""
    try:
        found = json.loads(text)
        if not found or not all(isinstance(each, str) and each for each in found):
            raise ValueError
        return list(found)
    except (ValueError, TypeError):
        raise ValueError('JSON such as ["/data/a","/data/b"]') from None


TABLES = ('records', 'batches', 'transactions', 'transaction_history', 'aborted', 'offsets', 'groups', 'producers',
          'segments')

ROWS = (
    Row('path', _names, None, 'Log or partition directories, local or as URIs, separated by commas.'),
    Row('paths', _locations, None, 'The same as a JSON list; what load(["a", "b"]) becomes.'),
    Row('subscribe', _names, None, 'Topics, separated by commas.'),
    Row('subscribePattern', _pattern, None, 'Topics by a regular expression.'),
    Row('assign', _assignment, None, 'Partitions: {"topic":[0,1]}.'),
    Row('startingOffsets', _offsets('starting'), None, 'earliest (batch), latest (stream), or JSON; -2 and -1 in it.'),
    Row('endingOffsets', _offsets('ending'), 'latest', 'latest, or JSON; -1 in it is the latest.', 'batch'),
    Row('startingTimestamp', _timestamp, None, 'Milliseconds since the epoch, for all partitions.'),
    Row('endingTimestamp', _timestamp, None, 'Milliseconds since the epoch, for all partitions.', 'batch'),
    Row('startingOffsetsByTimestamp', _by_timestamp, None, 'Milliseconds since the epoch, by partition.'),
    Row('endingOffsetsByTimestamp', _by_timestamp, None, 'Milliseconds since the epoch, by partition.', 'batch'),
    Row('startingOffsetsByTimestampStrategy', _choice('error', 'latest'), 'error',
        'When no record is as young as the starting timestamp.'),
    Row('isolation', _choice('read_committed', 'read_uncommitted'), 'read_committed',
        'Aborted and open transactions are left out unless this says read_uncommitted.'),
    Row('upTo', _choice('lso', 'hw', 'recoveryPoint'), 'lso',
        'Read to the last stable offset, or no further than the high watermark, or what is known synced.', 'path'),
    Row('splitBytes', parse_bytes, 128 * MIB,
        'Bytes of log for a task; where only minPartitions is given, that sets it, up to 1g.'),
    Row('minPartitions', _positive, None, 'At least about as many tasks.'),
    Row('maxRecordsPerPartition', _positive, None, 'At most about as many offsets in a task.'),
    Row('batchRows', _positive, 10_000, 'Rows of an Arrow batch.'),
    Row('batchBytes', parse_bytes, MIB, 'Bytes of keys and values in an Arrow batch.'),
    Row('checkCrcs', _boolean, True, 'Whether the checksum of each batch is checked.'),
    Row('failOnDataLoss', _boolean, True, 'Whether records that are gone or damaged end the query.'),
    Row('skippedTo', _directory, None,
        'A directory that driver and executors share: what was passed over is told there, in JSON.'),
    Row('verifyTxnIndex', _boolean, False, 'Learn of aborted transactions from headers, not from indexes.', 'path'),
    Row('pin', _choice('none', 'hardlink'), 'none',
        'Hard-link the segments beside the log directory, so that a broker may delete them; gone after a day.',
        'path batch'),
    Row('includeHeaders', _boolean, False, 'Adds the column headers.'),
    Row('includeTransactions', _boolean, False, 'Adds what the batches say of producers and transactions.'),
    Row('table', _choice(*TABLES), 'records', 'What to read: records, or the log itself.', 'batch'),
    Row('maxOffsetsPerTrigger', _positive, None, 'Offsets in a micro-batch, at most about.', 'stream'),
    Row('maxBytesPerTrigger', parse_bytes, None, 'Bytes of log in a micro-batch, at most about.', 'stream'),
    Row('minOffsetsPerTrigger', _positive, None, 'Offsets that a micro-batch waits for.', 'stream'),
    Row('maxTriggerDelay', parse_duration_ms, 15 * 60_000, 'How long it waits for them, such as 15m.', 'stream'),
)
BY_NAME = {row.name.lower(): row for row in ROWS}
ALIASES = {'logdir': 'path', 'includetxn': 'includeTransactions'}
IGNORED = {'checkpointlocation', 'queryname'}
"""What Spark itself puts among the options of a stream."""


@dataclass(frozen=True)
class Options:
    """What was asked for, by the names of `ROWS` in lower case; `kafka` holds the client's settings."""

    values: dict[str, Any]
    given: frozenset[str]
    kafka: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name.lower()]

    def is_given(self, name: str) -> bool:
        return name.lower() in self.given

    @property
    def is_read_committed(self) -> bool:
        return bool(self['isolation'] == 'read_committed')

    @property
    def bootstrap_servers(self) -> str | None:
        return self.kafka.get('bootstrap.servers')

    def wants(self, topic: str, partition: int) -> bool:
        """Whether this partition was subscribed to."""
        if self.is_given('assign'):
            return partition in self['assign'].get(topic, ())
        if self.is_given('subscribe'):
            return topic in self['subscribe']
        if self.is_given('subscribePattern'):
            return self['subscribePattern'].fullmatch(topic) is not None
        return not topic.startswith('__')


def parse_options(given: Mapping[str, str]) -> Options:
    """OptionError that names the option, what was found and what was expected."""
    values = {row.name.lower(): row.default for row in ROWS}
    kafka: dict[str, str] = {}
    names = set()
    for name, text in given.items():
        lower = ALIASES.get(name.lower(), name).lower()
        if lower in IGNORED:
            continue
        if lower in WITHOUT_EFFECT:
            logger.warning('option %s has no effect: %s', name, WITHOUT_EFFECT[lower])
            continue
        if lower.startswith('kafka.'):
            kafka[_client_setting(lower, text)] = text
            continue
        row = BY_NAME.get(lower)
        if row is None:
            raise OptionError(name, f'no such option{_suggestion(lower, [row.name for row in ROWS])}')
        values[lower] = _parsed(row, row.name, text)
        names.add(lower)
    _take_isolation(values, names, kafka.pop('isolation.level', None))
    if 'paths' in names:
        values['path'] = [*(values['path'] or ()), *values['paths']]
        names.add('path')
    options = Options(values, frozenset(names), kafka)
    _check_together(options)
    return options


def _parsed(row: Row, name: str, text: str) -> Any:
    try:
        return row.parse(text)
    except ValueError as error:
        raise OptionError(name, f'found {text!r}, expected {error}') from None


def _take_isolation(values: dict[str, Any], names: set[str], level: str | None) -> None:
    """`kafka.isolation.level` says the same as `isolation`."""
    if level is None:
        return
    found = _parsed(BY_NAME['isolation'], 'kafka.isolation.level', level)
    if 'isolation' in names and values['isolation'] != found:
        raise OptionError('isolation', f'found {values["isolation"]} here and {found} in kafka.isolation.level')
    values['isolation'] = found


def _client_setting(name: str, text: str) -> str:
    if name in PROTECTED:
        raise OptionError(name, f'found {text!r}; it cannot be set: {PROTECTED[name]}')
    setting = name.removeprefix('kafka.')
    if setting not in CLIENT_SETTINGS and not setting.startswith(CLIENT_PREFIXES):
        raise OptionError(name, f'no such setting of a consumer{_suggestion(name, known_client_settings())}')
    return setting


def known_client_settings() -> list[str]:
    return [f'kafka.{name}' for name in sorted(CLIENT_SETTINGS)]


def _suggestion(name: str, allowed: Iterable[str]) -> str:
    names = {each.lower(): each for each in [*allowed, 'kafka.bootstrap.servers']}
    close = difflib.get_close_matches(name, names, 1)
    return f', did you mean {names[close[0]]}?' if close else ''


def _check_together(options: Options) -> None:
    if options.is_given('path') == (options.bootstrap_servers is not None):
        raise OptionError('path', 'give one of path (a log directory) and kafka.bootstrap.servers (a broker)')
    chosen = [name for name in ('subscribe', 'subscribePattern', 'assign') if options.is_given(name)]
    if len(chosen) > 1:
        raise OptionError(chosen[1], f'given beside {chosen[0]}; give one of subscribe, subscribePattern, assign')
    is_broker = options.bootstrap_servers is not None
    if not is_broker and options.kafka:
        raise OptionError(f'kafka.{min(options.kafka)}', 'given beside path, where no broker is asked')
    if is_broker and options['table'] == 'segments':
        raise OptionError('table', 'found segments beside kafka.bootstrap.servers; a broker tells nothing of its '
                                   'files, give path')
    if is_broker and not chosen and options['table'] == 'records':
        raise OptionError('subscribe', 'missing; give one of subscribe, subscribePattern, assign')
    if is_broker:
        _refuse(options, 'path', 'it is about files; with kafka.bootstrap.servers a broker is asked')


def check_use(options: Options, *, is_stream: bool) -> None:
    """OptionError for an option that means nothing in a query of this kind."""
    if is_stream:
        _refuse(options, 'batch', 'it is for spark.read; a stream has no end, and pins nothing')
    else:
        _refuse(options, 'stream', 'it is for spark.readStream')


def _refuse(options: Options, place: str, why: str) -> None:
    for row in ROWS:
        if place in row.place.split() and options.is_given(row.name):
            raise OptionError(row.name, f'not here: {why}')
