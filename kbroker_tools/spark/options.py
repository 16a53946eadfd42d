"""The options of `format("kbroker")`. An option that Spark's Kafka connector has too has the same name here."""
from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kbroker.base import lean_dataclasses
from kbroker.base.errors import ConfigError
from kbroker.base.suggestions import did_you_mean
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.config import read_client_file
from kbroker.settings.durations import duration_ms
from kbroker.settings.options import Option, choice, whole_number
from kbroker.settings.rows import boolean
from kbroker_tools.spark.times import OVERFLOWS

EARLIEST = -2
LATEST = -1
MIB = 1024 * 1024
MOST = 2**63 - 1
"""The largest offset, the largest time, and the largest number in Spark."""
TIMES = 'milliseconds since the epoch,'

PROTECTED = {
    'kafka.auto.offset.reset': 'use startingOffsets instead',
    'kafka.key.deserializer': 'keys are binary, so cast them in the query',
    'kafka.value.deserializer': 'values are binary, so cast them in the query',
    'kafka.enable.auto.commit': 'the source commits no offsets to a group',
    'kafka.interceptor.classes': 'the source has no interceptors',
}
WITHOUT_EFFECT = {
    'groupidprefix': 'the source uses no group',
    'kafka.group.id': 'the source uses no group; the plan and the checkpoints keep the offsets',
    'kafkaconsumer.polltimeoutms': 'the source does not poll; set kafka.request.timeout.ms to bound a request',
    'fetchoffset.numretries': 'set kafka.default.api.timeout.ms to bound the attempts',
    'fetchoffset.retryintervalms': 'set kafka.retry.backoff.ms for the pause between attempts',
}
"""Maps options of Spark's own connector to the reason why they have no effect here. They are accepted because existing
queries may set them."""
CLIENT_SETTINGS = frozenset((
    'bootstrap.servers', 'client.id', 'isolation.level', 'security.protocol', 'request.timeout.ms',
    'default.api.timeout.ms', 'socket.connection.setup.timeout.ms', 'retry.backoff.ms', 'retry.backoff.max.ms',
    'fetch.max.bytes',
    # The following settings of the Java consumer are accepted but have no effect here.
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
REGISTRY_PREFIX = 'schema.registry.'
"""The beginning of the options for the client of a schema registry, as in Java's clients."""
VALUE_FORMATS = ('json', 'avro', 'protobuf')

logger = logging.getLogger(__name__)


class OptionError(ConfigError):
    """An option is unknown, missing or invalid."""

    def __init__(self, name: str, problem: str):
        super().__init__(name, f'option {name}: {problem}')


@lean_dataclasses.dataclass(frozen=True, slots=True)
class Row(Option):
    """One option of a query."""

    place: str = ''
    """The kind of query that may set the option: `path`, `broker`, `stream`, `batch` or `path batch`. '' if every query
    may set it."""


def parse_bytes(text: str) -> int:
    """Parse a size such as `128m`, `1g` or `65536` to bytes. Units are binary, as in Spark."""
    match = re.fullmatch(r'([0-9]{1,19})\s*([kmgt]?)i?b?', text.strip().lower())
    size_bytes = 0 if match is None else int(match[1]) << {'': 0, 'k': 10, 'm': 20, 'g': 30, 't': 40}[match[2]]
    if not 0 < size_bytes <= MOST:
        raise ValueError(f'a size such as 128m, up to {MOST} bytes')
    return size_bytes


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as `15m`, `30s` or `100ms` to milliseconds. A number without a unit is in milliseconds, as
    in Spark."""
    text = text.strip().lower()
    try:
        return duration_ms(f'{text}ms' if text.isdecimal() else text)
    except ValueError:
        raise ValueError('a time such as 15m') from None


def _offsets(word: str) -> Callable[[str], str | dict[TopicPartition, int]]:
    def parse(text: str) -> str | dict[TopicPartition, int]:
        if text.lower() in ('earliest', 'latest'):
            if word == 'ending' and text.lower() == 'earliest':
                raise ValueError('latest, or JSON such as {"topic":{"0":100,"1":-1}}')
            return text.lower()
        return _offset_numbers(text)
    return parse


def parse_partition_numbers(text: str, what: str) -> dict[TopicPartition, int]:
    """Parse a text such as `{"orders":{"0":23,"1":-2}}` to {(topic, partition): number}. Raise ValueError, which names
    the expected form, if the text has another form."""
    expected = f'JSON such as {{"topic":{{"0":100}}}}, a number ({what}) for each partition'
    try:
        topics = json.loads(text)
        return {(topic, _partition(number)): _number(value)
                for topic, partitions in topics.items() for number, value in partitions.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError(expected) from None


def _offset_numbers(text: str) -> dict[TopicPartition, int]:
    found = parse_partition_numbers(text, 'offset')
    for value in found.values():
        if not EARLIEST <= value <= MOST:
            raise ValueError(f'offsets from 0 to {MOST}, -1 (latest) or -2 (earliest), not {value}')
    return found


def _partition(text: str) -> int:
    if not re.fullmatch(r'\d{1,9}', text):
        raise ValueError
    return int(text)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return value


def _by_timestamp(text: str) -> dict[TopicPartition, int]:
    found = parse_partition_numbers(text, 'milliseconds since the epoch')
    for value in found.values():
        if not 0 <= value <= MOST:
            raise ValueError(f'{TIMES} from 0 to {MOST}, not {value}')
    return found


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


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError('a schema')
    return text


def _directory(text: str) -> str:
    path = text.removeprefix('file://')
    if not path.startswith('/'):
        raise ValueError('an absolute path of a directory')
    return path


def _locations(text: str) -> list[str]:
    """Parse the JSON text into which Spark converts the paths of `load([...])`."""
    try:
        found = json.loads(text)
        if not found or not all(isinstance(each, str) and each for each in found):
            raise ValueError
        return list(found)
    except (ValueError, TypeError):
        raise ValueError('JSON such as ["/data/a","/data/b"]') from None


TABLES = ('records', 'batches', 'transactions', 'transaction_history', 'aborted', 'offsets', 'groups', 'producers',
          'segments')
POSITIVE = whole_number(1, MOST)
TIMESTAMP = whole_number(0, MOST, TIMES)

ROWS = (
    Row('path', _names, None),
    Row('paths', _locations, None),
    Row('subscribe', _names, None),
    Row('subscribePattern', _pattern, None),
    Row('assign', _assignment, None),
    Row('startingOffsets', _offsets('starting'), None),
    Row('endingOffsets', _offsets('ending'), 'latest', 'batch'),
    Row('startingTimestamp', TIMESTAMP, None),
    Row('endingTimestamp', TIMESTAMP, None, 'batch'),
    Row('startingOffsetsByTimestamp', _by_timestamp, None),
    Row('endingOffsetsByTimestamp', _by_timestamp, None, 'batch'),
    Row('startingOffsetsByTimestampStrategy', choice('error', 'latest'), 'error'),
    Row('isolation', choice('read_committed', 'read_uncommitted'), 'read_committed'),
    Row('upTo', choice('lso', 'hw', 'recoveryPoint'), 'lso', 'path'),
    Row('splitBytes', parse_bytes, 128 * MIB),
    Row('minPartitions', POSITIVE, None),
    Row('maxRecordsPerPartition', POSITIVE, None),
    Row('batchRows', POSITIVE, 10_000),
    Row('batchBytes', parse_bytes, MIB),
    Row('checkCrcs', boolean, True),
    Row('failOnDataLoss', boolean, True),
    Row('skippedTo', _directory, None),
    Row('verifyTxnIndex', boolean, False, 'path'),
    Row('pin', choice('none', 'hardlink'), 'none', 'path batch'),
    Row('includeHeaders', boolean, False),
    Row('includeTransactions', boolean, False),
    Row('includeTimestampMillis', boolean, False),
    Row('includeValueBytes', boolean, False),
    Row('timestampOverflow', choice(*OVERFLOWS), 'error'),
    Row('valueFormat', choice(*VALUE_FORMATS), None),
    Row('valueSchema', _text, 'registry:'),
    Row('valueReaderSchema', _text, None),
    Row('table', choice(*TABLES), 'records', 'batch'),
    Row('maxOffsetsPerTrigger', POSITIVE, None, 'stream'),
    Row('maxBytesPerTrigger', parse_bytes, None, 'stream'),
    Row('minOffsetsPerTrigger', POSITIVE, None, 'stream'),
    Row('maxTriggerDelay', parse_duration_ms, 15 * 60_000, 'stream'),
)
"""The options of a query. `docs/spark.md` describes them."""
BY_NAME = {row.name.lower(): row for row in ROWS}
ALIASES = {'logdir': 'path', 'includetxn': 'includeTransactions'}
IGNORED = {'checkpointlocation', 'queryname'}
"""Options that Spark adds to the options of a stream."""
OF_A_TABLE = 'provider'
"""An option that Spark adds to the options of CREATE TABLE."""


@dataclass(frozen=True)
class Options:
    """The values of all options. Their keys are the names in `ROWS` in lower case. `kafka` has the settings of the
    client, and `registry` those of the client of a schema registry."""

    values: dict[str, Any]
    given: frozenset[str]
    kafka: dict[str, str] = field(default_factory=dict)
    registry: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name.lower()]

    def is_given(self, name: str) -> bool:
        return name.lower() in self.given

    def with_value(self, name: str, value: Any) -> Options:
        """Return the options with another value of one option, as if it were its default."""
        return replace(self, values={**self.values, name.lower(): value})

    @property
    def is_read_committed(self) -> bool:
        return bool(self['isolation'] == 'read_committed')

    @property
    def bootstrap_servers(self) -> str | None:
        return self.kafka.get('bootstrap.servers')

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether the options select the partition."""
        if self.is_given('assign'):
            return partition in self['assign'].get(topic, ())
        if self.is_given('subscribe'):
            return topic in self['subscribe']
        if self.is_given('subscribePattern'):
            return self['subscribePattern'].fullmatch(topic) is not None
        return not topic.startswith('__')


def parse_options(given: Mapping[str, str]) -> Options:
    """Return the options after parsing and checking them. Raise OptionError, which names the option, the value that was
    found and the value that was expected, if an option is wrong."""
    values = {row.name.lower(): row.default for row in ROWS}
    kafka: dict[str, str] = {}
    registry: dict[str, str] = {}
    names = set()
    if OF_A_TABLE in map(str.lower, given):
        raise OptionError(OF_A_TABLE, 'not allowed here: Spark adds it to the options of CREATE TABLE, which do not '
                          'reach the queries of the table; use CREATE TEMPORARY VIEW ... USING kbroker instead')
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
        if lower.startswith(REGISTRY_PREFIX):
            registry[lower] = text
            continue
        row = BY_NAME.get(lower)
        if row is None:
            raise OptionError(name, f'no such option{suggestion(lower, [row.name for row in ROWS])}')
        values[lower] = row.value_of(text, refusal=OptionError)
        names.add(lower)
    _take_isolation(values, names, kafka.pop('isolation.level', None))
    if 'paths' in names:
        values['path'] = [*(values['path'] or ()), *values['paths']]
        names.add('path')
    options = Options(values, frozenset(names), kafka, registry)
    _check_together(options)
    return options


def _take_isolation(values: dict[str, Any], names: set[str], level: str | None) -> None:
    """Apply the option `kafka.isolation.level`, which has the same meaning as `isolation`."""
    if level is None:
        return
    found = BY_NAME['isolation'].value_of(level, 'kafka.isolation.level', OptionError)
    if 'isolation' in names and values['isolation'] != found:
        raise OptionError('isolation', f'found {values["isolation"]} here, but {found} in kafka.isolation.level')
    values['isolation'] = found


def _client_setting(name: str, text: str) -> str:
    if name in PROTECTED:
        raise OptionError(name, f'found {text!r}, but it cannot be set: {PROTECTED[name]}')
    setting = name.removeprefix('kafka.')
    if setting not in CLIENT_SETTINGS and not setting.startswith(CLIENT_PREFIXES):
        raise OptionError(name, f'no such setting of a consumer{suggestion(name, known_client_settings())}')
    return setting


def client_options(file: Path | None) -> dict[str, str]:
    """Return the settings in a client's settings file as options. A setting is skipped if the data source does not have
    it or sets it itself.

    Raise ConfigError if the file has a wrong line, and OSError if it cannot be read.
    """
    if file is None:
        return {}
    return {f'kafka.{name}': text for name, text in read_client_file(file).items()
            if name != 'bootstrap.servers' and (name in CLIENT_SETTINGS or name.startswith(CLIENT_PREFIXES))}


def known_client_settings() -> list[str]:
    return [f'kafka.{name}' for name in sorted(CLIENT_SETTINGS)]


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return the end of a message that suggests the allowed name closest to `name`. Return '' if no allowed name is
    close."""
    return did_you_mean(name, [*allowed, 'kafka.bootstrap.servers'], ', ')


def _check_together(options: Options) -> None:
    if options.is_given('path') == (options.bootstrap_servers is not None):
        raise OptionError('path', 'give one of path (a log directory) and kafka.bootstrap.servers (a broker)')
    chosen = [name for name in ('subscribe', 'subscribePattern', 'assign') if options.is_given(name)]
    if len(chosen) > 1:
        raise OptionError(chosen[1], f'{chosen[0]} is given too; give one of subscribe, subscribePattern and assign')
    is_broker = options.bootstrap_servers is not None
    if not is_broker and options.kafka:
        raise OptionError(f'kafka.{min(options.kafka)}', 'path is given too, which is read without a broker')
    if is_broker and options['table'] == 'segments':
        raise OptionError('table', 'found segments with kafka.bootstrap.servers, but a broker does not describe its '
                                   'files: give path')
    if is_broker and not chosen and options['table'] == 'records':
        raise OptionError('subscribe', 'missing: give one of subscribe, subscribePattern and assign')
    if is_broker:
        _refuse(options, 'path', 'it needs path, not kafka.bootstrap.servers')
    _check_values(options)


def _check_values(options: Options) -> None:
    if options['valueFormat'] is None:
        given = [name for name in ('valueSchema', 'valueReaderSchema') if options.is_given(name)]
        for name in (*given, *sorted(options.registry)):
            raise OptionError(name, f'valueFormat is missing; give one of {", ".join(VALUE_FORMATS)}')
    elif options['table'] != 'records':
        raise OptionError('valueFormat', f'not allowed with table={options["table"]}, which has no values')


def check_use(options: Options, *, is_stream: bool) -> None:
    """Raise OptionError if an option is given that this kind of query does not have."""
    if is_stream:
        _refuse(options, 'batch', 'it is for spark.read only')
    else:
        _refuse(options, 'stream', 'it is for spark.readStream only')


def _refuse(options: Options, place: str, why: str) -> None:
    for row in ROWS:
        if place in row.place.split() and options.is_given(row.name):
            raise OptionError(row.name, f'not allowed here: {why}')
