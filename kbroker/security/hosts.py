"""Compares the addresses of clients as addresses, not as texts: `::1` and `0:0:0:0:0:0:0:1` are one host. It does the
same for the ranges of ACLs: `10.0.0.1/8` and `10.0.0.0/8` are one range."""
from __future__ import annotations

import functools
import ipaddress

LONGEST_ADDRESS = 128
"""A number of characters that no address exceeds, even with a zone."""


def host_key(text: str) -> str:
    """Return an address or a range in its normal form. Return any other text unchanged.

    The normal form of an IPv4 address mapped into IPv6 is the IPv4 address. Long texts are not cached, because the
    hosts of ACLs may have any length.
    """
    return text if len(text) > LONGEST_ADDRESS else _host_key(text)


@functools.lru_cache(maxsize=1024)
def _host_key(text: str) -> str:
    if '/' in text:
        from kbroker.security.networks import find_network  # no broker without ranges needs it
        network = find_network(text)
        return text if network is None else str(network)
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = getattr(address, 'ipv4_mapped', None)
    return str(address if mapped is None else mapped)
