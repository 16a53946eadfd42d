"""The control port of a broker, as a test uses it: steps, holds, faults and the clock."""
from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypedDict
from urllib.parse import urlencode

from kbroker.testing.errors import BrokerError, NotReachedError

WAIT_S = 30.0
"""The seconds for which a wait of a test waits, unless the test says otherwise."""
POLL_MS = 10_000
"""The most milliseconds of one long poll."""
ANSWER_S = 30.0
"""The most seconds until an answer, beyond the time of a long poll."""
WORK_S = 600.0
"""The most seconds until the answer to a long work: a move of the clock, a snapshot of a large directory."""
END_S = 5.0
"""The most seconds until an answer of a broker that is about to be killed. It may be paused."""
LAST_STEPS = 8
"""The most steps in the text of a failed wait."""


class Selector(TypedDict, total=False):
    """The steps that a hold or a fault selects. Texts match exactly, or with `*`. A name that is left out selects all.

    `occurrence` selects the n-th of these steps, counted from 1. `times` ends the rule after so many steps. With
    `exact`, a step must have none of the other facts: `api='Metadata'` then leaves out requests that name a topic.
    """

    api: str
    topic: str
    partition: int
    group: str
    transactional_id: str
    client_id: str
    exact: bool
    occurrence: int
    times: int


@dataclass(frozen=True, slots=True)
class Step:
    """One passing of a point of the broker by one operation. A fact that does not apply is None."""

    number: int
    """The number of the step among all steps of its process, from 1."""
    point: str
    occurrence: int = 1
    """The number of the step among those with the same facts, from 1."""
    api: str | None = None
    version: int | None = None
    client_id: str | None = None
    correlation_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None
    offset: int | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    wall_ms: int | None = None
    groups: tuple[str, ...] | None = None
    """The groups of a request that names several."""
    transactional_ids: tuple[str, ...] | None = None
    """The transactional ids of a request that names several."""
    targets: tuple[Mapping[str, Any], ...] | None = None
    """The topics and partitions of a request that names several, as objects with `topic` and `partition`."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Step:
        known: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                 for name, value in facts.items() if name in _STEP_FACTS}
        return cls(**known)

    def __str__(self) -> str:
        shown = {name: getattr(self, name) for name in _SHOWN_FACTS}
        words = ' '.join(f'{name}={value}' for name, value in shown.items() if value is not None)
        return f'{self.number}: {self.point} {words}'.rstrip()


_STEP_FACTS = {field.name for field in fields(Step)}
_SHOWN_FACTS = ('api', 'client_id', 'topic', 'partition', 'group', 'transactional_id', 'offset', 'producer_id',
                'producer_epoch')


class Control:
    """The control port of one broker. Several threads may use it.

    Rules and steps belong to one process of the broker. When the test kills or stops the broker, the control first
    reads what the rules have matched and which steps were reached. When the process ends by itself, this is not known.
    """

    def __init__(self, port: int, describe_end: Callable[[], str] = lambda: ''):
        """`describe_end` returns how the process has ended, or nothing if it runs."""
        self.port = port
        self._describe_end = describe_end
        self._last_number = 0
        self._pid = os.getpid()
        self._idle: list[http.client.HTTPConnection] = []
        self.rules: list[Rule] = []
        """All holds and faults of the test, also those that have ended."""
        self._past_steps: list[Step] | None = None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *,
            limit_s: float = ANSWER_S) -> Any:
        """Send a request, and return the decoded answer. Raise BrokerError with the text of an error."""
        text = None if body is None else json.dumps(body)
        for is_last in (False, True):
            connection = self._take_connection(limit_s)
            try:
                connection.request(method, path, text, {'Content-Type': 'application/json'} if text else {})
                response = connection.getresponse()
                answer = response.read()
                break
            except (ConnectionError, http.client.HTTPException) as error:
                # The broker was restarted since the last request, or closed an idle connection.
                connection.close()
                self.close()
                if is_last or isinstance(error, ConnectionRefusedError):
                    raise BrokerError(f'the control port 127.0.0.1:{self.port} does not answer'
                                      f'{self._describe_end()}') from None
            except TimeoutError:
                connection.close()
                raise BrokerError(f'the control port 127.0.0.1:{self.port} does not answer in time') from None
            except BaseException:       # Ctrl-C: a later answer must not be taken as one to another request
                connection.close()
                raise
        self._idle.append(connection)
        decoded = json.loads(answer) if answer else None
        if response.status >= http.client.BAD_REQUEST:
            raise BrokerError(decoded['error'] if isinstance(decoded, dict) else f'{method} {path}: {response.status}')
        return decoded

    def _take_connection(self, limit_s: float) -> http.client.HTTPConnection:
        """Return a connection that no other thread uses. A fork does not use those of its parent."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.close()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection('127.0.0.1', self.port)
        connection.timeout = limit_s
        if connection.sock is not None:
            connection.sock.settimeout(limit_s)
        return connection

    def close(self) -> None:
        """Close the connections that no thread uses now."""
        while self._idle:
            self._idle.pop().close()

    # ---- steps

    def steps(self, since: int = 0) -> list[Step]:
        """Return the steps of the process after step `since`. If no process runs, return those of the last one."""
        if self._past_steps is not None:
            return [step for step in self._past_steps if step.number > since]
        found: list[Step] = []
        while True:
            steps, since = self._ask_steps(since, 0)
            if not steps:
                return found
            found += steps

    def last_number(self) -> int:
        """Return the number of the last step."""
        self._last_number = max((step.number for step in self.steps(self._last_number)), default=self._last_number)
        return self._last_number

    def wait_for_step(self, since: int, wait_ms: int) -> int:
        """Wait until there is a step after `since`, or until the time is over. Return the number of the last step."""
        return self._ask_steps(since, wait_ms)[1]

    def _ask_steps(self, since: int, wait_ms: int) -> tuple[list[Step], int]:
        answer = self.ask('GET', f'/steps?{urlencode({"since": since, "wait_ms": wait_ms})}',
                          limit_s=ANSWER_S + wait_ms / 1000)
        return [Step.of(facts) for facts in answer['steps']], answer['next']

    # ---- rules

    def add(self, rule: Rule) -> None:
        rule.adopt(self.ask('POST', '/rules', rule.body))
        self.rules.append(rule)

    def end(self) -> None:
        """Read what is known only to the process, before the test ends it."""
        try:
            facts_by_id = {facts['id']: facts for facts in self.ask('GET', '/rules', limit_s=END_S)['rules']}
            self._past_steps = self.steps()
        except BrokerError:     # it is paused, or has ended meanwhile
            self.note_death()
            return
        for rule in self.rules:
            if rule.is_active and rule.number in facts_by_id:
                rule.adopt(facts_by_id[rule.number])
            rule.is_active = False

    def note_death(self) -> None:
        """Note that the process has ended by itself, so nothing is known about its rules and steps."""
        for rule in self.rules:
            if rule.is_active:
                rule.is_active, rule.is_known = False, False
        if self._past_steps is None:
            self._past_steps = []

    def begin(self) -> None:
        """Note that a new process serves, without rules and steps."""
        self._past_steps = None
        self._last_number = 0

    def reset(self) -> None:
        """Remove all rules and steps, let the clock run, and empty the broker."""
        for rule in self.rules:
            rule.is_active = False
        self.rules.clear()
        self.ask('DELETE', '/rules')
        self.ask('POST', '/clock', {'run': True})
        self.ask('POST', '/reset', limit_s=WORK_S)
        self.ask('DELETE', '/steps')

    def unmatched(self) -> list[str]:
        """Return a description of each hold and fault that has matched no step."""
        return [rule.description for rule in self.rules if rule.is_known and not rule.matched]


_METHODS = {'hold': 'hold', 'error': 'fail', 'fail': 'fail', 'full': 'fail', 'delay': 'delay', 'drop': 'drop',
            'kill': 'kill_at', 'pause': 'pause_at'}
"""Maps each action to the method of Broker that adds it."""


class Rule:
    """A hold or a fault of a test. It ends with `remove`, with its `with` block, or with the broker's process."""

    def __init__(self, control: Control, point: str, action: str, select: Selector, **rest: Any):
        self._control = control
        self.body = {'point': point, 'action': action, 'select': dict(select), **rest}
        self.number = 0
        self._matched = self._held = 0
        self._held_numbers: set[int] = set()
        self.is_active = True
        self.is_known = True
        """False if the process ended by itself, so it is not known what the rule has matched."""
        control.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def matched(self) -> int:
        """The number of steps that the rule has matched."""
        self.refresh()
        return self._matched

    @property
    def held(self) -> int:
        """The number of operations that the rule holds now."""
        self.refresh()
        return self._held if self.is_active else 0

    @property
    def description(self) -> str:
        """The rule in the words of the test: `hold('transaction.prepared', topic='payments')`."""
        words = [repr(self.body[name]) for name in ('point', 'error') if name in self.body]
        words += [f'{name}={value!r}' for name, value in [*self.body.items(), *self.body['select'].items()]
                  if name not in ('point', 'action', 'select', 'error')]
        return f'{_METHODS[self.body["action"]]}({", ".join(words)})'

    def adopt(self, facts: Mapping[str, Any]) -> None:
        self.number, self._matched, self._held = facts['id'], facts['matched'], facts['held']
        self._held_numbers.update(facts['steps'])

    def refresh(self) -> None:
        """Read what the rule has matched, if its process still runs."""
        if self.is_active:
            with suppress(BrokerError):
                self.adopt(self._control.ask('GET', f'/rules/{self.number}'))

    def wait(self, timeout_s: float = WAIT_S, matched: int = 1) -> None:
        """Wait until the rule has matched so many steps.

        Raise NotReachedError with the last steps if that takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_active and self._matched < matched:
            left_ms = int(1000 * (deadline - time.monotonic()))
            if left_ms <= 0:
                raise NotReachedError(self._failure(timeout_s, matched))
            wait_ms = min(left_ms, POLL_MS)
            query = urlencode({'matched': matched, 'wait_ms': wait_ms})
            self.adopt(self._control.ask('GET', f'/rules/{self.number}?{query}',
                                         limit_s=ANSWER_S + wait_ms / 1000))
        if self._matched < matched:
            raise NotReachedError(f'{self.description} has ended: it matched {self._matched} steps, expected {matched}')

    def _failure(self, timeout_s: float, matched: int) -> str:
        return '\n'.join([f'{self.description} matched {self._matched} steps within {timeout_s:g} s, expected '
                          f'{matched}', *last_steps(self._control)])

    def remove(self) -> None:
        """End the rule: release what it holds, and read what it has matched."""
        if self.is_active:
            self.is_active = False
            try:
                self.adopt(self._control.ask('DELETE', f'/rules/{self.number}'))
            except BrokerError:     # the process has ended by itself
                self.is_known = False


class Hold(Rule):
    """A hold: operations that reach its point wait there until they are released.

    Leaving the `with` block of a hold releases all, and ends the hold.
    """

    def release(self) -> None:
        """Let go on what waits now. The hold goes on with the operations that come later."""
        self.adopt(self._control.ask('POST', f'/rules/{self.number}/release'))

    @property
    def steps(self) -> list[Step]:
        """The steps that the hold has held, as last read, in order."""
        self.refresh()
        return [step for step in self._control.steps() if step.number in self._held_numbers]


class Fault(Rule):
    """A fault: an error, a delay, a lost connection or the end of the process, at the steps that it selects."""


def last_steps(control: Control) -> list[str]:
    """Return lines with the last steps of the broker."""
    try:
        steps = control.steps()
    except BrokerError as error:
        return [str(error)]
    if not steps:
        return ['the broker has reached no step']
    return [f'the last steps of {len(steps)}:', *(f'  {step}' for step in steps[-LAST_STEPS:])]


class Clock:
    """The clock of a broker. While it is stopped, it moves only by `set` and `advance`, never backwards."""

    def __init__(self, control: Control):
        self._control = control

    def now(self) -> datetime:
        """Return the broker's time, in UTC."""
        return _time_of(self._control.ask('GET', '/clock'))

    @property
    def is_stopped(self) -> bool:
        return bool(self._control.ask('GET', '/clock')['is_stopped'])

    def stop(self) -> None:
        self._control.ask('POST', '/clock', {'stop': True})

    def run(self) -> None:
        """Let a stopped clock go on, from the time that it shows."""
        self._control.ask('POST', '/clock', {'run': True})

    def set(self, moment: datetime) -> None:
        """Move the clock forward to a moment. Return when all deadlines before it have fired.

        A moment without a time zone is in UTC.
        """
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        wall_ms = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        self._move({'set_ms': wall_ms})

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0,
                milliseconds: float = 0) -> None:
        """Move the clock forward. Return when all deadlines that have passed have fired, in order."""
        passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        self._move({'advance_ms': passed // timedelta(milliseconds=1)})

    def _move(self, body: Mapping[str, Any]) -> None:
        self._control.ask('POST', '/clock', body, limit_s=WORK_S)


def _time_of(answer: Mapping[str, Any]) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=answer['wall_ms'])
