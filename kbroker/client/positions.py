"""The positions of a consumer, and the fetched records that it has not returned yet."""
from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from kbroker.base.errors import KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.arguments import partitions_of
from kbroker.client.consumed import ConsumedBatch, FetchedRecords
from kbroker.client.statistics import Counts


class Positions:
    """The assigned partitions, each with its position: the offset of its next fetch.

    Fetched records wait until the program takes them. The position of their partition is already after them.
    `forget_waiting` drops these records, and moves the position back to the first of them.
    """

    def __init__(self, counts: Counts):
        self._counts = counts
        self.offsets: dict[TopicPartition, int | None] = {}
        """Maps each partition to the offset of its next fetch, or to None until the group or auto.offset.reset gives
        one.
        """
        self.paused: set[TopicPartition] = set()
        self.waiting: deque[FetchedRecords] = deque()
        """The fetched records that the program has not received. A commit does not include their offsets."""

    def __contains__(self, partition: object) -> bool:
        return partition in self.offsets

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def chosen(self, partitions: Collection[TopicPartition] | None) -> list[TopicPartition]:
        """Return the given partitions, or all assigned partitions for None. Raise KeyError if one is not assigned."""
        chosen = list(self.offsets) if partitions is None else partitions_of(partitions)
        for partition in chosen:
            if partition not in self.offsets:
                raise KeyError(partition)
        return chosen

    def next_of(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record that the program receives. Raise KeyError if the partition is not
        assigned.
        """
        for waiting in self.waiting:
            if (waiting.topic, waiting.partition) == partition:
                return waiting.offset
        return self.offsets[partition]

    def unknown(self) -> list[TopicPartition]:
        return [partition for partition, offset in self.offsets.items() if offset is None]

    def to_fetch(self) -> dict[TopicPartition, int]:
        """Return the known positions of the partitions that are not paused."""
        return {partition: offset for partition, offset in self.offsets.items()
                if offset is not None and partition not in self.paused}

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return {partition: offset}: for each partition, the offset after the records that the program has
        received.
        """
        found = {partition: OffsetAndMetadata(offset) for partition, offset in self.offsets.items()
                 if offset is not None}
        for waiting in reversed(self.waiting):
            found[waiting.topic, waiting.partition] = OffsetAndMetadata(waiting.offset)
        return found

    # ---- changes

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.forget_waiting()
        self.offsets |= offsets

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused |= set(partitions)
        self.forget_waiting()

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions whose positions are not yet known."""
        self.offsets |= dict.fromkeys(partitions)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.offsets.pop(partition, None)
        self.paused &= self.offsets.keys()

    def clear(self) -> None:
        self.offsets = {}
        self.paused.clear()

    def forget_waiting(self) -> None:
        """Drop the fetched records that the program has not received, and move the positions back to the first of them.
        """
        for waiting in reversed(self.waiting):
            self.offsets[waiting.topic, waiting.partition] = waiting.offset
        self.waiting.clear()

    # ---- records

    def take(self) -> ConsumedBatch | None:
        """Return the next fetched records for the program, or None if all records of the next answer are hidden.

        Raise KafkaError for a damaged batch.
        """
        waiting = self.waiting[0]
        try:
            batch = waiting.take()
        except KafkaError:
            self.forget_waiting()
            raise
        if waiting.is_finished:
            self.waiting.popleft()
        if batch is not None:
            self._counts.add('records_consumed_total', len(batch))
        return batch

    def take_all(self) -> list[ConsumedBatch]:
        """Return all fetched records.

        After a Ctrl-C during this call the positions are unchanged, because no record was returned.
        """
        batches: list[ConsumedBatch] = []
        try:
            while self.waiting:
                batch = self.take()
                if batch is not None:
                    batches.append(batch)
        except BaseException as error:
            if batches and isinstance(error, KafkaError):
                return batches      # the next poll raises the error
            self.forget_waiting()
            for batch in reversed(batches):
                self.offsets[batch.topic, batch.partition] = batch.offsets[0]
            raise
        return batches
