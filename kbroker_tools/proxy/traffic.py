"""The decisions about each request and answer: the rules of a test, and the translation for virtual brokers."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.targets import named_in
from kbroker_tools.proxy.exchanges import Exchange
from kbroker_tools.proxy.failures import Unanswerable, error_response
from kbroker_tools.proxy.links import Link
from kbroker_tools.proxy.nodes import NodeError, TopicNames, VirtualBrokers
from kbroker_tools.proxy.translation import NoAnswer, Translator

if TYPE_CHECKING:
    from kbroker.control.rules import Rules
    from kbroker_tools.proxy.relay import Proxy

REQUEST, REPLY = 'request', 'reply'
"""The points of the proxy."""
NAMING = frozenset({ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.CREATE_TOPICS})
"""The APIs whose answers have the ids of topics beside their names."""


class Traffic:
    """Decides about requests and answers, in the thread of the proxy."""

    def __init__(self, names: TopicNames, rules: Rules | None = None, nodes: VirtualBrokers | None = None):
        self.proxy: Proxy | None = None
        """The proxy whose traffic it is, once there is one."""
        self._names = names
        self._rules = rules
        self._translator = None if nodes is None else Translator(nodes)
        self._nodes = nodes

    def begin(self, link: Link, exchange: Exchange) -> bool:
        if self._rules is None:
            return False
        exchange.facts = self._facts(exchange)
        held = HeldRequest(self._proxy, link, exchange)
        stops = self._rules.reach(REQUEST, exchange.facts, held)
        held.has_returned = True
        return stops and exchange.answer is None

    def forward(self, link: Link, exchange: Exchange) -> None:
        if self._translator is not None:
            try:
                self._translator.translate(exchange, lambda: self._endpoints(link))
            except NoAnswer:
                self._proxy.close_link(link)
        elif self._rules is not None and exchange.key in NAMING and exchange.request is not None:
            exchange.change = self._learn

    def reply(self, link: Link, exchange: Exchange) -> bool:
        if self._rules is None or exchange.has_replied or exchange.facts is None:
            return False
        exchange.has_replied = True
        return self._rules.reach(REPLY, exchange.facts, HeldReply(self._proxy, link, exchange))

    def forget(self, link: Link) -> None:
        if self._rules is not None:
            self._rules.connection_closed(link.id)

    # ---- virtual brokers, in the thread of the proxy

    def stop_node(self, node: int) -> None:
        """Stop a virtual broker: its connections are closed, and its partitions move. Raise NodeError."""
        self.nodes.stop(node)
        self._proxy.stop_node(node)

    def start_node(self, node: int) -> None:
        """Start a virtual broker again. Raise NodeError, or OSError if another program has taken its port."""
        self.nodes.check_stopped(node)
        self._proxy.start_node(node)
        self.nodes.start(node)

    @property
    def nodes(self) -> VirtualBrokers:
        """The virtual brokers. Raise NodeError if there are none."""
        if self._nodes is None:
            raise NodeError('the proxy has no virtual brokers: start it with --nodes')
        return self._nodes

    @property
    def _proxy(self) -> Proxy:
        assert self.proxy is not None
        return self.proxy

    def _endpoints(self, link: Link) -> list[tuple[int, str, int]]:
        return [(node, *self._proxy.node_address(node, link)) for node in sorted(self.nodes.running)]

    def _facts(self, exchange: Exchange) -> dict[str, Any]:
        facts: dict[str, Any] = {'api': api_name(exchange.key), 'version': exchange.version,
                                 'client_id': exchange.client_id,
                                 'correlation_id': int.from_bytes(exchange.correlation_id, signed=True)}
        if exchange.node is not None:
            facts['node'] = exchange.node
        if exchange.request is not None:
            facts |= named_in(exchange.request, self._names.name_of)
        return facts

    def _learn(self, response: Any) -> None:
        for topic in response.topics:
            self._names.learn(topic.topic_id, topic.name)


class HeldRequest:
    """A request at its point. Call it to let the request go on. Instead, `fail` answers it, and `drop` closes its
    connection."""

    def __init__(self, proxy: Proxy, link: Link, exchange: Exchange):
        self._proxy = proxy
        self._link = link
        self._exchange = exchange
        self.connection_id = link.id
        self.has_returned = False
        """True once the request waits. Before, its thread goes on with it."""

    def __call__(self) -> None:
        self._proxy.resume(self._link, self._exchange)

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer the request. If its response has no place for an error, close the connection."""
        exchange = self._exchange
        try:
            if exchange.request is None:
                raise Unanswerable('the request cannot be read')
            exchange.respond(error_response(exchange.request, exchange.key, exchange.version, code, message))
        except Unanswerable as error:
            self.drop(str(error))
            return
        if exchange.has_no_answer:      # as a broker does
            self.drop('acks=0 has no answer')
        elif self.has_returned:
            self._proxy.resume(self._link, exchange)

    def drop(self, _reason: str) -> None:
        """Close the connection before the request has an effect."""
        self._proxy.close_link(self._link)


class HeldReply:
    """An answer at its point. Call it to let it leave, or `drop` it with its connection."""

    def __init__(self, proxy: Proxy, link: Link, exchange: Exchange):
        self._proxy = proxy
        self._link = link
        self._exchange = exchange
        self.connection_id = link.id

    def __call__(self) -> None:
        self._proxy.resume_reply(self._link, self._exchange)

    def drop(self, _reason: str) -> None:
        """Close the connection after the effect of the request."""
        self._proxy.close_link(self._link)


def api_name(key: int) -> str:
    """Return Kafka's name of an API."""
    try:
        return ApiKey(key).name.title().replace('_', '')
    except ValueError:
        return f'Api{key}'
