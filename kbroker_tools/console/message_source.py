"""The sources of kbroker-consume: a broker that is read with or without a group, and a log directory."""
from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output, words_for_count
from kbroker_tools.cluster.opening import note_unreadable

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.client.consumer import Consumer
    from kbroker.client.share_consumer import ShareConsumer
    from kbroker.record.abort_filter import AbortFilter
    from kbroker.record.batch import BatchHeader
    from kbroker_tools.base.view import View

IDLE_POLL_MS = 60_000
LOOK_MS = 1000
"""The longest time in milliseconds until a partition that went offline is reported."""
MOST_NAMED = 10


class Wanted(NamedTuple):
    """The topics and offsets to read, as the options name them."""

    topic: str | None
    include: str | None
    partition: int | None
    offset: str | None
    """'earliest', 'latest' or an offset. None means that `from_beginning` determines the offset."""
    from_beginning: bool
    isolation_level: str
    timeout_ms: int | None


class Source(Protocol):
    def batches(self) -> Iterator[list[DeliveredRecords]]:
        """Yield lists of batches until the source ends."""

    def unread(self, batch: DeliveredRecords) -> None:
        """Give back the records of a batch that were not shown."""

    def close(self) -> None:
        """Commit the offsets of the shown records or acknowledge them, and leave the group."""


def matching_topics(wanted: Wanted, topics: Mapping[str, bool]) -> list[str]:
    """Return the names in `topics` that the options select. `topics` maps each existing name to True if the topic is
    internal.

    Raise ToolError if the topic does not exist, or if `include` is not a regular expression.
    """
    if wanted.topic is not None:
        if wanted.topic not in topics:
            raise ToolError(f'topic {wanted.topic} does not exist: kbroker-topics --list shows the existing ones')
        return [wanted.topic]
    pattern = include_pattern(wanted.include or '')
    return [name for name, is_internal in topics.items() if pattern.fullmatch(name) and not is_internal]


def include_pattern(text: str) -> re.Pattern[str]:
    """Compile the text of `--include`, in which `a,b` means `a|b`. Raise ToolError if the text is not a regular
    expression."""
    try:
        return re.compile(text.strip().replace(',', '|').strip('"\''))
    except re.error as error:
        raise ToolError(f'--include: {text!r} is not a regular expression: {error}') from None


def check_partition(topic: str, partition: int, partitions: int) -> None:
    if partition >= partitions:
        raise ToolError(f'{topic}-{partition} does not exist: the topic has {partitions} partitions')


class OfflineNotes:
    """Reports on stderr which partitions a consumer cannot read. Each partition is reported once."""

    def __init__(self, cluster: Cluster, consumer: Consumer | ShareConsumer):
        self._cluster = cluster
        self._consumer = consumer
        self._output = Output()
        self._named: set[TopicPartition] = set()

    def polls(self, timeout_ms: int | None) -> Iterator[list[Any]]:
        """Yield the result of each poll. End when no record arrives for `timeout_ms`; with None, poll forever.

        At the end, raise ToolError if partitions are still offline, because their records were not read.
        """
        while True:
            found = self._poll(IDLE_POLL_MS if timeout_ms is None else timeout_ms)
            if not found and timeout_ms is not None:
                break
            yield found
        if self._named:
            names = ', '.join(f'{topic}-{partition}' for topic, partition in sorted(self._named)[:MOST_NAMED])
            raise ToolError(f'not all was read: {words_for_count(len(self._named), "partition")} without a leader: '
                            f'{names}')

    def _poll(self, timeout_ms: int) -> list[Any]:
        """Poll the consumer in steps of at most LOOK_MS. After each step, report partitions that went offline."""
        end_s = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = max(round((end_s - time.monotonic()) * 1000), 0)
            found = self._consumer.poll(min(left_ms, LOOK_MS))
            self._note()
            if found or left_ms <= LOOK_MS:
                return found

    def _note(self) -> None:
        new = {at: error for at, error in self._consumer.offline.items() if at not in self._named}
        self._named.intersection_update(self._consumer.offline)
        if new:
            from kbroker_tools.cluster.live_view import reasons_of
            self._named.update(new)
            note_unreadable(self._output, reasons_of(self._cluster, new))



class BrokerSource:
    """A source that consumes from a broker. As a member of a group, it commits the shown records at intervals and when
    it is closed."""

    def __init__(self, cluster: Cluster, consumer: Consumer, wanted: Wanted):
        self._consumer = consumer
        self._offline = OfflineNotes(cluster, consumer)
        self._timeout_ms = wanted.timeout_ms

    def batches(self) -> Iterator[list[DeliveredRecords]]:
        from kbroker.client.consumed import DeliveredRecords
        for found in self._offline.polls(self._timeout_ms):
            try:
                delivered = [DeliveredRecords(batch.topic, batch.partition, batch.records()) for batch in found]
            except BaseException:       # such as Ctrl-C: nothing of them was shown, and `close` commits the positions
                for batch in reversed(found):
                    self._go_back(batch.topic, batch.partition, batch.offsets[0])
                raise
            yield delivered

    def unread(self, batch: DeliveredRecords) -> None:
        self._go_back(batch.topic, batch.partition, batch.records[0].offset)

    def _go_back(self, topic: str, partition: int, offset: int) -> None:
        if (topic, partition) in self._consumer.assignment:
            self._consumer.seek(topic, partition, offset)

    def close(self) -> None:
        self._consumer.close()


def open_broker(bootstrap_server: str, command_config: Path | None, overrides: Mapping[str, str],
                wanted: Wanted) -> BrokerSource:
    """Open a consumer of the wanted topics. Raise ToolError if a topic does not exist, ConfigError if a setting is
    invalid, and KafkaError or ClientError if the broker fails."""
    from kbroker.client.cluster import Cluster
    from kbroker.client.config import ClientConfig
    from kbroker.client.consumer import Consumer
    from kbroker.client.stream_settings import ConsumerSettings
    config = ClientConfig.load(bootstrap_server, command_config, overrides)
    properties = dict(config.properties)
    settings = ConsumerSettings.from_properties(properties)
    cluster = Cluster(config)
    consumer = Consumer(cluster, settings)
    topics = cluster.retrying(cluster.topics, 'listing topics', timeout_ms=opening_ms(wanted.timeout_ms))
    names = matching_topics(wanted, {name: topic.is_internal for name, topic in topics.items()})
    if wanted.partition is not None and wanted.topic is not None:
        check_partition(wanted.topic, wanted.partition, len(topics[wanted.topic].partitions))
        consumer.assign([(wanted.topic, wanted.partition)])
        if wanted.offset is not None and wanted.offset.isdigit():
            consumer.seek(wanted.topic, wanted.partition, int(wanted.offset))
    elif settings.group_id is None:
        consumer.assign((name, partition) for name in names for partition in topics[name].partitions)
    elif wanted.topic is not None:
        consumer.subscribe([wanted.topic])
    elif settings.group_protocol == 'consumer':
        consumer.subscribe(regex=(wanted.include or '').strip().replace(',', '|').strip('"\''))
    else:
        consumer.subscribe(pattern=include_pattern(wanted.include or ''))
    return BrokerSource(cluster, consumer, wanted)


def opening_ms(timeout_ms: int | None) -> int | None:
    """Return how many milliseconds to wait for the list of topics if `--timeout-ms` is given. It is at least the time
    that a connection may take to open."""
    from kbroker.client.time_limit import OPENING_MS
    return None if timeout_ms is None else max(timeout_ms, OPENING_MS)


class DirectorySource:
    """A source that reads the partitions of a log directory one after another, each to its end. Markers in the log show
    which transactions are aborted."""

    def __init__(self, view: View, wanted: Wanted):
        self._view = view
        self._wanted = wanted
        topics = view.topics()
        names = matching_topics(wanted, {name: topic.is_internal for name, topic in topics.items()})
        self._partitions = [(name, row.partition) for name in names for row in topics[name].partitions]
        if wanted.partition is not None:
            check_partition(names[0], wanted.partition, len(self._partitions))
            self._partitions = [(names[0], wanted.partition)]
        self._output = Output()

    def batches(self) -> Iterator[list[DeliveredRecords]]:
        """Yield the batches of one partition after another. If a partition cannot be read any further, continue with
        the next one.

        At the end, raise ToolError if some records could not be read.
        """
        unreadable = self._view.unreadable(self._partitions)
        note_unreadable(self._output, unreadable)
        failed = set(unreadable)
        for topic, partition in self._partitions if self._wanted.offset != 'latest' else ():
            if (topic, partition) in unreadable:
                continue
            try:
                yield from self._batches_of(topic, partition)
            except (KafkaError, CorruptLogError) as error:
                self._output.note(f'{topic}-{partition} cannot be read on: {error}')
                failed.add((topic, partition))
        if failed:
            names = ', '.join(f'{topic}-{partition}' for topic, partition in sorted(failed)[:MOST_NAMED])
            raise ToolError(f'not all was read: {words_for_count(len(failed), "partition")} cannot be read here, or '
                            f'not to the end: {names}')

    def _batches_of(self, topic: str, partition: int) -> Iterator[list[DeliveredRecords]]:
        from kbroker.record.abort_filter import AbortFilter
        start = int(self._wanted.offset) if self._wanted.offset and self._wanted.offset.isdigit() else 0
        end_offset, aborted = None, AbortFilter([])
        if self._wanted.isolation_level == 'read_committed':
            end_offset = self._view.partition_offsets(topic, partition).last_stable_offset
            aborted = AbortFilter(aborted_transactions(self._view, topic, partition, end_offset))
        # Read from the log start, because the filter needs the markers that precede the first wanted record.
        found = self._view.batches(topic, partition, 0 if end_offset is not None else start, end_offset)
        for batch in _delivered(topic, partition, found, start, aborted):
            yield [batch]

    def unread(self, batch: DeliveredRecords) -> None:
        """Do nothing: the log directory stores no position for this reader."""

    def close(self) -> None:
        self._view.close()


def _delivered(topic: str, partition: int, batches: Iterable[tuple[BatchHeader, memoryview]], start_offset: int,
               aborted: AbortFilter) -> Iterator[DeliveredRecords]:
    """Yield the records whose offset is at least `start_offset`. Skip markers, and records that `aborted` does not
    admit.

    Raise KafkaError(CORRUPT_MESSAGE), which names the partition and the offset, if a batch is damaged.
    """
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.record.batch import check_crc
    from kbroker.record.records import decode_records
    for header, batch in batches:
        if header.last_offset < start_offset:
            continue
        try:
            check_crc(batch, header)
            if not aborted.admits(header, batch) or header.is_control:
                continue
            records = decode_records(batch)
        except KafkaError as error:
            raise KafkaError(error.code, f'{topic}-{partition}, offset {header.base_offset}: {error}') from None
        if header.base_offset < start_offset:
            records = [record for record in records if record.offset >= start_offset]
        if records:
            yield DeliveredRecords(topic, partition, records)


def aborted_transactions(view: View, topic: str, partition: int, end_offset: int) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of every transaction whose abort marker is below `end_offset`."""
    from kbroker.record.control import ControlType, read_end_txn_marker
    open_since: dict[int, int] = {}
    aborted = []
    for header, batch in view.batches(topic, partition, 0, end_offset):
        if not header.is_transactional:
            continue
        if not header.is_control:
            open_since.setdefault(header.producer_id, header.base_offset)
        elif header.records_count:
            first_offset = open_since.pop(header.producer_id, None)
            if first_offset is not None and read_end_txn_marker(batch).control_type is ControlType.ABORT:
                aborted.append((header.producer_id, first_offset))
    return aborted
