"""Ranges of addresses in the hosts of ACLs, in CIDR notation: `10.0.0.0/8`, `2001:db8::/32` (Apache Kafka 4.4).

The grammar is Kafka's. A text with a colon is IPv6:

| part | IPv4 | IPv6 |
|---|---|---|
| address | four decimal numbers of one to three digits; leading zeros have no meaning | any spelling of an address, |
| | | also in brackets or with a zone (`%eth0`), but not an IPv4 address mapped into IPv6 |
| prefix length | one or two digits, 0 to 32 | 0 to 128; leading zeros have no meaning |

Only the first `prefix_bits` bits of the address count: `10.0.0.1/8` is the same range as `10.0.0.0/8`. A range contains
addresses of its own family only: `::/0` does not contain 10.0.0.1.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

LONGEST_NETWORK = 128
"""The largest number of characters of a range. A longer text is not a range."""

IPV4_BITS, IPV6_BITS = 32, 128

_IPV4 = re.compile(r'([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})/([0-9]{1,2})')
_NUMBER = re.compile('[+-]?[0-9]+')


class Network(NamedTuple):
    """A range: all addresses of `address_bits` bits whose first `prefix_bits` bits are the number `prefix`."""

    address_bits: int
    prefix_bits: int
    prefix: int

    def __str__(self) -> str:
        """Return the normal form, which all spellings of a range have in common."""
        first = self.prefix << (self.address_bits - self.prefix_bits)
        return f'{IPv4Address(first) if self.address_bits == IPV4_BITS else IPv6Address(first)}/{self.prefix_bits}'


def parse_network(text: str) -> Network:
    """Return the range that a text describes. Raise ValueError if the text is not a range.

    The error begins with the text that Kafka gives as the reason.
    """
    if len(text) > LONGEST_NETWORK:
        raise ValueError(f'Could not parse [{text[:80]}...]: found {len(text)} characters, '
                         f'expected at most {LONGEST_NETWORK}')
    return _parse_ipv6(text) if ':' in text else _parse_ipv4(text)


def _parse_ipv4(text: str) -> Network:
    match = _IPV4.fullmatch(text)
    if match is None:
        raise ValueError(f'Could not parse [{text}]')
    *octets, prefix_bits = map(int, match.groups())
    for octet in octets:
        _check_range(octet, 255)
    _check_range(prefix_bits, IPV4_BITS)
    return Network(IPV4_BITS, prefix_bits, int.from_bytes(bytes(octets), 'big') >> (IPV4_BITS - prefix_bits))


def _check_range(number: int, highest: int) -> None:
    if number > highest:
        raise ValueError(f'Value [{number}] not in range [0,{highest}]')


def _parse_ipv6(text: str) -> Network:
    address, slash, number = text.partition('/')
    if not slash or not _NUMBER.fullmatch(number):
        raise ValueError(f'Could not parse [{text}]: found the prefix length {number!r}, expected a number')
    prefix_bits = int(number)
    if not 0 <= prefix_bits <= IPV6_BITS:
        raise ValueError(f'Could not parse [{text}]: found the prefix length {prefix_bits}, expected 0 to {IPV6_BITS}')
    is_bracketed = address.startswith('[') and address.endswith(']')
    try:
        found = IPv6Address(address[1:-1] if is_bracketed else address)
    except AddressValueError as error:
        raise ValueError(f'Could not parse [{address}]: {error}') from None
    if found.ipv4_mapped is not None:
        raise ValueError(f'Could not parse [{address}]: found an IPv4 address mapped into IPv6')
    return Network(IPV6_BITS, prefix_bits, int(found) >> (IPV6_BITS - prefix_bits))


def find_network(text: str) -> Network | None:
    """Return the range that a text describes, None if the text is not a range."""
    return None if len(text) > LONGEST_NETWORK else _find_network(text)


@functools.lru_cache(maxsize=1024)
def _find_network(text: str) -> Network | None:
    try:
        return parse_network(text)
    except ValueError:
        return None


class NetworkSet:
    """The ranges of all ACLs, with the number of ACLs of each.

    To find the ranges that contain an address takes one lookup for each prefix length in use: at most 33 for an IPv4
    address and 129 for an IPv6 address, whatever the number of ranges.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], dict[int, str]] = {}
        """Maps (address bits, prefix bits) to {prefix: normal form}."""
        self._counts: dict[Network, int] = {}

    def __len__(self) -> int:
        """Return the number of different ranges."""
        return len(self._counts)

    def add(self, network: Network, text: str) -> None:
        """Count one more ACL of a range. `text` is its normal form."""
        count = self._counts.get(network, 0)
        self._counts[network] = count + 1
        if count == 0:
            self._texts.setdefault(network[:2], {})[network.prefix] = text

    def discard(self, network: Network) -> None:
        """Count one ACL less of a range in the set."""
        self._counts[network] -= 1
        if self._counts[network] == 0:
            del self._counts[network]
            texts = self._texts[network[:2]]
            del texts[network.prefix]
            if not texts:
                del self._texts[network[:2]]

    def containing(self, host: str) -> Iterator[str]:
        """Yield the normal form of each range that contains an address, a result of `host_key`. The zone of the address
        does not count. A text that is not an address is in no range."""
        try:
            address = ip_address(host)
        except ValueError:
            return
        number, address_bits = int(address), address.max_prefixlen
        for (bits, prefix_bits), texts in self._texts.items():
            if bits == address_bits and (text := texts.get(number >> (bits - prefix_bits))) is not None:
                yield text
