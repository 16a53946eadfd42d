"""The rules of a test: which operations wait or fail at which points. And the record of the steps that were reached.

A rule has a point, a selector and an action. A step is one arrival of one operation at a point. All rules that match a
step act on it in the order in which they were added: it may wait for a rule, and then be failed by the next one.
"""
from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from kbroker.base.clock import Clock, Timer, Timers
from kbroker.base.completion import Steps
from kbroker.base.errors import ErrorCode
from kbroker.base.suggestions import did_you_mean
from kbroker.control.points import DELAY, DROP, ERROR, FAIL, FULL, HOLD, KILL, PAUSE, POINTS, Point
from kbroker.protocol.api_keys import ApiKey

MOST_RECORD_BYTES = 32 * 1024 * 1024
"""The most bytes of memory of the recorded steps, as estimated. Older steps are forgotten."""
STEP_BYTES, VALUE_BYTES, TARGET_BYTES = 700, 60, 300
"""Estimates of the memory of a recorded step: without its texts, of each text without its characters, and of each
partition if it names several.
"""
KIT_CLIENTS = 'kbroker-testing'
"""The first part of the client ids of the test kit. Their requests pass all rules, and are no steps: the kit answers
the questions of a test while the requests of the application are held.
"""
MOST_RULES = 1000
MOST_COUNTED = 50_000
"""The most kinds of steps whose occurrences are counted. The count of the oldest kind then starts again."""
MOST_AT_ONCE = 1000
"""The most steps that one answer contains."""
MOST_DELAY_MS = 24 * 60 * 60 * 1000
ENDINGS = (ERROR, DROP, KILL, FAIL, FULL)
"""The actions after which an operation does not go on. An operation can meet only one of them."""
KIND_OF_STEP = ('api', 'client_id', 'topic', 'partition', 'group', 'transactional_id')
"""The facts that the steps with a common count of occurrences share."""
SELECTORS = {'api': str, 'topic': str, 'partition': int, 'group': str, 'transactional_id': str, 'client_id': str,
             'exact': bool, 'occurrence': int, 'times': int}
COUNTS = ('occurrence', 'times')
OF_EVERY_POINT = ('exact', *COUNTS)
LISTS = {'group': 'groups', 'transactional_id': 'transactional_ids'}
"""The facts of a request that names several groups or transactional ids."""
FIELDS = ('point', 'action', 'select', 'error', 'delay_ms')
API_NAMES = [key.name.title().replace('_', '') for key in ApiKey]


class BadRule(ValueError):
    """A rule that cannot be added. The text says why in one sentence."""


class ContradictingRule(BadRule):
    """A rule that would end an operation that another rule ends in another way."""


class UnknownRule(LookupError):
    """An id that no rule has."""


class Rule:
    """A rule, and what it has done.

    `matched` counts the steps on which it acted. `held` has the operations that wait for it, by the number of the step.
    """

    def __init__(self, rule_id: int, point: Point, action: str, select: Mapping[str, Any],
                 error: ErrorCode | None = None, delay_ms: int | None = None):
        self.id = rule_id
        self.point = point
        self.action = action
        self.select = dict(select)
        self.error = error
        self.delay_ms = delay_ms
        self.matched = 0
        self.seen = 0
        """The steps that had the selected facts, whether or not their occurrence was selected."""
        self.held: dict[int, Operation] = {}
        self.is_removed = False
        self._most = select.get('times', 1 if 'occurrence' in select else None)

    @property
    def text(self) -> str:
        """The rule in words: `error NOT_COORDINATOR at request (api=EndTxn)`."""
        what = {ERROR: f'error {self.error.name if self.error is not None else ""}',
                DELAY: f'delay of {self.delay_ms} ms'}.get(self.action, self.action)
        select = ', '.join(f'{name}={value}' for name, value in self.select.items())
        return f'{what} at {self.point.name}' + (f' ({select})' if select else '')

    @property
    def is_used_up(self) -> bool:
        return self.is_removed or (self._most is not None and self.matched >= self._most)

    def takes(self, facts: Mapping[str, Any]) -> bool:
        """Return whether the rule acts on a step with these facts, and count the step."""
        if self.is_used_up or not has_facts(self.select, facts):
            return False
        self.seen += 1
        if self.seen < self.select.get('occurrence', 0):
            return False
        self.matched += 1
        return True

    def describe(self) -> dict[str, Any]:
        """Return the rule as an object of JSON. `steps` are the numbers of the steps that it holds."""
        return {'id': self.id, 'point': self.point.name, 'action': self.action, 'select': self.select,
                **({} if self.error is None else {'error': self.error.name}),
                **({} if self.delay_ms is None else {'delay_ms': self.delay_ms}),
                'text': self.text, 'matched': self.matched, 'held': len(self.held),
                'steps': list(islice(self.held, MOST_AT_ONCE))}


class Operation:
    """An operation that has reached a point where rules act on it."""

    def __init__(self, rules: Rules, number: int, acting: Iterable[Rule], proceed: Any):
        self.number = number
        self.proceed = proceed
        self.holder: Rule | None = None
        self.timer: Timer | None = None
        self._rules = rules
        self._acting = deque(acting)

    def meet_rules(self) -> bool:
        """Let the remaining rules act. Return True if the operation waits or has ended, False if it may go on."""
        while self._acting:
            rule = self._acting.popleft()
            if not rule.is_removed and self._meet(rule):
                return True
        return False

    def go_on(self) -> None:
        """Let the operation go on, unless a further rule stops it."""
        self._rules.waiting.pop(self.number, None)
        self.holder = self.timer = None
        if not self.meet_rules():
            self.proceed()

    def forget(self) -> None:
        """Let no rule hold the operation any more. It does not go on."""
        self._rules.waiting.pop(self.number, None)
        if self.timer is not None:
            self.timer.cancel()
        if self.holder is not None:
            self.holder.held.pop(self.number, None)

    def _meet(self, rule: Rule) -> bool:
        """Let one rule act. Return whether the operation stops."""
        if rule.action == PAUSE:
            self._rules.send_signal(signal.SIGSTOP)
            return False
        if rule.action == HOLD:
            self.holder = rule
            rule.held[self.number] = self
            self._rules.waiting[self.number] = self
        elif rule.action == DELAY:
            assert rule.delay_ms is not None
            self.timer = self._rules.timers.after(rule.delay_ms, self.go_on)
            self._rules.waiting[self.number] = self
        elif rule.action == ERROR:
            assert rule.error is not None
            self.proceed.fail(rule.error, f'rule {rule.id} of the test: {rule.text}')
        elif rule.action == DROP:
            self.proceed.drop(f'rule {rule.id} of the test: {rule.text}')
        else:
            # The bytes of earlier steps are written at the end of the tick. The kill comes after it, so that a start
            # finds all steps before this one.
            self._rules.timers.after(0, partial(self._rules.send_signal, signal.SIGKILL))
        return True


class Rules(Steps):
    """The rules in force, and the record of steps. All of it belongs to the thread of the loop.

    `listeners` are called after each step and after each change of a rule. They must return at once.
    """

    def __init__(self, clock: Clock, timers: Timers, send_signal: Callable[[int], object] | None = None):
        """`send_signal` sends a signal to the process of the broker, which is this process if it is None."""
        self.timers = timers
        self.send_signal = send_signal or partial(os.kill, os.getpid())
        self.listeners: list[Callable[[], object]] = []
        self.waiting: dict[int, Operation] = {}
        """All operations that are held or delayed, by the number of their step."""
        self.record_bytes = 0
        self.forgotten = 0
        """The number of the newest step that is not in the record any more."""
        self._clock = clock
        self._rules: dict[int, Rule] = {}
        self._last_id = 0
        self._last_number = 0
        self._record: deque[tuple[dict[str, Any], int]] = deque()
        self._occurrences: dict[tuple[Any, ...], int] = {}
        self._is_closed = False

    # Steps

    def reach(self, point: str, facts: dict[str, Any], proceed: Any) -> bool:
        if (facts.get('client_id') or '').startswith(KIT_CLIENTS):
            return False
        step = self._note(point, facts)
        acting = [] if self._is_closed else [
            rule for rule in self._rules.values() if rule.point.name == point and rule.takes(step)]
        stops = bool(acting) and Operation(self, step['number'], acting, proceed).meet_rules()
        self._notify()
        return stops

    def decide(self, point: str, facts: dict[str, Any]) -> list[Rule]:
        """Return the rules that act on an operation of the disk. The caller acts. Only a step on which a rule acts is
        recorded, because there are very many.
        """
        acting = [] if self._is_closed else [
            rule for rule in self._rules.values() if rule.point.name == point and rule.takes(facts)]
        if acting:
            self._note(point, facts)
            self._notify()
        return acting

    def connection_closed(self, connection_id: int) -> None:
        for operation in list(self.waiting.values()):
            if getattr(operation.proceed, 'connection_id', None) == connection_id:
                operation.forget()
        self._notify()

    def close(self) -> None:
        self._is_closed = True
        for operation in list(self.waiting.values()):
            operation.forget()
            operation.proceed()
        self._notify()

    def steps_since(self, number: int, most: int = MOST_AT_ONCE) -> tuple[list[dict[str, Any]], int]:
        """Return (steps, number of the last of them): at most `most` steps after the step `number`, in order."""
        newer = self._last_number - number
        skipped = max(0, len(self._record) - newer)
        # A poll asks for the newest steps. An index finds them from the end, and a slice would pass all others.
        found = [self._record[index][0] for index in range(skipped, min(skipped + most, len(self._record)))]
        return found, found[-1]['number'] if found else max(number, self.forgotten)

    def clear_steps(self) -> None:
        """Forget all recorded steps, and count occurrences from 1 again. The numbers of steps go on."""
        self._record.clear()
        self._occurrences.clear()
        self.record_bytes = 0
        self.forgotten = self._last_number

    # Rules

    def add(self, spec: object) -> Rule:
        """Add a rule: `{'point': …, 'action': …, 'select': {…}, 'error': …, 'delay_ms': …}`.

        Raise BadRule if it makes no sense, ContradictingRule if it contradicts another rule.
        """
        rule = parse_rule(self._last_id + 1, spec)
        if len(self._rules) >= MOST_RULES:
            raise BadRule(f'there are {MOST_RULES} rules, and no more are possible: remove some')
        for other in self._rules.values():
            if contradict(other, rule):
                raise ContradictingRule(f'{rule.text} contradicts rule {other.id}, {other.text}: one step may meet '
                                        'both; remove one of them, or select different steps')
        self._last_id = rule.id
        self._rules[rule.id] = rule
        self._notify()
        return rule

    def get(self, rule_id: int) -> Rule:
        """Return a rule. Raise UnknownRule if there is none with this id."""
        rule = self._rules.get(rule_id)
        if rule is None:
            ids = ', '.join(map(str, islice(self._rules, 20)))
            raise UnknownRule(f'there is no rule {rule_id}, ' + (f'only {ids}' if ids else 'and no other rule'))
        return rule

    def all(self) -> list[Rule]:
        return list(self._rules.values())

    def release(self, rule_id: int) -> Rule:
        """Let all operations that the rule holds go on. It holds further ones. Raise UnknownRule."""
        rule = self.get(rule_id)
        self._release(rule)
        return rule

    def remove(self, rule_id: int) -> Rule:
        """Remove a rule, and let all operations that it holds go on. Return it with its final counts. Raise
        UnknownRule.
        """
        rule = self.get(rule_id)
        del self._rules[rule_id]
        rule.is_removed = True
        self._release(rule)
        return rule

    def clear(self) -> list[Rule]:
        """Remove all rules. Return them with their final counts."""
        return [self.remove(rule_id) for rule_id in list(self._rules)]

    def _release(self, rule: Rule) -> None:
        held, rule.held = rule.held, {}
        for operation in held.values():
            operation.go_on()
        self._notify()

    def _note(self, point: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Record a step. Return its facts."""
        kind = (point, *[facts.get(name) for name in KIND_OF_STEP], repr(facts.get('targets')))
        occurrence = self._occurrences.get(kind, 0) + 1
        if occurrence == 1 and len(self._occurrences) >= MOST_COUNTED:
            del self._occurrences[next(iter(self._occurrences))]
        self._occurrences[kind] = occurrence
        self._last_number += 1
        step = {'number': self._last_number, 'point': point, 'occurrence': occurrence, **facts,
                'wall_ms': self._clock.wall_ms()}
        size = size_of(step)
        self._record.append((step, size))
        self.record_bytes += size
        while self.record_bytes > MOST_RECORD_BYTES and len(self._record) > 1:
            oldest, size = self._record.popleft()
            self.record_bytes -= size
            self.forgotten = oldest['number']
        return step

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()


def size_of(step: Mapping[str, Any]) -> int:
    """Estimate the memory of a recorded step in bytes."""
    size = STEP_BYTES
    for value in step.values():
        if isinstance(value, str):
            size += VALUE_BYTES + len(value)
        elif isinstance(value, list):
            size += sum(VALUE_BYTES + len(each) if isinstance(each, str) else TARGET_BYTES for each in value)
    return size


def has_facts(select: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Return whether a step has the selected facts. A step that names several partitions has those of each of them.

    With `exact`, it must have none of the other facts that identify a step. Then the rule finds the n-th of the steps
    that a record shows with these facts alone.
    """
    if select.get('exact') and any(facts.get(name) is not None and name not in select for name in KIND_OF_STEP):
        return False
    for name in ('api', 'client_id', 'group', 'transactional_id'):
        wanted = select.get(name)
        if wanted is not None and not any(matches(wanted, found) for found in values_of(name, facts)):
            return False
    topic, partition = select.get('topic'), select.get('partition')
    if topic is None and partition is None:
        return True
    return any((topic is None or ('topic' in target and matches(topic, target['topic'])))
               and (partition is None or partition == target.get('partition'))
               for target in facts.get('targets', (facts,)))


def values_of(name: str, facts: Mapping[str, Any]) -> list[str]:
    several = facts.get(LISTS.get(name, ''))
    if several is not None:
        return list(several)
    value = facts.get(name)
    return [] if value is None else [value]


def matches(pattern: str, text: str) -> bool:
    """Return whether `text` is `pattern`, in which each `*` stands for any characters."""
    first, *others = pattern.split('*')
    if not others:
        return text == pattern
    last = others.pop()
    if not (text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in others:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def contradict(one: Rule, other: Rule) -> bool:
    """Return whether one step may meet both rules, and they would end its operation in different ways."""
    if one.point is not other.point or one.action not in ENDINGS or other.action not in ENDINGS:
        return False
    if (one.action, one.error) == (other.action, other.error) or one.is_used_up:
        return False
    for name in set(one.select) & set(other.select) - set(OF_EVERY_POINT):
        left, right = one.select[name], other.select[name]
        if isinstance(left, int):
            if left != right:
                return False
        elif not ('*' in left and '*' in right) and not (matches(left, right) or matches(right, left)):
            return False
    facts = [{name: value for name, value in rule.select.items() if name not in COUNTS} for rule in (one, other)]
    occurrences = [rule.select.get('occurrence') for rule in (one, other)]
    return facts[0] != facts[1] or None in occurrences or occurrences[0] == occurrences[1]


def parse_rule(rule_id: int, spec: object) -> Rule:
    """Return the rule that `spec` describes. Raise BadRule."""
    if not isinstance(spec, dict):
        raise BadRule(f'found {kind_of(spec)}, expected an object with a point and an action')
    for name in spec:
        if name not in FIELDS:
            raise BadRule(f'a rule has no field {name!r}{did_you_mean(str(name), FIELDS)}; expected {in_words(FIELDS)}')
    point = parse_point(spec.get('point'))
    action = spec.get('action')
    if not isinstance(action, str) or action not in point.actions:
        hint = did_you_mean(action, point.actions) if isinstance(action, str) else ''
        raise BadRule(f'found the action {action!r}, expected one that {point.name} has: '
                      f'{in_words(point.actions)}{hint}')
    select = spec.get('select')
    select = parse_selector(point, {} if select is None else select)
    if action != ERROR and spec.get('error') is not None:
        raise BadRule(f'found an error with the action {action}, expected it only with the action {ERROR}')
    if action != DELAY and spec.get('delay_ms') is not None:
        raise BadRule(f'found delay_ms with the action {action}, expected it only with the action {DELAY}')
    return Rule(rule_id, point, action, select, parse_error(spec.get('error')) if action == ERROR else None,
                parse_delay(spec.get('delay_ms')) if action == DELAY else None)


def parse_point(name: object) -> Point:
    if not isinstance(name, str):
        raise BadRule(f'found {kind_of(name)} as the point, expected one of {in_words(POINTS)}')
    if name not in POINTS:
        raise BadRule(f'there is no point {name!r}{did_you_mean(name.lower(), POINTS, least=0.4)}; expected one of '
                      f'{in_words(POINTS)}')
    return POINTS[name]


def parse_selector(point: Point, select: object) -> dict[str, Any]:
    if not isinstance(select, dict):
        raise BadRule(f'found {kind_of(select)} as the selector, expected an object such as {{"topic": "payments"}}')
    possible = [name for name in SELECTORS if name in OF_EVERY_POINT or name in point.facts]
    for name, value in select.items():
        if name not in SELECTORS:
            raise BadRule(f'there is no selector {name!r}{did_you_mean(str(name), possible)}; expected '
                          f'{in_words(possible)}')
        if name not in possible:
            raise BadRule(f'found the selector {name}, which no step of {point.name} has; expected '
                          f'{in_words(possible)}')
        least = 1 if name in COUNTS else 0
        if SELECTORS[name] is int and (type(value) is not int or value < least):
            raise BadRule(f'found {name}={value!r}, expected a whole number from {least} on')
        if SELECTORS[name] is bool and type(value) is not bool:
            raise BadRule(f'found {name}={value!r}, expected true or false')
        if SELECTORS[name] is str and (not isinstance(value, str) or not value):
            raise BadRule(f'found {name}={value!r}, expected a text; * in it stands for any characters')
    api = select.get('api')
    if api is not None and '*' not in api and api not in API_NAMES:
        raise BadRule(f'Kafka has no API {api!r}{did_you_mean(api.lower(), API_NAMES)}')
    return dict(select)


def parse_error(name: object) -> ErrorCode:
    if not isinstance(name, str):
        raise BadRule(f'found {kind_of(name)} as the error, expected the name of an error of Kafka, such as '
                      f'{ErrorCode.NOT_LEADER_OR_FOLLOWER.name}')
    if name == ErrorCode.NONE.name:
        raise BadRule('found the error NONE, expected an error')
    if name not in ErrorCode.__members__:
        raise BadRule(f'Kafka has no error {name!r}{did_you_mean(name.lower(), ErrorCode.__members__)}')
    return ErrorCode[name]


def parse_delay(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST_DELAY_MS:
        raise BadRule(f'found delay_ms={value!r}, expected a whole number of milliseconds from 1 to {MOST_DELAY_MS}')
    return value


def kind_of(value: object) -> str:
    """Return the kind of a value of JSON in words."""
    return {dict: 'an object', list: 'a list', str: 'a text', bool: 'a truth value', int: 'a number',
            float: 'a number', type(None): 'nothing'}.get(type(value), type(value).__name__)


def in_words(names: Iterable[str]) -> str:
    return ', '.join(names)
