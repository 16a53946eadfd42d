"""The routes of the control port. `openapi.json` describes them to programs."""
from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kbroker.base.lean_dataclasses import dataclass
from kbroker.control import process
from kbroker.control.bodies import ControlError, check_names, number, number_of_query, parse_body, shown
from kbroker.control.clock import ClockControl, ClockError
from kbroker.control.points import PAUSE, POINTS
from kbroker.control.rules import BadRule, ContradictingRule, Rule, Rules, UnknownRule
from kbroker.control.server import Polls, json_answer, refusal
from kbroker.http.messages import Answer, HttpRequest
from kbroker.http.routes import JSON, READING, Route

MOST_WAIT_MS = 60_000
"""The longest time for which a poll waits."""
OPENAPI = Path(__file__).with_name('openapi.json')
MOST_RULE_BYTES = 4096
"""The most bytes of the description of a rule."""

CLOCK_FIELDS = ('stop', 'run', 'set_ms', 'advance_ms')

Body = Mapping[str, Any]
Call = Callable[[HttpRequest, Body], Any]
Work = Callable[[Body], Generator[object, None, Any]]


@dataclass(frozen=True)
class Controlled:
    """The parts of a running broker that the routes need.

    `facts()` returns the answer of `/`. `works` maps a path to the long work that answers a POST to it.
    """

    rules: Rules
    polls: Polls
    facts: Callable[[], dict[str, Any]]
    clock: ClockControl
    works: Mapping[str, Work]


def routes_of(broker: Controlled) -> list[Route]:
    """Return all routes."""
    steps, rules = StepRoutes(broker), RuleRoutes(broker)
    return [
        reading('/', lambda _request, _body: broker.facts()),
        Route('/openapi.json', lambda _request: Answer([OPENAPI.read_bytes()], content_type=JSON)),
        reading('/points', lambda _request, _body: {'points': [point.describe() for point in POINTS.values()]}),
        reading('/steps', steps.show), writing('DELETE', '/steps', steps.clear),
        writing('POST', '/rules', rules.add, 201), reading('/rules', rules.show_all),
        writing('DELETE', '/rules', rules.remove_all),
        reading('/rules/{id}', rules.show), writing('DELETE', '/rules/{id}', rules.remove),
        writing('POST', '/rules/{id}/release', rules.release),
        reading('/clock', lambda _request, _body: broker.clock.state()),
        Route('/clock', working(partial(move_clock, broker.clock)), methods=('POST',)),
        writing('POST', '/process/kill', kill), writing('POST', '/process/pause', pause),
        *(Route(path, working(work), methods=('POST',)) for path, work in broker.works.items())]


def reading(path: str, call: Call) -> Route:
    """Return the route of a GET that changes nothing."""
    return Route(path, answering(call), methods=READING)


def writing(method: str, path: str, call: Call, status: int = 200) -> Route:
    return Route(path, answering(call, status), methods=(method,))


def answering(call: Call, status: int = 200) -> Callable[[HttpRequest], Answer]:
    """Return a function that answers with the JSON value of `call`, or with the answer that it returns."""
    def answer(request: HttpRequest) -> Answer:
        try:
            found = call(request, parse_body(request.body))
        except ControlError as error:
            return refusal(error.status, str(error))
        return found if isinstance(found, Answer) else json_answer(found, status)

    return answer


def working(work: Work) -> Callable[[HttpRequest], Answer]:
    """Return a function that answers with the result of a long work."""
    def answer(request: HttpRequest) -> Answer:
        def parts() -> Generator[object]:
            try:
                found = yield from work(parse_body(request.body))
            except ControlError as error:
                yield refusal(error.status, str(error))
            else:
                yield json_answer(found)

        return Answer(parts())

    return answer


def move_clock(clock: ClockControl, body: Body) -> Generator[object, None, Any]:
    """Stop the clock, let it run, set it or advance it. Return its state, when all that follows is done."""
    check_names(body, CLOCK_FIELDS)
    if len(body) != 1:
        raise ControlError(f'body: found {len(body)} fields, expected one of {", ".join(CLOCK_FIELDS)}')
    [name] = body
    try:
        if name in ('stop', 'run'):
            if body[name] is not True:
                raise ControlError(f'{name}: found {shown(body[name])}, expected true')
            (clock.stop if name == 'stop' else clock.run)()
        else:
            yield from (clock.set_ms if name == 'set_ms' else clock.advance_ms)(number(body, name))
    except ClockError as error:
        raise ControlError(str(error), 409) from None
    except OSError as error:
        raise ControlError(f'the time of the clock cannot be written to the log directory: {error}', 503) from None
    return clock.state()


def kill(_request: HttpRequest, body: Body) -> Answer:
    """Kill the broker after the answer has left."""
    check_names(body, ())
    return json_answer({}, 202, after=process.kill)


def pause(_request: HttpRequest, body: Body) -> Answer:
    """Stop the process after the answer has left, for some time."""
    check_names(body, ('ms',))
    refuse_pause_of_process_1()
    ms = number(body, 'ms', least=1, most=process.MOST_PAUSE_MS)
    try:
        stop = process.begin_pause(ms)
    except OSError as error:
        raise ControlError(f'the child that ends the pause cannot be started: {error.strerror}', 503) from None
    return json_answer({'ms': ms}, 202, after=stop)


def refuse_pause_of_process_1() -> None:
    """Raise ControlError if the kernel lets no signal of a process stop it."""
    if not process.can_stop():
        raise ControlError('found that the broker is process 1, which no signal of its own can stop. Run it under an '
                           'init: podman run --init', 409)


class RulesInForce(Protocol):
    """The parts of a process that the routes of steps and rules need."""

    @property
    def rules(self) -> Rules: ...
    @property
    def polls(self) -> Polls: ...


class StepRoutes:
    """The routes of the recorded steps."""

    def __init__(self, broker: RulesInForce):
        self._rules = broker.rules
        self._polls = broker.polls

    def show(self, request: HttpRequest, _body: Body) -> Answer:
        """Return the steps after `since`, as soon as there is one."""
        check_names(request.query, ('since', 'wait_ms'))
        since = number_of_query(request.query, 'since')
        wait_ms = number_of_query(request.query, 'wait_ms', most=MOST_WAIT_MS)
        poll = self._polls.begin(lambda: self._has_after(since), wait_ms)
        return Answer(self._parts(since), content_type=JSON, wait=poll)

    def clear(self, _request: HttpRequest, body: Body) -> Any:
        """Forget all steps."""
        check_names(body, ())
        self._rules.clear_steps()
        return {}

    def _has_after(self, since: int) -> bool:
        return bool(self._rules.steps_since(since, 1)[0])

    def _parts(self, since: int) -> Generator[object]:
        steps, following = self._rules.steps_since(since)
        yield from listing('steps', steps, f', "next": {following}')


class RuleRoutes:
    """The routes of holds and faults."""

    def __init__(self, broker: RulesInForce):
        self._rules = broker.rules
        self._polls = broker.polls

    def add(self, request: HttpRequest, body: Body) -> Any:
        """Add a rule."""
        if len(request.body) > MOST_RULE_BYTES:
            raise ControlError(f'body: found a rule of {len(request.body)} bytes, expected at most {MOST_RULE_BYTES}',
                               413)
        if body.get('action') == PAUSE:
            refuse_pause_of_process_1()
        try:
            return self._rules.add(body).describe()
        except ContradictingRule as error:
            raise ControlError(str(error), 409) from None
        except BadRule as error:
            raise ControlError(str(error)) from None

    def show_all(self, _request: HttpRequest, _body: Body) -> Answer:
        """Return all rules."""
        return described(self._rules.all())

    def show(self, request: HttpRequest, _body: Body) -> Answer:
        """Return a rule, as soon as it has matched so many steps."""
        check_names(request.query, ('matched', 'wait_ms'))
        matched = number_of_query(request.query, 'matched', default=1)
        wait_ms = number_of_query(request.query, 'wait_ms', most=MOST_WAIT_MS)
        rule = self._find(request)

        def parts() -> Generator[object]:
            try:
                yield json_answer(self._find(request).describe())
            except ControlError as error:       # it was removed meanwhile
                yield refusal(error.status, str(error))

        return Answer(parts(), wait=self._polls.begin(lambda: rule.matched >= matched or rule.is_removed, wait_ms))

    def release(self, request: HttpRequest, body: Body) -> Any:
        """Let go on what a rule holds. The rule stays."""
        check_names(body, ())
        return self._rules.release(self._find(request).id).describe()

    def remove(self, request: HttpRequest, body: Body) -> Any:
        """Remove a rule, and let go on what it holds."""
        check_names(body, ())
        return self._rules.remove(self._find(request).id).describe()

    def remove_all(self, _request: HttpRequest, body: Body) -> Answer:
        """Remove all rules, and let go on what they hold."""
        check_names(body, ())
        return described(self._rules.clear())

    def _find(self, request: HttpRequest) -> Rule:
        rule_id = number_of_query(request.names, 'id')
        try:
            return self._rules.get(rule_id)
        except UnknownRule as error:
            raise ControlError(str(error), 404) from None


def described(rules: Iterable[Rule]) -> Answer:
    return Answer(listing('rules', (rule.describe() for rule in rules)), content_type=JSON)


def listing(name: str, found: Iterable[Mapping[str, Any]], rest: str = '') -> Generator[object]:
    """Yield a JSON object with a list, in parts: the list may be long. `rest` has further fields."""
    yield f'{{"{name}": ['.encode()
    separator = ''
    for each in found:
        yield f'{separator}{json.dumps(each)}'.encode()
        yield None
        separator = ',\n'
    yield f']{rest}}}\n'.encode()
