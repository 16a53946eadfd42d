"""The text form of metrics: Prometheus' and OpenMetrics', in parts, by `prometheus-client`."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics_exposition

from kbroker.metrics.table import MOST_SERIES, SERIES_LEFT_OUT, Distribution, Metric, Sample

PROMETHEUS = exposition.CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS = openmetrics_exposition.CONTENT_TYPE_LATEST
END_OF_OPENMETRICS = b'# EOF\n'
SAMPLES_AT_ONCE = 64
"""The samples of one part. Formatting them takes less than a millisecond."""
SKIPPED_AT_ONCE = 512
"""The samples beyond MOST_SERIES that are counted in one part."""


class _OneFamily:
    """A registry that has a part of one metric."""

    def __init__(self, family: Family):
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


def content_type(accept: str) -> str:
    """Return the content type of the text form that a client prefers, by its header Accept."""
    return OPENMETRICS if 'application/openmetrics-text' in accept else PROMETHEUS


def text_of(samples: Iterable[Sample | None], form: str) -> Iterator[bytes | None]:
    """Yield the text of the samples in parts. `form` is a result of `content_type`.

    All samples of a metric follow each other. None stands for a moment at which other work may run.
    """
    generate: Callable[[_OneFamily], bytes] = (
        openmetrics_exposition.generate_latest if form == OPENMETRICS else exposition.generate_latest)
    left_out: list[tuple[str, int]] = []
    metric: Metric | None = None
    count, written, part = 0, 0, list[Sample]()

    def text() -> bytes:
        """Return the text of `part`. Only the first part of a metric has its help and type."""
        assert metric is not None
        whole = generate(_OneFamily(_family(metric, part))).removesuffix(END_OF_OPENMETRICS)
        if written:
            lines = whole.split(b'\n')       # a label may contain a carriage return, which ends no line
            whole = b'\n'.join(line for line in lines if not line.startswith(b'# '))
        return whole

    for sample in samples:
        if sample is None:
            yield None
            continue
        if sample[0] is not metric:
            if part:
                yield text()
            if count > MOST_SERIES:
                left_out.append((metric.name, count - MOST_SERIES))     # type: ignore[union-attr]
            metric, count, written, part = sample[0], 0, 0, []
        count += 1
        if count > MOST_SERIES:
            if count % SKIPPED_AT_ONCE == 0:
                yield None
            continue
        part.append(sample)
        if len(part) == SAMPLES_AT_ONCE:
            yield text()
            written += len(part)
            part = []
    if part:
        yield text()
    if metric is not None and count > MOST_SERIES:
        left_out.append((metric.name, count - MOST_SERIES))
    if left_out:
        metric, written = SERIES_LEFT_OUT, 0
        part = [(metric, (name,), number) for name, number in left_out]
        yield text()
    if form == OPENMETRICS:
        yield END_OF_OPENMETRICS


def _family(metric: Metric, samples: list[Sample]) -> Family:
    """Return the family of prometheus-client that has these samples."""
    if metric.kind == 'histogram':
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
        for _, labels, value in samples:
            assert isinstance(value, Distribution)
            histogram.add_metric(labels, _buckets(value), value.sum)
        return histogram
    if metric.kind == 'info':       # the labels are the information, and the value is 1
        info = InfoMetricFamily(metric.name.removesuffix('_info'), metric.help)
        for _, labels, _value in samples:
            info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
        return info
    kind = CounterMetricFamily if metric.kind == 'counter' else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for _, labels, value in samples:
        assert not isinstance(value, Distribution)
        family.add_metric(labels, value)
    return family


def _buckets(value: Distribution) -> list[tuple[str, int]]:
    total, buckets = 0, []
    for bound, number in zip((*value.bounds, float('inf')), value.counts, strict=True):
        total += number
        buckets.append(('+Inf' if bound == float('inf') else repr(float(bound)), total))
    return buckets
