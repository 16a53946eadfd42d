"""Client quotas. Rates and throttle times are computed as in Apache Kafka.

A quota belongs to an entity: a user, a client id, both, or the default for users or client ids. All clients that share
a quota are measured by one counter. The rate of a counter is the sum of its samples, divided by the time since its
oldest sample. Until a counter has all its samples, each missing sample counts as a full window without events. A client
above its quota is throttled until its rate has fallen to the quota.
"""
from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.ledger import Line
from kbroker.base.object_memory import RecentEntries
from kbroker.protocol.messages import ClientQuotaRecord

PRODUCER_BYTE_RATE = 'producer_byte_rate'
CONSUMER_BYTE_RATE = 'consumer_byte_rate'
REQUEST_PERCENTAGE = 'request_percentage'
CONTROLLER_MUTATION_RATE = 'controller_mutation_rate'
CONNECTION_CREATION_RATE = 'connection_creation_rate'

USER, CLIENT_ID, IP = 'user', 'client-id', 'ip'
"""The types of entities."""

MOST_COUNTERS = MOST_METERS = 10_000
MOST_COUNTER_BYTES = 24 * 1024 * 1024
MOST_METER_BYTES = 16 * 1024 * 1024
"""The limits of counters and meters: clients choose their names, and could create any number.

Above a limit, the counter or meter that was used longest ago is removed.
"""
COUNTER_BYTES = 1_400
METER_BYTES = 650
"""The bytes of memory of a counter and of a meter without their names, measured on 64-bit CPython 3.11."""
IDLE_MS = 3_600_000
"""The time after which an unused counter is removed."""
MOST_THROTTLE_MS = 2**31 - 1
"""The largest value of throttle_time_ms in an answer."""

Entity = tuple[tuple[str, str | None], ...]
"""An entity: (type, name) pairs, sorted by type. The name None means the default entity of the type."""

_ABSENT: Any = object()
"""The marker for a type that does not occur in an entity."""


class Window(NamedTuple):
    """The number of samples of a rate, and the length of each sample."""

    samples: int = 11
    window_ms: int = 1000

    @property
    def total_ms(self) -> int:
        return self.samples * self.window_ms


class Rate:
    """The rate of an amount per second, measured by a ring of samples."""

    __slots__ = ('_current', '_last_ms', '_start_ms', '_sums', '_window')

    def __init__(self, window: Window):
        self._window = window
        self._current = 0
        self._sums: list[float] = []
        self._start_ms: list[int] = []
        self._last_ms: list[int] = []

    def record(self, amount: float, now_ms: int) -> None:
        """Add `amount` to the current sample. If a window has passed since the start of this sample, begin the next
        sample.
        """
        if not self._sums:
            self._append(now_ms)
        elif now_ms - self._start_ms[self._current] >= self._window.window_ms:
            # The ring has one sample more than `samples`, because the oldest sample may lie only partly within the
            # measured time.
            self._current = (self._current + 1) % (self._window.samples + 1)
            if self._current == len(self._sums):
                self._append(now_ms)
            else:
                self._clear(self._current, now_ms)
        self._sums[self._current] += amount
        self._last_ms[self._current] = now_ms

    def measure(self, now_ms: int) -> tuple[float, int]:
        """Return the amount per second, and the milliseconds over which this rate was measured."""
        window = self._window
        for number, last_ms in enumerate(self._last_ms):
            if now_ms - last_ms >= window.total_ms:
                self._clear(number, now_ms)
        elapsed_ms = now_ms - min(self._start_ms, default=now_ms)
        missing = window.samples - 1 - elapsed_ms // window.window_ms
        elapsed_ms = max(1, elapsed_ms + max(0, missing) * window.window_ms)
        return sum(self._sums) * 1000 / elapsed_ms, elapsed_ms

    def throttle_ms(self, quota: float, now_ms: int) -> int:
        """Return the milliseconds after which the rate will have fallen to the quota; 0 if the rate is not above it."""
        rate, elapsed_ms = self.measure(now_ms)
        return _rounded((rate - quota) / quota * elapsed_ms) if rate > quota else 0

    def _append(self, now_ms: int) -> None:
        self._sums.append(0.0)
        self._start_ms.append(now_ms)
        self._last_ms.append(now_ms)

    def _clear(self, number: int, now_ms: int) -> None:
        self._sums[number] = 0.0
        self._start_ms[number] = self._last_ms[number] = now_ms


class TokenBucket:
    """A token bucket: it gets tokens at the rate of a quota, up to a maximum. The number of tokens may fall below
    zero.
    """

    __slots__ = ('_filled_ms', '_tokens', '_window')

    def __init__(self, window: Window):
        self._window = window
        self._tokens: float | None = None
        """The number of tokens at the time `_filled_ms`. None before the first use, which fills the bucket."""
        self._filled_ms = 0

    def record(self, amount: float, quota: float, now_ms: int) -> None:
        """Remove `amount` tokens from the bucket."""
        self._tokens = self.measure(quota, now_ms) - amount

    def measure(self, quota: float, now_ms: int) -> float:
        """Add the tokens that are due by now, and return the number of tokens in the bucket."""
        burst = quota * self._window.total_ms / 1000
        if self._tokens is None:
            self._tokens = burst
        self._tokens = min(burst, self._tokens + quota * (now_ms - self._filled_ms) / 1000)
        self._filled_ms = now_ms
        return self._tokens

    def throttle_ms(self, quota: float, now_ms: int) -> int:
        """Return the milliseconds after which the number of tokens will no longer be negative."""
        tokens = self.measure(quota, now_ms)
        return _rounded(-tokens / quota * 1000) if tokens < 0 else 0


def _rounded(throttle_ms: float) -> int:
    return math.floor(min(MOST_THROTTLE_MS, throttle_ms + 0.5))     # a tiny quota makes `throttle_ms` infinite


class Limit(NamedTuple):
    """A quota that applies to a client, and the key of its counter."""

    quota: float
    counter: tuple[str, str | None, str | None]
    """The quota key, the user and the client id. With None as user or client id, all users or client ids share the
    counter.
    """


class Quotas:
    """The quotas of users and client ids."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[tuple[Any, Any], float]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def put(self, entity: Iterable[tuple[str, str | None]], key: str, quota: float | None) -> None:
        """Set a quota of an entity that consists of a user, a client id, or both. None removes the quota."""
        names: dict[str, Any] = dict(entity)
        place = names.get(USER, _ABSENT), names.get(CLIENT_ID, _ABSENT)
        quotas = self._by_key.setdefault(key, {})
        if quota is None:
            quotas.pop(place, None)
        else:
            quotas[place] = quota
        if not quotas:
            del self._by_key[key]

    def find(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the quota that applies to a client, or None. The most specific entity with a quota is used."""
        quotas = self._by_key.get(key)
        if quotas is None:
            return None
        for place in ((user, client_id), (user, None), (user, _ABSENT), (None, client_id), (None, None),
                      (None, _ABSENT), (_ABSENT, client_id), (_ABSENT, None)):
            quota = quotas.get(place)
            if quota is not None:
                return Limit(quota, (key, None if place[0] is _ABSENT else user,
                                     None if place[1] is _ABSENT else client_id))
        return None


class Counters:
    """The counters (rates and token buckets) in use. Above their limits, the counter used longest ago is removed."""

    def __init__(self, clock: Clock, most: int = MOST_COUNTERS):
        self._clock = clock
        self._counters: RecentEntries[Any, _Used] = RecentEntries(MOST_COUNTER_BYTES, most, COUNTER_BYTES)

    def __len__(self) -> int:
        return len(self._counters)

    @property
    def held_bytes(self) -> int:
        return self._counters.held_bytes

    def get(self, key: Any, create: Callable[[], Any]) -> tuple[Any, int]:
        """Return the counter with this key, and the present time in ms. Create the counter if it does not exist."""
        now_ms = self._clock.monotonic_ms()
        try:
            used = self._counters.get(key)
        except KeyError:
            return self._begin(key, create, now_ms)
        if now_ms - used.used_ms >= IDLE_MS:
            self._counters.forget(key)
            return self._begin(key, create, now_ms)
        used.used_ms = now_ms
        return used.counter, now_ms

    def _begin(self, key: Any, create: Callable[[], Any], now_ms: int) -> tuple[Any, int]:
        """Create a counter, and remove the counters that were not used for IDLE_MS."""
        while (oldest := self._counters.oldest()) is not None and now_ms - oldest[1].used_ms >= IDLE_MS:
            self._counters.forget(oldest[0])
        used = _Used(create(), now_ms)
        self._counters.put(key, used)
        return used.counter, now_ms


class _Used:
    """A counter, and the time of its last use."""

    __slots__ = ('counter', 'used_ms')

    def __init__(self, counter: Any, used_ms: int):
        self.counter = counter
        self.used_ms = used_ms


class ClientQuotas:
    """The quotas in force, and the meters of the clients to which they apply."""

    def __init__(self, clock: Clock, window: Window, mutation_window: Window):
        self.window = window
        self.mutation_window = mutation_window
        self.counters = Counters(clock)
        self.quotas = Quotas()
        self.addresses: dict[str | None, float] = {}
        """Maps each IP address to its connection_creation_rate. The key None has the default rate."""
        self.on_switch: list[Callable[[ClientQuotas | None], object]] = []
        """The functions to call with this object when the first quota is set, and with None when the last quota is
        removed.
        """
        self.throttled: Counter[str] = Counter()
        """The requests and connections that were throttled or refused, by quota key."""
        self._meters: RecentEntries[tuple[str, str], Meter | None] = RecentEntries(MOST_METER_BYTES, MOST_METERS,
                                                                                   METER_BYTES)

    def ledger(self) -> list[Line]:
        return [
            Line('counters of quotas', 'bytes', lambda: self.counters.held_bytes, lambda: MOST_COUNTER_BYTES,
                 'the one used longest ago is forgotten'),
            Line('clients with quotas', 'bytes', lambda: self.meters_bytes, lambda: MOST_METER_BYTES,
                 'the one used longest ago is looked up again')]

    def adopt(self, quotas: Mapping[Entity, Mapping[str, float]]) -> None:
        """Put all quotas of a metadata image into effect when the broker starts."""
        for entity, values in quotas.items():
            for key, quota in values.items():
                self.put(entity, key, quota)

    def replay(self, records: Iterable[Any]) -> None:
        """Put the quota records among the records of a metadata change into effect."""
        for record in records:
            if isinstance(record, ClientQuotaRecord):
                self.put([(part.entity_type, part.entity_name) for part in record.entity], record.key,
                         None if record.remove else record.value)

    def put(self, entity: Iterable[tuple[str, str | None]], key: str, quota: float | None) -> None:
        """Put one quota into effect. None removes the quota. Counters keep their samples.

        Ignore an unknown key or type of entity, which a newer Kafka may have written. A metadata log of Kafka may
        contain NaN, which is handled as no quota, and zero, which is handled as LEAST_QUOTA.
        """
        if quota is not None and not quota > 0:
            quota = None if math.isnan(quota) else LEAST_QUOTA
        names = dict(entity)
        had_quotas = bool(self.quotas)
        self._meters.clear()
        if names.keys() == {IP} and key == CONNECTION_CREATION_RATE:
            address = _address(names[IP])
            if quota is None:
                self.addresses.pop(address, None)
            else:
                self.addresses[address] = quota
        elif names and names.keys() <= {USER, CLIENT_ID} and key in LIMITS[USER]:
            self.quotas.put(names.items(), key, quota)
        if bool(self.quotas) != had_quotas:
            for switch in self.on_switch:
                switch(self if self.quotas else None)

    def meter(self, user: str, client_id: str) -> Meter | None:
        """Return the meter of a client, or None if no quota applies to it."""
        client = user, client_id
        try:
            return self._meters.get(client)
        except KeyError:
            limits = {key: limit for key in LIMITS[USER]
                      if (limit := self.quotas.find(key, user, client_id)) is not None}
            meter = Meter(self, limits) if limits else None
            self._meters.put(client, meter)
            return meter

    @property
    def meters_count(self) -> int:
        return len(self._meters)

    @property
    def meters_bytes(self) -> int:
        return self._meters.held_bytes

    def record_connection(self, address: str) -> int:
        """Record a new connection from an address. Return its throttle time in ms, which is at most the length of a
        window.

        A throttled connection is not counted.
        """
        quota = self.connection_quota(address)
        if quota is None:
            return 0
        rate, now_ms = self.counters.get((CONNECTION_CREATION_RATE, address), lambda: Rate(self.window))
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(quota, now_ms), self.window.window_ms)
        if throttle_ms:
            self.throttled[CONNECTION_CREATION_RATE] += 1
            rate.record(-1, now_ms)
        return int(throttle_ms)

    def connection_quota(self, address: str) -> float | None:
        """Return the number of connections that an address may open per second, or None without a quota."""
        return self.addresses.get(address, self.addresses.get(None))


def _address(name: str | None) -> str | None:
    """Return an IP address in its normal form, or any other text unchanged.

    Apache Kafka also accepts host names, which match no client in kbroker.
    """
    try:
        return name if name is None else str(ipaddress.ip_address(name))
    except ValueError:
        return name


class Meter:
    """Records the traffic of one client, and returns the times for which the client must be throttled."""

    __slots__ = ('_fetched', '_limits', '_mutations', '_produced', '_quotas', '_time')

    def __init__(self, quotas: ClientQuotas, limits: Mapping[str, Limit]):
        self._quotas = quotas
        self._produced = limits.get(PRODUCER_BYTE_RATE)
        self._fetched = limits.get(CONSUMER_BYTE_RATE)
        self._time = limits.get(REQUEST_PERCENTAGE)
        self._mutations = limits.get(CONTROLLER_MUTATION_RATE)

    @property
    def measures_time(self) -> bool:
        """True if the client has a quota for time of the event loop (request_percentage)."""
        return self._time is not None

    def record_produced(self, size_bytes: int) -> int:
        """Record the size of a Produce request. Return the throttle time in milliseconds."""
        return self._record(self._produced, size_bytes)

    def record_fetched(self, size_bytes: int) -> int:
        """Record the size of an answer to Fetch. Return the throttle time in milliseconds."""
        return self._record(self._fetched, size_bytes)

    def undo_fetched(self, size_bytes: int) -> None:
        """Undo `record_fetched` for an answer that is not sent."""
        self._record(self._fetched, -size_bytes)

    @property
    def most_fetched_bytes(self) -> int | None:
        """The largest size in bytes of an answer to Fetch that causes no throttling; None without a quota."""
        if self._fetched is None:
            return None
        window = self._quotas.window
        return int(min(MOST_THROTTLE_MS, self._fetched.quota * (window.samples - 1) * window.window_ms / 1000))

    def record_time(self, time_us: int) -> int:
        """Record the time of the event loop that the client has used.

        Return the throttle time in ms, which is at most the length of a window. The quota is a percentage of one
        thread.
        """
        return min(self._record(self._time, time_us / 10_000), self._quotas.window.window_ms)

    def mutations(self, *, is_strict: bool) -> Mutations:
        """Return an object that records the partitions which one request creates or deletes."""
        return Mutations(self._quotas, self._mutations, is_strict)

    def _record(self, limit: Limit | None, amount: float) -> int:
        if limit is None:
            return 0
        rate, now_ms = self._quotas.counters.get(limit.counter, lambda: Rate(self._quotas.window))
        rate.record(amount, now_ms)
        throttle_ms = int(rate.throttle_ms(limit.quota, now_ms))
        if throttle_ms and amount > 0:
            self._quotas.throttled[limit.counter[0]] += 1
        return throttle_ms


class Mutations:
    """Records the partitions that one request creates or deletes (KIP-599).

    A strict request is refused while the number of tokens is negative. A request that is not strict is executed, and
    its client is throttled afterwards.
    """

    def __init__(self, quotas: ClientQuotas, limit: Limit | None, is_strict: bool):
        self.throttle_ms = 0
        self._quotas = quotas
        self._limit = limit
        self._is_strict = is_strict

    def charge(self, partitions: int) -> None:
        """Record that `partitions` partitions are created or deleted.

        Raise KafkaError(THROTTLING_QUOTA_EXCEEDED) if the request is strict and above the quota.
        """
        if self._limit is None:
            return
        quota = self._limit.quota
        bucket, now_ms = self._quotas.counters.get(
            self._limit.counter, lambda: TokenBucket(self._quotas.mutation_window))
        if self._is_strict:
            throttle_ms = bucket.throttle_ms(quota, now_ms)
            if bucket.measure(quota, now_ms) < 0:
                self._throttle(throttle_ms)
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                                 f'found more than {quota:g} partitions a second created or deleted by this client')
        bucket.record(partitions, quota, now_ms)
        if not self._is_strict:
            self._throttle(bucket.throttle_ms(quota, now_ms))

    def _throttle(self, throttle_ms: int) -> None:
        if throttle_ms and not self.throttle_ms:
            self._quotas.throttled[CONTROLLER_MUTATION_RATE] += 1
        self.throttle_ms = max(self.throttle_ms, throttle_ms)


_OF_CLIENTS: dict[str, float] = {PRODUCER_BYTE_RATE: 2**63 - 1, CONSUMER_BYTE_RATE: 2**63 - 1,
                                 REQUEST_PERCENTAGE: math.inf, CONTROLLER_MUTATION_RATE: math.inf}
LIMITS: dict[str, dict[str, float]] = {USER: _OF_CLIENTS, CLIENT_ID: _OF_CLIENTS,
                                       IP: {CONNECTION_CREATION_RATE: 2**31 - 1}}
"""Maps each entity type to {quota key: largest value}.

If the largest value of a key is finite, its quotas are whole numbers.
"""

LEAST_QUOTA = 5e-324
"""The quota that replaces a quota of zero or below."""
FRACTION = 1e-6
"""The largest accepted difference between a quota and a whole number."""


def check_key(entity_type: str, key: str) -> float:
    """Return the largest value of a quota key.

    Raise KafkaError(INVALID_REQUEST) if entities of this type cannot have the key.
    """
    most = LIMITS[entity_type].get(key)
    if most is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the quota {key[:80]!r} of entity type {entity_type}, '
                         f'expected one of {", ".join(LIMITS[entity_type])}')
    return most


def check_quota(entity_type: str, key: str, value: float) -> None:
    """Raise KafkaError(INVALID_REQUEST) unless entities of this type may have this quota key with this value."""
    most = check_key(entity_type, key)
    if not 0 < value < math.inf:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'{key}: found {value:g}, expected a positive number')
    if value > most:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'{key}: found {value:g}, expected at most {most:g}')
    if most != math.inf and abs(value - max(1, round(value))) > FRACTION:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'{key}: found {value!r}, expected a whole number')
