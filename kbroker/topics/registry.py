"""The topics of this broker.

The metadata lists them, the log manager holds their files, and a Partition joins the two.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, INTERNAL_TOPICS, SHARE_GROUP_STATE
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.ledger import Line
from kbroker.base.long_work import Pace, charge_nothing, run_to_end
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.metadata.changes import Charge, Steps, check_batch_length
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.image import PartitionImage, ResourceType, TopicImage
from kbroker.metadata.topic_operations import NewTopic
from kbroker.settings.config import Config
from kbroker.settings.rows import LONG_MAX
from kbroker.settings.topic_config import LogConfig
from kbroker.topics.flusher import Flusher
from kbroker.topics.partition import Partition, Tick
from kbroker.topics.topic import Topic

logger = logging.getLogger('kbroker.topics')

MOST_PARTITIONS = 100_000
"""The most partitions of a broker. Each takes 7 to 10 KB of memory.

A start also opens existing partitions that exceed this number.
"""


@dataclass(slots=True)
class TopicRegistry:
    """All topics by name and by id.

    The functions in `on_topic_created` and `on_partitions_added` are called with the Topic once its partitions can be
    used, those in `on_topic_deleted` when they can no longer be used. Other code may only read `by_encoded_name` (its
    keys are names in UTF-8, as in requests) and `by_id`.
    """

    config: Config
    controller: MetadataController
    log_manager: LogManager
    flusher: Flusher
    tick: Tick | None = None
    most_partitions: int = MOST_PARTITIONS
    on_topic_created: list[Callable[[Topic], None]] = field(default_factory=list)
    on_topic_deleted: list[Callable[[Topic], None]] = field(default_factory=list)
    on_partitions_added: list[Callable[[Topic], None]] = field(default_factory=list)
    _by_name: dict[str, Topic] = field(default_factory=dict)
    by_encoded_name: dict[bytes, Topic] = field(default_factory=dict)
    by_id: dict[bytes, Topic] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    """The names of deleted topics whose directories are not renamed yet."""

    def ledger(self) -> list[Line]:
        return [Line('partitions', '', lambda: len(self.log_manager.logs), lambda: self.most_partitions, '10 KB each')]

    def open_all(self) -> None:
        """Open every topic of the metadata image. If the directory was not stopped cleanly, recover its partitions."""
        self._set_strays_aside()
        for image in self.controller.image.topics.values():
            self._open_found(image)
        self.log_manager.sync_recovered()
        self.log_manager.verification.finish()
        self.log_manager.high_watermark = self._high_watermark_of
        self.log_manager.on_start_moved = self._report_start_moved

    @property
    def metadata_offset(self) -> int:
        """The end offset of the metadata log."""
        return self.controller.end_offset

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
        """Return a partition.

        Raise KafkaError UNKNOWN_TOPIC_OR_PARTITION if it does not exist, KAFKA_STORAGE_ERROR if the log directory has
        failed.
        """
        found = self.find(topic, partition)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{topic}-{partition} does not exist')
        if found.failure is not None:
            raise found.failure.with_traceback(None)
        return found

    # A change of many partitions is a generator, which yields between small parts. `commits.turns` lets only one such
    # change run at a time. A new topic enters the registry when all its partitions are open. It stays there until its
    # deletion is durable.

    def create(self, name: str, partitions: int, configs: dict[str, str]) -> Topic:
        """Create a topic durably and open it before returning. Raise KafkaError if the controller refuses the topic."""
        if name in self._leaving:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'topic {name!r} is being deleted')
        result, = self.controller.at_once(self.controller.topics.create([NewTopic(name, partitions, configs)]))
        if isinstance(result, KafkaError):
            raise result
        return run_to_end(self._open_new(result))

    def create_many(self, new_topics: list[NewTopic], *, validate_only: bool = False,
                    charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Create the valid topics of `new_topics` in one metadata batch.

        Return a result for each topic, in the order of `new_topics`.

        `TopicOperations.create` documents `charge`.
        """
        yield from self.controller.commits.turns.take()
        try:
            check_batch_length(len(new_topics))
            self._check_room(sum(max(0, new.partitions) for new in new_topics))
            results = yield from self.controller.topics.create(
                new_topics, validate_only=validate_only, charge=charge)
            if not validate_only:
                for image in results:
                    if not isinstance(image, KafkaError):
                        yield from self._open_new(image)
            return results
        finally:
            self.controller.commits.turns.end()

    def ensure_internal(self, name: str) -> Topic:
        """Return the internal topic `name`. If it does not exist, create it with the configs that Kafka uses."""
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
        elif name == SHARE_GROUP_STATE:
            count = self.config.share_coordinator_state_topic_num_partitions
            configs = {
                'compression.type': 'producer',
                'cleanup.policy': 'delete',
                'segment.bytes': str(self.config.share_coordinator_state_topic_segment_bytes),
                'retention.ms': '-1',
                'min.insync.replicas': str(self.config.share_coordinator_state_topic_min_isr),
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

    def delete_many(self, topics: list[Topic], charge: Charge = charge_nothing, *,
                    removes_at_once: bool = False) -> Steps[dict[str, KafkaError]]:
        """Delete topics durably, except topics that were deleted in the meantime.

        Their files are removed after file.delete.delay.ms, or without that delay.

        Return {topic name: the error that `charge` raised} for the topics that are not deleted. Raise KafkaError if no
        topic can be deleted.
        """
        yield from self.controller.commits.turns.take()
        try:
            found = [topic for topic in topics if self._by_name.get(topic.name) is topic]
            results = yield from self.controller.topics.delete([topic.topic_id for topic in found], charge)
            refused: dict[str, KafkaError] = {}
            leaving: list[Topic] = []
            try:
                yield from self._hide(found, results, leaving, refused)
                yield from self._close(leaving, removes_at_once)
            finally:
                self._leaving.difference_update(topic.name for topic in leaving)
            return refused
        finally:
            self.controller.commits.turns.end()

    def _hide(self, topics: list[Topic], results: list[TopicImage | KafkaError], leaving: list[Topic],
              refused: dict[str, KafkaError]) -> Steps[None]:
        """Remove the deleted topics from the registry, and add them to `leaving`.

        Add the errors of the topics that are not deleted to `refused`. Empty `results`, so that the images of the
        topics are freed in parts, too.
        """
        pace = Pace()
        results.reverse()
        for topic in topics:
            result = results.pop()
            if isinstance(result, KafkaError):
                refused[topic.name] = result
            else:
                leaving.append(topic)
                self._leaving.add(topic.name)
                del self._by_name[topic.name]
                del self.by_encoded_name[topic.encoded_name]
                del self.by_id[topic.topic_id]
            if pace.spend():
                yield

    def _close(self, topics: list[Topic], removes_at_once: bool) -> Steps[None]:
        """Close the partitions of deleted topics, and rename their directories."""
        for topic in topics:
            for partition in topic.partitions:
                partition.mark_deleted()
                yield
        yield from self.log_manager.delete_logs(
            ((topic.name, partition.partition) for topic in topics for partition in topic.partitions), removes_at_once)
        for topic in topics:
            for listener in self.on_topic_deleted:
                listener(topic)
            yield

    def add_partitions(self, counts: dict[str, int], *, validate_only: bool = False,
                       charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Raise the number of partitions of topics, in one metadata batch.

        Return the changed topic or an error for each of `counts`.

        The error is UNKNOWN_TOPIC_OR_PARTITION for an unknown topic, and INVALID_PARTITIONS for a number that is not
        higher than the current number.
        """
        yield from self.controller.commits.turns.take()
        try:
            check_batch_length(len(counts))
            self._check_room(sum(count - len(self._by_name[name].partitions) for name, count in counts.items()
                                 if name in self._by_name))
            results = yield from self.controller.topics.create_partitions(
                counts, validate_only=validate_only, charge=charge)
            if not validate_only:
                for image in results:
                    if not isinstance(image, KafkaError):
                        yield from self._open_more(self._by_name[image.name], image)
            return results
        finally:
            self.controller.commits.turns.end()

    def _check_room(self, partitions: int) -> None:
        """Raise KafkaError POLICY_VIOLATION if `partitions` more would exceed the limit of this broker."""
        found = len(self.log_manager.logs)
        if found + partitions > self.most_partitions:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f'found {found} partitions and {partitions} more, expected '
                             f'{self.most_partitions} at most on this broker')

    def _open_more(self, topic: Topic, image: TopicImage) -> Steps[None]:
        opened = yield from self._opened(image, image.partitions[len(topic.partitions):], topic.config)
        topic.partitions.extend(opened)
        topic.metadata = None
        for listener in self.on_partitions_added:
            listener(topic)

    def flush_by_time(self) -> Steps[None]:
        """Flush the partitions of topics that set flush.ms.

        As in Kafka, flush.ms is only as precise as the interval between the calls of this function.
        """
        for topic in self.topics():
            if topic.config.flush_ms < LONG_MAX:
                for partition in list(topic.partitions):
                    if not partition.is_deleted:
                        partition.request_flush()
                    yield
            yield

    def configure(self) -> Steps[None]:
        """Apply the changed defaults of the broker to all topics. The overrides of a topic are still stronger.

        The caller must hold a turn of `commits.turns`.
        """
        for topic in self.topics():
            yield from self._apply(topic, topic.overrides)

    def configure_topic(self, name: str) -> Steps[None]:
        """Apply the configs of a topic after they changed in the metadata image.

        The caller must hold a turn of `commits.turns`.
        """
        return self._apply(self._by_name[name], self._overrides(name))

    def _set_strays_aside(self) -> None:
        """As Kafka does, rename directories of no topic, or of a topic with the same name but another id."""
        image = self.controller.image
        for name, partition in sorted(self.log_manager.found):
            topic = image.topics.get(name)
            found_id = self.log_manager.topic_id_of(name, partition)
            if topic is None or not topic.has_partition(partition) or found_id not in (None, topic.topic_id):
                self.log_manager.set_aside(name, partition)

    def _high_watermark_of(self, log: Log) -> int:
        partition = self.find(log.topic, log.partition)
        return log.flushed_offset if partition is None else partition.high_watermark

    def _report_start_moved(self, log: Log) -> None:
        partition = self.find(log.topic, log.partition)
        if partition is not None:
            partition.start_moved()

    def _overrides(self, name: str) -> dict[str, str]:
        return dict(self.controller.image.configs.get((ResourceType.TOPIC, name), {}))

    def _apply(self, topic: Topic, overrides: dict[str, str]) -> Steps[None]:
        topic.overrides = overrides
        topic.config = LogConfig(self.config, overrides)
        topic.produce_rules = None
        pace = Pace()
        for partition in topic.partitions:
            partition.update_config(topic.config)   # the newest one, if it changed during a yield
            if pace.spend():
                yield

    def _open_new(self, image: TopicImage) -> Steps[Topic]:
        """Open a new topic, and add it to the registry."""
        yield from self.log_manager.forget_deleted(image.name, len(image.partitions))
        config = LogConfig(self.config, self._overrides(image.name))
        topic = self._add(image, (yield from self._opened(image, image.partitions, config)), config)
        for listener in self.on_topic_created:
            listener(topic)
        return topic

    def _opened(self, image: TopicImage, partitions: Sequence[PartitionImage],
                config: LogConfig) -> Steps[list[Partition]]:
        """Create the logs of new partitions, and return the partitions."""
        opened = []
        for partition in partitions:
            log = self.log_manager.create_log(image.name, partition.index, image.topic_id, config)
            opened.append(self._partition(log, image.topic_id, partition))
            yield
        return opened

    def _open_found(self, image: TopicImage) -> None:
        """Open a topic whose directories were found at the start."""
        config = LogConfig(self.config, self._overrides(image.name))
        self._add(image, [self._partition(self.log_manager.open_log(image.name, partition.index, image.topic_id, config,
                                                                    sync_later=True), image.topic_id, partition)
                          for partition in image.partitions], config)

    def _add(self, image: TopicImage, partitions: list[Partition], config: LogConfig) -> Topic:
        topic = Topic(image.name, image.topic_id, partitions, self._overrides(image.name), config,
                      image.name in INTERNAL_TOPICS)
        self._by_name[image.name] = topic
        self.by_encoded_name[topic.encoded_name] = topic
        self.by_id[image.topic_id] = topic
        return topic

    def _partition(self, log: Log, topic_id: bytes, image: PartitionImage) -> Partition:
        return Partition(log, topic_id, image.leader_epoch, self.flusher,
                         self.config.kbroker_durability == 'page-cache', self.tick)
