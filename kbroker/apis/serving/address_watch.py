"""A warning about an advertised address that a client cannot reach.

A broker in a container often advertises `localhost`, or the id of its container. A client of another machine reaches
the broker through a published port, and then connects to the advertised address: to its own machine, or to a name that
it does not know. The broker sees only a client that asks for the brokers and never returns.
"""
from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Iterable
from pathlib import Path

from kbroker.settings.exposure import is_own_machine
from kbroker.settings.listeners import Listener

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_CLEARED = 64
"""The most addresses of clients to remember for which there is no warning."""

logger = logging.getLogger('kbroker')


class AddressWatch:
    """The listeners whose advertised address is of no use to some clients. It warns once for each."""

    def __init__(self, listeners: Iterable[Listener]):
        self._listeners = {listener.name: listener for listener in listeners}
        self._cleared: set[tuple[str, str]] = set()

    def look(self, listener_name: str, client_host: str) -> None:
        """Log a warning if a client that asks for the brokers very probably cannot reach the advertised address."""
        listener = self._listeners.get(listener_name)
        if listener is None or (listener_name, client_host) in self._cleared:
            return
        problem = problem_of(listener, client_host)
        if not problem:
            if len(self._cleared) == MOST_CLEARED:
                self._cleared.clear()
            self._cleared.add((listener_name, client_host))
            return
        del self._listeners[listener_name]
        logger.warning('a client at %s asked for the brokers, and now connects to the advertised address %s:%d, which '
                       'is %s. If it cannot connect there, advertise an address that it reaches: --advertise HOST:PORT '
                       '(advertised.listeners)', client_host, listener.host, listener.port, problem)


def problem_of(listener: Listener, client_host: str) -> str:
    """Return the reason why a client cannot reach the advertised address of a listener, or an empty string.

    The container's gateway stands for the clients of the machine that runs the container. For them, `localhost` is
    right, because the port is published there. They do not know the id of the container. Other containers on the same
    network do.
    """
    try:
        client = ipaddress.ip_address(client_host.partition('%')[0])
    except ValueError:
        return ''
    if client.is_loopback or _is_here(client):
        return ''
    networks, gateways = read_routes()
    if is_own_machine(listener.host):
        return '' if client in gateways else "the client's own machine"
    is_neighbour = client not in gateways and any(client in network for network in networks)
    return '' if is_neighbour else 'a name that only the network of this container knows'


def _is_here(address: Address) -> bool:
    """Return whether an address belongs to this machine: a socket can be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return True
    return False


def read_routes(place: Path = Path('/proc/net')) -> tuple[list[Network], list[Address]]:
    """Return the networks that this machine is part of, and the gateways of its default routes."""
    networks: list[Network] = []
    gateways: list[Address] = []
    with contextlib.suppress(OSError, ValueError):
        for line in (place / 'route').read_text().splitlines()[1:]:
            _, target, gateway, _, _, _, _, mask, *_ = line.split()
            if int(mask, 16) == 0:
                gateways.append(ipaddress.IPv4Address(bytes.fromhex(gateway)[::-1]))
            elif int(gateway, 16) == 0:
                network = ipaddress.IPv4Address(bytes.fromhex(target)[::-1])
                networks.append(ipaddress.IPv4Network((network, int(mask, 16).bit_count())))
    with contextlib.suppress(OSError, ValueError):
        for line in (place / 'ipv6_route').read_text().splitlines():
            target, length, _, _, gateway, *_ = line.split()
            if int(length, 16) == 0 and int(gateway, 16):
                gateways.append(ipaddress.IPv6Address(bytes.fromhex(gateway)))
            elif int(length, 16) and int(gateway, 16) == 0:
                networks.append(ipaddress.IPv6Network((bytes.fromhex(target), int(length, 16))))
    return networks, gateways
