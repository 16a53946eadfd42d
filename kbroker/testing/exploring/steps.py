"""The steps that an application reached, and how a later run finds one of them again.

The numbers of the steps differ from run to run, because clients send heartbeats and fetches by the clock. So a step is
identified by its point, by the names in it, and by its occurrence among the steps that have the same point and names.
"""
from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kbroker.base.suggestions import did_you_mean

if TYPE_CHECKING:
    from kbroker.testing.control import Step

NAMES = ('api', 'topic', 'partition', 'group', 'transactional_id', 'client_id')
"""The facts that identify a step. A rule selects by each of them."""
CHOOSABLE = ('point', *NAMES)
WRITES = ('Produce', 'CreateTopics', 'CreatePartitions', 'Metadata', 'InitProducerId')
"""The requests that may append to a topic that is no internal one, or to the metadata."""
TOPICS_OF_APPLICATIONS = ('__consumer_offsets', '__transaction_state', '__share_group_state')
"""The topics to which the test kit causes no appends."""
GENERATED = re.compile(r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12,}|\d{5,}', re.IGNORECASE)
"""A part of a name that a program has generated: a UUID, a long hexadecimal number, a process id, a time. It differs
from run to run."""


@dataclass(frozen=True)
class ReachedStep:
    """A step of the first run. `number` is its place among the steps that were reached."""

    number: int
    point: str
    select: Mapping[str, str | int]
    """The names of the step, with a `*` for each part that was generated."""
    occurrence: int

    @property
    def words(self) -> str:
        """The step in words, such as `reply of EndTxn, transactional_id=loop, occurrence 2`."""
        names = dict(self.select)
        api, topic, partition = (names.pop(name, None) for name in ('api', 'topic', 'partition'))
        parts = [f'{self.point} of {api}' if api is not None else self.point]
        if topic is not None:
            parts.append(f'{topic}' if partition is None else f'{topic}-{partition}')
        if 'transactional_id' in names or 'group' in names:
            names.pop('client_id', None)
        parts += [f'{name}={value}' for name, value in names.items()]
        if self.occurrence > 1:
            parts.append(f'occurrence {self.occurrence}')
        return ', '.join(parts)


def reached_steps(steps: Iterable[Step]) -> list[ReachedStep]:
    """Return the steps that the application reached, in order. The appends of the test kit are left out, but count as
    occurrences: a rule counts them, too.
    """
    counts: Counter[tuple[str, tuple[tuple[str, str | int], ...]]] = Counter()
    writers = Writers()
    found: list[ReachedStep] = []
    for step in steps:
        select = selector_of(step)
        key = step.point, tuple(select.items())
        counts[key] += 1
        if writers.include(step):
            found.append(ReachedStep(len(found) + 1, step.point, select, counts[key]))
    return found


class Writers:
    """The requests and the transactions of the application that write, as far as a sequence of steps has come.

    The requests of the test kit are no steps, but its appends are: an append does not know its client. An append
    belongs to the application if a request of the application may have caused it, and otherwise to the kit.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[str | None, int | None], Step] = {}
        """The requests without a reply, by client id and correlation id."""
        self._markers: set[tuple[str | None, int | None]] = set()
        """The partitions to which a marker is being written."""

    def include(self, step: Step) -> bool:
        """Return whether the next step of the sequence belongs to the application."""
        if step.point == 'request':
            self._requests[step.client_id, step.correlation_id] = step
        elif step.point == 'reply':
            self._requests.pop((step.client_id, step.correlation_id), None)
        elif step.point == 'transaction.marker':
            self._markers.add((step.topic, step.partition))
        if not step.point.startswith('append.') or step.topic in TOPICS_OF_APPLICATIONS:
            return True
        partition = step.topic, step.partition
        writes = partition in self._markers or any(
            request.api in WRITES and request.topic in (None, step.topic) for request in self._requests.values())
        if step.point == 'append.durable':
            self._markers.discard(partition)
        return writes


def selector_of(step: Step) -> dict[str, str | int]:
    """Return the selector that finds a step again: its names, with a `*` for each part that was generated."""
    names = {name: getattr(step, name) for name in NAMES}
    return {name: GENERATED.sub('*', value) if isinstance(value, str) else value
            for name, value in names.items() if value is not None}


def check_choice(choice: Mapping[str, str | int]) -> None:
    """Raise ValueError for a name by which no step can be chosen."""
    for name in choice:
        if name not in CHOOSABLE:
            raise ValueError(f'select: found {name!r}, expected one of {", ".join(CHOOSABLE)}'
                             f'{did_you_mean(name, CHOOSABLE)}')


def chosen(steps: Iterable[ReachedStep], choice: Mapping[str, str | int]) -> list[ReachedStep]:
    """Return the steps whose names match `choice`, in which a text may contain `*`."""
    return [step for step in steps
            if all(_matches({'point': step.point, **step.select}.get(name), wanted) for name, wanted in choice.items())]


def _matches(found: str | int | None, wanted: str | int) -> bool:
    if isinstance(found, str) and isinstance(wanted, str):
        return fnmatchcase(found, wanted.replace('[', '[[]'))
    return found == wanted


def sample(steps: Collection[ReachedStep], count: int | None, seed: int) -> list[ReachedStep]:
    """Return `count` of the steps in order, chosen by the seed, or all steps if there are not more."""
    if count is None or count >= len(steps):
        return list(steps)
    return sorted(random.Random(seed).sample(list(steps), count), key=lambda step: step.number)
