"""Settings of producer and consumers, under Kafka's names and with its defaults, from `ClientConfig.properties`.

Unknown names are ignored here, as in Kafka's clients: one file may serve several programs. A client that is given
settings by a program refuses them (`client/opening`).
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from kbroker.base.errors import ConfigError
from kbroker.record.compression import Compression

INT32_MAX = 2**31 - 1
LEAST_IDLE_MS = 5000
MOST_IN_FLIGHT = 5
"""A partition remembers this many batches of a producer and could not detect a duplicate of an older one."""
ASSIGNOR_NAMES = {
    'range': 'range', 'org.apache.kafka.clients.consumer.RangeAssignor': 'range',
    'cooperative-sticky': 'cooperative-sticky',
    'org.apache.kafka.clients.consumer.CooperativeStickyAssignor': 'cooperative-sticky',
}
"""The values of partition.assignment.strategy, and the names of the assignors in the protocol."""
ISOLATION_LEVELS = ('read_uncommitted', 'read_committed')
ACQUIRE_MODES = ('batch_optimized', 'record_limit')
"""The modes of share.acquire.mode, in the order of their numbers in the protocol."""

NOT_WITH = {
    'classic': ('group.remote.assignor',),
    'consumer': ('session.timeout.ms', 'heartbeat.interval.ms', 'partition.assignment.strategy'),
}
"""Settings without effect, by group.protocol. With `consumer`, the broker decides about them."""
NOT_WITH_SHARE = (
    'auto.offset.reset', 'enable.auto.commit', 'group.instance.id', 'isolation.level', 'partition.assignment.strategy',
    'interceptor.classes', 'session.timeout.ms', 'heartbeat.interval.ms', 'group.protocol', 'group.remote.assignor',
)
"""Settings that a share consumer refuses. The broker and the configs of the group decide about them."""

AutoOffsetReset = Literal['earliest', 'latest', 'none']


class _Settings(ABC):
    """Settings that are built from properties by reading them one by one."""

    __slots__ = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Build from properties. Raises ConfigError for a value that is invalid or contradicts another."""
        return cls._read(_Reader(properties))

    @classmethod
    def defaults(cls) -> dict[str, str]:
        """Return the names of all settings with their defaults; '' is the default of one that is not set."""
        read = _Reader({})
        cls._read(read)
        return read.defaults

    @classmethod
    @abstractmethod
    def _read(cls, read: _Reader) -> Self:
        """Build from a reader. ConfigError."""


@dataclass(frozen=True, slots=True)
class ProducerSettings(_Settings):
    acks: int = -1
    """-1 (all), 1 (the leader) or 0 (no answer)."""
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    compression: Compression = Compression.NONE
    compression_level: int | None = None
    linger_ms: int = 5
    batch_size_bytes: int = 16_384
    max_request_size_bytes: int = 1_048_576
    buffer_memory_bytes: int = 33_554_432
    max_in_flight: int = MOST_IN_FLIGHT
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    retries: int = INT32_MAX
    metadata_max_age_ms: int = 300_000
    metadata_max_idle_ms: int = 300_000
    two_phase_commit: bool = False
    """Transactions have no timeout, and `init_transactions` keeps the one that it finds open (KIP-939)."""

    @classmethod
    def _read(cls, read: _Reader) -> Self:
        transactional_id = read.text('transactional.id')
        acks = {'all': -1, '-1': -1, '1': 1, '0': 0}[read.one_of('acks', ('all', '-1', '1', '0'), 'all')]
        max_in_flight = read.integer('max.in.flight.requests.per.connection', MOST_IN_FLIGHT, 1)
        retries = read.integer('retries', INT32_MAX, 0)
        wanted = read.boolean('enable.idempotence', None)
        could_be = acks == -1 and max_in_flight <= MOST_IN_FLIGHT and retries > 0
        if not could_be and (wanted or transactional_id is not None):
            name = 'transactional.id' if transactional_id is not None else 'enable.idempotence'
            raise ConfigError(name, f'{name} needs acks=all, retries above 0 and '
                              f'max.in.flight.requests.per.connection of {MOST_IN_FLIGHT} or less: found acks='
                              f'{read.text("acks") or "all"}, retries={retries}, {max_in_flight} in flight')
        if wanted is False and transactional_id is not None:
            raise ConfigError('enable.idempotence', 'found enable.idempotence=false, a transactional.id needs true')
        two_phase_commit = read.boolean('transaction.two.phase.commit.enable', False)
        timeout_ms = read.integer('transaction.timeout.ms', 60_000, 1)
        if two_phase_commit and transactional_id is None:
            raise ConfigError('transaction.two.phase.commit.enable', 'found transaction.two.phase.commit.enable=true '
                              'without transactional.id, expected both')
        if two_phase_commit and read.is_set('transaction.timeout.ms'):
            raise ConfigError('transaction.timeout.ms', 'found transaction.timeout.ms with '
                              'transaction.two.phase.commit.enable=true, expected one of them: a transaction of two '
                              'phases has no timeout')
        codec = read.one_of('compression.type', [codec.name.lower() for codec in Compression], 'none')
        levels = {name: read.optional_integer(f'compression.{name}.level', -131_072)
                  for name in ('gzip', 'lz4', 'zstd')}
        return cls(
            acks, could_be if wanted is None else wanted, transactional_id, timeout_ms, Compression[codec.upper()],
            levels.get(codec),
            read.integer('linger.ms', 5, 0), read.integer('batch.size', 16_384, 0),
            read.integer('max.request.size', 1_048_576, 0), read.integer('buffer.memory', 33_554_432, 0, 2**63 - 1),
            max_in_flight, read.integer('delivery.timeout.ms', 120_000, 0),
            read.integer('max.block.ms', 60_000, 0, 2**63 - 1), retries,
            read.integer('metadata.max.age.ms', 300_000, 0, 2**63 - 1),
            read.integer('metadata.max.idle.ms', 300_000, LEAST_IDLE_MS, 2**63 - 1), two_phase_commit or False)


@dataclass(frozen=True, slots=True)
class ConsumerSettings(_Settings):
    group_id: str | None = None
    group_instance_id: str | None = None
    isolation_level: str = 'read_uncommitted'
    auto_offset_reset: AutoOffsetReset = 'latest'
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5000
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3000
    max_poll_interval_ms: int = 300_000
    metadata_max_age_ms: int = 300_000
    check_crcs: bool = True
    max_poll_records: int = 500
    group_protocol: str = 'classic'
    group_remote_assignor: str | None = None
    """The assignor of the broker, with group_protocol `consumer`."""
    assignors: tuple[str, ...] = ('range', 'cooperative-sticky')
    """The assignors of the members, with group_protocol `classic`, by preference."""

    @classmethod
    def _read(cls, read: _Reader) -> Self:
        protocol = read.one_of('group.protocol', ('classic', 'consumer'), 'classic')
        for name in NOT_WITH[protocol]:
            if read.is_set(name):
                raise ConfigError(name, f'found {name}, which cannot be set with group.protocol={protocol}')
        session_timeout_ms = read.integer('session.timeout.ms', 45_000, 1)
        heartbeat_interval_ms = read.integer('heartbeat.interval.ms', 3000, 1)
        if heartbeat_interval_ms >= session_timeout_ms:
            raise ConfigError('heartbeat.interval.ms', f'heartbeat.interval.ms: found {heartbeat_interval_ms}, '
                              f'expected less than session.timeout.ms ({session_timeout_ms})')
        reset: AutoOffsetReset = read.one_of('auto.offset.reset', ('earliest', 'latest', 'none'),
                                             'latest')  # type: ignore[assignment]
        return cls(
            read.text('group.id') or None, read.text('group.instance.id'),
            read.one_of('isolation.level', ISOLATION_LEVELS, 'read_uncommitted'), reset,
            read.boolean('enable.auto.commit', True) is True, read.integer('auto.commit.interval.ms', 5000, 0),
            read.integer('fetch.min.bytes', 1, 0), read.integer('fetch.max.wait.ms', 500, 0),
            read.integer('fetch.max.bytes', 52_428_800, 0), read.integer('max.partition.fetch.bytes', 1_048_576, 0),
            session_timeout_ms, heartbeat_interval_ms, read.integer('max.poll.interval.ms', 300_000, 1),
            read.integer('metadata.max.age.ms', 300_000, 0, 2**63 - 1), read.boolean('check.crcs', True) is True,
            read.integer('max.poll.records', 500, 1), protocol, read.text('group.remote.assignor') or None,
            _assignors(read.parts('partition.assignment.strategy', 'range,cooperative-sticky')))


@dataclass(frozen=True, slots=True)
class ShareConsumerSettings:
    group_id: str
    is_explicit: bool = False
    """True if the program acknowledges each record; else a poll accepts all records of the one before."""
    acquire_mode: str = ACQUIRE_MODES[0]
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    check_crcs: bool = True
    client_rack: str | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ShareConsumerSettings:
        """Build from properties. Raises ConfigError for a value that is invalid, or that belongs to the group."""
        read = _Reader(properties)
        group_id = properties.get('group.id')
        if not group_id:
            raise ConfigError('group.id', 'found a share consumer without group.id, expected one')
        for name in NOT_WITH_SHARE:
            if name in properties:
                raise ConfigError(name, f'found {name}, which cannot be set for a share consumer')
        mode = read.one_of('share.acknowledgement.mode', ('implicit', 'explicit'), 'implicit')
        return cls(
            group_id, mode == 'explicit', read.one_of('share.acquire.mode', ACQUIRE_MODES, ACQUIRE_MODES[0]),
            read.integer('max.poll.records', 500, 1), read.integer('fetch.min.bytes', 1, 0),
            read.integer('fetch.max.wait.ms', 500, 0), read.integer('fetch.max.bytes', 52_428_800, 0),
            read.boolean('check.crcs', True) is True, properties.get('client.rack') or None)


class _Reader:
    """A reader of properties, which keeps the name and the default of each setting that was read."""

    def __init__(self, properties: Mapping[str, str]):
        self._properties = properties
        self.defaults: dict[str, str] = {}

    def is_set(self, name: str) -> bool:
        return name in self._properties

    def text(self, name: str) -> str | None:
        """Return the value, or None if it is not set."""
        self.defaults.setdefault(name, '')
        return self._properties.get(name)

    def parts(self, name: str, default: str) -> list[str]:
        """Return the parts of a list with commas."""
        self.defaults[name] = default
        return [part.strip() for part in self._properties.get(name, default).split(',') if part.strip()]

    def integer(self, name: str, default: int, least: int, most: int = INT32_MAX) -> int:
        text = self.text(name)
        self.defaults[name] = str(default)
        return default if text is None else _integer(name, text, least, most)

    def optional_integer(self, name: str, least: int) -> int | None:
        text = self.text(name)
        return None if text is None else _integer(name, text, least, INT32_MAX)

    def boolean(self, name: str, default: bool | None) -> bool | None:
        """Return the value, or `default` if it is not set."""
        text = self.text(name)
        self.defaults[name] = '' if default is None else str(default).lower()
        return default if text is None else self.one_of(name, ('true', 'false'), self.defaults[name]) == 'true'

    def one_of(self, name: str, values: tuple[str, ...] | list[str], default: str) -> str:
        self.defaults[name] = default
        text = self._properties.get(name, default).strip()
        if text.lower() not in values:
            raise ConfigError(name, f'{name}: found {text!r}, expected {" or ".join(values)}')
        return text.lower()


def _assignors(values: list[str]) -> tuple[str, ...]:
    unknown = [value for value in values if value not in ASSIGNOR_NAMES]
    if unknown or not values:
        raise ConfigError('partition.assignment.strategy', 'partition.assignment.strategy: found '
                          f'{unknown[0] if unknown else "none"}, expected some of {", ".join(ASSIGNOR_NAMES)}')
    return tuple(dict.fromkeys(ASSIGNOR_NAMES[value] for value in values))


def _integer(name: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ConfigError(name, f'{name}: found {text!r}, expected a number from {least} to {most}')
    return value
