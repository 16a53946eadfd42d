"""The commits of the metadata log. This module prepares, writes, syncs and adopts every change.

A change adds its records to a batch, and replays them on a copy of the image. The batch is written as a whole. When the
batch is on the disk, the copy becomes the image. So a change takes effect as a whole or not at all, even if the broker
crashes.

If a write or a sync fails, nothing is adopted. The failed change and all later changes raise
KafkaError(KAFKA_STORAGE_ERROR), because the content of the disk is unknown until a restart reads it.

At most one batch is in flight: written, but not durable. A change is a generator, and waits while another thread syncs
the log. `at_once` runs such a generator to its end, and syncs in the calling thread. Before it writes its own batch, it
makes the batch in flight durable and adopts it. So batches are adopted in the order of the log.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import Pause, run_to_end
from kbroker.log.fs import sync_inline
from kbroker.log.jobs import Sync
from kbroker.metadata.batches import MAX_RECORDS
from kbroker.metadata.changes import Change, Result, Steps, Turns, check_batch_size
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.quorum_log import QuorumLog


class Commits:
    """The image of the metadata, and the changes that will replace it."""

    def __init__(self, image: MetadataImage, log: QuorumLog, clock: Clock, sync: Sync):
        """`log` is the log to which changes are written. `sync` syncs it in another thread, for changes that wait."""
        self.image = image
        """The state after the last durable batch.

        Each change replaces this object. So keep a reference to the Commits, not to the image.
        """
        self.turns = Turns()
        """The turns of long changes.

        If the records of a change depend on the image, the caller waits for its turn before it reads the image.
        """
        self.on_failure: Callable[[str], object] = lambda reason: None
        """The function to call with the reason when a change cannot be written."""
        self.on_change: list[Callable[[Sequence[Any]], object]] = []
        """The functions to call with the records of each change, after it has taken effect."""
        self._log = log
        self._clock = clock
        self._sync = sync
        self._syncs_here = False
        """True if the calling thread syncs, so that a change never waits for another thread."""
        self._changes: list[Change] = []
        """The changes that are being prepared."""
        self._in_flight: _Commit | None = None

    def images(self) -> Iterator[MetadataImage]:
        """Yield the image, the image after the batch in flight, and the image after each change in preparation."""
        yield self.image
        if self._in_flight is not None:
            yield self._in_flight.image
        for change in self._changes:
            yield change.image

    @contextmanager
    def preparing(self, metadata_version: int | None = None) -> Iterator[Change]:
        """Begin a change. It ends when it is committed or when the context ends.

        The default of `metadata_version` is the metadata.version of the image.
        """
        change = Change(self.image, self._clock.wall_ms(), metadata_version or self.image.metadata_version)
        self._changes.append(change)
        try:
            yield change
        finally:
            if change in self._changes:
                self._changes.remove(change)

    def commit(self, change: Change) -> Steps[MetadataImage]:
        """Write a change as one batch. When the batch is durable and adopted, return the image.

        If the change has no records, write nothing. Raise KafkaError POLICY_VIOLATION if the batch is too large,
        KAFKA_STORAGE_ERROR if a write or a sync fails.
        """
        if not change.records:
            return self.image
        yield from self.settle()
        commit = self._write(change)
        if not self._syncs_here:
            self._sync(self._log.files_to_sync(), partial(self._end, commit))
        yield from self._wait(commit)
        return commit.check()

    def write(self, records: Iterable[Any], metadata_version: int | None = None) -> Steps[MetadataImage]:
        """Write records as one batch, and return the image after them. The caller has validated the records.

        Other changes may take effect before these records. Raise the errors that `commit` raises, and CorruptLogError
        if a record contradicts the image.
        """
        with self.preparing(metadata_version) as change:
            yield from change.add(records)
            return (yield from self.commit(change))

    def write_in_batches(self, records: Sequence[Any]) -> Steps[None]:
        """Write records, in several batches if necessary. Every prefix of the records must result in a valid state."""
        for start in range(0, len(records), MAX_RECORDS):
            yield from self.write(records[start:start + MAX_RECORDS])

    def at_once(self, steps: Steps[Result]) -> Result:
        """Run a change to its end without waiting, and return its result.

        All records that it has written are then durable.
        """
        before, self._syncs_here = self._syncs_here, True
        try:
            return run_to_end(steps)
        finally:
            self._syncs_here = before

    def settle(self) -> Steps[None]:
        """Wait until no batch is in flight."""
        while self._in_flight is not None:
            yield from self._wait(self._in_flight)

    def finish(self) -> None:
        """If a batch is in flight, sync it in the calling thread, and adopt it."""
        if self._in_flight is not None:
            sync_inline(self._log.files_to_sync(at_once=True), partial(self._end, self._in_flight))

    def sync_here(self) -> None:
        """From now on, sync in the calling thread, because a stop is about to end the sync threads."""
        self._syncs_here = True

    def _wait(self, commit: _Commit) -> Steps[None]:
        """Wait until the batch in flight is adopted or has failed."""
        if self._syncs_here:
            self.finish()
        yield from commit.ended.wait()

    def _write(self, change: Change) -> _Commit:
        """Write a change.

        From now on, no records of other changes are replayed on its image, because they follow it in the log.
        """
        self._changes.remove(change)
        batch = change.finish(self._log.end_offset, self._log.epoch)
        check_batch_size(len(batch))
        try:
            self._log.write(batch, len(change.records))
        except KafkaError as error:
            self.on_failure(str(error))
            raise
        self._in_flight = _Commit(change.records, change.image)
        return self._in_flight

    def _end(self, commit: _Commit, error: OSError | None) -> None:
        """Adopt the batch if its sync succeeded. If the sync failed, take the log offline.

        `finish` may already have ended the commit when the sync thread reports its result. An error of the thread still
        takes the log offline.
        """
        if error is not None:
            commit.failure = self._log.fail_sync(error)
        if commit is self._in_flight:
            self._in_flight = None
            if error is None:
                self._log.mark_synced()
                self._adopt(commit)
            commit.ended.end()
        if error is not None:
            self.on_failure(str(commit.failure))

    def _adopt(self, commit: _Commit) -> None:
        self.image = commit.image
        for change in self._changes:
            change.image.replay(commit.records, commit.image.metadata_offset, commit.image.metadata_epoch,
                                commit.image.timestamp_ms)
        for callback in self.on_change:
            callback(commit.records)


class _Commit:
    """A batch in flight. Its records take effect once the batch is durable."""

    def __init__(self, records: Sequence[Any], image: MetadataImage):
        """`image` is the state after the records."""
        self.records = records
        self.image = image
        self.ended = Pause()
        """A pause that ends when the batch is durable or its sync has failed."""
        self.failure: str | None = None
        """The reason if the sync has failed, else None."""

    def check(self) -> MetadataImage:
        """Return the state after the batch, once `ended` is over.

        Raise KafkaError KAFKA_STORAGE_ERROR if the sync failed.
        """
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        return self.image
