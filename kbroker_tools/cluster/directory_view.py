"""The offline `View`: a log directory of Apache Kafka 4 or of kbroker.

The view writes nothing and takes no lock, so a broker may use the directory at the same time. Each query reads only the
files that it needs. To answer a query about one partition, it reads the files of this partition.
"""
from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError, LogDirectoryError, NewerFormatError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, INTERNAL_TOPICS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kbroker.base.lean_dataclasses import replace
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import (
    GroupInfo,
    LogDirectory,
    ProducerInfo,
    ReplicaSize,
    ShareOffset,
    StreamsGroupInfo,
    TransactionInfo,
    TransactionListing,
)
from kbroker.log.checkpoints import HIGH_WATERMARK_FILE, LOG_START_OFFSET_FILE, read_partition_offsets
from kbroker.log.checkpoints import PartitionOffsets as CheckpointedOffsets
from kbroker.log.damage_notes import BESIDE, METADATA, State, read_notes
from kbroker.log.directory_names import METADATA_DIRECTORY, parse_directory_name
from kbroker.log.fs import FileSystem, ReadOnlyFileSystem
from kbroker.log.partition_metadata import NO_TOPIC_ID, read_topic_id
from kbroker.log.partition_reader import PartitionReader, are_of_a_partition
from kbroker.record.batch import BatchHeader
from kbroker_tools.base.render import shell_word
from kbroker_tools.base.view import (
    GroupOffset,
    PartitionInfo,
    PartitionOffsets,
    TopicInfo,
    Unreadable,
    check_brokers,
)

if TYPE_CHECKING:
    from kbroker.group.share.rows import ShareState
    from kbroker.metadata.image import MetadataImage, TopicImage
    from kbroker_tools.rows.coordinator_replay import GroupState

logger = logging.getLogger(__name__)

META_PROPERTIES_FILE = 'meta.properties'
UNKNOWN_BROKER = -1
METADATA_ATTEMPTS = 5


class DirectoryView:
    """The view of `data_dir`: a log directory, one partition directory, or a directory of copied partition directories.

    The constructor raises LogDirectoryError if `data_dir` is none of these.
    """

    is_live = False

    def __init__(self, data_dir: Path | str, fs: FileSystem | None = None):
        self.place = str(data_dir)
        self._fs = fs or ReadOnlyFileSystem()
        self._root = os.path.abspath(data_dir)
        self._only: dict[TopicPartition, str] | None = None
        """The only partition and its path, if `data_dir` is a partition directory. Otherwise None."""
        self._checkpoints: dict[str, tuple[int, CheckpointedOffsets]] = {}
        self._find_partitions()

    def _find_partitions(self) -> None:
        names = self._fs.listdir(self._root)
        if are_of_a_partition(names):
            self._use_partition()
        elif META_PROPERTIES_FILE not in names and not self._partition_directories():
            found = ', '.join(sorted(names)[:3]) + (', ...' if len(names) > 3 else '') if names else 'nothing'
            raise LogDirectoryError(
                f'{self.place}: found {found}; expected a log directory of a broker ({META_PROPERTIES_FILE} and '
                'directories named <topic>-<partition>) or one partition directory (<offset>.log files)')

    def _use_partition(self) -> None:
        """Restrict the view to the partition in `data_dir`. If a log directory contains `data_dir`, read the other
        files of that log directory too."""
        path = self._root
        parsed = parse_directory_name(os.path.basename(path))
        named = parsed is not None and not parsed.state
        self._only = {(parsed.topic, parsed.partition) if parsed and named else (os.path.basename(path), 0): path}
        if named and self._fs.exists(os.path.join(os.path.dirname(path), META_PROPERTIES_FILE)):
            self._root = os.path.dirname(path)

    def now_ms(self) -> int:
        """Return the current time. Ages are therefore counted up to now, even in a directory that no broker uses any
        more."""
        return time.time_ns() // 1_000_000

    @property
    def bootstrap_server(self) -> str | None:
        """Return the first endpoint that each broker has registered. The broker of this directory comes last, because
        it may not be running."""
        brokers = sorted(self._image.brokers, key=lambda node_id: (node_id == self._node_id, node_id)
                         ) if self._image is not None else []
        return ','.join(address for node_id in brokers if (address := self._address_of(node_id))) or None

    def _address_of(self, node_id: int) -> str | None:
        broker = self._image.brokers.get(node_id) if self._image is not None else None
        if broker is None or not broker.end_points:
            return None
        host, port = broker.end_points[0].host, broker.end_points[0].port
        return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'

    def incomplete(self, topic: str) -> str | None:
        """Return a sentence that says why a list from an internal topic may be incomplete. Return None if the list is
        complete."""
        if self._only is not None or not self._fs.exists(os.path.join(self._root, META_PROPERTIES_FILE)):
            return None     # for copied partitions, the list need not be complete
        if self._image is None:
            return (f'{self.place}: found no metadata log. If the broker has other log directories, or the cluster '
                    f'other brokers, the list lacks what their partitions of {topic} have')
        known = self._topic_image(topic)
        missing = [row.index for row in known.partitions if not self._is_here(topic, row.index)] if known else []
        if not missing or known is None:
            return None
        return (f'{self.place}: the list is incomplete: this is the disk of broker {self._node_id}, without '
                f'{len(missing)} of the {len(known.partitions)} partitions of {topic}. Ask the cluster: '
                f'--bootstrap-server {self.bootstrap_server or "HOST:PORT"}')

    def close(self) -> None:
        """Do nothing: no file stays open between queries."""

    # ---- topics ----

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics in the metadata log. If the log is missing or damaged, derive the topics from the names of
        the partition directories."""
        image = self._image
        found = self._named_topics() if image is None else {
            topic.name: TopicInfo(topic.name, topic.topic_id, topic.name in INTERNAL_TOPICS, tuple(
                PartitionInfo(topic.name, partition.index, partition.leader, partition.replicas, partition.isr)
                for partition in topic.partitions))
            for topic in image.topics.values()}
        if self._only is not None:
            found = {name: topic for name, topic in found.items() if any(name == only for only, _ in self._only)}
        return dict(sorted(found.items()))

    def _named_topics(self) -> dict[str, TopicInfo]:
        partitions: dict[str, list[int]] = {}
        for topic, partition in sorted(self._partition_directories()):
            partitions.setdefault(topic, []).append(partition)
        return {topic: TopicInfo(topic, self._topic_id(topic, numbers[0]), topic in INTERNAL_TOPICS,
                                 tuple(PartitionInfo(topic, number, self._node_id) for number in numbers))
                for topic, numbers in partitions.items()}

    def _topic_id(self, topic: str, partition: int) -> bytes:
        try:
            return read_topic_id(self._fs, self._path(topic, partition)) or NO_TOPIC_ID
        except (CorruptLogError, OSError) as error:
            logger.warning('%s', error)
            return NO_TOPIC_ID

    def _partition_directories(self) -> dict[TopicPartition, str]:
        if self._only is not None:
            return self._only
        found = {}
        for name in self._fs.listdir(self._root):
            parsed = parse_directory_name(name)
            if parsed is None or name != f'{parsed.topic}-{parsed.partition}' or name == METADATA_DIRECTORY:
                continue
            path = os.path.join(self._root, name)
            if self._fs.is_directory(path):
                found[parsed.topic, parsed.partition] = path
        return found

    def unreadable(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Unreadable]:
        """Return the partitions whose files are in another log directory."""
        return {at: Unreadable(self._words_for_missing(*at)) for at in partitions if not self._is_here(*at)}

    def kept_offline(self) -> dict[TopicPartition, Unreadable]:
        """Return the partitions that kbroker would not serve if it started on this directory. Raise LogDirectoryError
        if the directory cannot be read."""
        return {note.key: Unreadable(
            f'{note.key[0]}-{note.key[1]} is offline: {note.damages[0] if note.damages else "its files are damaged"}',
            f'kbroker-check {shell_word(os.path.join(self._root, f"{note.key[0]}-{note.key[1]}"))}')
                for note in read_notes(self._fs, self._root).values()
                if note.state is State.OFFLINE and note.key not in (BESIDE, METADATA)}

    def _is_here(self, topic: str, partition: int) -> bool:
        if self._only is not None:
            return (topic, partition) in self._only
        return self._fs.is_directory(os.path.join(self._root, f'{topic}-{partition}'))

    def _words_for_missing(self, topic: str, partition: int) -> str:
        """Return a sentence that says where a partition may be, if this directory does not have it."""
        found = self._topic_image(topic)
        row = next((each for each in found.partitions if each.index == partition), None) if found is not None else None
        name = f'{topic}-{partition}'
        if row is None or self._only is not None:
            return f'{self.place}: found no partition {name}'
        if self._node_id not in row.replicas:
            others = ', '.join(f'{node_id} ({address})' if (address := self._address_of(node_id)) else str(node_id)
                               for node_id in row.replicas)
            leads = f', and broker {row.leader} leads it' if row.leader >= 0 else ''
            return (f'{self.place}: found no partition {name}: this is the disk of broker {self._node_id}, and the '
                    f'replicas are on {"broker" if len(row.replicas) == 1 else "brokers"} {others}{leads}')
        return (f'{self.place}: found no partition {name}, although broker {self._node_id} has a replica: it is in '
                'another of its log directories, or it is lost')

    def _path(self, topic: str, partition: int) -> str:
        """Return the path of the partition's directory. Raise KafkaError UNKNOWN_TOPIC_OR_PARTITION if the partition
        does not exist."""
        if self._only is not None and (topic, partition) in self._only:
            return self._only[topic, partition]
        if not self._is_here(topic, partition):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self._words_for_missing(topic, partition))
        return os.path.join(self._root, f'{topic}-{partition}')

    @property
    def metadata(self) -> MetadataImage | None:
        """Return the state of `__cluster_metadata-0`, which is read at the first use. Return None if it is missing or
        unreadable."""
        return self._image

    @cached_property
    def _image(self) -> MetadataImage | None:
        if not self._fs.is_directory(os.path.join(self._root, METADATA_DIRECTORY)):
            return None
        from kbroker.metadata.directory import later_release
        from kbroker.metadata.features import KRAFT_VERSION, newer_level
        from kbroker.metadata.image import MetadataImage
        from kbroker.metadata.quorum_log import QuorumLog
        for attempt in range(METADATA_ATTEMPTS):
            image = MetadataImage()
            try:
                QuorumLog(self._fs, self._root, 0).load(image)
                problem = newer_level({KRAFT_VERSION: image.kraft_version, **image.features})
                if problem:
                    logger.warning('%s: %s. %s: what is shown may lack its changes', self.place, problem,
                                   later_release(self._fs, self._root))
                return image if image.metadata_offset >= 0 else None
            except FileNotFoundError:
                # A running controller replaced segments by a snapshot after this view had listed them.
                if attempt + 1 == METADATA_ATTEMPTS:
                    raise
            except NewerFormatError as error:
                logger.warning('%s: %s. %s: topics are taken from the directory names', self.place, error,
                               later_release(self._fs, self._root))
                break
            except CorruptLogError as error:
                logger.warning('%s; topics are taken from the directory names', error)
                break
        return None

    @cached_property
    def _node_id(self) -> int:
        """Return the node id of the broker that owns the directory. Return -1 if the id is unknown."""
        from kbroker.metadata.directory import read_meta_properties
        try:
            return read_meta_properties(self._fs, self._root).node_id
        except (LogDirectoryError, OSError):
            return UNKNOWN_BROKER

    def log_directories(self, partitions: Collection[TopicPartition] | None = None,
                        broker_ids: Collection[int] | None = None) -> list[LogDirectory]:
        """Return this directory, with the sizes of the partitions in it. A future replica is in it during a move from
        another log directory."""
        if broker_ids is not None:
            check_brokers([self._node_id], broker_ids)
        sizes = []
        for topic, partition, path, is_future in sorted(self._replica_directories()):
            if partitions is not None and (topic, partition) not in partitions:
                continue
            with suppress(FileNotFoundError):   # a running broker deleted the partition after it was listed
                sizes.append(ReplicaSize(topic, partition, PartitionReader(self._fs, path).size_bytes(), 0, is_future))
        return [LogDirectory(self._node_id, self._root, None, tuple(sizes), self._fs.total_bytes(self._root),
                             self._fs.free_bytes(self._root))]

    def _replica_directories(self) -> Iterator[tuple[str, int, str, bool]]:
        """Yield (topic, partition, path, whether it is a future replica) of each replica in the directory."""
        for (topic, partition), path in self._partition_directories().items():
            yield topic, partition, path, False
        if self._only is not None:
            return
        for name in self._fs.listdir(self._root):
            parsed = parse_directory_name(name)
            if parsed is not None and parsed.state == 'future':
                yield parsed.topic, parsed.partition, os.path.join(self._root, name), True

    # ---- one partition ----

    def partition_offsets(self, topic: str, partition: int) -> PartitionOffsets:
        """Return the partition's offsets, computed from its files.

        The log start is the one in `log-start-offset-checkpoint`, but not below the first segment.

        If no other broker has an in-sync replica, the high watermark is the end of the log. The checkpoint would be too
        low: a live broker writes it every five seconds, and after a crash the next start serves all whole batches. If
        other replicas are in sync, this directory does not show where their logs end. The high watermark is then the
        one in `replication-offset-checkpoint`, or the end of the log if the checkpoint does not list the partition.

        The last stable offset is the first offset of the earliest transaction that has no marker below the high
        watermark. Without such a transaction, it is the high watermark. The newest producer snapshot and the batches
        after it show the transactions.
        """
        reader = self._reader(topic, partition)
        producers = reader.producer_state()
        start = self._log_start(topic, partition, reader)
        end = max(start, producers.end_offset)
        high_watermark = self._high_watermark(topic, partition, start, end)
        producers.unstable.on_high_watermark(high_watermark)
        first_unstable = producers.unstable.first_offset()
        stable = high_watermark if first_unstable is None else min(high_watermark, max(start, first_unstable))
        return PartitionOffsets(start, high_watermark, stable)

    def partition_offsets_of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        return {at: self.partition_offsets(*at) for at in partitions}

    def _log_start(self, topic: str, partition: int, reader: PartitionReader) -> int:
        return max(reader.start_offset(), self._checkpoint(LOG_START_OFFSET_FILE).get((topic, partition), 0))

    def _high_watermark(self, topic: str, partition: int, start: int, end: int) -> int:
        if not self._has_other_replicas(topic, partition):
            return end
        return min(end, max(start, self._checkpoint(HIGH_WATERMARK_FILE).get((topic, partition), end)))

    def _has_other_replicas(self, topic: str, partition: int) -> bool:
        found = self._topic_image(topic)
        return found is not None and any(each.index == partition and len(each.isr) > 1 for each in found.partitions)

    def _checkpoint(self, name: str) -> CheckpointedOffsets:
        """Return the rows of a checkpoint file. Read the file again if it was replaced since the last call. A damaged
        checkpoint counts as empty, as in a broker."""
        path = os.path.join(self._root, name)
        try:
            modified_ms = self._fs.modified_ms(path)
            if name not in self._checkpoints or self._checkpoints[name][0] != modified_ms:
                self._checkpoints[name] = modified_ms, read_partition_offsets(self._fs, self._root, name)
        except FileNotFoundError:
            return {}
        except CorruptLogError as error:
            logger.warning('%s; treated as empty', error)
            self._checkpoints[name] = modified_ms, {}
        return self._checkpoints[name][1]

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        """Return the producers in the newest snapshot and in the batches after it. Expired producers are included."""
        found = self._reader(topic, partition).producer_state().active_producers()
        return [ProducerInfo(producer.producer_id, producer.producer_epoch, producer.last_sequence,
                             producer.last_timestamp_ms, producer.coordinator_epoch,
                             None if producer.transaction_first_offset < 0 else producer.transaction_first_offset)
                for producer in found]

    def batches(self, topic: str, partition: int, start_offset: int = 0,
                end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches up to the end of the log, which is the end of the last whole batch."""
        reader = self._reader(topic, partition)
        start = max(start_offset, self._log_start(topic, partition, reader))
        return reader.batches(start, end_offset)

    def batch_headers(self, topic: str, partition: int, start_offset: int = 0,
                      end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview | None]]:
        reader = self._reader(topic, partition)
        return reader.headers(max(start_offset, self._log_start(topic, partition, reader)), end_offset)

    def _reader(self, topic: str, partition: int) -> PartitionReader:
        return PartitionReader(self._fs, self._path(topic, partition))

    # ---- coordinators ----

    def transactions(self) -> list[TransactionListing]:
        """Return the last row of every transactional.id in `__transaction_state`."""
        from kbroker_tools.rows.coordinator_replay import replay_transactions
        return [TransactionListing(transactional_id, self._leader(TRANSACTION_STATE, partition), row.producer_id,
                                   row.state.title)
                for partition, reader in self._readers(TRANSACTION_STATE, None)
                for transactional_id, row in sorted(replay_transactions(reader.batches()).items())]

    def transaction(self, transactional_id: str) -> TransactionInfo | None:
        from kbroker_tools.rows.coordinator_replay import replay_transactions
        for partition, reader in self._readers(TRANSACTION_STATE, transactional_id):
            row = replay_transactions(reader.batches(), transactional_id).get(transactional_id)
            if row is not None:
                return _transaction_info(transactional_id, self._leader(TRANSACTION_STATE, partition), row)
        return None

    def transactions_of(self, transactional_ids: Collection[str]) -> dict[str, TransactionInfo]:
        from kbroker_tools.rows.coordinator_replay import replay_transactions
        wanted, found = set(transactional_ids), {}
        for partition, reader in self._readers(TRANSACTION_STATE, None):
            rows = replay_transactions(reader.batches())
            for transactional_id in wanted.intersection(rows):
                found[transactional_id] = _transaction_info(
                    transactional_id, self._leader(TRANSACTION_STATE, partition), rows[transactional_id])
        return found

    def groups(self) -> list[str]:
        """Return the ids of all groups. A group has a row that describes it, or only committed offsets."""
        return sorted(group_id for _, state in self._group_states(None) for group_id in state.group_ids())

    def group(self, group_id: str) -> GroupInfo | None:
        """Return the group. Its state is derived from its last rows.

        A classic group counts as Stable if it has members, otherwise as Empty, because a rebalance writes no row until
        it ends. A group of the consumer protocol (KIP-848) has rows for each step, which show its exact state.
        """
        for partition, state in self._group_states(group_id):
            found = state.group(group_id, self._leader(CONSUMER_OFFSETS, partition), self._topic_name)
            if found is not None:
                return found
        return None

    def listed_groups(self) -> list[GroupInfo]:
        found = []
        for partition, state in self._group_states(None):
            leader = self._leader(CONSUMER_OFFSETS, partition)
            found += [group for group_id in state.group_ids()
                      if (group := state.group(group_id, leader, self._topic_name)) is not None]
        return found

    def streams_group(self, group_id: str) -> StreamsGroupInfo | None:
        """Return a streams group. Its state is derived from its last rows. Its assignor is the one of the group's
        configs, or else the default."""
        found = next((found for partition, state in self._group_states(group_id) if (
            found := state.streams_group(group_id, self._leader(CONSUMER_OFFSETS, partition))) is not None), None)
        if found is None or self._image is None:
            return found
        from kbroker.metadata.image import ResourceType
        configs = self._image.configs.get((ResourceType.GROUP, group_id), {})
        return replace(found, assignor=configs.get('streams.assignor.name', found.assignor))

    def share_offsets(self, group_id: str) -> list[ShareOffset]:
        """Return the offsets of a share group's partitions, as the last rows of `__share_group_state` have them."""
        from kbroker.group.share.rows import ShareKey
        from kbroker_tools.rows.coordinator_replay import replay_share_states
        states: dict[ShareKey, ShareState] = {}
        for _, reader in self._readers(SHARE_GROUP_STATE, None):
            replay_share_states(reader.batches(), group_id, states)
        return [self._share_offset(topic, partition, states.get(ShareKey(group_id, topic_id, partition)))
                for _, group_state in self._group_states(group_id)
                for topic_id, topic, partition in sorted(group_state.share_partitions(group_id),
                                                         key=lambda row: row[1:])]

    def _share_offset(self, topic: str, partition: int, state: ShareState | None) -> ShareOffset:
        if state is None or state.start_offset < 0:
            return ShareOffset(topic, partition, None, None, None)
        try:
            end = self.partition_offsets(topic, partition).high_watermark
        except KafkaError:
            return ShareOffset(topic, partition, state.leader_epoch, state.start_offset, None)
        return ShareOffset(topic, partition, state.leader_epoch, state.start_offset, state.lag(end))

    def group_offsets(self, group_id: str) -> list[GroupOffset]:
        """Return the committed offsets of a group. Offsets in open transactions are omitted."""
        return [offset for _, state in self._group_states(group_id) for offset in state.offsets(group_id)]

    def _group_states(self, group_id: str | None) -> Iterator[tuple[int, GroupState]]:
        from kbroker_tools.rows.coordinator_replay import replay_groups
        for partition, reader in self._readers(CONSUMER_OFFSETS, group_id):
            yield partition, replay_groups(reader.batches(), group_id)

    def _readers(self, topic: str, key: str | None) -> Iterator[tuple[int, PartitionReader]]:
        """Yield a reader for each partition of a coordinator's topic. If a `key` is given and the partition count is
        known, yield only the reader of the partition to which the key belongs."""
        known = self._topic_image(topic)
        owner = None
        if key is not None and known is not None:
            from kbroker.topics.partitioner import partition_for
            owner = partition_for(key, len(known.partitions))
        for name, partition in sorted(self._partition_directories()):
            if name == topic and owner in (None, partition):
                yield partition, self._reader(topic, partition)

    def _leader(self, topic: str, partition: int) -> int:
        known = self._topic_image(topic)
        if known is None:
            return self._node_id
        return next((each.leader for each in known.partitions if each.index == partition), UNKNOWN_BROKER)

    def _topic_image(self, topic: str) -> TopicImage | None:
        return self._image.topics.get(topic) if self._image is not None else None

    def _topic_name(self, topic_id: bytes) -> str | None:
        image = self._image
        topic = image.topics_by_id.get(topic_id) if image is not None else None
        return None if topic is None else topic.name


def _transaction_info(transactional_id: str, leader: int, row: Any) -> TransactionInfo:
    return TransactionInfo(
        transactional_id, leader, row.producer_id, row.producer_epoch, row.state.title, row.timeout_ms,
        None if row.start_timestamp_ms < 0 else row.start_timestamp_ms, tuple(sorted(row.partitions)))
