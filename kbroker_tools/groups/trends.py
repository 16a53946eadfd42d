"""The lag of a group over time: samples of its offsets, and the rates between them. Nothing here reads a cluster."""
from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import GroupMemberInfo

WINDOW_S = 30.0
"""The time over which rates are averaged. A consumer that commits every five seconds has a steady rate then."""
LAGS_KEPT = 60
"""The number of samples whose lag is kept, for the picture of the lag over time."""
BARS = '▁▂▃▄▅▆▇█'


class Position(NamedTuple):
    """The offsets of a group in one partition. `committed` is None if the group has not committed an offset there, and
    the ends are None if the partition cannot be read."""

    committed: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    member_id: str | None
    """The member that the partition is assigned to, or None."""

    @property
    def lag(self) -> int | None:
        """Return the number of offsets up to the high watermark."""
        return self._up_to(self.high_watermark)

    @property
    def stable_lag(self) -> int | None:
        """Return the number of offsets that a read_committed consumer can read now."""
        return self._up_to(self.last_stable_offset)

    def _up_to(self, end: int | None) -> int | None:
        return None if self.committed is None or end is None else max(end - self.committed, 0)


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a group at one time."""

    at_s: float
    """The time of a monotonic clock."""
    state: str
    members: tuple[GroupMemberInfo, ...]
    positions: Mapping[TopicPartition, Position]

    def lag_of(self, member_id: str) -> int:
        return sum(position.lag or 0 for position in self.positions.values() if position.member_id == member_id)

    @property
    def lag(self) -> int:
        return sum(position.lag or 0 for position in self.positions.values())

    @property
    def stable_lag(self) -> int:
        return sum(position.stable_lag or 0 for position in self.positions.values())


class Step(NamedTuple):
    """The changes between two samples."""

    duration_s: float
    produced: int
    consumed: dict[str | None, int]
    """Maps the members, and None for partitions without one, to the numbers of offsets by which they advanced."""


class Trend:
    """The newest sample of a group, its rates, and its last lags. The memory does not grow with time."""

    def __init__(self, first: Sample):
        self.newest = first
        self.lags = deque([first.lag], LAGS_KEPT)
        self._steps: deque[Step] = deque()

    def add(self, sample: Sample) -> None:
        self._steps.append(step_between(self.newest, sample))
        while sum(step.duration_s for step in self._steps) - self._steps[0].duration_s >= WINDOW_S:
            self._steps.popleft()
        self.newest = sample
        self.lags.append(sample.lag)

    @property
    def produced_per_s(self) -> float | None:
        """Return the number of offsets per second by which the logs grew. Return None before the second sample."""
        return self._per_s([step.produced for step in self._steps])

    @property
    def consumed_per_s(self) -> float | None:
        """Return the number of offsets per second that the group committed."""
        return self._per_s([sum(step.consumed.values()) for step in self._steps])

    def consumed_per_s_by(self, member_id: str) -> float | None:
        return self._per_s([step.consumed.get(member_id, 0) for step in self._steps])

    @property
    def seconds_to_catch_up(self) -> float | None:
        """Return the time until the lag is 0 at the present rates. Return None if the lag does not shrink."""
        if not self.newest.lag:
            return 0.0
        gained_per_s = (self.consumed_per_s or 0.0) - (self.produced_per_s or 0.0)
        return self.newest.lag / gained_per_s if gained_per_s > 0 else None

    def _per_s(self, amounts: Sequence[int]) -> float | None:
        duration_s = sum(step.duration_s for step in self._steps)
        return sum(amounts) / duration_s if duration_s > 0 else None


def step_between(before: Sample, after: Sample) -> Step:
    """Return the changes from one sample to the next. An offset that moved back, by a reset, counts as no progress."""
    produced, consumed = 0, dict[str | None, int]()
    for at, new in after.positions.items():
        old = before.positions.get(at)
        if old is None:
            continue
        if old.high_watermark is not None and new.high_watermark is not None:
            produced += max(new.high_watermark - old.high_watermark, 0)
        if old.committed is not None and new.committed is not None:
            consumed[new.member_id] = consumed.get(new.member_id, 0) + max(new.committed - old.committed, 0)
    return Step(after.at_s - before.at_s, produced, consumed)


def bars(amounts: Sequence[int]) -> str:
    """Return a line of bars, one for each amount. The highest bar is that of the greatest amount."""
    greatest = max(amounts, default=0)
    return ''.join(BARS[-(-amount * (len(BARS) - 1) // greatest) if greatest else 0] for amount in amounts)
