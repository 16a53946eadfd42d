"""A histogram of latencies with a bounded relative error, in the layout of an HDR histogram.

A bucket of values below 128 has one value. Above, each power of two has 64 buckets, so a bucket is at most 1.6 % wide.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

PERCENTILES = (50, 75, 90, 95, 99, 99.9, 99.99)
EXACT_BITS = 7
"""Values with at most this many bits have a bucket of their own."""
HALF = 1 << (EXACT_BITS - 1)
BAR_WIDTH = 40


def bucket_of(value: int) -> int:
    """Return the number of the bucket of a value from 0 on."""
    shift = value.bit_length() - EXACT_BITS
    return value if shift <= 0 else shift * HALF + (value >> shift)


def highest_in(bucket: int) -> int:
    """Return the highest value of a bucket."""
    if bucket < 2 * HALF:
        return bucket
    shift, part = bucket // HALF - 1, bucket % HALF + HALF
    return ((part + 1) << shift) - 1


class Latencies:
    """The latencies of some operations, in whole microseconds."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self.count = 0
        self.sum_us = 0
        self.max_us = 0

    def add(self, value_us: int) -> None:
        """Count one latency. A clock that steps back counts as 0."""
        value_us = max(value_us, 0)
        self._counts[bucket_of(value_us)] += 1
        self.count += 1
        self.sum_us += value_us
        if value_us > self.max_us:
            self.max_us = value_us

    @property
    def mean_us(self) -> float:
        return self.sum_us / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """Return a value that `percent` of the latencies do not exceed: the highest one of its bucket. 0 if empty."""
        rank, seen = max(self.count * percent / 100, 1), 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            if seen >= rank:
                return min(highest_in(bucket), self.max_us)
        return 0

    def by_power_of_two(self) -> Iterator[tuple[int, int]]:
        """Yield (bound in us, count of values below it and not below half of it), from the lowest to the highest."""
        totals = Counter[int]()
        for bucket, count in self._counts.items():
            totals[highest_in(bucket).bit_length()] += count
        if totals:
            for bits in range(min(totals), max(totals) + 1):
                yield 1 << bits, totals[bits]

    def as_fields(self) -> dict[str, float]:
        """Return count, mean, percentiles and maximum, in milliseconds, for JSON."""
        percentiles = {f'p{percent:g}_ms': self.percentile(percent) / 1000 for percent in PERCENTILES}
        return {'count': self.count, 'mean_ms': round(self.mean_us / 1000, 3), **percentiles,
                'max_ms': self.max_us / 1000}

    def lines(self, title: str) -> Iterable[str]:
        """Yield a picture of the distribution as lines of text."""
        yield f'{title}: {self.count:,} values, mean {self.mean_us / 1000:.3f} ms, max {self.max_us / 1000:.3f} ms'
        if not self.count:
            return
        yield '  ' + '  '.join(f'{percent:g}% {self.percentile(percent) / 1000:.3f}' for percent in PERCENTILES)
        rows = list(self.by_power_of_two())
        most = max(count for _, count in rows)
        for bound_us, count in rows:
            bar = '#' * -(-count * BAR_WIDTH // most)
            yield f'  < {bound_us / 1000:>11.3f} ms {count:>11,} {bar}'.rstrip()
