"""The way to the broker: connections with the TLS and the login of a client's settings."""
from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from kbroker.base.errors import KafkaError
from kbroker.client.config import ClientConfig
from kbroker.client.connection import Connection, open_socket

Address = tuple[str, int]
Dial = Callable[[Sequence[Address]], socket.socket]
"""A function that connects to the first of some addresses that accepts. It raises OSError or KafkaError."""


def dialer(config: ClientConfig) -> Dial:
    """Return the function that connects as a client with these settings does, and logs in."""
    def dial(addresses: Sequence[Address]) -> socket.socket:
        *others, last = addresses
        for address in others:
            try:
                return _opened(address, config)
            except (OSError, KafkaError):
                continue
        return _opened(last, config)

    return dial


def _opened(address: Address, config: ClientConfig) -> socket.socket:
    """Return a connection to a broker that is ready for the requests of a client.

    Raise ClientError if the broker cannot be reached, KafkaError if it refuses the credentials.
    """
    host, port = address
    if not config.is_sasl:
        return open_socket(host, port, config)
    return Connection(host, port, config).detach()


def plain_dialer(limit_s: float) -> Dial:
    """Return the function that connects without TLS and login."""
    limit_ms = int(limit_s * 1000)
    return dialer(ClientConfig(bootstrap=(), connection_setup_timeout_ms=limit_ms))



