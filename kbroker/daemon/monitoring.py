"""Metrics, health and the page of a running broker: the routes of `metrics.listen`.

The module is imported only if the setting asks for it.

The address answers from the first moment of the start, because a service manager that gets no answer from /livez
restarts the broker, and a recovery can take minutes. The start holds the loop, so a thread with a loop of its own
answers until it is over. That thread reads no state of the broker.
"""
from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from kbroker.base.clock import Clock, Timers
from kbroker.base.errors import ConfigError
from kbroker.base.ledger import Line
from kbroker.base.long_work import LongWork
from kbroker.http.messages import Answer, HttpRequest, text_answer
from kbroker.http.routes import Route, Routes, health_route
from kbroker.http.server import HttpServer, listen
from kbroker.http.tokens import Token, read_token
from kbroker.metrics import (
    certificates,
    connections,
    disk,
    groups,
    log,
    loop,
    memory,
    node,
    partitions,
    requests,
    share,
    traffic,
    transactions,
)
from kbroker.metrics.exposition import content_type, text_of
from kbroker.metrics.table import Sample
from kbroker.network.reactor import Reactor
from kbroker.page.outputs import OutputPages, is_installed
from kbroker.page.render import HEADERS, HTML, page
from kbroker.page.routes import file_routes, output_routes
from kbroker.settings.exposure import is_loopback

if TYPE_CHECKING:
    import socket

    from kbroker.daemon.broker import Broker
    from kbroker.daemon.page_facts import PageSource
    from kbroker.settings.config import Config

logger = logging.getLogger('kbroker')

Samples = Callable[[], Iterable[Sample | None]]


class Monitoring:
    """The HTTP server of `metrics.listen`.

    `is_ready()` returns whether clients are served: not any more while the broker stops. `samples()` returns the
    samples of all metrics.
    """

    def __init__(self, config: Config, context: Callable[[], ssl.SSLContext] | None):
        """Bind the address, and answer from a thread until `serve`.

        Raise OSError if the address is not available, or the file of the token cannot be read. Raise ConfigError if
        that file holds no token.
        """
        listener = config.metrics_listener
        assert listener is not None
        self._config = config
        self._token = self._read_token()
        self._context = context
        self._is_local = is_loopback(listener.host)
        self._listener: socket.socket = listen(listener.host, listener.port)
        self._routes = self._routes_of(starting_routes())
        self._starting: _Starting | None = _Starting(self._listener, self._routes, context)
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """The address, with the bound port."""
        host, port = self._listener.getsockname()[:2]
        scheme = 'http' if self._context is None else 'https'
        return f'{scheme}://[{host}]:{port}/' if ':' in host else f'{scheme}://{host}:{port}/'

    def ledger(self) -> list[Line]:
        assert self._server is not None
        return self._server.ledger()

    def serve(self, reactor: Reactor, long_work: LongWork, routes: Iterable[Route],
              on_close: Callable[[], object]) -> None:
        """Answer on the loop of the broker from now on. `close` calls `on_close()`."""
        self._end_start()
        self._on_close = on_close
        self._routes = self._routes_of(routes)
        self._server = HttpServer(reactor, long_work, self._listener, self._routes, self._context)

    def _read_token(self) -> Token | None:
        path = self._config.metrics_token_file
        return read_token(path, 'metrics.token.file',
                          allows_readable=self._config.kbroker_allow_readable_secrets) if path else None

    def reload(self) -> None:
        """Read the file of the token again. If it holds no token, the last one stays in force, and the log says so."""
        try:
            token = self._read_token()
        except (ConfigError, OSError) as error:
            from kbroker.base.os_errors import describe  # needed only after an error

            logger.error('the token of the metrics is not replaced: %s',
                         describe(error) if isinstance(error, OSError) else error)
            return
        if token != self._token:
            self._token = self._routes.token = token
            logger.info('the token of the metrics is replaced')

    def close(self) -> None:
        """Close the address and all connections."""
        self._end_start()
        if self._server is not None:
            self._server.close()
            self._server = None
            self._on_close()
        self._listener.close()

    def _end_start(self) -> None:
        if self._starting is not None:
            self._starting.end()
            self._starting = None

    def _routes_of(self, routes: Iterable[Route]) -> Routes:
        return Routes(routes, token=self._token, only_local_names=self._is_local and self._token is None)


class _Starting:
    """Answers from a thread while the broker starts."""

    def __init__(self, listener: socket.socket, routes: Routes, context: Callable[[], ssl.SSLContext] | None):
        timers = Timers(Clock())
        self._reactor = Reactor(Clock(), timers)
        self._server = HttpServer(self._reactor, LongWork(timers), listener, routes, context)
        self._thread = threading.Thread(target=self._reactor.run, name='health-of-start', daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._reactor.stop()
        self._thread.join()
        self._server.close()
        self._reactor.close()


def starting_routes() -> list[Route]:
    """Return the routes of a broker that recovers its logs."""
    def is_starting(_request: HttpRequest) -> Answer:
        return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, 'the broker starts: it reads and recovers its logs',
                           (('retry-after', '1'),))

    return [health_route('/livez', lambda: None), Route('/readyz', is_starting, is_open=True),
            *(Route(path, is_starting) for path in ('/metrics', '/'))]


def samples_of(broker: Broker) -> Iterator[Sample | None]:
    """Yield the samples of all metrics of a broker."""
    rooms: Any = broker.node        # it has the rooms that the collectors name, as attributes
    commons = broker.server.traffic
    yield from node.collect(rooms)
    yield from requests.collect(rooms.request_counts, commons)
    yield from traffic.collect(commons, rooms.topics)
    yield from connections.collect(broker.server, rooms.client_software, rooms.authentication, rooms.authorizer,
                                   rooms.quotas)
    yield from transactions.collect(rooms)
    yield from partitions.collect(rooms)
    yield from groups.collect(rooms)
    yield from share.collect(rooms)
    yield from log.collect(rooms)
    yield from disk.collect(broker.sync_threads, commons, rooms.topics)
    yield from loop.collect(broker.turn_watch)
    yield from memory.collect(broker.ledger)
    yield from certificates.collect_certificates(broker.certificates)
    yield from certificates.collect_handshakes(commons.failed_handshakes)


def metrics_route(samples: Samples) -> Route:
    """Return the route of the metrics, in the text form that the client prefers."""
    def answer(request: HttpRequest) -> Answer:
        form = content_type(request.headers.get('accept', ''))
        return Answer(text_of(samples(), form), content_type=form)

    return Route('/metrics', answer)


def page_routes(source: PageSource, outputs: OutputPages) -> list[Route]:
    """Return the routes of the page, of its files, and of the pages with the output of commands."""
    def show(request: HttpRequest) -> Answer:
        def parts() -> Generator[object]:
            facts = yield from source.current()
            yield from page(facts, request.query)

        return Answer(parts(), content_type=HTML, headers=HEADERS)

    return [Route('/', show), *file_routes(), *(output_routes(outputs) if is_installed() else [])]
