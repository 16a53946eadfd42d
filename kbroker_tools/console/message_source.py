"""The sources of kbroker-consume: a broker that is read with or without a group, and a log directory."""
from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output, words_for_count
from kbroker_tools.cluster.opening import note_unreadable
from kbroker_tools.console.places import Range, Wanted, parse_offsets, read_selected, selected_ranges

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.consumed import ConsumedBatch, DeliveredRecords
    from kbroker.client.consumer import Consumer
    from kbroker.client.share_consumer import ShareConsumer
    from kbroker.record.abort_filter import AbortFilter
    from kbroker.record.batch import BatchHeader
    from kbroker.record.records import Record
    from kbroker_tools.base.view import View

IDLE_POLL_MS = 60_000
LOOK_MS = 1000
"""The longest time in milliseconds until a partition that went offline is reported."""
STEP_MS = 50
"""The longest time in milliseconds after which a reader of ranges checks whether it has reached their ends."""
CLOSE_GRACE_MS = 1000
"""The time that closing a consumer may always take, even if the time of `--timeout-ms` is over."""
MOST_NAMED = 10
INT64_MAX = 2**63 - 1


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


def chosen_partitions(wanted: Wanted, partitions: Mapping[str, Collection[int]]) -> list[TopicPartition]:
    """Return the partitions that `--partition` or `--offset P:O` names, or all of `partitions`.

    Raise ToolError if one does not exist.
    """
    named = {wanted.partition} if wanted.partition is not None else parse_offsets(wanted.offset or 'latest').keys()
    if None in named:
        return [(name, partition) for name, of_topic in partitions.items() for partition in of_topic]
    ((topic, of_topic),) = partitions.items()
    chosen = sorted(partition for partition in named if partition is not None)
    for partition in chosen:
        check_partition(topic, partition, len(of_topic))
    return [(topic, partition) for partition in chosen]


def report_failed(failed: Collection[TopicPartition], problem: str) -> None:
    """Raise ToolError, which names the partitions that were not read to their ends. Return if there are none."""
    if failed:
        names = ', '.join(f'{topic}-{partition}' for topic, partition in sorted(failed)[:MOST_NAMED])
        raise ToolError(f'not all was read: {words_for_count(len(failed), "partition")} {problem}: {names}')


class OfflineNotes:
    """Reports on stderr which partitions a consumer cannot read. Each partition is reported once."""

    def __init__(self, cluster: Cluster, consumer: Consumer | ShareConsumer):
        self._cluster = cluster
        self._consumer = consumer
        self._output = Output()
        self._named: set[TopicPartition] = set()
        self._poll_end_s: float | None = None

    def polls(self, timeout_ms: int | None) -> Iterator[list[Any]]:
        """Yield the result of each poll. End when no record arrives for `timeout_ms`; with None, poll forever.

        At the end, raise ToolError if partitions are still offline, because their records were not read.
        """
        while True:
            found = self._poll(IDLE_POLL_MS if timeout_ms is None else timeout_ms)
            if not found and timeout_ms is not None:
                break
            yield found
        report_failed(self._named, 'without a leader')

    def read_all(self, ends: Mapping[TopicPartition, int], timeout_ms: int | None) -> Iterator[list[ConsumedBatch]]:
        """Yield the records before these offsets, of a consumer that was assigned the partitions. A partition without a
        leader is left out.

        Raise ToolError if no answer moves a position for `timeout_ms`.
        """
        consumer: Any = self._consumer
        left = dict(ends)
        moved_s, positions = time.monotonic(), None
        while left:
            yield [batch for batch in consumer.poll(STEP_MS) if batch.offsets[0] < ends[batch.topic, batch.partition]]
            self._note()
            before, positions = positions, {at: consumer.position(*at) for at in left}
            done = [at for at, offset in positions.items() if offset >= left[at] or at in self._named]
            consumer.pause(done)
            left = {at: end for at, end in left.items() if at not in done}
            if positions != before:
                moved_s = time.monotonic()
            elif timeout_ms is not None and (time.monotonic() - moved_s) * 1000 >= timeout_ms:
                report_failed(left, f'sent nothing for {timeout_ms} ms')

    @property
    def named(self) -> frozenset[TopicPartition]:
        """The partitions without a leader, which were reported."""
        return frozenset(self._named)

    def close_ms(self, timeout_ms: int | None) -> int:
        """Return how many milliseconds the consumer may take to close: the time that is left of `timeout_ms` since the
        last poll began, and CLOSE_GRACE_MS."""
        from kbroker.client.membership import CLOSE_TIMEOUT_MS
        if timeout_ms is None:
            return CLOSE_TIMEOUT_MS
        left_ms = timeout_ms
        if self._poll_end_s is not None:
            left_ms = max(round((self._poll_end_s - time.monotonic()) * 1000), 0)
        return min(left_ms + CLOSE_GRACE_MS, CLOSE_TIMEOUT_MS)

    def _poll(self, timeout_ms: int) -> list[Any]:
        """Poll the consumer in steps of at most LOOK_MS. After each step, report partitions that went offline."""
        self._poll_end_s = end_s = time.monotonic() + timeout_ms / 1000
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
        self._consumer.close(timeout_ms=self._offline.close_ms(self._timeout_ms))


class BrokerRanges:
    """A reader of ranges of partitions, as a source of the records that the options select. It uses a consumer without
    a group."""

    def __init__(self, cluster: Cluster, consumer: Consumer, wanted: Wanted, partitions: Collection[TopicPartition]):
        self.failed: set[TopicPartition] = set()
        self._cluster = cluster
        self._consumer = consumer
        self._wanted = wanted
        self._partitions = partitions

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        starts, ends = self._consumer.beginning_offsets(partitions), self._consumer.end_offsets(partitions)
        return {at: Range(starts[at], ends[at]) for at in partitions}

    def offsets_at(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        found = self._consumer.offsets_for_times(dict.fromkeys(partitions, timestamp_ms))
        return {at: None if listed is None else listed.offset for at, listed in found.items()}

    def read(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[list[DeliveredRecords]]:
        from kbroker.client.consumed import DeliveredRecords
        ranges = {at: found for at, found in ranges.items() if found.start < found.end}
        self._consumer.assign(ranges)
        for (topic, partition), found in ranges.items():
            self._consumer.seek(topic, partition, found.start)
        notes = OfflineNotes(self._cluster, self._consumer)
        ends = {at: found.end for at, found in ranges.items()}
        for batches in notes.read_all(ends, self._wanted.timeout_ms):
            yield [DeliveredRecords(batch.topic, batch.partition, _until(
                ends[batch.topic, batch.partition], batch.records())) for batch in batches]
        self.failed |= notes.named

    def selected(self) -> dict[TopicPartition, Range]:
        return selected_ranges(self, self._wanted, self._partitions)

    def batches(self) -> Iterator[list[DeliveredRecords]]:
        yield from read_selected(self, self._wanted, self.selected())
        report_failed(self.failed, 'without a leader')

    def unread(self, batch: DeliveredRecords) -> None:
        """Do nothing: without a group, no position is stored."""

    def close(self) -> None:
        self._consumer.close()


def _until(end_offset: int, records: list[Record]) -> list[Record]:
    return records if records[-1].offset < end_offset else [each for each in records if each.offset < end_offset]


def open_broker(bootstrap_server: str, command_config: Path | None, overrides: Mapping[str, str],
                wanted: Wanted) -> Source:
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
    chosen = chosen_partitions(wanted, {name: topics[name].partitions for name in names})
    if wanted.is_searched:
        # All records of a range are in the log when it is read, so no fetch has to wait for more.
        unbound = dataclasses.replace(settings, group_id=None, fetch_max_wait_ms=0)
        ranges = BrokerRanges(cluster, Consumer(cluster, unbound), wanted, chosen)
        if wanted.is_bounded:
            return ranges
        consumer.assign(chosen)
        for (topic, partition), found in ranges.selected().items():
            consumer.seek(topic, partition, found.start)
        ranges.close()
    elif wanted.partition is not None and wanted.topic is not None:
        consumer.assign(chosen)
        if wanted.offset is not None and wanted.offset.isdigit():
            consumer.seek(wanted.topic, wanted.partition, int(wanted.offset))
    elif settings.group_id is None:
        consumer.assign(chosen)
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
        self.failed: set[TopicPartition] = set()
        self._view = view
        self._wanted = wanted
        topics = view.topics()
        names = matching_topics(wanted, {name: topic.is_internal for name, topic in topics.items()})
        self._partitions = chosen_partitions(
            wanted, {name: [row.partition for row in topics[name].partitions] for name in names})
        self._output = Output()

    def batches(self) -> Iterator[list[DeliveredRecords]]:
        """Yield the batches of one partition after another. If a partition cannot be read any further, continue with
        the next one.

        At the end, raise ToolError if some records could not be read.
        """
        unreadable = self._view.unreadable(self._partitions)
        note_unreadable(self._output, unreadable)
        self.failed.update(unreadable)
        readable = [at for at in self._partitions if at not in unreadable]
        if self._wanted.offset != 'latest':
            yield from read_selected(self, self._wanted, self._ranges(readable))
        report_failed(self.failed, 'cannot be read here, or not to the end')

    def _ranges(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        if self._wanted.is_searched or self._is_committed:
            return selected_ranges(self, self._wanted, partitions)
        offset = self._wanted.offset or ''      # a plain call reads until the log ends, or until it is damaged
        return dict.fromkeys(partitions, Range(int(offset) if offset.isdigit() else 0, INT64_MAX))

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        found = {}
        for at in partitions:
            with self._noting(at):
                offsets = self._view.partition_offsets(*at)
                found[at] = Range(offsets.log_start_offset, offsets.last_stable_offset if self._is_committed
                                  else offsets.high_watermark)
        return found

    def offsets_at(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        for at in partitions:
            with self._noting(at):
                found[at] = self._offset_at(at, timestamp_ms)
        return found

    @contextmanager
    def _noting(self, at: TopicPartition) -> Iterator[None]:
        """Report an error of a partition, and remember that the partition was not read to its end."""
        try:
            yield
        except (KafkaError, CorruptLogError) as error:
            self._output.note(f'{at[0]}-{at[1]} cannot be read on: {error}')
            self.failed.add(at)

    def _offset_at(self, at: TopicPartition, timestamp_ms: int) -> int | None:
        from kbroker.record.records import decode_records
        for header, batch in self._view.batches(*at):
            if header.max_timestamp_ms >= timestamp_ms and not header.is_control:
                for record in decode_records(batch):
                    if record.timestamp_ms >= timestamp_ms:
                        return record.offset
        return None

    def read(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[list[DeliveredRecords]]:
        for (topic, partition), found in ranges.items():
            if found.start < found.end:
                with self._noting((topic, partition)):
                    yield from self._batches_of(topic, partition, found)

    @property
    def _is_committed(self) -> bool:
        return self._wanted.isolation_level == 'read_committed'

    def _batches_of(self, topic: str, partition: int, wanted: Range) -> Iterator[list[DeliveredRecords]]:
        from kbroker.record.abort_filter import AbortFilter
        aborted = AbortFilter(aborted_transactions(self._view, topic, partition, wanted.end)
                              if self._is_committed else [])
        # Read from the log start, because the filter needs the markers that precede the first wanted record.
        found = self._view.batches(topic, partition, 0 if self._is_committed else wanted.start, wanted.end)
        for batch in _delivered(topic, partition, found, wanted.start, aborted):
            records = _until(wanted.end, list(batch.records))
            if records:
                yield [batch._replace(records=records)]

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
        try:
            is_wanted = header.last_offset >= start_offset
            if is_wanted:
                check_crc(batch, header)
            # The filter also needs the markers of the batches that are skipped.
            if not aborted.admits(header, batch) or header.is_control or not is_wanted:
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
