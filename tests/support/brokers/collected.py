"""The samples of a collector, as a test looks at them."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.metrics.table import Metric, Sample


def collected(samples: Iterable[Sample | None]) -> dict[tuple[str, ...], Any]:
    """Return {(name, *labels): value}. Check what every collector promises: all samples of a metric follow each other,
    and each series comes once.
    """
    found: dict[tuple[str, ...], Any] = {}
    finished: list[Metric] = []
    for sample in samples:
        if sample is None:
            continue
        metric, labels, value = sample
        if metric not in finished[-1:]:
            assert metric not in finished, f'{metric.name} is interrupted by another metric'
            finished.append(metric)
        assert len(labels) == len(metric.labels), f'{metric.name} has labels {metric.labels}, found {labels}'
        assert (metric.name, *labels) not in found, f'{metric.name}{labels} comes twice'
        found[metric.name, *labels] = value
    return found
