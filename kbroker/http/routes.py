"""The table of routes: the function that answers each path, and the clients that may ask."""
from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Callable, Iterable
from http import HTTPStatus

from kbroker.base.lean_dataclasses import dataclass
from kbroker.http.messages import Answer, HttpRequest, text_answer

READING = ('GET', 'HEAD')
CHALLENGE = (('www-authenticate', 'Bearer realm="kbroker"'), ('www-authenticate', 'Basic realm="kbroker"'))
LOCAL_NAMES = ('localhost', 'localhost.localdomain')


@dataclass(frozen=True)
class Route:
    """A path, and the function that answers requests for it."""

    path: str
    answer: Callable[[HttpRequest], Answer]
    is_open: bool = False
    """True if everyone may ask, even if other routes need a token."""
    methods: tuple[str, ...] = READING


def health_route(path: str, problem: Callable[[], str | None]) -> Route:
    """Return a route that everyone may ask: 200 and `ok`, or 503 and the text of the problem."""
    def answer(_request: HttpRequest) -> Answer:
        found = problem()
        return text_answer(HTTPStatus.OK, 'ok') if found is None else text_answer(HTTPStatus.SERVICE_UNAVAILABLE, found)

    return Route(path, answer, is_open=True)


class Routes:
    """Answers requests by a table of routes.

    With `token`, a request for a route that is not open needs it, as a Bearer token or as the password of any user:
    browsers ask only for a password. With `only_local_names`, the Host of a request has to be an address or the name of
    this machine: otherwise a page of a stranger, whose name suddenly means 127.0.0.1, could read the answers in a
    browser on this machine (DNS rebinding).
    """

    def __init__(self, routes: Iterable[Route], *, token: str | None = None, only_local_names: bool = False):
        self._routes = {route.path: route for route in routes}
        self.token = token
        """The token in force. Its owner may replace it."""
        self._only_local_names = only_local_names

    def answer(self, request: HttpRequest) -> Answer:
        """Return the answer to a request. If no route has its path, it is an error with the paths that exist."""
        host = request.headers.get('host', '')
        if self._only_local_names and not is_local_name(host):
            return text_answer(HTTPStatus.MISDIRECTED_REQUEST,
                               f'found the host {host[:100]!r}, expected an address or localhost')
        route = self._routes.get(request.path)
        if route is None:
            return text_answer(HTTPStatus.NOT_FOUND,
                               f'found the path {request.path[:100]!r}, expected one of {", ".join(self._routes)}')
        if request.method not in route.methods:
            return text_answer(HTTPStatus.METHOD_NOT_ALLOWED,
                               f'found the method {request.method[:20]!r}, expected {" or ".join(route.methods)}',
                               (('allow', ', '.join(route.methods)),))
        if self.token is not None and not route.is_open and not self._has_token(request):
            return text_answer(HTTPStatus.UNAUTHORIZED, 'expected the token of metrics.token.file, as Authorization: '
                               'Bearer TOKEN or as a password', CHALLENGE)
        return route.answer(request)

    def _has_token(self, request: HttpRequest) -> bool:
        assert self.token is not None
        scheme, _, given = request.headers.get('authorization', '').partition(' ')
        if scheme.lower() == 'basic':
            try:
                given = base64.b64decode(given, validate=True).decode().partition(':')[2]
            except ValueError:
                return False
        elif scheme.lower() != 'bearer':
            return False
        return hmac.compare_digest(given.strip().encode('utf-8', 'surrogateescape'), self.token.encode())


def is_local_name(host: str) -> bool:
    """Return whether the Host header of a request is an address or a name of this machine, with or without a port.

    An absent header is, too: browsers always send one.
    """
    name = host.rpartition(':')[0] if host.rpartition(':')[2].isdecimal() else host
    name = name.removeprefix('[').removesuffix(']').rstrip('.').lower()
    if not name or name in LOCAL_NAMES or name.endswith('.localhost'):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
