"""Changes of feature levels that a client requests: the check whether they are allowed, and their records."""
from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    REQUIRED_METADATA_VERSION,
    lost_changes,
)
from kbroker.protocol.messages import FeatureLevelRecord


class UpgradeType(enum.IntEnum):
    """The direction in which a client allows a level to change."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A client's request to change the level of a feature.

    `upgrade_type` is the number that the client sent, which may be unknown.
    """

    name: str
    level: int
    upgrade_type: int


def records_of_updates(updates: Iterable[FeatureUpdate], finalized: Mapping[str, int],
                       supported: Mapping[str, tuple[int, int]]) -> list[Any]:
    """Return a record for each level that changes, with metadata.version first.

    Apache Kafka also writes a record for each named feature whose level stays. Such a record changes nothing.

    If one update is not allowed, refuse all updates: raise KafkaError INVALID_UPDATE_VERSION. Raise INVALID_REQUEST if
    a feature is named twice.
    """
    levels = dict(finalized)
    changed: set[str] = set()
    named: set[str] = set()
    for update in updates:
        if update.name in named:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'the feature {update.name[:80]!r} is named twice')
        named.add(update.name)
        _check(update, finalized.get(update.name, 0), supported)
        if update.level != finalized.get(update.name, 0):
            changed.add(update.name)
        levels[update.name] = update.level
    for name, least in REQUIRED_METADATA_VERSION.items():
        if name in named and levels[name] > 0 and levels.get(METADATA_VERSION, 0) < least:
            raise _refusal(name, levels[name], f'expected {METADATA_VERSION} {least} or higher, '
                           f'found {levels.get(METADATA_VERSION, 0)}')
    return [FeatureLevelRecord(name=name, feature_level=levels[name])
            for name in sorted(changed, key=lambda name: (name != METADATA_VERSION, name))]


def enables_eligible_leader_replicas(records: Iterable[Any]) -> bool:
    """Return whether the records raise eligible.leader.replicas.version from level 0."""
    return any(record.name == ELIGIBLE_LEADER_REPLICAS_VERSION and record.feature_level > 0 for record in records)


def _check(update: FeatureUpdate, current: int, supported: Mapping[str, tuple[int, int]]) -> None:
    name, level = update.name, update.level
    if update.upgrade_type not in UpgradeType.__members__.values():
        raise _refusal(name, level, f'found the upgrade type {update.upgrade_type}, expected 1 (upgrade), '
                       '2 (safe downgrade) or 3 (unsafe downgrade)')
    if name not in supported:
        raise _refusal(name, level, 'the broker does not know this feature')
    low, high = supported[name]
    if not low <= level <= high:
        raise _refusal(name, level, f'the broker supports {low} to {high}')
    if level < current and update.upgrade_type == UpgradeType.UPGRADE:
        raise _refusal(name, level, f'the level is {current}, and a downgrade needs its own upgrade type')
    if level > current and update.upgrade_type != UpgradeType.UPGRADE:
        raise _refusal(name, level, f'the level is {current}, so this is no downgrade')
    if name == KRAFT_VERSION and level != current:
        raise _refusal(name, level, f'the level is {current}, and stays what it was when the directory was formatted')
    if name == METADATA_VERSION and level < current:
        _check_downgrade_of_metadata(level, current)


def _check_downgrade_of_metadata(level: int, current: int) -> None:
    lost = lost_changes(level, current)
    if lost:
        raise _refusal(METADATA_VERSION, level, f'records of level {lost[-1]} may be in the log, and level {level} '
                       'cannot express them')


def _refusal(name: str, level: int, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f'{name[:80]} cannot have the level {level}: {reason}')
