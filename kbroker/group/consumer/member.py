"""The values that the state of a consumer group consists of."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.object_memory import memory_of
from kbroker.group.modern.group import LEAVE_FOR_A_WHILE_EPOCH, ModernMember

Target = Mapping[bytes, frozenset[int]]
"""The partitions that a member should have: maps each topic id to partition numbers."""

NOTHING: Target = {}


class ClassicFields(NamedTuple):
    """The fields that only a member that speaks the classic protocol has. `protocols` has a pair of name and metadata
    for each assignor that the member offers, the preferred one first."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Resolved(NamedTuple):
    """The topics that matched a regular expression when it was resolved, with the metadata version and the wall time of
    the resolution."""

    topics: frozenset[str]
    version: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember(ModernMember[bytes]):
    """A member of a consumer group. `regex` is empty if the member does not subscribe with a regular expression."""

    regex: str = ''
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicFields | None = None

    @property
    def held_bytes(self) -> int:
        held_bytes = ModernMember.held_bytes.fget(self) + memory_of(self.regex)     # type: ignore[attr-defined]
        if self.classic is not None:
            held_bytes += sum([memory_of(name) + len(metadata) for name, metadata in self.classic.protocols])
        return int(held_bytes)

    @property
    def may_be_succeeded(self) -> bool:
        return self.classic is not None or self.epoch == LEAVE_FOR_A_WHILE_EPOCH

    @property
    def own_session_timeout_ms(self) -> int | None:
        return None if self.classic is None else self.classic.session_timeout_ms

    @property
    def revocation_timeout_ms(self) -> int | None:
        """The rebalance timeout in ms; None for a classic member. A classic member confirms a revocation by its next
        JoinGroup, which has another deadline."""
        return self.rebalance_timeout_ms if self.classic is None else None
