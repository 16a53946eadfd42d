"""Streaming queries, `spark.readStream.format("kbroker")`. A micro-batch reads from one last stable offset to a later
one.

Offsets have the form {"topic":{"0":23}}, as in Spark's own connector, which is readable in a checkpoint. A repeated
micro-batch returns the same rows, because below the last stable offset only retention and compaction change the log.
"""
from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.spark.decoded import Columns
from kbroker_tools.spark.file_ranges import DataLossError
from kbroker_tools.spark.messages import message_first
from kbroker_tools.spark.offsets import Offsets, from_json, to_json
from kbroker_tools.spark.options import Options
from kbroker_tools.spark.planning import (
    Place,
    Slice,
    check_named_partitions,
    chosen_partitions,
    named,
    starting_offset,
)
from kbroker_tools.spark.skipped import PLAN, Skipped, keep_only
from kbroker_tools.spark.task_partition import TaskPartition
from kbroker_tools.spark.tasks import open_place, wants_outcomes, write_skipped

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query. It runs in a Python process next to the driver. It keeps its place and refreshes
    it."""

    def __init__(self, options: Options, columns: Columns):
        self.options = options
        self.columns = columns
        self._place: Place | None = None
        self._target: Offsets | None = None
        self._triggered_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_place': None}  # not pickled: a task needs only the options

    # ---- offsets, on the driver

    @message_first(DataLossError)
    def initialOffset(self) -> dict[str, dict[str, int]]:
        place = self._refreshed_place()
        chosen = chosen_partitions(place, self.options)
        check_named_partitions(self.options, chosen)
        return to_json({each: starting_offset(place, self.options, *each, place.bounds(*each), default='latest')
                        for each in chosen})

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options['maxOffsetsPerTrigger']:
            return ReadMaxRows(self.options['maxOffsetsPerTrigger'])
        if self.options['maxBytesPerTrigger']:
            return ReadMaxBytes(self.options['maxBytesPerTrigger'])
        return ReadAllAvailable()

    @message_first(DataLossError)
    def latestOffset(self, start: dict[str, dict[str, int]] | None = None,
                     limit: ReadLimit | None = None) -> dict[str, dict[str, int]]:
        """Return the end of the next micro-batch. It is not below `start`, and within the limits that the options
        set."""
        begin = from_json(start or self.initialOffset())
        place = self._refreshed_place()
        ends = self._target if self._target is not None else self._ends(place)
        self._check_ends(begin, self._ends(place))
        slices = [Slice(*each, begin[each] if each in begin else place.bounds(*each).start_offset, end)
                  for each, end in ends.items() if each in begin or each in place.partitions()]
        if self._waits_for_more(slices):
            return to_json(begin)
        if isinstance(limit, ReadMaxRows):
            slices = limited_by_offsets(slices, limit.max_rows)
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options['maxBytesPerTrigger']
        if most_bytes:
            slices = limited_by_bytes(slices, [place.size_bytes(each) for each in slices], most_bytes)
        reached = {(each.topic, each.partition): each.end_offset for each in slices}
        return to_json({**begin, **{each: max(end, begin.get(each, end)) for each, end in reached.items()}})

    def _waits_for_more(self, slices: list[Slice]) -> bool:
        """Return whether the next micro-batch waits because fewer than minOffsetsPerTrigger offsets are new. It waits
        at most maxTriggerDelay after the previous micro-batch.

        The first micro-batch does not wait.
        """
        least, now_s = self.options['minOffsetsPerTrigger'], time.monotonic()
        if least is None or self._target is not None:
            return False
        lag = sum(max(0, each.end_offset - each.start_offset) for each in slices)
        if lag < least and self._triggered_s is not None and (
                now_s - self._triggered_s) * 1000 < self.options['maxTriggerDelay']:
            return True
        self._triggered_s = now_s
        return False

    @message_first(DataLossError)
    def reportLatestOffset(self) -> dict[str, dict[str, int]]:
        """Return the ends of the offsets that can be read. Spark shows them in progress reports."""
        return to_json(self._ends(self._refreshed_place()))

    @message_first(DataLossError)
    def prepareForTriggerAvailableNow(self) -> None:
        """Store the present ends of the partitions. They are not checked, because a micro-batch that was planned before
        the restart must not fail here."""
        self._target = self._ends(self._refreshed_place())

    def _ends(self, place: Place) -> Offsets:
        return {each: place.bounds(*each).end_offset
                for each in chosen_partitions(place, self.options, may_be_gone=True)}

    def _check_ends(self, begin: Offsets, ends: Offsets) -> None:
        """Raise DataLossError if a partition is gone or now ends below the offset up to which it was read. In both
        cases, records that were not yet read may be lost."""
        if not self.options['failOnDataLoss']:
            return
        gone = begin.keys() - ends.keys()
        if gone:
            raise DataLossError(f'{named(gone)}: the checkpoint has offsets of it, but it does not exist; was the '
                                'topic deleted? With failOnDataLoss=false the query continues without it')
        for each, end in ends.items():
            if end < begin.get(each, end):
                raise DataLossError(f'{named([each])} ends at offset {end}, but was read up to {begin[each]}: was the '
                                    'topic recreated? With failOnDataLoss=false the query waits for higher offsets')

    def _refreshed_place(self) -> Place:
        if self._place is None:
            self._place = open_place(self.options)
        else:
            self._place.refresh()
        return self._place

    # ---- reading

    @message_first(DataLossError)
    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> list[InputPartition]:
        place, skipped = self._refreshed_place(), Skipped()
        slices = list(self._slices(place, from_json(start), from_json(end), skipped))
        tasks = place.tasks(slices, self.options, with_outcomes=wants_outcomes(self.columns.fields))
        batch = name_of(start, end)
        named_tasks = [(f'{batch}-{task.name}', task) for task in tasks]
        self._write_plan(batch, [name for name, _ in named_tasks], skipped)
        return [TaskPartition(each) for each in named_tasks]

    def _slices(self, place: Place, begin: Offsets, ends: Offsets, skipped: Skipped) -> Iterator[Slice]:
        """Yield the slices of a micro-batch that still exist. Offsets that no longer exist are added to `skipped`, or
        DataLossError is raised."""
        present = set(place.partitions())
        for each, end_offset in sorted(ends.items()):
            if each not in present:
                self._report(each, begin.get(each, 0), end_offset, f'{named([each])} does not exist; its offsets up to '
                             f'{end_offset} were to be read', skipped)
                continue
            bounds = place.bounds(*each)
            first = begin.get(each, bounds.start_offset)
            if first < bounds.start_offset and first < end_offset:
                lost = min(bounds.start_offset, end_offset)
                self._report(each, first, lost, f'{named([each])} begins at offset {bounds.start_offset}; lost are '
                             f'records among the {lost - first} offsets {first} to {lost - 1}', skipped)
                first = lost
            if bounds.end_offset < end_offset and first < end_offset:
                self._report(each, max(first, bounds.end_offset), end_offset, f'{named([each])} ends at offset '
                             f'{bounds.end_offset}, but was to be read up to {end_offset}; was the topic recreated?',
                             skipped)
                end_offset = bounds.end_offset
            if end_offset > first:
                yield Slice(*each, first, end_offset)

    def _report(self, each: TopicPartition, first: int, end: int, text: str, skipped: Skipped) -> None:
        if self.options['failOnDataLoss']:
            raise DataLossError(f'{text}; with failOnDataLoss=false this is skipped')
        if first < end:
            skipped.lose(*each, first, end, text)
            logger.warning('%s. This was skipped', text)

    def _write_plan(self, batch: str, tasks: list[str], skipped: Skipped) -> None:
        """Write the records that were lost before the tasks began into `skippedTo`. Raise OSError if that fails.

        An earlier attempt at this micro-batch may have had other tasks. The files of these tasks are deleted.
        """
        if self.options['skippedTo'] is not None:
            keep_only(Path(self.options['skippedTo']), batch, tasks)
            write_skipped(skipped, self.options, batch)
            write_skipped(Skipped(), self.options, PLAN)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            name, task = partition.value
            yield from self.columns.read(task, name, self.options)


def name_of(start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> str:
    """Return a name for a micro-batch. The name depends only on the offsets, so a repeated micro-batch has the same
    name."""
    return hashlib.sha256(json.dumps([start, end], sort_keys=True).encode()).hexdigest()[:16]


def limited_by_offsets(slices: list[Slice], most: int) -> list[Slice]:
    """Limit the slices to about `most` offsets in total. Each slice is cut in proportion to its lag, but has at least
    one offset."""
    total = sum(max(0, each.end_offset - each.start_offset) for each in slices)
    return slices if total <= most else [_shortened(each, most / total) for each in slices]


def limited_by_bytes(slices: list[Slice], sizes: list[int], most: int) -> list[Slice]:
    """Limit the slices to about `most` bytes in total. `sizes` has the size of each slice in bytes."""
    total = sum(sizes)
    return slices if total <= most else [_shortened(each, most / total) for each in slices]


def _shortened(each: Slice, share: float) -> Slice:
    lag = max(0, each.end_offset - each.start_offset)
    kept = min(lag, max(1, int(lag * share))) if lag else 0
    return Slice(each.topic, each.partition, each.start_offset, each.start_offset + kept)
