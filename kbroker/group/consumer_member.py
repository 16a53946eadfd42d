"""The values of which a consumer group consists."""
from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import NamedTuple

from kbroker.group.modern import PARTITION_BYTES, TOPIC_BYTES, ModernMember
from kbroker.group.reconcile import Assigned
from kbroker.lean_dataclasses import dataclass, field

Target = Mapping[bytes, frozenset[int]]
"""The partitions that a member is meant to have, by topic id."""

NOTHING: Target = {}


class ClassicFields(NamedTuple):
    """The fields of a member that speaks the classic protocol: its assignors, best first, each with its metadata."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Resolved(NamedTuple):
    """The topics that a regular expression matched, with the version of the metadata and the wall time."""

    topics: frozenset[str]
    version: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember(ModernMember):
    """A member of a consumer group. An empty `regex` is none."""

    regex: str = ''
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicFields | None = None
    held: Assigned[bytes] = field(default_factory=Assigned)

    @property
    def epoch(self) -> int:
        return self.held.epoch

    @property
    def held_bytes(self) -> int:
        held_bytes = ModernMember.held_bytes.fget(self) + getsizeof(self.regex)     # type: ignore[attr-defined]
        for partitions in (self.held.assigned, self.held.pending):
            held_bytes += sum([TOPIC_BYTES + PARTITION_BYTES * len(epochs) for epochs in partitions.values()])
        if self.classic is not None:
            held_bytes += sum([len(name) + len(metadata) for name, metadata in self.classic.protocols])
        return int(held_bytes)
