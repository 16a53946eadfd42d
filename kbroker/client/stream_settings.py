"""Settings of producer and consumers, with Kafka's names and defaults, read from `ClientConfig.properties`.

Each field declares its setting once: name, default and valid values. Unknown names are ignored here, as in Kafka's
clients, because several programs may share one properties file. Unknown names that a program passes to a client are
refused by `client/opening`.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from kbroker.base import lean_dataclasses
from kbroker.base.errors import ConfigError
from kbroker.record.compression import Compression
from kbroker.settings import options
from kbroker.settings.options import Option
from kbroker.settings.rows import boolean
from kbroker.settings.tls import bad_setting

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
LEAST_IDLE_MS = 5000
MOST_IN_FLIGHT = 5
"""The largest max.in.flight.requests.per.connection. A partition remembers only this many batches of a producer, and
cannot detect a duplicate of an older batch.
"""
LEAST_LEVEL = -131_072
"""The lowest level of zstd."""
STRATEGY = 'partition.assignment.strategy'
ASSIGNOR_NAMES = {
    'range': 'range', 'org.apache.kafka.clients.consumer.RangeAssignor': 'range',
    'cooperative-sticky': 'cooperative-sticky',
    'org.apache.kafka.clients.consumer.CooperativeStickyAssignor': 'cooperative-sticky',
}
"""Maps each value of partition.assignment.strategy to the name of the assignor in the protocol."""
CODECS = tuple(codec.name.lower() for codec in Compression)
ISOLATION_LEVELS = ('read_uncommitted', 'read_committed')
ACQUIRE_MODES = ('batch_optimized', 'record_limit')
"""The values of share.acquire.mode. The index of a value is its code in the protocol."""

NOT_WITH = {
    'classic': ('group.remote.assignor',),
    'consumer': ('session.timeout.ms', 'heartbeat.interval.ms', 'partition.assignment.strategy'),
}
"""Maps each value of group.protocol to the settings that have no effect with it."""
NOT_WITH_SHARE = (
    'auto.offset.reset', 'enable.auto.commit', 'group.instance.id', 'isolation.level', 'partition.assignment.strategy',
    'interceptor.classes', 'session.timeout.ms', 'heartbeat.interval.ms', 'group.protocol', 'group.remote.assignor',
)
"""The settings that a share consumer refuses. The broker and the configs of the group determine these values."""

AutoOffsetReset = Literal['earliest', 'latest', 'none']


@lean_dataclasses.dataclass(frozen=True, slots=True)
class Row(Option):
    """The setting that a field declares: its name, parser and default."""

    text: str
    """The default as it would be written in a file; '' if the setting has no default."""


def _setting(name: str, default: Any, parse: Callable[[str], Any], text: str) -> Any:
    return field(default=default, metadata={'row': Row(name, parse, default, text)})


def _number(least: int, most: int) -> Callable[[str], int]:
    parse = options.whole_number(least, most, 'a number')
    return lambda text: parse(text.strip())


def whole_number(name: str, default: int, least: int, most: int = INT32_MAX) -> Any:
    """Return a dataclass field for a setting that is a whole number from `least` to `most`."""
    return _setting(name, default, _number(least, most), str(default))


def flag(name: str, default: bool, text: str | None = None) -> Any:
    """Return a dataclass field for a setting that is true or false.

    `text` is the default as written in a file; '' if the default depends on other settings.
    """
    return _setting(name, default, lambda found: boolean(found.strip()), str(default).lower() if text is None else text)


def choice(name: str, default: str, values: Sequence[str], made: Callable[[str], Any] = str) -> Any:
    """Return a dataclass field for a setting whose value is one of `values`, in upper or lower case.

    `made` converts the text to the value of the field.
    """
    parse = options.choice(*values)
    return _setting(name, made(default), lambda text: made(parse(text.strip())), default)


def optional_text(name: str, made: Callable[[str], str | None] = str) -> Any:
    """Return a dataclass field for a setting that is any text. The field is None if the setting is not set."""
    return _setting(name, None, made, '')


def _unless_empty(text: str) -> str | None:
    return text or None


@dataclass(frozen=True, slots=True)
class _Settings:
    """The base class of settings classes. The metadata of each field has the Row that reads its setting."""

    MORE: ClassVar[tuple[Option, ...]] = ()
    """Settings without a field, which `_complete` reads. By default they are not set."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return the settings in `properties`. Raise ConfigError for an invalid value, or for values that contradict
        each other.
        """
        cls._refuse(properties)
        values: dict[str, Any] = {}
        for each in fields(cls):
            if (row := each.metadata.get('row')) is not None and row.name in properties:
                values[each.name] = row.value_of(properties[row.name])
            elif each.default is not MISSING:
                values[each.name] = each.default
        cls._complete(values, properties)
        return cls(**values)

    @classmethod
    def defaults(cls) -> dict[str, str]:
        """Return {setting: default} for all settings. The default is '' for a setting that is not set by default."""
        rows = [each.metadata['row'] for each in fields(cls) if 'row' in each.metadata]
        return {row.name: row.text for row in rows} | {option.name: '' for option in cls.MORE}

    @classmethod
    def _refuse(cls, properties: Mapping[str, str]) -> None:
        """Raise ConfigError if `properties` has a setting that this type of client refuses."""

    @classmethod
    def _complete(cls, values: dict[str, Any], properties: Mapping[str, str]) -> None:
        """Check values that depend on each other, and compute defaults that depend on other values. Raise
        ConfigError.
        """


LEVEL = _number(LEAST_LEVEL, INT32_MAX)


def _acks(text: str) -> int:
    return {'all': -1, '-1': -1, '1': 1, '0': 0}[text]


def _codec(text: str) -> Compression:
    return Compression[text.upper()]


@dataclass(frozen=True, slots=True)
class ProducerSettings(_Settings):
    acks: int = choice('acks', 'all', ('all', '-1', '1', '0'), _acks)
    """The value of acks: -1 (all in-sync replicas), 1 (only the leader) or 0 (no answer)."""
    enable_idempotence: bool = flag('enable.idempotence', True, '')
    transactional_id: str | None = optional_text('transactional.id')
    transaction_timeout_ms: int = whole_number('transaction.timeout.ms', 60_000, 1)
    compression: Compression = choice('compression.type', 'none', CODECS, _codec)  # noqa: RUF009  (declares a field)
    compression_level: int | None = None
    linger_ms: int = whole_number('linger.ms', 5, 0)
    batch_size_bytes: int = whole_number('batch.size', 16_384, 0)
    max_request_size_bytes: int = whole_number('max.request.size', 1_048_576, 0)
    buffer_memory_bytes: int = whole_number('buffer.memory', 33_554_432, 0, INT64_MAX)
    max_in_flight: int = whole_number('max.in.flight.requests.per.connection', MOST_IN_FLIGHT, 1)
    delivery_timeout_ms: int = whole_number('delivery.timeout.ms', 120_000, 0)
    max_block_ms: int = whole_number('max.block.ms', 60_000, 0, INT64_MAX)
    retries: int = whole_number('retries', INT32_MAX, 0)
    metadata_max_age_ms: int = whole_number('metadata.max.age.ms', 300_000, 0, INT64_MAX)
    metadata_max_idle_ms: int = whole_number('metadata.max.idle.ms', 300_000, LEAST_IDLE_MS, INT64_MAX)
    two_phase_commit: bool = flag('transaction.two.phase.commit.enable', False)
    """True if transactions have no timeout, and `init_transactions` keeps a transaction that it finds open
    (KIP-939).
    """

    MORE: ClassVar[tuple[Option, ...]] = tuple(
        Option(f'compression.{codec}.level', LEVEL, None) for codec in ('gzip', 'lz4', 'zstd'))

    @classmethod
    def _complete(cls, values: dict[str, Any], properties: Mapping[str, str]) -> None:
        retries, max_in_flight = values['retries'], values['max_in_flight']
        is_transactional, wanted = values['transactional_id'] is not None, values['enable_idempotence']
        could_be = values['acks'] == -1 and max_in_flight <= MOST_IN_FLIGHT and retries > 0
        if 'enable.idempotence' not in properties:
            wanted, values['enable_idempotence'] = None, could_be
        if not could_be and (wanted or is_transactional):
            name = 'transactional.id' if is_transactional else 'enable.idempotence'
            raise ConfigError(name, f'{name} needs acks=all, retries above 0 and '
                              f'max.in.flight.requests.per.connection of {MOST_IN_FLIGHT} or less: found acks='
                              f'{properties.get("acks") or "all"}, retries={retries}, {max_in_flight} in flight')
        if wanted is False and is_transactional:
            raise ConfigError('enable.idempotence', 'found enable.idempotence=false, a transactional.id needs true')
        if values['two_phase_commit'] and not is_transactional:
            raise ConfigError('transaction.two.phase.commit.enable', 'found transaction.two.phase.commit.enable=true '
                              'without transactional.id, expected both')
        if values['two_phase_commit'] and 'transaction.timeout.ms' in properties:
            raise ConfigError('transaction.timeout.ms', 'found transaction.timeout.ms with '
                              'transaction.two.phase.commit.enable=true, expected one of them: a transaction of two '
                              'phases has no timeout')
        levels = {level.name: level.value_of(properties[level.name]) for level in cls.MORE if level.name in properties}
        values['compression_level'] = levels.get(f'compression.{values["compression"].name.lower()}.level')


def _assignors(text: str) -> tuple[str, ...]:
    """Return the protocol names of the assignors. Raise ConfigError for an unknown assignor."""
    names = [part.strip() for part in text.split(',') if part.strip()]
    unknown = [name for name in names if name not in ASSIGNOR_NAMES]
    if unknown or not names:
        raise bad_setting(STRATEGY, f'found {unknown[0] if unknown else "none"}, expected some of '
                          f'{", ".join(ASSIGNOR_NAMES)}')
    return tuple(dict.fromkeys(ASSIGNOR_NAMES[name] for name in names))


@dataclass(frozen=True, slots=True)
class ConsumerSettings(_Settings):
    group_id: str | None = optional_text('group.id', _unless_empty)
    group_instance_id: str | None = optional_text('group.instance.id')
    isolation_level: str = choice('isolation.level', 'read_uncommitted', ISOLATION_LEVELS)
    auto_offset_reset: AutoOffsetReset = choice(  # noqa: RUF009  (declares a field)
        'auto.offset.reset', 'latest', ('earliest', 'latest', 'none'))
    enable_auto_commit: bool = flag('enable.auto.commit', True)
    auto_commit_interval_ms: int = whole_number('auto.commit.interval.ms', 5000, 0)
    fetch_min_bytes: int = whole_number('fetch.min.bytes', 1, 0)
    fetch_max_wait_ms: int = whole_number('fetch.max.wait.ms', 500, 0)
    fetch_max_bytes: int = whole_number('fetch.max.bytes', 52_428_800, 0)
    max_partition_fetch_bytes: int = whole_number('max.partition.fetch.bytes', 1_048_576, 0)
    session_timeout_ms: int = whole_number('session.timeout.ms', 45_000, 1)
    heartbeat_interval_ms: int = whole_number('heartbeat.interval.ms', 3000, 1)
    max_poll_interval_ms: int = whole_number('max.poll.interval.ms', 300_000, 1)
    metadata_max_age_ms: int = whole_number('metadata.max.age.ms', 300_000, 0, INT64_MAX)
    check_crcs: bool = flag('check.crcs', True)
    max_poll_records: int = whole_number('max.poll.records', 500, 1)
    group_protocol: str = choice('group.protocol', 'classic', ('classic', 'consumer'))
    group_remote_assignor: str | None = optional_text('group.remote.assignor', _unless_empty)
    """The name of the assignor on the broker. Used only with group_protocol `consumer`."""
    assignors: tuple[str, ...] = _setting(STRATEGY, ('range', 'cooperative-sticky'), _assignors,
                                          'range,cooperative-sticky')
    """The names of the assignors in the members, the preferred one first. Used only with group_protocol `classic`."""

    @classmethod
    def _complete(cls, values: dict[str, Any], properties: Mapping[str, str]) -> None:
        protocol = values['group_protocol']
        for name in NOT_WITH[protocol]:
            if name in properties:
                raise ConfigError(name, f'found {name}, which cannot be set with group.protocol={protocol}')
        if values['heartbeat_interval_ms'] >= values['session_timeout_ms']:
            raise ConfigError('heartbeat.interval.ms', f'heartbeat.interval.ms: found {values["heartbeat_interval_ms"]}'
                              f', expected less than session.timeout.ms ({values["session_timeout_ms"]})')


@dataclass(frozen=True, slots=True)
class ShareConsumerSettings(_Settings):
    group_id: str = field(metadata={'row': Row('group.id', str, None, '')})
    is_explicit: bool = choice('share.acknowledgement.mode', 'implicit', ('implicit', 'explicit'),
                               lambda mode: mode == 'explicit')
    """True if the program must acknowledge each record. Otherwise each poll accepts all records of the previous
    poll.
    """
    acquire_mode: str = choice('share.acquire.mode', ACQUIRE_MODES[0], ACQUIRE_MODES)
    max_poll_records: int = whole_number('max.poll.records', 500, 1)
    fetch_min_bytes: int = whole_number('fetch.min.bytes', 1, 0)
    fetch_max_wait_ms: int = whole_number('fetch.max.wait.ms', 500, 0)
    fetch_max_bytes: int = whole_number('fetch.max.bytes', 52_428_800, 0)
    check_crcs: bool = flag('check.crcs', True)
    client_rack: str | None = optional_text('client.rack', _unless_empty)

    @classmethod
    def _refuse(cls, properties: Mapping[str, str]) -> None:
        if not properties.get('group.id'):
            raise ConfigError('group.id', 'found a share consumer without group.id, expected one')
        for name in NOT_WITH_SHARE:
            if name in properties:
                raise ConfigError(name, f'found {name}, which cannot be set for a share consumer')
