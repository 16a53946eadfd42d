"""Limits on the number of connections and on the rate of new connections."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.base.clock import Clock
from kbroker.network.limits import UNBOUNDED, Limits
from kbroker.security.quotas import ClientQuotas, Rate


class ListenerLimits(NamedTuple):
    """The limits on the connections of one listener. `max_rate` is in connections per second."""

    max_connections: int = UNBOUNDED
    max_rate: int = UNBOUNDED


NO_LIMITS = ListenerLimits()
WHOLE_BROKER = ''


class Admission:
    """The numbers of open connections per address and per listener, and the rates at which clients open connections."""

    def __init__(self, limits: Limits, clock: Clock, quotas: ClientQuotas | None = None):
        self.limits = limits
        self.overrides: Mapping[str, int] = {}
        """Maps an address to its own limit, which replaces `max_connections_per_ip`."""
        self.max_rate = UNBOUNDED
        """The most connections that the broker accepts per second."""
        self.listeners: Mapping[str, ListenerLimits] = {}
        self._clock = clock
        self._quotas = quotas
        self.accepted: Counter[str] = Counter()
        """The connections accepted since the start, by listener."""
        self._open = 0
        self._per_ip: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._rates: dict[str, Rate] = {}

    def refusal(self, host: str, listener: str) -> tuple[str, str] | None:
        """Return the reason to refuse a connection from the address `host`, or None if the broker admits it.

        The reason is the owner of the limit that is reached, which is the broker, the listener or the address, and a
        text.
        """
        limits, of_listener = self.limits, self.listeners.get(listener, NO_LIMITS)
        most = self.overrides.get(host, limits.max_connections_per_ip)
        if self._open >= limits.max_connections:
            return 'broker', f'{self._open} are open (max.connections={limits.max_connections})'
        if self._per_listener[listener] >= of_listener.max_connections:
            return 'listener', f'{self._per_listener[listener]} of listener {listener} are open (its max.connections=' \
                               f'{of_listener.max_connections})'
        if self._per_ip[host] >= most:
            return 'address', f'{self._per_ip[host]} of that address are open (max.connections.per.ip={most})'
        return None

    def hold_ms(self, host: str) -> int:
        """Record a connection from the address `host`.

        Return the milliseconds to hold the connection before closing it.

        The result 0 admits the connection.
        """
        return 0 if self._quotas is None else self._quotas.record_connection(host)

    def enter(self, host: str, listener: str) -> None:
        self.accepted[listener] += 1
        self._open += 1
        self._per_ip[host] += 1
        self._per_listener[listener] += 1

    def leave(self, host: str, listener: str) -> None:
        self._open -= 1
        for counter, key in ((self._per_ip, host), (self._per_listener, listener)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]

    def open_connections(self) -> list[tuple[str, int]]:
        """Return (listener, number of its open connections) of each listener that has one."""
        return list(self._per_listener.items())

    def pauses(self, listener: str) -> tuple[int, int]:
        """Record a connection to a listener. Return (pause of this listener, pause of all listeners) in milliseconds.

        A paused listener accepts no connections.
        """
        return (self._pause_ms(listener, self.listeners.get(listener, NO_LIMITS).max_rate),
                self._pause_ms(WHOLE_BROKER, self.max_rate))

    def _pause_ms(self, key: str, max_rate: int) -> int:
        if max_rate >= UNBOUNDED or self._quotas is None:
            return 0
        window = self._quotas.window
        now_ms = self._clock.monotonic_ms()
        rate = self._rates.setdefault(key, Rate(window))
        rate.record(1, now_ms)
        return min(rate.throttle_ms(max(max_rate, 0.001), now_ms), window.window_ms)
