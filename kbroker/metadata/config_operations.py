"""Changes of the configs of topics, brokers, groups and client metrics subscriptions."""
from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.changes import Steps, check_batch_length, check_batch_size
from kbroker.metadata.commits import Commits
from kbroker.metadata.config_records import MIN_INSYNC_REPLICAS, check_config_sizes, config_record, longest_encoding
from kbroker.metadata.image import ResourceType
from kbroker.metadata.topic_operations import existing_topic
from kbroker.protocol.messages import ClearElrRecord
from kbroker.settings.config import Config, validate_broker_configs
from kbroker.settings.group_resources import validate_group_configs
from kbroker.settings.groups import GROUP_SETTINGS
from kbroker.settings.table import TOPIC_SETTINGS
from kbroker.settings.topic_config import validate_topic_configs

Resource = tuple[int, str]
"""(type, name) of a resource that has configs."""


class ConfigOperations:
    """The operations that change configs. The caller of a method must hold a turn of `Commits.turns`."""

    def __init__(self, commits: Commits, config: Config, node_id: int):
        self._commits = commits
        self._config = config
        self._node_id = node_id

    def alter(self, wanted: Mapping[Resource, Mapping[str, str | None]], *,
                      validate_only: bool = False) -> Steps[dict[Resource, KafkaError | None]]:
        """Set the given keys of each resource, or remove a key if its value is None. Return {resource:

        KafkaError or None}.

        Like Kafka, write all valid resources as one batch. If they do not fit into one batch, write several, but never
        divide the changes of one resource. For the type BROKER, the name '' means all brokers. The values of topics,
        brokers and groups are validated here.

        The errors are INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_REQUEST,
        POLICY_VIOLATION and KAFKA_STORAGE_ERROR.
        """
        results: dict[Resource, KafkaError | None] = {}
        left = deque(wanted.items())
        while left:
            written: list[Resource] = []
            with self._commits.preparing() as change:
                while left:
                    (resource, changes) = left[0]
                    try:
                        records = self._config_records(resource, changes)
                        size_bytes = sum(map(longest_encoding, records))
                        if written and not change.has_room(len(records), size_bytes):
                            break
                        check_batch_length(len(records))
                        check_batch_size(size_bytes)
                    except KafkaError as error:
                        results[resource] = error.with_traceback(None)
                    else:
                        results[resource] = None
                        written.append(resource)
                        yield from change.add(records)
                    left.popleft()
                    yield
                if not validate_only:
                    try:
                        yield from self._commits.commit(change)
                    except KafkaError as error:
                        results.update(dict.fromkeys(written, error.with_traceback(None)))
        return results

    def _config_records(self, resource: Resource, changes: Mapping[str, str | None]) -> list[Any]:
        """Return the records that apply `changes` to a resource. Raise KafkaError if a change is not allowed."""
        resource_type, name = resource
        self._check_configs(resource_type, name, changes)
        current = self._commits.image.configs.get(resource, {})
        records: list[Any] = [config_record(resource_type, name, key, value) for key, value in changes.items()
                              if current.get(key) != value]
        if self._commits.image.eligible_leader_replicas_enabled and any(
                record.name == MIN_INSYNC_REPLICAS for record in records):
            records.append(ClearElrRecord(topic_name=name))
        return records

    def _check_configs(self, resource_type: int, name: str, changes: Mapping[str, str | None]) -> None:
        check_config_sizes(changes)
        if resource_type == ResourceType.TOPIC:
            existing_topic(self._commits.image, name)
            merged = {**self._commits.image.configs.get((resource_type, name), {}), **changes}
            # A newer Kafka may have written keys that kbroker does not know. A change may keep or remove them, so they
            # are not validated.
            validate_topic_configs({key: value for key, value in merged.items() if value is not None
                                    and (key in changes or key in TOPIC_SETTINGS)}, self._config)
        elif resource_type == ResourceType.BROKER:
            if name not in ('', str(self._node_id)):
                raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f'found broker {name!r}, expected {self._node_id}')
            validate_broker_configs(self._config, changes, per_broker=bool(name))
            if MIN_INSYNC_REPLICAS in changes and self._commits.image.eligible_leader_replicas_enabled:
                self._check_cluster_min_insync_replicas(name, changes[MIN_INSYNC_REPLICAS])
        elif resource_type == ResourceType.GROUP and name:
            merged = {**self._commits.image.configs.get((resource_type, name), {}), **changes}
            validate_group_configs(self._config, {key: value for key, value in merged.items() if value is not None
                                                  and (key in changes or key in GROUP_SETTINGS)})
        elif resource_type != ResourceType.CLIENT_METRICS or not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'found resource type {resource_type} with the name {name!r}, '
                             'expected a topic, a broker, a group or a client metrics subscription')

    def _check_cluster_min_insync_replicas(self, name: str, value: str | None) -> None:
        """Raise KafkaError if KIP-966 forbids the change: the cluster must have exactly one min.insync.replicas, and
        the log must always contain it.
        """
        if name:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{MIN_INSYNC_REPLICAS} cannot be set for one broker while '
                             'eligible leader replicas are enabled')
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{MIN_INSYNC_REPLICAS} of the cluster cannot be removed while '
                             'eligible leader replicas are enabled')
