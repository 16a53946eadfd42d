"""The replacement of broker addresses in responses. The proxy puts its own addresses there, so that all requests of
clients go through the proxy.

The message tables say which responses have addresses: a walk finds each struct with a `host` and a `port`.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker.protocol import messages, schema
from kbroker.protocol.api_keys import response_header_version
from kbroker.protocol.codec import decode, encode_segments

SIZE_BYTES = 4

Route = Callable[[str, int], tuple[str, int]]
"""A function that returns the proxy's address for a broker. The arguments are the host and port of the broker."""

ADDRESSES_OF_APPLICATIONS = ('user_endpoint',)
"""Fields with addresses of applications, which streams groups pass from one member to the others (KIP-1071)."""


class Step(NamedTuple):
    """A field on the way from a message to a struct with an address."""

    name: str
    is_array: bool


class Places(NamedTuple):
    """The structs of a response that have an address, from one version on."""

    first_version: int
    last_version: int
    paths: tuple[tuple[Step, ...], ...]


def rewritten(answer: bytes, key: int, version: int, route: Route) -> bytes:
    """Return the response with the addresses of the proxy in place of the brokers' addresses. `answer` is the frame of
    the response, with its size field. Raise ProtocolError if it cannot be read.

    A response without addresses is returned as it is. Records are neither copied nor read.
    """
    places = places_of(key)
    if places is None or not places.first_version <= version <= places.last_version:
        return answer
    start = SIZE_BYTES + header_bytes_of(key, version)
    message = decode(response_class(key), answer, version, start)
    if not route_message(message, places, route):
        return answer
    return framed(message, version, answer[SIZE_BYTES:start])


def framed(message: Any, version: int, header: bytes) -> bytes:
    """Return the frame of a message: size, header, message."""
    parts = encode_segments(message, version, header)
    return b''.join((sum(map(len, parts)).to_bytes(SIZE_BYTES), *parts))


def route_message(message: Any, places: Places, route: Route) -> bool:
    """Replace the addresses in a decoded response. Return whether it had any."""
    has_any = False
    for path in places.paths:
        for struct in _structs(message, path):
            if struct.host:
                struct.host, struct.port = route(struct.host, struct.port)
                has_any = True
    return has_any


def header_bytes_of(key: int, version: int) -> int:
    """Return the size of a response's header: the correlation id, and the count of tagged fields if it has one."""
    return 5 if response_header_version(key, version) else 4


@functools.cache
def request_class(key: int) -> Any:
    """Return the class of an API's requests, or None if no table has it."""
    return _class('Request', key)


@functools.cache
def response_class(key: int) -> Any:
    """Return the class of an API's responses, or None if no table has it."""
    return _class('Response', key)


def _class(section: str, key: int) -> Any:
    for name, declaration in schema.declarations().items():
        if declaration.kind == 'api' and declaration.key == key and name.endswith(section):
            return getattr(messages, name)
    return None


@functools.cache
def places_of(key: int) -> Places | None:
    """Return the places of addresses in the responses of an API, or None if it has none or is unknown."""
    cls = response_class(key)
    found = [] if cls is None else list(paths_to_addresses(cls.schema.struct, cls.schema.declaration.versions))
    if not found:
        return None
    return Places(min(versions.first for _, versions in found), cls.versions[1], tuple(path for path, _ in found))


def paths_to_addresses(struct: schema.Struct, versions: schema.Versions, path: tuple[Step, ...] = ()
                       ) -> Iterator[tuple[tuple[Step, ...], schema.Versions]]:
    """Yield (path, versions) of each struct that has the address of a broker, for all versions of the message."""
    fields = {field.name: field for field in struct.fields}
    if {'host', 'port'} <= fields.keys():
        yield path, schema.Versions(max(versions.first, fields['host'].versions.first),
                                    min(versions.last, fields['host'].versions.last))
    for field in struct.fields:
        if field.struct is not None and field.name not in ADDRESSES_OF_APPLICATIONS:
            inner = schema.Versions(max(versions.first, field.versions.first),
                                    min(versions.last, field.versions.last))
            yield from paths_to_addresses(field.struct, inner, (*path, Step(field.name, field.is_array)))


def _structs(message: Any, path: tuple[Step, ...]) -> Iterator[Any]:
    """Yield the structs at the end of a path."""
    if message is None:
        return
    if not path:
        yield message
        return
    value = getattr(message, path[0].name)
    for each in (value or ()) if path[0].is_array else (value,):
        yield from _structs(each, path[1:])
