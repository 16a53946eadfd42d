"""Sends requests to many brokers at once, within the time of one collection.

A request that fails does not end the collection: its answer is missing, and a problem says why. After a failure of the
network, a broker is not asked again in this collection. A broker that does not answer costs a part of the time of a
collection, so the next collections ask only one such broker again, in turn.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.client.cluster import Cluster, TopicMetadata
from kbroker.client.connection import Connection
from kbroker.client.errors import AnswerTimeout, ClientError, error_of
from kbroker.client.time_limit import OPENING_MS, OutOfTime
from kbroker.protocol.plan import Message
from kbroker_tools.exporter.facts import Problem

T = TypeVar('T')

PURPOSE = 'exporter'
MOST_IN_FLIGHT = 16
"""The most requests that wait for their answers at one broker."""


class Ask(NamedTuple):
    broker_id: int
    request: Message
    about: Any = None
    """The caller's note about the request. `ask` returns it with the answer."""


@dataclass
class _Exchange:
    """The requests to one broker that are not answered yet."""

    asks: list[Ask]
    max_version: int | None
    min_version: int
    connection: Connection | None = None
    end_ms: int = 0
    """The time of the monotonic clock by which the broker has to answer."""


class Brokers:
    """The brokers of a cluster, for one collection after the other. `begin` starts a collection.

    `patience_ms` is the time for the answers to all requests that a broker gets at once.
    """

    def __init__(self, cluster: Cluster, patience_ms: int, clock: Clock):
        cluster.config = replace(cluster.config, connection_setup_timeout_ms=min(
            cluster.config.connection_setup_timeout_ms, max(patience_ms, OPENING_MS)))
        self.cluster = cluster
        self._patience_ms = patience_ms
        self._clock = clock
        self.requests: Counter[str] = Counter()
        self._problems: dict[tuple[str, str], Problem] = {}
        self._answered: set[int] = set()
        """The brokers that have answered in this collection, or whose connection was opened again."""
        self._failed: set[int] = set()
        self._silent: dict[int, str] = {}
        """Maps each broker that did not answer in time, when it was asked last, to the error. The broker that was asked
        longest ago is first.
        """

    def begin(self) -> None:
        self.requests = Counter()
        self._problems = {}
        self._answered = set()
        self._failed = set(list(self._silent)[1:])
        for node_id in self._failed & self.cluster.nodes.keys():
            self.note(f'broker {node_id}', 'OutOfTime', self._silent[node_id])

    @property
    def ids(self) -> list[int]:
        """Return the ids of the brokers. Those that did not answer before come last."""
        return sorted(self.cluster.nodes, key=self._place)

    def _place(self, node_id: int) -> tuple[bool, int]:
        return node_id in self._silent, node_id

    @property
    def problems(self) -> list[Problem]:
        return list(self._problems.values())

    @property
    def is_out_of_time(self) -> bool:
        return self.cluster.limit.left_ms(1) <= 0

    # ---- metadata

    def topics(self) -> dict[str, TopicMetadata]:
        """Return {name: topic} for all topics, from the first broker that answers.

        Raise KafkaError for an error that a broker returns, ClientError or OutOfTime if no broker answers.
        """
        for _ in range(2 * len(self.cluster.nodes) + len(self.cluster.config.bootstrap) + 1):
            connection: Connection | None = None
            try:
                with self.cluster.within(self._patience_ms):
                    connection = self.cluster.any()
                    self.requests['Metadata'] += 1
                    return self.cluster.topics()
            except (ClientError, OutOfTime) as error:
                if connection is not None:      # the next try must not wait for its answer
                    connection.close()
                elif isinstance(error, ClientError) or self.is_out_of_time:
                    raise
        raise ClientError('no broker has answered Metadata in time; give the collection more by --timeout')

    # ---- problems

    def note(self, what: str, error: str, text: str) -> None:
        """Note a problem. Problems with equal `what` and `error` are counted together, under the first text."""
        found = self._problems.get((what, error))
        self._problems[what, error] = (Problem(what, error, 1, text) if found is None
                                       else found._replace(objects=found.objects + 1))

    def note_code(self, what: str, code: int, about: str, message: str | None = None) -> None:
        """Note the error code of a row in an answer."""
        error = error_of(code, f'{what} of {about}', message)
        self.note(what, error.code.name, str(error))

    def note_the_end(self) -> None:
        """Note a problem if the time of the collection is over."""
        if self.is_out_of_time:
            self.note('collection', 'OutOfTime', 'the time of the collection is over: parts of it are missing; give it '
                      'more by --timeout')

    # ---- requests

    def ask(self, asks: Collection[Ask], max_version: int | None = None,
            min_version: int = 0) -> Iterator[tuple[Ask, Any]]:
        """Send all requests, and yield (ask, answer) for each that is answered.

        Each broker gets its requests in order, and the brokers work at the same time.
        """
        waiting: dict[int, list[Ask]] = {}
        for one in asks:
            waiting.setdefault(one.broker_id, []).append(one)
        order = sorted(waiting, key=self._place)
        while any(waiting.values()):
            rounds = []
            for node_id in order:
                if waiting[node_id]:
                    some, waiting[node_id] = waiting[node_id][:MOST_IN_FLIGHT], waiting[node_id][MOST_IN_FLIGHT:]
                    rounds.append((node_id, _Exchange(some, max_version, min_version)))
            for node_id, exchange in rounds:
                self._send(node_id, exchange)
            try:
                for node_id, exchange in rounds:
                    yield from self._receive(node_id, exchange)
            finally:
                for _, exchange in rounds:      # an answer that is left would be taken for that of a later request
                    if exchange.connection is not None and exchange.connection.in_flight:
                        exchange.connection.close()

    def _send(self, node_id: int, exchange: _Exchange) -> None:
        """Send the requests of an exchange. Without its connection, the exchange has failed."""
        exchange.connection = None
        if node_id in self._failed:
            return
        exchange.end_ms = self._clock.monotonic_ms() + self._patience_ms
        name = _name_of(exchange.asks[0].request)
        try:
            with self.cluster.within(self._patience_ms):
                connection = self.cluster.node(node_id, PURPOSE)
            connection.version_of(type(exchange.asks[0].request), exchange.max_version, exchange.min_version)
        except KafkaError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                self.note(name, error.code.name, f'{error}: what it reports is left out')
            else:
                self._fail(node_id, error)
            return
        except (ClientError, OutOfTime) as error:
            self._fail(node_id, error)
            return
        try:
            for one in exchange.asks:
                connection.send(one.request, exchange.max_version, exchange.min_version)
                self.requests[name] += 1
        except (KafkaError, ClientError, OutOfTime) as error:
            connection.close()
            if not self._may_reopen(node_id, exchange, error):
                self._fail(node_id, error)
            return
        exchange.connection = connection

    def _receive(self, node_id: int, exchange: _Exchange) -> Iterator[tuple[Ask, Any]]:
        while exchange.connection is not None and exchange.asks:
            try:
                with self.cluster.within(max(exchange.end_ms - self._clock.monotonic_ms(), 0)):
                    answer = exchange.connection.receive()
            except (KafkaError, ClientError, OutOfTime) as error:
                exchange.connection.close()
                exchange.connection = None
                if not self._may_reopen(node_id, exchange, error):
                    self._fail(node_id, error)
                continue
            self._answered.add(node_id)
            self._silent.pop(node_id, None)
            yield exchange.asks.pop(0), answer

    def _may_reopen(self, node_id: int, exchange: _Exchange, error: Exception) -> bool:
        """Send the requests again if the connection was one of an earlier collection: its broker may have restarted.

        Return False if that is not so.
        """
        if node_id in self._answered or not isinstance(error, ClientError) or isinstance(error, AnswerTimeout):
            return False
        self._answered.add(node_id)
        self._send(node_id, exchange)
        return True

    def _fail(self, node_id: int, error: Exception) -> None:
        self._failed.add(node_id)
        self._silent.pop(node_id, None)
        name = error.code.name if isinstance(error, KafkaError) else type(error).__name__
        text = f'broker {node_id} is left out: {error}'
        if isinstance(error, OutOfTime | AnswerTimeout):
            self._silent[node_id] = text
        self.note(f'broker {node_id}', name, text)


def split(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield the items in parts of at most `most`."""
    for start in range(0, len(items), most):
        yield items[start:start + most]


def _name_of(request: Message) -> str:
    return type(request).__name__.removesuffix('Request')
