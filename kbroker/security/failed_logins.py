"""Counts failed logins by address, so that a client that guesses passwords must wait.

An address may fail MOST_AT_ONCE times, and once more every REFILL_MS. If it fails more often, its logins are delayed:
one may begin every PACE_MS. No user is locked out: a right password succeeds after the delay. Logins from other
addresses are not delayed.
"""
from __future__ import annotations

import ipaddress
from collections import OrderedDict

from kbroker.base.clock import Clock
from kbroker.base.ledger import Line

MOST_AT_ONCE = 10
REFILL_MS = 6_000
PACE_MS = 100
LONGEST_WAIT_MS = 10_000
"""The longest delay of a login. A login that would wait longer is refused."""
MOST_ADDRESSES = 10_000
"""The largest number of counted addresses. Above it, the address whose last failure is oldest is removed."""
NETWORK_BITS = 64
"""The prefix length of the IPv6 networks that are counted as one address, because one client may have all addresses of
such a network.
"""


class _Failures:
    __slots__ = ('allowed', 'allowed_ms', 'next_turn_ms')

    def __init__(self, now_ms: int):
        self.allowed: float = MOST_AT_ONCE
        self.allowed_ms = now_ms
        self.next_turn_ms = now_ms

    def refill(self, now_ms: int) -> None:
        self.allowed = min(MOST_AT_ONCE, self.allowed + (now_ms - self.allowed_ms) / REFILL_MS)
        self.allowed_ms = now_ms


class FailedLogins:
    """The addresses from which logins have failed recently."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._by_network: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_network)

    def ledger(self) -> list[Line]:
        return [Line('addresses of failed logins', '', lambda: len(self), lambda: MOST_ADDRESSES,
                     'the oldest is forgotten')]

    def note(self, address: str) -> None:
        """Count a failed login from the address."""
        network = network_of(address)
        now_ms = self._clock.monotonic_ms()
        failures = self._by_network.setdefault(network, _Failures(now_ms))
        failures.refill(now_ms)
        failures.allowed = max(0, failures.allowed - 1)
        self._by_network.move_to_end(network)
        if len(self._by_network) > MOST_ADDRESSES:
            self._by_network.popitem(last=False)

    def wait_ms(self, address: str) -> int | None:
        """Return the milliseconds after which a login from the address may begin, or None if the login is refused."""
        failures = self._by_network.get(network_of(address)) if self._by_network else None
        if failures is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        failures.refill(now_ms)
        if failures.allowed >= 1:
            return 0
        turn_ms = max(now_ms, failures.next_turn_ms)
        if turn_ms - now_ms > LONGEST_WAIT_MS:
            return None
        failures.next_turn_ms = turn_ms + PACE_MS
        return turn_ms - now_ms


def network_of(address: str) -> str:
    """Return an IPv4 address unchanged, or the network of an IPv6 address (its first NETWORK_BITS bits)."""
    if ':' not in address:
        return address
    try:
        number = int(ipaddress.IPv6Address(address.partition('%')[0]))
    except ValueError:
        return address
    return f'{number >> NETWORK_BITS:x}::'
