"""The resolution of options to offsets. All offsets are fixed when the plan is made.

A place is a log directory or a cluster. It reports its partitions and their bounds, from which the options are
resolved. This is the same for both kinds of places.
"""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kbroker.base.topic_partition import TopicPartition
from kbroker.record.batch import BatchHeader
from kbroker_tools.spark.options import EARLIEST, LATEST, MIB, OptionError, Options
from kbroker_tools.spark.skipped import Skipped

MOST_SPLIT_BYTES = 1024 * MIB

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bounds:
    """The offsets of a partition that can be read: from the log start to the last stable offset, or to the end that an
    option sets."""

    start_offset: int
    end_offset: int


LocatedBatch = tuple[int | None, int | None, BatchHeader, memoryview]
"""(base offset of the segment, position in the segment, header, whole batch). The first two are None if they are
unknown."""


@dataclass(frozen=True)
class Slice:
    """The offsets of one partition that a query reads. `end_offset` itself is not read."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


class Place(Protocol):
    """A log directory or a cluster to read from. Methods raise OSError, KafkaError and DataLossError."""

    def refresh(self) -> None:
        """Update the partitions and their bounds."""

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions, sorted."""

    def bounds(self, topic: str, partition: int) -> Bounds: ...

    def high_watermark(self, topic: str, partition: int) -> int:
        """Return the end of the offsets that can be read with some isolation level. Open transactions are below it."""

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after the time. Return None if there is no such record."""

    def size_bytes(self, each: Slice) -> int:
        """Return the approximate number of bytes that a slice has in the log."""

    def tasks(self, slices: Sequence[Slice], options: Options, *, with_outcomes: bool = False) -> list[Any]:
        """Return tasks that read the slices. They can be pickled, and `read_task` runs them. With `with_outcomes`, the
        tasks also provide the outcome of each transaction."""

    def pieces(self, topic: str, partition: int) -> list[Any]:
        """Return the pieces into which a partition is cut for `batches`."""

    def batches(self, topic: str, partition: int, piece: Any) -> Iterator[LocatedBatch]:
        """Yield every batch of a piece, including markers and open transactions. If `piece` is None, yield the batches
        of the whole partition."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id. Return None if no topic has the id, or if the place does not know
        topic ids."""

    def producers(self, topic: str, partition: int) -> list[Any]:
        """Return the producers of a partition. They have the attributes of `kbroker_tools.base.view.ProducerInfo`."""

    def aborted(self, topic: str, partition: int, piece: Any) -> list[tuple[int, int, int]]:
        """Return (producer id, first offset, offset of the marker) of each aborted transaction that is still in the
        log.

        Only transactions whose markers are in the piece are returned. If `piece` is None, it is the whole partition.
        """


def chosen_partitions(place: Place, options: Options, *, may_be_gone: bool = False) -> list[TopicPartition]:
    """Return the partitions that the options select. Raise OptionError if none is selected. Also raise it if a
    partition is missing, unless `may_be_gone` is true."""
    present = place.partitions()
    chosen = [each for each in present if options.wants(*each)]
    if may_be_gone:
        return chosen
    if options.is_given('assign'):
        missing = {(topic, partition) for topic, numbers in options['assign'].items() for partition in numbers}
        missing -= set(present)
        if missing:
            raise OptionError('assign', f'found {named(missing)}, which does not exist; there are {named(present)}')
    if options.is_given('subscribe'):
        topics = {topic for topic, _ in present}
        for topic in options['subscribe']:
            if topic not in topics:
                raise OptionError('subscribe', f'found topic {topic!r}, which does not exist; there are '
                                               f'{", ".join(sorted(topics)) or "none"}')
    if options.is_given('subscribePattern') and not chosen:
        raise OptionError('subscribePattern', f'found {options["subscribePattern"].pattern!r}, which matches no '
                                              f'whole topic name; there are {named(present)}')
    if not chosen and present:
        raise OptionError('subscribe', f'missing: there are only {named(present)}, and topics whose names begin with '
                                       '__ must be subscribed to by name')
    return chosen


def named(partitions: Any) -> str:
    """Return the names of partitions as text, such as `a-0, a-1, b-0 and 20 more`."""
    names = [f'{topic}-{partition}' for topic, partition in sorted(partitions)]
    return ', '.join(names[:10]) + (f' and {len(names) - 10} more' if len(names) > 10 else '') or 'none'


def resolve(place: Place, options: Options, skipped: Skipped | None = None) -> list[Slice]:
    """Return the slices that a batch query reads. Wanted offsets that are below the log start are added to `skipped`.

    Timestamps take precedence over offsets, as in Spark's connector. If the JSON of an option does not name a
    partition, the default applies to this partition.
    """
    chosen = chosen_partitions(place, options)
    check_named_partitions(options, chosen)
    slices = []
    for topic, partition in chosen:
        bounds = place.bounds(topic, partition)
        start = starting_offset(place, options, topic, partition, bounds, default='earliest')
        end = ending_offset(place, options, topic, partition, bounds)
        if skipped is not None:
            _record_gone(options, topic, partition, min(start, end), skipped)
        if end > start:
            slices.append(Slice(topic, partition, start, end))
    return slices


def _record_gone(options: Options, topic: str, partition: int, start: int, skipped: Skipped) -> None:
    """With failOnDataLoss=false, record offsets as lost if the options name them and they are below the log start."""
    asked = options['startingOffsets']
    if not isinstance(asked, dict) or _timestamp(options, 'starting', topic, partition) is not None:
        return
    first = asked.get((topic, partition), EARLIEST)
    if 0 <= first < start:
        what = (f'{topic}-{partition}: the log starts at offset {start}; lost are records among the {start - first} '
                f'offsets {first} to {start - 1}')
        skipped.lose(topic, partition, first, start, what)
        logger.warning('%s. They were skipped', what)


def check_named_partitions(options: Options, chosen: Sequence[TopicPartition]) -> None:
    """Raise OptionError if the JSON of an option has offsets or timestamps for a partition that is not read."""
    for option in ('startingOffsets', 'endingOffsets', 'startingOffsetsByTimestamp', 'endingOffsetsByTimestamp'):
        if isinstance(options[option], dict):
            unknown = set(options[option]) - set(chosen)
            if unknown:
                raise OptionError(option, f'found {named(unknown)}, expected some of {named(chosen)}')


def starting_offset(place: Place, options: Options, topic: str, partition: int, bounds: Bounds, *,
                    default: str) -> int:
    """Return the first offset to read.

    With failOnDataLoss, raise OptionError if the options name an offset that is below the log start or above the end.
    """
    timestamp_ms = _timestamp(options, 'starting', topic, partition)
    if timestamp_ms is not None:
        found = place.offset_for_timestamp(topic, partition, timestamp_ms)
        if found is None and options['startingOffsetsByTimestampStrategy'] == 'error':
            raise OptionError(_timestamp_option(options, 'starting'),
                              f'{topic}-{partition} has no record at or after {timestamp_ms}; with '
                              'startingOffsetsByTimestampStrategy=latest it is skipped')
        return bounds.end_offset if found is None else max(found, bounds.start_offset)
    asked = options['startingOffsets'] or default
    number = _number(asked, topic, partition, EARLIEST if default == 'earliest' else LATEST)
    if number == EARLIEST:
        return bounds.start_offset
    if number == LATEST:
        return bounds.end_offset
    if number > bounds.end_offset and options['failOnDataLoss']:
        raise OptionError('startingOffsets', f'found {number} for {topic}-{partition}, which can be read up to '
                                             f'{bounds.end_offset}; with failOnDataLoss=false the query begins there')
    if number < bounds.start_offset and options['failOnDataLoss']:
        raise OptionError('startingOffsets', f'found {number} for {topic}-{partition}, whose log starts at '
                                             f'{bounds.start_offset}; with failOnDataLoss=false the query begins there')
    return min(max(number, bounds.start_offset), bounds.end_offset)


def ending_offset(place: Place, options: Options, topic: str, partition: int, bounds: Bounds) -> int:
    """Return the end of the offsets to read. It is at most the end of the offsets that can be read."""
    timestamp_ms = _timestamp(options, 'ending', topic, partition)
    if timestamp_ms is not None:
        found = place.offset_for_timestamp(topic, partition, timestamp_ms)
        return bounds.end_offset if found is None else min(found, bounds.end_offset)
    number = _number(options['endingOffsets'], topic, partition, LATEST)
    if number == EARLIEST:
        raise OptionError('endingOffsets', f'found -2 (earliest) for {topic}-{partition}, expected an offset or -1')
    if number > bounds.end_offset and options['failOnDataLoss']:
        raise OptionError('endingOffsets', f'found {number} for {topic}-{partition}, which can be read up to '
                                           f'{bounds.end_offset}; with failOnDataLoss=false the query ends there')
    return bounds.end_offset if number == LATEST else min(number, bounds.end_offset)


def _timestamp(options: Options, which: str, topic: str, partition: int) -> int | None:
    by_partition: dict[TopicPartition, int] = options[f'{which}OffsetsByTimestamp'] or {}
    single: int | None = options[f'{which}Timestamp']
    return single if single is not None else by_partition.get((topic, partition))


def _timestamp_option(options: Options, which: str) -> str:
    return f'{which}Timestamp' if options[f'{which}Timestamp'] is not None else f'{which}OffsetsByTimestamp'


def _number(asked: str | dict[TopicPartition, int], topic: str, partition: int, default: int) -> int:
    if isinstance(asked, dict):
        return asked.get((topic, partition), default)
    return EARLIEST if asked == 'earliest' else LATEST


def split_bytes(slices_bytes: int, options: Options) -> int:
    """Return the number of bytes for each task: `splitBytes`, or less if `minPartitions` requires more tasks. If only
    `minPartitions` is given, it determines the number of tasks."""
    most: int = options['splitBytes']
    if not options['minPartitions']:
        return most
    if not options.is_given('splitBytes'):
        most = MOST_SPLIT_BYTES
    tasks: int = options['minPartitions']
    return min(most, max(1, slices_bytes // tasks))
