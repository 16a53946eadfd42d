"""The table of routes: the function that answers each path and method, and the clients that may ask."""
from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from kbroker.base.lean_dataclasses import dataclass, replace
from kbroker.http.messages import NO_NAMES, Answer, HttpRequest, text_answer

if TYPE_CHECKING:
    from kbroker.http.tokens import Token

READING = ('GET', 'HEAD')
CHALLENGE = (('www-authenticate', 'Bearer realm="kbroker"'), ('www-authenticate', 'Basic realm="kbroker"'))
LOCAL_NAMES = ('localhost', 'localhost.localdomain')
JSON = 'application/json'

Refuse = Callable[[int, str, tuple[tuple[str, str], ...]], Answer]
"""A function that returns the answer for (status, one line of text, headers)."""


@dataclass(frozen=True)
class Route:
    """A path with its methods, and the function that answers requests for it.

    A part of the path in braces matches any one part: `/rules/{id}` matches `/rules/7`, and `request.names['id']` is
    `7`. Several routes may have the same path, with different methods.
    """

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
    browser on this machine (DNS rebinding). With `only_programs`, a request must not come from a page in a browser,
    which could change something even though the page cannot read the answer (cross-site request forgery).

    `refuse` returns the answer to a request that the table refuses.
    """

    def __init__(self, routes: Iterable[Route], *, token: Token | None = None, only_local_names: bool = False,
                 only_programs: bool = False, refuse: Refuse = text_answer):
        self._routes: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._routes.setdefault(route.path, {}).update(dict.fromkeys(route.methods, route))
        self._patterns = {path: path.split('/') for path in self._routes if '{' in path}
        self.token = token
        """The token in force. Its owner may replace it."""
        self._only_local_names = only_local_names
        self._only_programs = only_programs
        self.refuse = refuse

    def answer(self, request: HttpRequest) -> Answer:
        """Return the answer to a request. If no route has its path, it is an error with the paths that exist."""
        if (refusal := self._refusal_of_sender(request)) is not None:
            return refusal
        methods, names = self._find(request.path)
        if methods is None:
            return self.refuse(HTTPStatus.NOT_FOUND,
                               f'found the path {request.path[:100]!r}, expected one of {", ".join(self._routes)}', ())
        route = methods.get(request.method)
        if route is None:
            return self.refuse(HTTPStatus.METHOD_NOT_ALLOWED,
                               f'found the method {request.method[:20]!r}, expected {" or ".join(methods)}',
                               (('allow', ', '.join(methods)),))
        if self.token is not None and not route.is_open and not self._has_token(request, self.token):
            return self.refuse(HTTPStatus.UNAUTHORIZED, f'expected the token of {self.token.source}, as '
                               'Authorization: Bearer TOKEN or as a password', CHALLENGE)
        return route.answer(replace(request, names=names) if names else request)

    def _refusal_of_sender(self, request: HttpRequest) -> Answer | None:
        host = request.headers.get('host', '')
        if self._only_local_names and not is_local_name(host):
            return self.refuse(HTTPStatus.MISDIRECTED_REQUEST,
                               f'found the host {host[:100]!r}, expected an address or localhost', ())
        if not self._only_programs:
            return None
        origin = request.headers.get('origin')
        if origin is not None:
            return self.refuse(HTTPStatus.FORBIDDEN, f'found a request of a page of {origin[:100]!r} in a browser, '
                               'expected one of a program: without the header Origin', ())
        kind = request.headers.get('content-type', '').partition(';')[0].strip().lower()
        if kind != JSON and (request.body or kind):
            return self.refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                               f'found the content type {kind[:100]!r}, expected {JSON}: send the header '
                               f'Content-Type: {JSON}', ())
        return None

    def _find(self, path: str) -> tuple[dict[str, Route] | None, Mapping[str, str]]:
        """Return (routes of a path by their methods, parts of the path that the routes name)."""
        if path in self._routes and path not in self._patterns:
            return self._routes[path], NO_NAMES
        given = path.split('/')
        for pattern, parts in self._patterns.items():
            if len(parts) != len(given):
                continue
            names = {each[1:-1]: found for each, found in zip(parts, given, strict=True) if each.startswith('{')}
            if path == pattern.format_map(names) and all(names.values()):
                return self._routes[pattern], names
        return None, NO_NAMES

    def _has_token(self, request: HttpRequest, token: Token) -> bool:
        import hmac  # slow to import, and needed only for a token

        scheme, _, given = request.headers.get('authorization', '').partition(' ')
        if scheme.lower() == 'basic':
            try:
                given = base64.b64decode(given, validate=True).decode().partition(':')[2]
            except ValueError:
                return False
        elif scheme.lower() != 'bearer':
            return False
        return hmac.compare_digest(given.strip().encode('utf-8', 'surrogateescape'), token.text.encode())


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
