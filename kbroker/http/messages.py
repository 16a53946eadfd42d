"""The request that a route gets, and the answer in parts that it returns."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

from kbroker.base.lean_dataclasses import dataclass

TEXT = 'text/plain; charset=utf-8'
MOST_FIELDS = 32
"""The most fields of a query string."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})


class BadTargetError(ValueError):
    """Raised for a request target that is not a path with a query. The text is for the client."""


@dataclass(frozen=True)
class HttpRequest:
    """A request whose body, if it had one, has arrived."""

    method: str
    path: str
    """The path of the target, decoded. It begins with `/`."""
    query: Mapping[str, str]
    """The fields of the query string, decoded. Of a name that occurs several times, the last value."""
    headers: Mapping[str, str]
    """The headers by their names in lower case."""
    body: bytes = b''
    names: Mapping[str, str] = NO_NAMES
    """The parts of the path that the route names: `id` of `/rules/{id}`."""


class Wait(Protocol):
    """An event that an answer waits for: a `Pause`, or an object that knows when its wait has ended."""

    def wait(self) -> Iterable[object]:
        """Yield until the wait is over."""

    def end(self) -> object:
        """End the wait."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    `parts` yields the body. It runs as long work: it may yield None to let other work run, and a `Pause` to wait.
    Before the first bytes, it may yield another answer, which takes the place of this one. An exception that it raises
    before the first bytes becomes the status 500. Later, it ends the connection before the end of the body, so that the
    client does not take the part for the whole.

    With `wait`, the answer begins after that wait. The connection ends the wait if its client goes away, and takes no
    parts then. `after` is called when the whole answer is in the socket.
    """

    parts: Iterable[object]
    status: int = HTTPStatus.OK
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    wait: Wait | None = None
    after: Callable[[], object] | None = None


def text_answer(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return an answer of one line of text."""
    return Answer([f'{text}\n'.encode()], status, headers=headers)


def parse_target(target: bytes) -> tuple[str, dict[str, str]]:
    """Return (path, query) of a request target, decoded. Raise BadTargetError if it is not a path with a query.

    Bytes that are not UTF-8 become U+FFFD.
    """
    raw_path, _, raw_query = target.partition(b'?')
    if not raw_path.startswith(b'/'):
        raise BadTargetError('found a request target that is no path, expected one that begins with /')
    try:
        query = parse_qsl(raw_query.decode('latin-1'), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise BadTargetError(f'found more than {MOST_FIELDS} fields in the query, expected fewer') from None
    return unquote_to_bytes(raw_path).decode('utf-8', 'replace'), dict(query)
