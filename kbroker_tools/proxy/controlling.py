"""The control port of the proxy: holds and faults of requests and replies, the record of requests, and the virtual
brokers.

Rules, steps and their JSON are those of `kbroker serve --control`. The proxy has two of the broker's points.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kbroker import __version__
from kbroker.base.errors import ConfigError
from kbroker.base.long_work import LongWork
from kbroker.base.suggestions import did_you_mean
from kbroker.client.config import ClientConfig
from kbroker.control.bodies import ControlError, check_names, number, number_of_query, shown
from kbroker.control.points import DELAY, DROP, ERROR, HOLD, POINTS
from kbroker.control.routes import MOST_WAIT_MS, OPENAPI, Body, RuleRoutes, StepRoutes, listing, reading, writing
from kbroker.control.rules import API_NAMES, Rules, has_facts
from kbroker.control.server import ControlPort, Polls
from kbroker.http.messages import Answer, HttpRequest
from kbroker.http.routes import JSON, Route
from kbroker.http.standalone import StandaloneServer
from kbroker.http.tokens import Token, read_token
from kbroker.protocol.api_keys import ApiKey
from kbroker.settings.exposure import is_loopback
from kbroker_tools.base.command import ToolError
from kbroker_tools.proxy.addresses import request_class
from kbroker_tools.proxy.failures import can_fail
from kbroker_tools.proxy.nodes import NodeError
from kbroker_tools.proxy.relay import Proxy, in_url
from kbroker_tools.proxy.serving import LOOK_S, Options, ask_cluster, describe, open_proxy, virtual_brokers
from kbroker_tools.proxy.traffic import REPLY, REQUEST, Traffic, api_name

OPTION, TOKEN_OPTION = '--control', '--control-token-file'
ACTIONS = {REQUEST: (HOLD, DELAY, ERROR, DROP), REPLY: (HOLD, DELAY, DROP)}
"""The points of the proxy, and the actions that each has."""
SELECTORS = ('api', 'client_id', 'topic', 'group', 'transactional_id')
"""The fields by which a client selects requests of the record."""
OWN_OPENAPI = Path(__file__).with_name('openapi.json')
SHARED = ('/openapi.json', '/points', '/steps', '/rules', '/rules/{id}', '/rules/{id}/release')
"""The paths that mean the same as on the broker's control port."""
NOT_OF_PROXY = ('Broker', 'Clock', 'ClockChange')
MOST_REQUESTS = 1000
"""The most requests that one answer contains."""


@dataclass(frozen=True)
class ControlAddress:
    """The address of the control port, and the file with its token."""

    host: str
    port: int
    token_file: Path | None = None


def open_port(address: ControlAddress) -> ControlPort:
    """Bind the address. Raise ConfigError or OSError, with a text for the operator."""
    is_local = is_loopback(address.host)
    if not is_local and address.token_file is None:
        raise ConfigError(OPTION, f'{OPTION}: other machines reach {in_url(address.host, address.port)}, and whoever '
                          'reaches it can hold and falsify requests. Expected an address of loopback, or a token: '
                          f'{TOKEN_OPTION} FILE')
    token: Token | None = None
    if address.token_file is not None:
        token = read_token(str(address.token_file), TOKEN_OPTION, allows_readable=False)
    return ControlPort(address.host, address.port, token, is_local=is_local)


def serve(config: ClientConfig, options: Options, control: ControlAddress, note: Callable[[str], None]) -> None:
    """Serve with a control port until SIGTERM or SIGINT. `note` prints a line."""
    known = ask_cluster(config)
    nodes = None if options.nodes is None else virtual_brokers(options.nodes, known)
    server = StandaloneServer()
    rules, polls = Rules(server.clock, server.timers), Polls(server.timers)
    rules.listeners.append(polls.note)
    traffic = Traffic(known.names, rules, nodes)
    port = open_port(control)
    try:
        proxy = open_proxy(config, options, known, traffic, nodes, own_thread=False)
    except BaseException:
        port.close()
        raise
    server.reactor.watch(proxy.fileno(), proxy.turn)

    def facts() -> dict[str, Any]:
        return {'version': __version__, 'pid': os.getpid(), 'address': proxy.address, 'control': port.address,
                'bootstrap_servers': ','.join(in_url(*each) for each in config.bootstrap),
                'cluster_id': known.cluster_id}

    routes = ProxyRoutes(rules, polls, proxy, traffic, facts).table()
    port.serve(server.reactor, LongWork(server.timers), routes, polls)
    note(f'{describe(proxy, config, nodes)}; the control port is on http://{port.address}')
    reported: list[str | None] = [None]

    def look() -> None:
        if proxy.unreachable != reported[0]:
            reported[0] = proxy.unreachable
            if proxy.unreachable is not None:
                note(f'a client was disconnected: {proxy.unreachable}')

    server.timers.every(int(LOOK_S * 1000), look)

    def end() -> None:
        rules.close()
        proxy.close()
        port.close()

    try:
        server.run_loop(end)
    except Exception as error:
        raise ToolError(f'the proxy failed: {error!r}') from error


class ProxyRoutes:
    """The routes of the control port."""

    def __init__(self, rules: Rules, polls: Polls, proxy: Proxy, traffic: Traffic, facts: Callable[[], dict[str, Any]]):
        self.rules = rules
        self.polls = polls
        self._proxy = proxy
        self._traffic = traffic
        self._facts = facts
        self._rule_routes = RuleRoutes(self)

    def table(self) -> list[Route]:
        """Return all routes."""
        steps, rules = StepRoutes(self), self._rule_routes
        return [
            reading('/', lambda _request, _body: self._facts()), reading('/points', self._points),
            reading('/openapi.json', lambda _request, _body: description()),
            reading('/requests', self._requests),
            reading('/steps', steps.show), writing('DELETE', '/steps', steps.clear),
            writing('POST', '/rules', self._add, 201), reading('/rules', rules.show_all),
            writing('DELETE', '/rules', rules.remove_all),
            reading('/rules/{id}', rules.show), writing('DELETE', '/rules/{id}', rules.remove),
            writing('POST', '/rules/{id}/release', rules.release),
            reading('/nodes', self._nodes),
            writing('POST', '/nodes/{id}/stop', partial(self._change_node, self._traffic.stop_node)),
            writing('POST', '/nodes/{id}/start', partial(self._change_node, self._traffic.start_node)),
            writing('POST', '/move', self._move)]

    def _points(self, _request: HttpRequest, _body: Body) -> Any:
        return {'points': [POINTS[name].describe() | {'actions': list(actions)} for name, actions in ACTIONS.items()]}

    # ---- rules and requests

    def _add(self, request: HttpRequest, body: Body) -> Any:
        """Add a rule, if it is one for the proxy."""
        point, action = body.get('point'), body.get('action')
        if point not in ACTIONS:
            raise ControlError(f'point: found {shown(point)}, expected one that the proxy has: {", ".join(ACTIONS)}'
                               f'{did_you_mean(str(point), ACTIONS)}')
        if action not in ACTIONS[point]:
            raise ControlError(f'action: found {shown(action)}, expected one that {point} has in the proxy: '
                               f'{", ".join(ACTIONS[point])}{did_you_mean(str(action), ACTIONS[point])}')
        select = body.get('select')
        api = select.get('api') if isinstance(select, dict) else None
        if action == ERROR and api in API_NAMES and not has_error(api):
            raise ControlError(f'error: the responses of {api} have no place for it; expected another action, such as '
                               f'{DROP}')
        return self._rule_routes.add(request, body)

    def _requests(self, request: HttpRequest, _body: Body) -> Answer:
        """Return the recorded requests after `since` that have the selected facts, as soon as there is one."""
        check_names(request.query, ('since', 'wait_ms', *SELECTORS))
        since = number_of_query(request.query, 'since')
        wait_ms = number_of_query(request.query, 'wait_ms', most=MOST_WAIT_MS)
        select = {name: request.query[name] for name in SELECTORS if name in request.query}
        poll = self.polls.begin(lambda: next(self._selected(since, select), None) is not None, wait_ms)
        return Answer(self._request_parts(since, select), content_type=JSON, wait=poll)

    def _request_parts(self, since: int, select: Mapping[str, Any]) -> Generator[object]:
        found = [step for step, _ in zip(self._selected(since, select), range(MOST_REQUESTS), strict=False)]
        yield from listing('requests', found, f', "next": {found[-1]["number"] if found else since}')

    def _selected(self, since: int, select: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        while True:
            steps, following = self.rules.steps_since(since)
            yield from (step for step in steps if step['point'] == REQUEST and has_facts(select, step))
            if not steps:
                return
            since = following

    # ---- virtual brokers

    def _nodes(self, _request: HttpRequest, _body: Body) -> Any:
        nodes = self._virtual()
        return {'nodes': [{'id': node, 'address': in_url(self._proxy.front.host, self._proxy.node_port(node)),
                           'is_running': node in nodes.running} for node in nodes.ids]}

    def _change_node(self, change: Callable[[int], None], request: HttpRequest, body: Body) -> Any:
        check_names(body, ())
        self._virtual()
        node = number_of_query(request.names, 'id')
        try:
            change(node)
        except NodeError as error:
            raise ControlError(str(error), 409 if node in self._virtual().ids else 404) from None
        except OSError as error:
            raise ControlError(str(error.strerror or error), 409) from None
        return {'id': node, 'is_running': node in self._virtual().running}

    def _move(self, _request: HttpRequest, body: Body) -> Any:
        """Let another virtual broker lead a partition."""
        check_names(body, ('topic', 'partition', 'to'))
        topic = body.get('topic')
        if not isinstance(topic, str) or not topic:
            raise ControlError(f'topic: found {shown(topic)}, expected the name of a topic')
        partition, to = number(body, 'partition', most=(1 << 31) - 1), number(body, 'to', most=(1 << 31) - 1)
        try:
            place = self._virtual().move(topic, partition, to)
        except NodeError as error:
            raise ControlError(str(error), 409) from None
        return {'topic': topic, 'partition': partition, 'leader': place.leader, 'moves': place.moves,
                'leader_epoch': self._virtual().epoch(topic, partition)}

    def _virtual(self) -> Any:
        try:
            return self._traffic.nodes
        except NodeError as error:
            raise ControlError(str(error), 404) from None


def has_error(api: str) -> bool:
    """Return whether a version of an API's responses has a place for an error of the whole request."""
    key = next(key for key in ApiKey if api_name(key) == api)
    first, last = request_class(key).versions
    return any(can_fail(key, version) for version in range(first, last + 1))


def description() -> dict[str, Any]:
    """Return the description of the control port: that of the broker's, without what the proxy lacks, and with what
    only the proxy has."""
    found: dict[str, Any] = json.loads(OPENAPI.read_text())
    own = json.loads(OWN_OPENAPI.read_text())
    schemas = found['components']['schemas']
    for name in NOT_OF_PROXY:
        del schemas[name]
    schemas |= own['schemas']
    shared = {path: methods for path, methods in found['paths'].items() if path in SHARED}
    return found | {'info': found['info'] | own['info'], 'servers': own['servers'], 'paths': own['paths'] | shared}
