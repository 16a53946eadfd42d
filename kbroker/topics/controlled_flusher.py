"""The flusher of a broker that a test controls: each sync has a point before it and a point after it."""
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.base.completion import Steps
from kbroker.topics.flusher import Flusher

if TYPE_CHECKING:
    from kbroker.topics.partition import Partition


class ControlledFlusher(Flusher):
    """A flusher whose partitions pass the points `append.written` and `append.durable`.

    A partition that is held at a point takes no place among the syncs in progress. The appends that it gets meanwhile
    are part of its next sync.
    """

    def __init__(self, steps: Steps, *args: Any):
        super().__init__(*args)
        self._steps = steps
        self._held: dict[Partition, bool] = {}
        """Maps each held partition to whether it needs another sync afterwards."""
        self._passed: set[Partition] = set()
        """The partitions that have passed the point before their sync, which has not begun."""

    def request(self, partition: Partition) -> None:
        if partition in self._held:
            self._held[partition] = True
        else:
            super().request(partition)

    def _begin(self, partition: Partition) -> bool:
        if partition not in self._passed:
            self._watch_waiters()
            self._held[partition] = False
            if self._steps.reach('append.written', facts_of(partition, partition.log_end_offset),
                                 partial(self._sync_held, partition)):
                return True
            self._held.pop(partition)
        self._passed.discard(partition)
        begun = super()._begin(partition)
        if not begun and partition in self._dirty:      # no descriptor is free; the sync begins later
            self._passed.add(partition)
        return begun

    def _sync_held(self, partition: Partition) -> None:
        """Sync a partition that was held before its sync."""
        del self._held[partition]
        if not self._halted and not partition.is_deleted:
            self._passed.add(partition)
            super().request(partition)

    def _finished(self, partition: Partition, offset: int, error: OSError | None) -> None:
        if error is None and not self._halted and not partition.is_deleted:
            self._held[partition] = partition in self._dirty
            self._dirty.pop(partition, None)
            if self._steps.reach('append.durable', facts_of(partition, offset),
                                 partial(self._acknowledge_held, partition, offset)):
                self._syncing.discard(partition)
                return
            self._leave(partition)
        super()._finished(partition, offset, error)

    def _acknowledge_held(self, partition: Partition, offset: int) -> None:
        """Move the high watermark of a partition that was held after its sync."""
        self._leave(partition)
        super()._finished(partition, offset, None)

    def _leave(self, partition: Partition) -> None:
        if self._held.pop(partition) and not self._halted:
            super().request(partition)

    def _waiting(self) -> list[Partition]:
        return [*super()._waiting(), *self._held]


def facts_of(partition: Partition, offset: int) -> dict[str, Any]:
    return {'topic': partition.topic, 'partition': partition.partition, 'offset': offset}
