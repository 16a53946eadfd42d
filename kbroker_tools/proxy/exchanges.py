"""A request of a client, and its answer."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.base.errors import ProtocolError
from kbroker.protocol.api_keys import ApiKey, request_header_version
from kbroker.protocol.codec import decode as decode_message
from kbroker.protocol.codec import decode_prefix
from kbroker.protocol.messages import RequestHeader
from kbroker_tools.proxy.addresses import (
    SIZE_BYTES,
    Route,
    framed,
    header_bytes_of,
    places_of,
    request_class,
    response_class,
    rewritten,
    route_message,
)

LEAST_REQUEST_BYTES = 8
"""The API key, the version and the correlation id."""

Change = Callable[[Any], 'bool | None']
"""A function that changes a decoded response. It returns False if it leaves the response as it is."""


class Exchange:
    """A request, from its arrival until its answer has left.

    Frames include their size fields. The request is decoded at its first use. An API or a version that no
    message table has passes as it is.
    """

    __slots__ = ('_header', '_header_bytes', '_is_decoded', '_request', 'answer', 'change', 'correlation_id', 'facts',
                 'frame', 'has_replied', 'key', 'node', 'version')

    def __init__(self, frame: bytes, node: int | None = None):
        if len(frame) < SIZE_BYTES + LEAST_REQUEST_BYTES:
            raise ProtocolError(f'found a request of {len(frame) - SIZE_BYTES} bytes, expected at least '
                                f'{LEAST_REQUEST_BYTES}')
        self.frame = frame
        self.key, self.version = int.from_bytes(frame[4:6], signed=True), int.from_bytes(frame[6:8], signed=True)
        self.correlation_id = frame[8:12]
        self.node = node
        """The virtual broker to which the client sent it, or None if there are none."""
        self.answer: bytes | None = None
        """The frame of the answer, once it is there."""
        self.change: Change | None = None
        """Changes the decoded answer of the broker before it leaves."""
        self.facts: dict[str, Any] | None = None
        self.has_replied = False
        """True once the answer has passed its point."""
        self._request: Any = None
        self._is_decoded = False
        self._header: Any = None
        self._header_bytes = 0

    @property
    def request(self) -> Any:
        """The decoded request, or None if no table has its API or version, or if it cannot be read."""
        if not self._is_decoded:
            self._is_decoded = True
            cls = request_class(self.key)
            if cls is not None and cls.versions[0] <= self.version <= cls.versions[1]:
                try:
                    self._header, self._header_bytes = decode_prefix(
                        RequestHeader, self.frame, request_header_version(self.key, self.version), SIZE_BYTES)
                    self._request = decode_message(cls, self.frame, self.version, self._header_bytes)
                except ProtocolError:
                    self._request = None
        return self._request

    @property
    def client_id(self) -> str | None:
        """The client id in the header of the request."""
        return None if self.request is None else self._header.client_id

    @property
    def has_no_answer(self) -> bool:
        """True for a Produce request with acks=0."""
        return self.key == ApiKey.PRODUCE and self.request is not None and self.request.acks == 0

    def replace_request(self) -> None:
        """Encode the decoded request again, after a change."""
        self.frame = framed(self.request, self.version, self.frame[SIZE_BYTES:self._header_bytes])

    def forget_request(self) -> None:
        """Release the memory of the request. `request` is None afterwards."""
        self.frame = b''
        self._request = None
        self._is_decoded = True

    def new_response(self) -> Any:
        """Return an empty response."""
        return response_class(self.key)()

    def respond(self, response: Any) -> None:
        """Answer the request without the broker."""
        header_bytes = header_bytes_of(self.key, self.version)
        self.answer = framed(response, self.version, self.correlation_id + bytes(header_bytes - SIZE_BYTES))

    def take_answer(self, frame: bytes, route: Route) -> None:
        """Take the answer of the broker, with the proxy's addresses in it."""
        if self.key == ApiKey.API_VERSIONS:
            self.answer = _limited(frame, self.version)
        elif self.change is None:
            self.answer = rewritten(frame, self.key, self.version, route)
        else:
            start = SIZE_BYTES + header_bytes_of(self.key, self.version)
            response = decode_message(response_class(self.key), frame, self.version, start)
            if self.change(response) is False:
                self.answer = frame
                return
            places = places_of(self.key)
            if places is not None and self.node is None:
                route_message(response, places, route)
            self.answer = framed(response, self.version, frame[SIZE_BYTES:start])


def _limited(frame: bytes, version: int) -> bytes:
    """Return an answer to ApiVersions without versions that are newer than the message tables: in these, the proxy
    could not find addresses."""
    first, last = response_class(ApiKey.API_VERSIONS).versions
    if not first <= version <= last or int.from_bytes(frame[8:10]):     # an error has the form of version 0
        return frame
    response = decode_message(response_class(ApiKey.API_VERSIONS), frame, version, 2 * SIZE_BYTES)
    is_newer = False
    for row in response.api_keys:
        cls = request_class(row.api_key)
        if cls is not None and row.max_version > cls.versions[1] >= row.min_version:
            row.max_version = cls.versions[1]
            is_newer = True
    return framed(response, version, frame[SIZE_BYTES:2 * SIZE_BYTES]) if is_newer else frame
