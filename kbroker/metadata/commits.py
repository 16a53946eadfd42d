"""The commits of the metadata log. Every change is prepared, written, synced and adopted by this module.

A change adds its records to a batch, and replays them on a copy of the image. The batch is written whole, and the copy
becomes the image once the batch is on the disk. So a change takes effect as a whole or not at all, also after a crash.

If a write or a sync fails, nothing is adopted. The change and every later one raise KafkaError(KAFKA_STORAGE_ERROR),
because the content of the disk is unknown until a restart.

One batch at a time is in flight: written, but not durable. A change is a generator, and waits while another thread
syncs the log. `at_once` runs the same generator to its end, and syncs in the calling thread instead. Before its own
batch, it makes the batch in flight durable and adopts it, so that batches are adopted in the order of the log.
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
    """The image of the metadata, and the changes that are about to replace it."""

    def __init__(self, image: MetadataImage, log: QuorumLog, clock: Clock, sync: Sync):
        """Write changes to `log`. `sync` syncs it in a thread, for changes that wait."""
        self.image = image
        """The state after the last durable batch.

        Each change replaces this object, so keep the Commits and not the image.
        """
        self.turns = Turns()
        """The turns of the long changes.

        A caller whose records depend on the image waits for its turn before it reads the image.
        """
        self.on_failure: Callable[[str], object] = lambda reason: None
        """The function to call, with the reason, when a change cannot be written."""
        self.on_change: list[Callable[[Sequence[Any]], object]] = []
        """The functions to call with the records of each change that has taken effect."""
        self._log = log
        self._clock = clock
        self._sync = sync
        self._syncs_here = False
        """True if the calling thread syncs, so that no change waits."""
        self._changes: list[Change] = []
        """The changes that are being prepared."""
        self._in_flight: _Commit | None = None

    def images(self) -> Iterator[MetadataImage]:
        """Yield the image, and the image after each change in flight or in preparation."""
        yield self.image
        if self._in_flight is not None:
            yield self._in_flight.image
        for change in self._changes:
            yield change.image

    @contextmanager
    def preparing(self, metadata_version: int | None = None) -> Iterator[Change]:
        """Begin a change, which ends when it is committed or the context ends.

        `metadata_version` is by default that of the image.
        """
        change = Change(self.image, self._clock.wall_ms(), metadata_version or self.image.metadata_version)
        self._changes.append(change)
        try:
            yield change
        finally:
            if change in self._changes:
                self._changes.remove(change)

    def commit(self, change: Change) -> Steps[MetadataImage]:
        """Write a change as one batch, and return the image once the batch is durable and adopted.

        A change without records writes nothing. Raise KafkaError POLICY_VIOLATION if the batch is too large,
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
        """Write records, which the caller has validated, as one batch, and return the image after them.

        Other changes may take effect before this one. Raise the errors of `commit`, and CorruptLogError for records
        that contradict the image.
        """
        with self.preparing(metadata_version) as change:
            yield from change.add(records)
            return (yield from self.commit(change))

    def write_in_batches(self, records: Sequence[Any]) -> Steps[None]:
        """Write records that need no common batch, because every prefix of them is a valid state."""
        for start in range(0, len(records), MAX_RECORDS):
            yield from self.write(records[start:start + MAX_RECORDS])

    def at_once(self, steps: Steps[Result]) -> Result:
        """Run a change to its end, and return its result. All records that it wrote are durable then."""
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
        """If a batch is in flight, make it durable and adopt it before this returns."""
        if self._in_flight is not None:
            sync_inline(self._log.files_to_sync(at_once=True), partial(self._end, self._in_flight))

    def sync_here(self) -> None:
        """Sync in the calling thread from now on, because a stop is about to close the sync threads."""
        self._syncs_here = True

    def _wait(self, commit: _Commit) -> Steps[None]:
        """Wait until a batch in flight is adopted or has failed."""
        if self._syncs_here:
            self.finish()
        yield from commit.ended.wait()

    def _write(self, change: Change) -> _Commit:
        """Write a change. It gets no records of other changes from now on, because they come after it in the log."""
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
        """Adopt a batch that was synced, or take the log offline if its sync failed.

        `finish` may have ended the commit before the thread reports its result. An error of the thread still counts.
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
        """`image` is the state after `records`."""
        self.records = records
        self.image = image
        self.ended = Pause()
        """A pause that ends when the batch is durable or its sync has failed."""
        self.failure: str | None = None
        """The reason why the sync has failed; None otherwise."""

    def check(self) -> MetadataImage:
        """Return the state after the batch, whose commit has ended.

        Raise KafkaError KAFKA_STORAGE_ERROR if it failed.
        """
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        return self.image
