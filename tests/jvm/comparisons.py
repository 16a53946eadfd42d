"""Comparisons of kbroker and Apache Kafka by histories of one kind: one history at a time, or many in a soak.

The default run repeats the same histories every time. A soak runs different histories, several at the same time, and
prints those that fail in a shortened form. A difference means that kbroker is wrong, unless DIFFERENCES of the test
file has a reason for it.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import histories
from hypothesis.strategies import SearchStrategy
from long_runs import LongRun
from support.kafka.beside_kafka import unexplained_lines


@dataclass(frozen=True)
class Comparison:
    """A comparison: the subclass of Side that runs the histories, the settings of both brokers, and the accepted
    differences.
    """

    side_class: type[histories.Side]
    settings: Mapping[str, str]
    reasons: Mapping[str, str]
    """Maps a pattern to the reason for accepting the differences whose text it matches."""
    explain: Callable[[list[str], Mapping[str, str]], list[str]] = unexplained_lines

    def unexplained(self, addresses: Sequence[str], history: Sequence[Any], lane: int = 0) -> list[str]:
        """Run a history. Return the differences without an accepted reason."""
        return histories.run(addresses, history, self.side_class, lambda lines: self.explain(lines, self.reasons), lane)

    def soak(self, addresses: Sequence[str], strategy: SearchStrategy[Any], count: int,
             tally: Callable[[str, int], None]) -> None:
        """Run `count` histories, several at the same time. Raise AssertionError with shortened forms of those that
        fail.
        """
        found = LongRun(functools.partial(self.unexplained, addresses), self.side_class.lanes).run(strategy, count)
        assert found == []
        tally('histories beside Apache Kafka', count)
