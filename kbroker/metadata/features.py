"""Feature levels: the levels that this broker supports, the levels of a new directory, and the record versions that a
level allows.
"""
from __future__ import annotations

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
