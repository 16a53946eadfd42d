"""The declaration of a metric, and its samples.

The modules of this room declare their metrics beside the collectors that read them. A collector is a generator function
that yields the samples of one metric after the other. It runs as long work: other work may change any state between two
samples, so a collector walks over a copy of the keys, and looks each of them up. It may yield None to let other work
run.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kbroker.base.lean_dataclasses import dataclass

MOST_SERIES = 10_000
"""The most series of one metric. Further ones are left out, and counted by `SERIES_LEFT_OUT`."""


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric.

    `name` contains the unit, and never the suffix `_total`. `kind` is counter, gauge, histogram or info. `series` says
    in words what bounds the number of its series.
    """

    name: str
    kind: str
    help: str
    unit: str = ''
    labels: tuple[str, ...] = ()
    series: str = '1'


class Distribution(NamedTuple):
    """The value of a histogram.

    `counts[i]` is the number of values that are at most `bounds[i]` and above the bound before it. One more count is
    for the values above all bounds.
    """

    bounds: tuple[float, ...]
    counts: Sequence[int]
    sum: float


Sample = tuple[Metric, tuple[str, ...], 'float | Distribution']
"""(metric, values of its labels, value)."""
Collector = Callable[[], Iterator[Sample | None]]

SERIES_LEFT_OUT = Metric(
    'kbroker_metrics_series_left_out', 'gauge', f'Series left out of this scrape: a metric has at most {MOST_SERIES}.',
    labels=('metric',), series='metrics with too many series')
