"""The ownership of a log directory:

`meta.properties`, the formatting of a new directory, and the checks before the first write to it.
"""
from __future__ import annotations

import contextlib
import os
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbroker import __version__
from kbroker.base.errors import CorruptLogError, LogDirectoryError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.log.fs import SMALL_FILE_BYTES, FileSystem
from kbroker.log.inventory import read_inventory
from kbroker.metadata.features import DEFAULT_FEATURES, KRAFT_VERSION, METADATA_VERSION, SUPPORTED_FEATURES, newer_level
from kbroker.metadata.image import MetadataImage, TopicImage
from kbroker.metadata.quorum_log import DIRECTORY_NAME, PARTITION_METADATA, QuorumLog, make_directory
from kbroker.metadata.snapshots import FORMAT_SNAPSHOT_FILE, encode_format_snapshot
from kbroker.protocol.messages import FeatureLevelRecord, KRaftVersionRecord, VotersRecord
from kbroker.settings.properties import read_properties

META_PROPERTIES_FILE = 'meta.properties'
META_PROPERTIES_VERSION = 1
"""The version of the file that brokers of KRaft clusters write. Version 0 is that of clusters with ZooKeeper."""
_RESERVED_IDS = 100
"""Kafka reserves the uuids below this number.

For example, one of them stands for a replica whose log directory is not assigned.
"""

_BEFORE_FORMATTING = frozenset(('.lock', DIRECTORY_NAME, f'{META_PROPERTIES_FILE}.tmp'))
_BEFORE_FORMATTING_INSIDE = frozenset(
    name + suffix for name in ('partition.metadata', FORMAT_SNAPSHOT_FILE) for suffix in ('', '.tmp'))
"""The files that formatting may leave after a crash. They contain no record that was ever visible."""


class DirectoryRefusedError(LogDirectoryError):
    """Raised if the broker must not write to the log directory.

    The message says what was found and what was expected.
    """


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The content of `meta.properties`: the cluster and the node that own the log directory, and the directory's id."""

    cluster_id: str
    node_id: int
    directory_id: bytes


def format_uuid(value: bytes) -> str:
    """Return Kafka's text form of a uuid: URL-safe base64 without padding."""
    return urlsafe_b64encode(value).decode().rstrip('=')


def parse_uuid(text: str) -> bytes:
    """Return the 16 bytes of a uuid in Kafka's text form. Raise ValueError if `text` is not a uuid."""
    try:
        value = urlsafe_b64decode(text + '==')
    except ValueError:
        value = b''
    if len(value) != 16 or format_uuid(value) != text:
        raise ValueError(f'found {text!r}, expected the 22 characters of a uuid')
    return value


def random_uuid() -> bytes:
    """Return a random uuid of 16 bytes.

    Its text form does not begin with a dash, because a command line would take it for an option.
    """
    value = uuid.uuid4().bytes
    return value if not format_uuid(value).startswith('-') else random_uuid()


# -- meta.properties

def read_meta_properties(fs: FileSystem, log_dir: str) -> MetaProperties:
    """Return the content of `meta.properties`.

    Raise DirectoryRefusedError if it is incomplete or not of version 1, OSError if it cannot be read.
    """
    path = os.path.join(log_dir, META_PROPERTIES_FILE)
    try:
        found, _ = read_properties(fs.read_file(path, SMALL_FILE_BYTES).decode())
        if found.get('version', '').isdecimal() and int(found['version']) > META_PROPERTIES_VERSION:
            raise DirectoryRefusedError(f'{path}: found version {found["version"]}, expected '
                                        f'{META_PROPERTIES_VERSION}. {later_release(fs, log_dir)}')
        if found.get('version') != str(META_PROPERTIES_VERSION):
            raise DirectoryRefusedError(f'{path}: found version {found.get("version")}, expected 1: only directories '
                                        'of KRaft brokers can be opened')
        properties = MetaProperties(found['cluster.id'], int(found['node.id']), parse_uuid(found['directory.id']))
    except KeyError as error:
        raise DirectoryRefusedError(f'{path}: found no {error.args[0]}') from None
    except CorruptLogError as error:
        raise DirectoryRefusedError(str(error)) from error
    except ValueError as error:
        raise DirectoryRefusedError(f'{path}: {error}') from error
    if int.from_bytes(properties.directory_id, 'big') < _RESERVED_IDS:
        raise DirectoryRefusedError(f'{path}: found the reserved directory.id {found["directory.id"]}')
    return properties


def write_meta_properties(fs: FileSystem, log_dir: str, properties: MetaProperties) -> None:
    """Write `meta.properties` durably. Raise OSError if a write or a sync fails."""
    lines = (f'node.id={properties.node_id}', f'directory.id={format_uuid(properties.directory_id)}', 'version=1',
             f'cluster.id={properties.cluster_id}')
    data = ''.join(f'{line}\n' for line in lines).encode()
    fs.write_file_atomically(os.path.join(log_dir, META_PROPERTIES_FILE), data)


# -- formatting

def is_unformatted(fs: FileSystem, log_dir: str) -> bool:
    """Return whether the directory may be formatted: it is missing, or contains only files that formatting may leave
    after a crash.
    """
    if not fs.exists(log_dir):
        return True
    metadata_directory = os.path.join(log_dir, DIRECTORY_NAME)
    return _BEFORE_FORMATTING.issuperset(fs.listdir(log_dir)) and (
        not fs.exists(metadata_directory) or _BEFORE_FORMATTING_INSIDE.issuperset(fs.listdir(metadata_directory)))


def check_unformatted(fs: FileSystem, log_dir: str) -> None:
    """Raise DirectoryRefusedError if the directory contains files that formatting does not create."""
    if not is_unformatted(fs, log_dir):
        raise DirectoryRefusedError(f'{log_dir}: found no {META_PROPERTIES_FILE} but other files, expected an empty '
                                'directory or one that Apache Kafka or kbroker formatted')


def format_directory(fs: FileSystem, log_dir: str, node_id: int, timestamp_ms: int,
                     cluster_id: str | None = None, more_records: Sequence[Any] = (),
                     features: Mapping[str, int] = DEFAULT_FEATURES) -> MetaProperties:
    """Format a log directory as `kafka-storage format --standalone` does: this node is the only voter, with
    kraft.version 1.

    The metadata log will begin with `features` and `more_records`, for example the credential of an administrator.
    `features` maps each feature to its level, with metadata.version first.
    `meta.properties` is written last, because a directory without it counts as unformatted. Raise DirectoryRefusedError
    if the directory contains other files, OSError if a write fails.
    """
    check_unformatted(fs, log_dir)
    if not fs.exists(log_dir):
        fs.mkdir(log_dir)
        fs.sync_directory(os.path.dirname(os.path.abspath(log_dir)))
    properties = MetaProperties(cluster_id or format_uuid(random_uuid()), node_id, random_uuid())
    snapshot = encode_format_snapshot(
        [KRaftVersionRecord(kraft_version=1), voters_record(properties)], [*feature_records(features), *more_records],
        metadata_version=features[METADATA_VERSION], timestamp_ms=timestamp_ms)
    directory = make_directory(fs, log_dir)
    fs.write_file_atomically(os.path.join(directory, 'partition.metadata'), PARTITION_METADATA)
    fs.write_file_atomically(os.path.join(directory, FORMAT_SNAPSHOT_FILE), snapshot)
    write_meta_properties(fs, log_dir, properties)
    return properties


def feature_records(features: Mapping[str, int]) -> list[FeatureLevelRecord]:
    """Return the records of these features."""
    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in features.items()]


def feature_levels(records: Iterable[Any]) -> dict[str, int]:
    """Return {feature: level} of the feature records among `records`."""
    return {record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)}


def voters_record(properties: MetaProperties) -> VotersRecord:
    """Return the record that names this node as the only voter.

    The endpoint in the record is a placeholder, because this node has no controller listener. Apache Kafka adds its
    own.
    """
    low, high = SUPPORTED_FEATURES[KRAFT_VERSION]
    return VotersRecord(voters=[VotersRecord.Voter(
        voter_id=properties.node_id, voter_directory_id=properties.directory_id,
        endpoints=[VotersRecord.Endpoint(name='CONTROLLER', host='localhost', port=9093)],
        kraft_version_feature=VotersRecord.KRaftVersionFeature(min_supported_version=low, max_supported_version=high))])


# -- permission to write

def check_writable(fs: FileSystem, log_dir: str, image: MetadataImage, log: QuorumLog, properties: MetaProperties,
                   node_id: int, bootstrap: Sequence[Any]) -> None:
    """Raise DirectoryRefusedError if the metadata has another owner than this node, or contains a feature that this
    broker does not support.

    `bootstrap` contains the records that this broker will write first if the log has no metadata.version yet.
    """
    if properties.node_id != node_id:
        raise DirectoryRefusedError(f'found node.id {properties.node_id} in {META_PROPERTIES_FILE}, expected {node_id} '
                                    'as in the configuration')
    _check_voters(image, log, properties)
    _check_features(fs, log_dir, {KRAFT_VERSION: image.kraft_version, **image.features, **feature_levels(bootstrap)})
    for broker in image.brokers.values():
        if broker.broker_id != node_id:
            raise DirectoryRefusedError(
                f'found broker {broker.broker_id} registered, expected none but {node_id}: the directory is part of a '
                'larger cluster. ' + _remedy(f'kafka-cluster unregister --id {broker.broker_id}'))
        if len(broker.log_dirs) > 1:
            raise DirectoryRefusedError(
                f'found {len(broker.log_dirs)} log directories in use by broker {node_id}, expected one. To use one of '
                'them, move all replicas to it with kafka-reassign-partitions, then start Apache Kafka once with this '
                'directory alone (docs/moving.md)')
    for topic in image.topics.values():
        _check_topic(topic, node_id)


def later_release(fs: FileSystem, log_dir: str) -> str:
    """Return sentences about the release that can open a directory with a format that this one does not know."""
    writer = ''
    with contextlib.suppress(CorruptLogError, OSError, ValueError, KeyError):
        inventory = read_inventory(fs, log_dir)
        if inventory is not None and inventory.release:
            writer = f': kbroker {inventory.release} made the last clean stop'
    return (f'A later release of Apache Kafka or kbroker wrote it{writer}, and this is kbroker {__version__}. Start '
            'that release or a later one')


def _check_features(fs: FileSystem, log_dir: str, levels: dict[str, int]) -> None:
    if METADATA_VERSION not in levels:
        raise DirectoryRefusedError(f'found no level of {METADATA_VERSION} among the records that the log begins with')
    problem = newer_level(levels)
    if problem:
        raise DirectoryRefusedError(f'{problem}. {later_release(fs, log_dir)}')
    for name, level in levels.items():
        low, high = SUPPORTED_FEATURES[name]
        if level < low:
            raise DirectoryRefusedError(f'found feature {name} at level {level}, expected {low} to {high}')


def _check_voters(image: MetadataImage, log: QuorumLog, properties: MetaProperties) -> None:
    if image.kraft_version == 0:
        _check_static_voters(image, log, properties.node_id)
    else:
        _check_dynamic_voters(image, properties)


def _check_static_voters(image: MetadataImage, log: QuorumLog, node_id: int) -> None:
    """Check the voters of kraft.version 0. They are only in the last LeaderChange and in `quorum-state`."""
    voters = image.leader_change_voters
    if voters is None and log.state is not None and log.end_offset:
        voters = log.state.voters
    if voters is not None and voters != (node_id,):
        raise DirectoryRefusedError(
            f'found the controllers {list(voters)}, expected {[node_id]} alone. '
            + _remedy('kafka-features upgrade --feature kraft.version=1',
                      'kafka-metadata-quorum remove-controller for each other controller'))


def _check_dynamic_voters(image: MetadataImage, properties: MetaProperties) -> None:
    """Check the voters of kraft.version 1 (KIP-853), whatever an older LeaderChange lists.

    If the newest KRaftVoters record names this node alone, this log is a majority. A leader of an earlier voter set
    would have needed the vote of this node, which votes only for a log that has the record, too.
    """
    node_id, directory_id = properties.node_id, properties.directory_id
    registered = [(voter.voter_id, voter.voter_directory_id) for voter in image.voters]
    if registered != [(node_id, directory_id)]:
        found = ', '.join(f'{voter} in directory {format_uuid(directory)}' for voter, directory in registered)
        message = (f'found the voters {found or "none"}; expected {node_id} in directory {format_uuid(directory_id)} '
                   'alone')
        if any(voter != node_id for voter, _ in registered):
            message += '. ' + _remedy('kafka-metadata-quorum remove-controller for each other voter')
        raise DirectoryRefusedError(message)


def _remedy(*commands: str) -> str:
    """Return the advice for a directory of a cluster with more nodes: the commands to run, in order."""
    return f'To shrink the cluster to this node, run on Apache Kafka: {", then ".join(commands)} (docs/outgrow.md)'


def _check_topic(topic: TopicImage, node_id: int) -> None:
    for expected, partition in enumerate(topic.partitions):
        if partition.index != expected:
            raise DirectoryRefusedError(f'topic {topic.name}: found partition {partition.index}, expected {expected}')
        if partition.replicas != (node_id,) or partition.adding_replicas or partition.removing_replicas:
            raise DirectoryRefusedError(
                f'partition {topic.name}-{partition.index}: found the replicas {list(partition.replicas)}, expected '
                f'{[node_id]} and no reassignment. '
                + _remedy('kafka-reassign-partitions --execute', 'the same with --verify until it is complete'))
