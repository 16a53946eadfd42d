"""What a handler sees of a request, and what it declares of itself."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.apis.frame_handler import FrameHandler
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey

NO_REPLY = object()
"""Returned by a handler whose request is never answered: Produce with acks=0 that went well."""


class RequestContext:
    """One request under way.

    A handler returns its response, or returns None and calls `reply` once, later. Until then the connection's next
    request waits, as Kafka's clients may rely on; a handler that has made every effect of its request visible and only
    waits for the disk calls `let_next_pass`, and replies still leave in request order.
    """

    __slots__ = ('_close', '_let_next_pass', '_reply', 'api_key', 'broker', 'client_host', 'client_id', 'connection_id',
                 'correlation_id', 'listener_name', 'version')

    def __init__(self, broker: Any, api_key: ApiKey, version: int, correlation_id: int, client_id: str | None,
                 client_host: str, connection_id: int, reply: Callable[[RequestContext, Any], None],
                 let_next_pass: Callable[[], None], close: Callable[[str], None], listener_name: str = ''):
        self.broker = broker
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.connection_id = connection_id
        self.listener_name = listener_name
        self._reply = reply
        self._let_next_pass = let_next_pass
        self._close = close

    @property
    def advertised_address(self) -> tuple[str, int]:
        """Host and port that this client is told: those of the listener that it came through."""
        address: tuple[str, int] = self.broker.advertised_address(self.listener_name)
        return address

    def reply(self, response: Any) -> None:
        """Answer a parked request. The connection may be gone: then the answer is dropped."""
        self._reply(self, response)

    def let_next_pass(self) -> None:
        """Allow the connection's next request to be handled before this one is answered."""
        self._let_next_pass()

    def close(self, reason: str) -> None:
        """Close the connection: the only answer left when the request is one that is not answered."""
        self._close(reason)


@dataclass(frozen=True, slots=True)
class Api:
    """A served API: `ApiVersions` is derived from these, one per file of this room."""

    key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[[RequestContext, Any], Any] | None
    """None for an Api that has a `frame_handler`."""
    error_response: Callable[[Any, ErrorCode, str, int], Any] | None = None
    """Builds the answer to a request that failed as a whole: (request, code, message, version) -> response, or None
    where the request wants no answer."""
    advertised_min_version: int | None = None
    """The lowest version that ApiVersions names, where it differs from the lowest that is served."""
    frame_handler: FrameHandler | None = None
    """Serves requests from their bytes."""
