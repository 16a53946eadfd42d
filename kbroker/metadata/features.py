"""Feature levels: the levels that this broker supports, the levels of a new directory, and the record versions that a
level allows.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.protocol.messages import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)

METADATA_VERSION = 'metadata.version'
KRAFT_VERSION = 'kraft.version'
TRANSACTION_VERSION = 'transaction.version'
ELIGIBLE_LEADER_REPLICAS_VERSION = 'eligible.leader.replicas.version'
SHARE_VERSION = 'share.version'

SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    METADATA_VERSION: (7, 33),
    KRAFT_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    'group.version': (0, 1),
    ELIGIBLE_LEADER_REPLICAS_VERSION: (0, 1),
    SHARE_VERSION: (0, 2),
    'streams.version': (0, 1),
}
"""Maps each feature to its lowest and highest supported level.

The broker does not write to a directory with other levels.
"""

RELEASES: dict[str, dict[str, int]] = {
    '4.3': {
        METADATA_VERSION: 30,
        ELIGIBLE_LEADER_REPLICAS_VERSION: 1,
        'group.version': 1,
        SHARE_VERSION: 1,
        'streams.version': 1,
        TRANSACTION_VERSION: 2,
    },
    '4.4': {
        METADATA_VERSION: 33,
        ELIGIBLE_LEADER_REPLICAS_VERSION: 1,
        'group.version': 1,
        SHARE_VERSION: 2,
        'streams.version': 1,
        TRANSACTION_VERSION: 2,
    },
}
"""Maps a release of Apache Kafka to the levels that it finalizes in a new directory.

metadata.version is first, because it must be replayed first.
"""

DEFAULT_RELEASE = '4.3'
"""The release whose levels a new directory gets. Apache Kafka 4.3 and 4.4 open such a directory."""

DEFAULT_FEATURES = RELEASES[DEFAULT_RELEASE]

METADATA_CHANGES = (7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33)
"""The levels of metadata.version that introduced new records, new fields of records, or new values of fields.

Level 31 introduced none. Level 32 allows an address range as the host of an ACL, and level 33 allows
UnregisterController records.
"""

REQUIRED_METADATA_VERSION = {ELIGIBLE_LEADER_REPLICAS_VERSION: 23}
"""Maps a feature to the lowest metadata.version with which its level may be above 0."""

DIRECTORIES_SINCE = 17
"""The lowest metadata.version with which partition records contain the log directories of the replicas (KIP-858)."""

CIDR_HOSTS_SINCE = 32
"""The lowest metadata.version with which the host of an ACL may be an address range, such as 10.0.0.0/8."""

CONTROLLERS_UNREGISTERED_SINCE = 33
"""The lowest metadata.version with which the metadata log may contain UnregisterController records."""

DEAD_LETTERS_SINCE = 2
"""The lowest share.version with which share groups write dead letters."""

_VERSIONS_BY_METADATA_VERSION: dict[type, tuple[tuple[int, int], ...]] = {
    RegisterBrokerRecord: ((30, 4), (17, 3), (8, 2), (7, 1)),
    PartitionRecord: ((23, 2), (17, 1), (7, 0)),
    PartitionChangeRecord: ((23, 2), (17, 1), (7, 0)),
}


def newer_level(levels: Mapping[str, int]) -> str:
    """Return a text about the first level that only a later release knows, or an empty string if there is none."""
    for name, level in levels.items():
        if name not in SUPPORTED_FEATURES:
            return f'found feature {name} at level {level}, which this release does not know'
        low, high = SUPPORTED_FEATURES[name]
        if level > high:
            return f'found feature {name} at level {level}, expected {low} to {high}'
    return ''


def record_version(record: Any, metadata_version: int) -> int:
    """Return the version in which Kafka writes `record` if the finalized metadata.version is `metadata_version`."""
    if isinstance(record, BrokerRegistrationChangeRecord):
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    for since, version in _VERSIONS_BY_METADATA_VERSION.get(type(record), ()):
        if metadata_version >= since:
            return version
    return 0


def levels_of(release: str, changes: Iterable[str] = ()) -> dict[str, int]:
    """Return the levels of a new directory: those of `release`, except for the features in `changes`.

    A change has the form NAME=LEVEL. metadata.version is first, and always that of the release. Features at level 0 are
    omitted, because Kafka writes no record for them. Raise ValueError if the release or a feature is unknown, if the
    broker does not support a level, or if a feature is named twice.
    """
    if release not in RELEASES:
        raise ValueError(f'found the release {release[:80]!r}, expected one of {", ".join(RELEASES)}')
    levels = dict(RELEASES[release])
    changeable = [name for name in levels if name != METADATA_VERSION]
    changed: set[str] = set()
    for text in changes:
        name, level = parse_level(text)
        if name not in changeable:
            raise ValueError(f'found the feature {name[:80]!r}, expected one of {", ".join(changeable)}')
        if name in changed:
            raise ValueError(f'found the feature {name} twice, expected it once')
        low, high = SUPPORTED_FEATURES[name]
        if not low <= level <= high:
            raise ValueError(f'found {name} at level {level}, expected {low} to {high}')
        changed.add(name)
        levels[name] = level
    return {name: level for name, level in levels.items() if level}


def parse_level(text: str) -> tuple[str, int]:
    """Return the name and the level of a text of the form NAME=LEVEL. Raise ValueError if it has another form."""
    name, _, level = text.partition('=')
    if not name or not level.isascii() or not level.isdigit() or len(level) > 5:
        raise ValueError(f'found {text[:80]!r}, expected NAME=LEVEL with a level from 0 to 99999')
    return name, int(level)


def costs_of(levels: Mapping[str, int]) -> list[str]:
    """Return a sentence for each level that closes the directory to an earlier release of Apache Kafka.

    The sentence says so, and whether the level can be lowered again.
    """
    oldest = next(iter(RELEASES))
    costs = []
    for name, level in levels.items():
        since = next((release for release, known in RELEASES.items() if level <= known.get(name, level)), None)
        if since is not None and since != oldest:
            is_final = name == METADATA_VERSION and bool(lost_changes(RELEASES[oldest][name], level))
            costs.append(f'{name} {level}: Apache Kafka before {since} cannot open the directory, and the level '
                         f'{"cannot" if is_final else "can"} be lowered again')
    return costs


def lost_changes(lower: int, higher: int) -> list[int]:
    """Return the levels whose records may be in the log at metadata.version `higher`, and which `lower` cannot express.

    metadata.version cannot go down to `lower` if there are any.
    """
    return [change for change in METADATA_CHANGES if lower < change <= higher]
