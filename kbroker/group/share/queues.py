"""The topics of the dead-letter queues of share groups (KIP-1191): which topic a group uses, and whether it may."""
from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import Pace
from kbroker.group.config import GroupConfig
from kbroker.group.share.rows import ShareKey
from kbroker.metadata.changes import Steps
from kbroker.metadata.features import DEAD_LETTERS_SINCE, SHARE_VERSION
from kbroker.metadata.topic_operations import NewTopic
from kbroker.settings.config import Config
from kbroker.topics.partition import Partition
from kbroker.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from kbroker.topics.topic import Topic

INTERNAL_PREFIX = '__'
NEW_QUEUE = {'errors.deadletterqueue.group.enable': 'true', 'message.timestamp.type': 'CreateTime'}
"""The configs of a topic that the broker creates for dead letters."""


class NoQueueError(Exception):
    """Raised if a group's dead letters must not be written. The text says why."""


class DeadLetterQueues:
    """The topics that share groups use as dead-letter queues.

    Each method reads the configs and the features of the moment. As in Kafka, a group may name any topic as its queue;
    whether the broker may write to the topic is checked when a record needs a dead letter.
    """

    def __init__(self, topics: TopicRegistry, config: Config):
        self._topics = topics
        self._config = config

    def is_on(self, group: GroupConfig) -> bool:
        """Return whether the records of a group get dead letters."""
        features = self._topics.controller.image.features
        return bool(group.errors_deadletterqueue_topic_name) and features.get(SHARE_VERSION, 0) >= DEAD_LETTERS_SINCE

    def topic_of(self, group: GroupConfig) -> Steps[Topic]:
        """Return the topic for the dead letters of a group, as long work. Create the topic if it does not exist and the
        broker may create it.

        Raise NoQueueError if the group has no queue, or may not use the topic. Raise KafkaError if the topic cannot be
        created.
        """
        name = group.errors_deadletterqueue_topic_name
        if not name:
            raise NoQueueError('the group has no errors.deadletterqueue.topic.name')
        if name.startswith(INTERNAL_PREFIX):
            raise NoQueueError(f'topic {name!r} begins with {INTERNAL_PREFIX!r}')
        topic = self._topics.topic(name)
        if topic is not None and not topic.config.errors_deadletterqueue_group_enable:
            raise NoQueueError(f'topic {name!r} does not set errors.deadletterqueue.group.enable=true')
        if topic is None and not self._config.errors_deadletterqueue_auto_create_topics_enable:
            raise NoQueueError(f'topic {name!r} does not exist, and the broker does not set '
                               'errors.deadletterqueue.auto.create.topics.enable=true')
        prefix = self._config.errors_deadletterqueue_topic_name_prefix
        if not name.startswith(prefix):
            raise NoQueueError(f'topic {name!r} does not begin with {prefix!r}, the '
                               'errors.deadletterqueue.topic.name.prefix of the broker')
        if topic is None:
            yield from self._create(name)
            topic = self._topics.topic(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'topic {name!r} was deleted again')
        return topic

    def _create(self, name: str) -> Steps[None]:
        result, = yield from self._topics.create_many([NewTopic(name, self._config.num_partitions, NEW_QUEUE)])
        if isinstance(result, KafkaError) and result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise result

    def that_may_have(self, groups: Collection[GroupConfig]) -> Steps[list[Topic]]:
        """Return the topics that may have dead letters of these groups. This is a generator, which searches in parts.

        A group may have changed its queue since its dead letters were written. So these are all topics that allow dead
        letters, and the current queues of the groups.
        """
        names = {group.errors_deadletterqueue_topic_name for group in groups}
        pace = Pace()
        found = []
        for topic in self._topics.topics():
            if topic.name in names or topic.config.errors_deadletterqueue_group_enable:
                found.append(topic)
            if pace.spend():
                yield
        return found

    def partition_of(self, key: ShareKey) -> Partition | None:
        """Return the partition that a share group reads, or None if it does not exist."""
        topic = self._topics.topic_by_id(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        return topic.partitions[key.partition]
