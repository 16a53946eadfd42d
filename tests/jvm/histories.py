"""Runs histories. A history is a list of operations that run on Apache Kafka and on kbroker, whose effects are compared
step by step. A file `*_histories.py` has the operations, and a subclass of Side with the answers and rows of a broker.
Its tests draw random histories, and give the reason for each accepted difference.
"""
from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis.errors import UnsatisfiedAssumption
from raw_peer import NOW_MS, RawPeer
from support.kafka.beside_kafka import at_once

LANES = 6
"""The number of histories that can run at the same time."""
WAIT_LIMIT_S = 120
WRITTEN_LIMIT_S = 30
"""The time in seconds within which a broker must make its writes after an answer."""
SETTLE_LIMIT_S = 3
"""The time in seconds after which a difference counts as final if it has an accepted reason."""

Explain = Callable[[list[str]], list[str]]
"""The type of a function that gets the differences of a step and returns those without an accepted reason."""

_numbers = itertools.count()


class TooSlow(UnsatisfiedAssumption):
    """Raised if a history took so long that timeouts may have affected it. The history is then not judged."""


class Side(ABC):
    """One broker in a history: the connection to it, and facts from its answers."""

    lanes = LANES
    is_kafka = False

    def __init__(self, peer: RawPeer):
        self.peer = peer

    @classmethod
    def name_in(cls, lane: int) -> str:
        """Return a new name for a group, so that its history does not disturb the histories of other lanes."""
        return f'h{next(_numbers)}-{NOW_MS % 100_000}'

    @abstractmethod
    def close(self) -> None:
        """Delete everything that the history has created at the broker."""

    @abstractmethod
    def written(self, before: Any = None) -> Any:
        """Return the writes of the broker in this step. `before` is the result of the previous call in the step, which
        is extended by later writes.
        """

    @staticmethod
    @abstractmethod
    def compare_written(kafka: Any, ours: Any) -> list[str]:
        """Return the differences between the writes of the two brokers."""

    def is_too_slow(self) -> bool:
        """Return whether the history took so long that it cannot be judged."""
        return False

    def has_another_choice(self, other: Any) -> bool:
        """Return whether the two brokers made different but equally good choices where Kafka has no order."""
        return False

    def wait_until(self, is_over: Callable[[], Any], limit_s: float = WAIT_LIMIT_S) -> None:
        deadline_s = time.monotonic() + limit_s
        while not is_over():
            assert time.monotonic() < deadline_s, 'the broker did not settle'
            self.peer.wait_for_a_record()


def run(addresses: Sequence[str], history: Sequence[Any], side_class: Any, explain: Explain = list, lane: int = 0
        ) -> list[str]:
    """Run a history on both brokers, step by step. Return the unexplained differences of the first step that has a
    difference.

    The history also ends without a difference at a step for which Kafka defines no order and the brokers chose
    differently. Histories of several lanes do not disturb each other.
    """
    name = side_class.name_in(lane)
    sides: list[Side] = at_once(lambda address: side_class(address, name), addresses)
    sides[0].is_kafka = True
    try:
        for operation in history:
            found = differences_of_step(operation, sides, explain)
            if any(side.is_too_slow() for side in sides):
                raise TooSlow
            if found:
                return [] if sides[0].has_another_choice(sides[1]) else explain(found)
    finally:
        at_once(lambda side: side.close(), sides)
    return []


def differences_of_step(operation: Any, sides: Sequence[Side], explain: Explain) -> list[str]:
    """Run an operation on both brokers. Return the differences between their answers, and between the writes that
    follow.
    """
    answers = at_once(operation.run, sides)
    answered = named(operation, differences(*answers))

    def is_believed(written: list[str]) -> bool:
        return bool(explain(answered)) or sides[0].has_another_choice(sides[1]) or not explain([*answered, *written])

    begin_s = time.monotonic()
    written = at_once(lambda side: side.written(), sides)
    while found := named(operation, sides[0].compare_written(*written)):
        waited_s = time.monotonic() - begin_s
        if waited_s > (SETTLE_LIMIT_S if is_believed(found) else WRITTEN_LIMIT_S):
            break
        written = at_once(lambda both: both[0].written(both[1]), list(zip(sides, written, strict=True)))
    return answered + found


def named(operation: Any, lines: Sequence[str]) -> list[str]:
    return [f'{operation}: {line}' for line in lines]


def differences(kafka: Any, ours: Any, path: str = 'answer') -> list[str]:
    if isinstance(kafka, dict) and isinstance(ours, dict):
        return [line for name in kafka for line in differences(kafka[name], ours.get(name), f'{path}.{name}')]
    return [] if kafka == ours else [f'{path}: Kafka {kafka!r}, kbroker {ours!r}']
