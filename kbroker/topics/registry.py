"""The topics of this broker: metadata lists them, the log manager holds the files, and a Partition joins the two."""
from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kbroker.config import Config, LogConfig
from kbroker.errors import ErrorCode, KafkaError
from kbroker.internal_topics import CONSUMER_OFFSETS, INTERNAL_TOPICS
from kbroker.log.checkpoints import PartitionOffsets
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.metadata.controller import MetadataController, NewTopic
from kbroker.metadata.image import PartitionImage, ResourceType, TopicImage
from kbroker.settings import LONG_MAX
from kbroker.topics.flusher import Flusher
from kbroker.topics.partition import Partition, Tick
from kbroker.topics.topic import Topic

logger = logging.getLogger('kbroker.topics')

OpenLog = Callable[[str, int, bytes, LogConfig], Log]
"""LogManager.open_log, or create_log for a new partition."""


@dataclass(slots=True)
class TopicRegistry:
    """All topics by name and by id.

    `on_topic_created` and `on_topic_deleted` are called with the Topic: after the partitions can be used, and after
    they no longer can. `by_encoded_name` (UTF-8, as requests carry names) and `by_id` are for reading.
    """

    config: Config
    controller: MetadataController
    log_manager: LogManager
    flusher: Flusher
    tick: Tick | None = None
    on_topic_created: list[Callable[[Topic], None]] = field(default_factory=list)
    on_topic_deleted: list[Callable[[Topic], None]] = field(default_factory=list)
    _by_name: dict[str, Topic] = field(default_factory=dict)
    by_encoded_name: dict[bytes, Topic] = field(default_factory=dict)
    by_id: dict[bytes, Topic] = field(default_factory=dict)

    def open_all(self) -> None:
        """Open every topic of the metadata image. Recovery runs here for a directory that was not stopped cleanly."""
        self._set_strays_aside()
        for image in self.controller.image.topics.values():
            self._open(image, partial(self.log_manager.open_log, sync_later=True))
        self.log_manager.sync_recovered()
        self.log_manager.high_watermark = self._high_watermark_of
        self.log_manager.high_watermarks = self._high_watermarks
        self.log_manager.on_start_moved = self._report_start_moved

    def topics(self) -> list[Topic]:
        return list(self._by_name.values())

    def partitions(self) -> list[Partition]:
        return [partition for topic in self._by_name.values() for partition in topic.partitions]

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self.by_id.get(topic_id)

    def find(self, topic: str, partition: int) -> Partition | None:
        found = self._by_name.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def get(self, topic: str, partition: int) -> Partition:
        """Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR once the log directory has failed."""
        found = self.find(topic, partition)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{topic}-{partition} does not exist')
        if found.failure is not None:
            raise found.failure
        return found

    def create(self, name: str, partitions: int, configs: dict[str, str]) -> Topic:
        """Create a topic durably and open it. Raises KafkaError of the controller's checks."""
        return self._opened(self.controller.create_topic(name, partitions, configs))

    def create_many(self, new_topics: list[NewTopic], *, validate_only: bool = False) -> list[TopicImage | KafkaError]:
        """Create the valid ones of `new_topics` in one metadata batch. The results have the order of the request."""
        results = self.controller.create_topics(new_topics, validate_only=validate_only)
        if not validate_only:
            for image in results:
                if not isinstance(image, KafkaError):
                    self._opened(image)
        return results

    def ensure_internal(self, name: str) -> Topic:
        """Return the internal topic `name`, created at its first use with Kafka's configs."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        if name == CONSUMER_OFFSETS:
            count = self.config.offsets_topic_num_partitions
            configs = {
                'compression.type': 'producer',
                'cleanup.policy': 'compact',
                'segment.bytes': str(self.config.offsets_topic_segment_bytes),
            }
        else:
            count = self.config.transaction_state_log_num_partitions
            configs = {
                'compression.type': 'uncompressed',
                'cleanup.policy': 'compact',
                'min.insync.replicas': str(self.config.transaction_state_log_min_isr),
                'segment.bytes': str(self.config.transaction_state_log_segment_bytes),
                'unclean.leader.election.enable': 'false',
            }
        return self.create(name, count, configs)

    def delete(self, name: str) -> Topic:
        """Delete a topic durably. Its files are removed after file.delete.delay.ms. Raises KafkaError."""
        topic = self._by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'topic {name!r} does not exist')
        self.controller.delete_topic(name)
        del self._by_name[name]
        del self.by_encoded_name[topic.encoded_name]
        del self.by_id[topic.topic_id]
        for partition in topic.partitions:
            partition.mark_deleted()
        self.log_manager.delete_logs((name, partition.partition) for partition in topic.partitions)
        for listener in self.on_topic_deleted:
            listener(topic)
        return topic

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the number of partitions to `count`. Raises KafkaError INVALID_PARTITIONS for a lower number."""
        image = self.controller.create_partitions(name, count)
        topic = self._by_name[name]
        for partition_image in image.partitions[len(topic.partitions):]:
            log = self.log_manager.create_log(name, partition_image.index, topic.topic_id, topic.config)
            topic.partitions.append(self._partition(log, topic.topic_id, partition_image))
        topic.metadata = None

    def flush_by_time(self) -> None:
        """Flush the partitions of topics with a flush.ms. The caller's interval is the precision, as in Kafka."""
        for topic in self._by_name.values():
            if topic.config.flush_ms < LONG_MAX:
                for partition in topic.partitions:
                    partition.request_flush()

    def configure(self, config: Config) -> None:
        """Apply changed defaults of the broker to every topic that does not override them."""
        self.config = config
        for topic in self._by_name.values():
            self._apply(topic, topic.overrides)

    def configure_topic(self, name: str) -> None:
        """Apply the configs of a topic that changed in the metadata image."""
        self._apply(self._by_name[name], self._overrides(name))

    def _set_strays_aside(self) -> None:
        """Rename directories of no topic, or of another topic of the same name, as Kafka does."""
        image = self.controller.image
        for name, partition in sorted(self.log_manager.found):
            topic = image.topics.get(name)
            found_id = self.log_manager.topic_id_of(name, partition)
            if topic is None or not topic.has_partition(partition) or found_id not in (None, topic.topic_id):
                self.log_manager.set_aside(name, partition)

    def _high_watermark_of(self, log: Log) -> int:
        partition = self.find(log.topic, log.partition)
        return log.flushed_offset if partition is None else partition.high_watermark

    def _high_watermarks(self) -> PartitionOffsets:
        return {(topic.name, partition.partition): partition.high_watermark
                for topic in self._by_name.values() for partition in topic.partitions}

    def _report_start_moved(self, log: Log) -> None:
        partition = self.find(log.topic, log.partition)
        if partition is not None:
            partition.start_moved()

    def _overrides(self, name: str) -> dict[str, str]:
        return dict(self.controller.image.configs.get((ResourceType.TOPIC, name), {}))

    def _apply(self, topic: Topic, overrides: dict[str, str]) -> None:
        topic.overrides = overrides
        topic.config = LogConfig(self.config, overrides)
        topic.produce_rules = None
        for partition in topic.partitions:
            partition.update_config(topic.config)

    def _opened(self, image: TopicImage) -> Topic:
        topic = self._open(image, self.log_manager.create_log)
        for listener in self.on_topic_created:
            listener(topic)
        return topic

    def _open(self, image: TopicImage, open_log: OpenLog) -> Topic:
        overrides = self._overrides(image.name)
        config = LogConfig(self.config, overrides)
        partitions = [self._partition(open_log(image.name, partition_image.index, image.topic_id, config),
                                      image.topic_id, partition_image)
                      for partition_image in image.partitions]
        topic = Topic(image.name, image.topic_id, partitions, overrides, config, image.name in INTERNAL_TOPICS)
        self._by_name[image.name] = topic
        self.by_encoded_name[topic.encoded_name] = topic
        self.by_id[image.topic_id] = topic
        return topic

    def _partition(self, log: Log, topic_id: bytes, image: PartitionImage) -> Partition:
        return Partition(log, topic_id, image.leader_epoch, self.flusher,
                         self.config.kbroker_durability == 'page-cache', self.tick)
