"""The replacement of broker addresses in responses. The proxy puts its own addresses there, so that all requests of
clients go through the proxy."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.protocol.api_keys import ApiKey, response_header_version
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.messages import DescribeClusterResponse, FindCoordinatorResponse, MetadataResponse

Route = Callable[[str, int], tuple[str, int]]
"""A function that returns the proxy's address for a broker. The arguments are the host and port of the broker."""

_RESPONSES: dict[int, Any] = {ApiKey.METADATA: MetadataResponse, ApiKey.FIND_COORDINATOR: FindCoordinatorResponse,
                              ApiKey.DESCRIBE_CLUSTER: DescribeClusterResponse}


def rewritten(answer: bytes, key: int, version: int, route: Route) -> bytes:
    """Return the response with the addresses of the proxy in place of the brokers' addresses. `answer` is the response
    without its size field. Raise ProtocolError if it cannot be read."""
    response_class = _RESPONSES.get(key)
    if response_class is None or not response_class.versions[0] <= version <= response_class.versions[1]:
        return answer
    header_bytes = 5 if response_header_version(key, version) else 4
    message = decode(response_class, answer, version, header_bytes)
    for place in _places(message):
        if place.host:
            place.host, place.port = route(place.host, place.port)
    return answer[:header_bytes] + encode(message, version)


def _places(message: Any) -> list[Any]:
    """Return the parts of a response that contain a host and a port."""
    if isinstance(message, FindCoordinatorResponse):
        return [message, *message.coordinators]
    return list(message.brokers)
