"""The identity of a source: its cluster id and topic ids. An offset is valid only for the topic id with which it was
read."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.log.partition_metadata import NO_TOPIC_ID, format_uuid
from kbroker.settings.properties import read_properties
from kbroker_tools.spark.options import Options
from kbroker_tools.spark.partition_files import parse_directory_name
from kbroker_tools.spark.storage import Storage

META_PROPERTIES = 'meta.properties'
PARTITION_METADATA = 'partition.metadata'


@dataclass(frozen=True)
class Identity:
    """The cluster id and topic ids of a source. An old broker or a copied directory may lack them. Then the cluster id
    is None, or a topic has no entry."""

    cluster_id: str | None
    topic_ids: dict[str, str]


def identify(options: Options, topics: Sequence[str]) -> Identity:
    """Return the identity of the source that the options name. Raise OSError if a file cannot be read, and KafkaError
    or ClientError if a broker fails."""
    if options.bootstrap_servers is None:
        return _of_directories([Storage(location) for location in options['path']], topics)
    cluster = Cluster(ClientConfig.from_settings(options.kafka))
    try:
        found = cluster.topics()
        return Identity(cluster.cluster_id, {name: format_uuid(found[name].topic_id) for name in topics
                                             if name in found and found[name].topic_id != NO_TOPIC_ID})
    finally:
        cluster.close()


def _of_directories(directories: Sequence[Storage], topics: Sequence[str]) -> Identity:
    cluster_ids: set[str] = set()
    topic_ids: dict[str, str] = {}
    for directory in directories:
        itself = parse_directory_name(directory.location.rstrip('/').rpartition('/')[2])
        parent = Storage(directory.location.rstrip('/').rpartition('/')[0] or '/') if itself else directory
        cluster_ids |= _cluster_id(parent)
        partitions = {itself: directory} if itself else {
            found: directory.child(name) for name, facts in directory.list().items()
            if facts is None and (found := parse_directory_name(name))}
        for (topic, _), storage in partitions.items():
            if topic in topics and topic not in topic_ids:
                topic_ids |= topic_id_in(topic, storage)
    return Identity(cluster_ids.pop() if len(cluster_ids) == 1 else None, topic_ids)


def _cluster_id(directory: Storage) -> set[str]:
    try:
        found, _ = read_properties(directory.read(META_PROPERTIES).decode('utf-8', 'replace'))
    except FileNotFoundError:
        return set()
    return {found['cluster.id']} if 'cluster.id' in found else set()


def topic_id_in(topic: str, directory: Storage) -> dict[str, str]:
    """Return {topic: topic id}, read from a partition directory of the topic. Return {} if the directory has no topic
    id."""
    try:
        text = directory.read(PARTITION_METADATA).decode('utf-8', 'replace')
    except FileNotFoundError:
        return {}
    match = re.search(r'^topic_id: *([\w-]{22})\s*$', text, re.MULTILINE)
    return {topic: match[1]} if match else {}
