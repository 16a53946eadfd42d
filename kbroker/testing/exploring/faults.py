"""The faults of an exploration: what each does at a step, and at which steps it is possible."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kbroker.base.suggestions import did_you_mean
from kbroker.testing.exploring.possible_errors import apis_with
from kbroker.testing.exploring.steps import ReachedStep, check_choice, chosen, sample

KILLS = {
    'broker': 'the broker was killed and started again',
    'reply': 'the answer was lost after its effect',
    'request': 'the connection was cut before the request had an effect',
    'application': 'the application was killed and started again',
}
"""The values of `kill`, and what each does at a step."""
ONLY_AT = {'reply': 'reply', 'request': 'request'}
"""The only point at which a fault is possible. The others are possible at every point."""


@dataclass(frozen=True)
class Fault:
    """A fault. `name` is a key of KILLS, or the name of an error with which the broker refuses a request."""

    name: str

    @property
    def words(self) -> str:
        return KILLS.get(self.name, f'the request was refused with {self.name}')

    @property
    def place(self) -> tuple[int, str]:
        """The place of its column in a table."""
        return len(KILLS) if self.is_error else list(KILLS).index(self.name), self.name

    @property
    def is_error(self) -> bool:
        return self.name not in KILLS

    def is_possible_at(self, step: ReachedStep) -> bool:
        if self.is_error:
            return step.point == 'request' and step.select.get('api') in apis_with(self.name)
        return ONLY_AT.get(self.name, step.point) == step.point


@dataclass(frozen=True)
class Case:
    """One run of an exploration: a fault at a step."""

    step: ReachedStep
    fault: Fault

    @property
    def name(self) -> str:
        """The name by which the run is repeated, such as `step-17-broker`."""
        return f'step-{self.step.number}-{self.fault.name}'

    @property
    def words(self) -> str:
        return f'step {self.step.number} ({self.step.words}): {self.fault.words}'


@dataclass(frozen=True)
class Plan:
    """The faults that an exploration tries, and the steps at which it tries them.

    `kill` has keys of KILLS and `error` names of errors. `select` chooses steps by point and names. Of the chosen
    steps, `steps` are tried; `seed` decides which.
    """

    faults: tuple[Fault, ...]
    select: Mapping[str, str | int]
    steps: int | None
    seed: int

    @property
    def kills_application(self) -> bool:
        return Fault('application') in self.faults

    def cases(self, reached: Collection[ReachedStep]) -> list[Case]:
        """Return a sample of the runs. Raise ValueError if no step can have one of the faults."""
        possible = self.all_cases(reached)
        tried = {step.number for step in sample({case.step.number: case.step for case in possible}.values(),
                                                self.steps, self.seed)}
        return [case for case in possible if case.step.number in tried]

    def all_cases(self, reached: Collection[ReachedStep]) -> list[Case]:
        """Return all possible runs. Raise ValueError if no step can have one of the faults."""
        if not reached:
            raise ValueError('the application reached no step: found no request except those of the test kit, expected '
                             'some to bootstrap_servers of the broker that the test gets')
        steps = chosen(reached, self.select)
        if not steps:
            wanted = ', '.join(f'{name}={value}' for name, value in self.select.items())
            raise ValueError(f'select: none of the {len(reached)} steps that the application reached has {wanted}')
        cases = [Case(step, fault) for step in steps for fault in self.faults if fault.is_possible_at(step)]
        for fault in self.faults:
            if not any(case.fault == fault for case in cases):
                place = (f'requests of {", ".join(sorted(apis_with(fault.name)))}' if fault.is_error else
                         f'steps at the point {ONLY_AT[fault.name]}')
                raise ValueError(f'{fault.name}: possible only at {place}, found none among {len(steps)} steps')
        return cases


def plan_of(kill: str | Iterable[str] = (), error: str | Iterable[str] = (),
            select: Mapping[str, str | int] | None = None, steps: int | None = None, seed: int = 1) -> Plan:
    """Return the plan of an exploration. Raise ValueError for a mistake."""
    kills, errors = _names(kill), _names(error)
    for name in kills:
        if name not in KILLS:
            raise ValueError(f'kill: found {name!r}, expected one of {", ".join(KILLS)}'
                             f'{did_you_mean(name.lower(), KILLS)}')
    for name in errors:
        apis_with(name)
    if not kills and not errors:
        raise ValueError(f'found no fault, expected kill= with one of {", ".join(KILLS)}, or error= with an error')
    if steps is not None and steps < 1:
        raise ValueError(f'steps: found {steps}, expected at least 1')
    check_choice(select or {})
    return Plan(tuple(Fault(name) for name in (*kills, *errors)), dict(select or {}), steps, seed)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
