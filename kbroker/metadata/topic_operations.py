"""The creation, growth and deletion of topics. Each operation creates the records of one batch.

An operation is a generator. It yields between small parts, and waits until its batch is durable. Its caller must hold a
turn of `Commits.turns`, so that no two of these operations overlap. But an operation that runs in `Commits.at_once` may
take effect during another operation.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.long_work import charge_nothing
from kbroker.metadata.changes import Change, Charge, Steps, check_batch_length
from kbroker.metadata.commits import Commits
from kbroker.metadata.config_records import MIN_INSYNC_REPLICAS, check_config_sizes, config_record
from kbroker.metadata.directory import MetaProperties, random_uuid
from kbroker.metadata.features import DIRECTORIES_SINCE
from kbroker.metadata.image import MetadataImage, ResourceType, TopicImage
from kbroker.metadata.topic_names import check_collision, check_topic_name
from kbroker.protocol.messages import ClearElrRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from kbroker.settings.config import Config
from kbroker.settings.topic_config import validate_topic_configs

CLUSTER_METADATA = '__cluster_metadata'


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic in a CreateTopics request."""

    name: str
    partitions: int
    configs: Mapping[str, str | None] = MappingProxyType({})


class TopicOperations:
    """The operations on topics and partitions. This broker is the only replica of each partition."""

    def __init__(self, commits: Commits, config: Config, properties: MetaProperties):
        self._commits = commits
        self._config = config
        self._properties = properties

    def create(self, new_topics: Sequence[NewTopic], *, validate_only: bool = False,
               charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Create topics in one batch. Return the topic or an error for each of `new_topics`, in the same order.

        The errors are INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG,
        INVALID_REQUEST, POLICY_VIOLATION and the errors that `charge` raises. `charge` is called with the number of
        partitions of each valid topic.

        With `validate_only`, return the same results but write nothing. Raise KafkaError for the whole batch:
        POLICY_VIOLATION if it is too large, KAFKA_STORAGE_ERROR if a write fails.
        """
        with self._commits.preparing() as change:
            refused = yield from self._add_new(change, new_topics, charge)
            after = change.validated() if validate_only else (yield from self._commits.commit(change))
        return [refused.get(new.name) or after.topics[new.name] for new in new_topics]

    def _add_new(self, change: Change, new_topics: Sequence[NewTopic],
                 charge: Charge) -> Steps[dict[str, KafkaError]]:
        """Add the records of all valid topics to `change`.

        Return {topic name: error} for the topics that are not valid.
        """
        check_batch_length(sum(max(0, new.partitions) for new in new_topics))
        times = Counter(new.name for new in new_topics)
        refused: dict[str, KafkaError] = {}
        for new in new_topics:
            try:
                if times[new.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST,
                                     f'Topic {new.name!r} is named {times[new.name]} times')
                self._check_new_topic(new)
                charge(new.partitions)
            except KafkaError as error:
                refused[new.name] = error.with_traceback(None)
                if change.pace.spend():
                    yield
            else:
                yield from change.add(self._topic_records(new))
        return refused

    def _check_new_topic(self, new: NewTopic) -> None:
        check_topic_name(new.name)
        if new.name == CLUSTER_METADATA:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{CLUSTER_METADATA} is the metadata log and no topic')
        for image in self._commits.images():
            if new.name in image.topics:
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f'Topic {new.name!r} already exists')
            check_collision(new.name, image.flat_names)
        if new.partitions < 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f'found {new.partitions} partitions, expected at least 1')
        check_batch_length(new.partitions + len(new.configs))
        check_config_sizes(new.configs)
        validate_topic_configs(new.configs, self._config)

    def _topic_records(self, new: NewTopic) -> Iterator[Any]:
        topic_id = random_uuid()
        yield TopicRecord(name=new.name, topic_id=topic_id)
        for key, value in new.configs.items():
            yield config_record(ResourceType.TOPIC, new.name, key, value)
        if MIN_INSYNC_REPLICAS in new.configs and self._commits.image.eligible_leader_replicas_enabled:
            yield ClearElrRecord(topic_name=new.name)
        yield from self._partition_records(topic_id, range(new.partitions))

    def _partition_records(self, topic_id: bytes, indexes: Iterable[int]) -> Iterator[PartitionRecord]:
        node_id = self._properties.node_id
        directories = directories_of(self._commits.image, self._properties.directory_id)
        return (PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[node_id], isr=[node_id],
                                leader=node_id, leader_epoch=0, partition_epoch=0, directories=directories)
                for index in indexes)

    def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False,
                          charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Raise the number of partitions of each topic in `counts`, in one batch.

        Return the topic or an error for each.

        The errors are UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS and the errors that `charge` raises. `charge` is
        called with the number of partitions added to each topic. Raise the same errors for the whole batch as `create`.
        """
        refused: dict[str, KafkaError] = {}
        with self._commits.preparing() as change:
            for name, count in counts.items():
                try:
                    topic = existing_topic(self._commits.image, name)
                    found = len(topic.partitions)
                    if count <= found:
                        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f'found {count} partitions, expected more than '
                                         f'the {found} of topic {name!r}')
                    charge(count - found)
                except KafkaError as error:
                    refused[name] = error.with_traceback(None)
                    if change.pace.spend():
                        yield
                else:
                    check_batch_length(len(change.records) + count - found)
                    yield from change.add(self._partition_records(topic.topic_id, range(found, count)))
            after = change.validated() if validate_only else (yield from self._commits.commit(change))
        return [refused.get(name) or after.topics[name] for name in counts]

    def delete(self, topics: Sequence[str | bytes],
               charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Delete topics, given by name or id, in one batch.

        Return the deleted topic or an error for each, in the same order.

        `charge` is called with the number of partitions of each topic. If it raises a KafkaError, this is the error of
        the topic.
        """
        check_batch_length(len(topics))
        results: list[TopicImage | KafkaError] = []
        doomed: set[bytes] = set()
        with self._commits.preparing() as change:
            for topic in topics:
                try:
                    found = existing_topic(self._commits.image, topic)
                    if found.topic_id not in doomed:
                        charge(len(found.partitions))
                except KafkaError as error:
                    results.append(error.with_traceback(None))
                    if change.pace.spend():
                        yield
                else:
                    results.append(found)
                    if found.topic_id not in doomed:
                        doomed.add(found.topic_id)
                        yield from change.add([RemoveTopicRecord(topic_id=found.topic_id)])
            yield from self._commits.commit(change)
        return results


def existing_topic(image: MetadataImage, topic: str | bytes) -> TopicImage:
    """Return the topic with this name or id.

    Raise KafkaError UNKNOWN_TOPIC_OR_PARTITION for an unknown name, UNKNOWN_TOPIC_ID for an unknown id.
    """
    if isinstance(topic, str):
        if topic not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'Topic {topic!r} does not exist')
        return image.topics[topic]
    if topic not in image.topics_by_id:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f'There is no topic of id {topic.hex()}')
    return image.topics_by_id[topic]


def directories_of(image: MetadataImage, directory_id: bytes) -> list[bytes]:
    """Return the log directories for a record of a replica.

    If metadata.version is too low for directories, return [].
    """
    return [directory_id] if image.metadata_version >= DIRECTORIES_SINCE else []
