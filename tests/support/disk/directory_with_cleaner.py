"""A log directory with a cleaner, for tests of compaction."""

from __future__ import annotations

import pathlib

from kbroker.base.clock import ManualClock, Timers
from kbroker.log.append import Origin
from kbroker.log.cleaner import Cleaner
from kbroker.log.fs import FileSystem, sync_inline
from kbroker.log.jobs import Submit, Sync, run_inline
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.record.records import decode_records
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

BACKOFF_MS = 15_000


class DirectoryWithCleaner:
    """The logs of one directory, and their cleaner. A log can be opened as after a clean stop, or as after a kill."""

    def __init__(self, path: pathlib.Path, fs: FileSystem | None = None, submit: Submit = run_inline,
                 clock: ManualClock | None = None, sync: Sync = sync_inline, **settings: object):
        config = Config({name.replace('_', '.'): str(value) for name, value in settings.items()})
        self.config = config
        self.clock = clock or ManualClock()
        self.timers = Timers(self.clock)
        self.manager = LogManager(fs or FileSystem(), str(path), config, self.clock, self.timers, sync)
        self.cleaner = Cleaner(self.manager, config, self.clock, self.timers, submit)

    def open(self, topic: str = 'topic', **settings: object) -> Log:
        overrides = {
            'cleanup.policy': 'compact', 'min.cleanable.dirty.ratio': '0', 'index.interval.bytes': '200',
            **{name.replace('_', '.'): str(value) for name, value in settings.items()}}
        return self.manager.open_log(topic, 0, topic.encode().ljust(16, b'\1'), LogConfig(self.config, overrides))

    def run(self, ms: int = BACKOFF_MS) -> None:
        """Flush all logs, then advance the clock."""
        for log in self.manager.logs.values():
            if log.failure is None:
                log.flush()
                log.producer_state.unstable.on_high_watermark(log.flushed_offset)
        self.clock.advance(ms)
        self.timers.run_due()

    def clean(self, log: Log) -> None:
        """Roll the log, so that the cleaner may clean all of its records. Then clean it."""
        log.roll()
        self.run()


def write(log: Log, *records: tuple[str, str | None], codec: int = 0, producer: tuple[int, int, int] | None = None,
          transactional: bool = False) -> None:
    """Append one batch; `producer` is (id, epoch, base sequence)."""
    rows = [(log.clock.wall_ms(), key.encode(), None if value is None else value.encode()) for key, value in records]
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    log.append_batch(
        encode_batch(
            rows, compression=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            transactional=transactional), Origin.CLIENT, 0)


def end(log: Log, producer_id: int, epoch: int, *, commit: bool) -> None:
    log.append_batch(
        encode_end_txn_marker(
            commit=commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0,
            timestamp_ms=log.clock.wall_ms()), Origin.COORDINATOR, 0)


def records_of(log: Log) -> list[tuple[int, str, str | None]]:
    """Return (offset, key, value) of all data records."""
    return [
        (record.offset, (record.key or b'').decode(), None if record.value is None else record.value.decode())
        for header, batch in log.batches() if not header.is_control for record in decode_records(batch)]


def markers_of(log: Log) -> list[tuple[int, int | None]]:
    """Return (offset, delete horizon) of the remaining markers."""
    return [
        (header.base_offset, header.delete_horizon_ms)
        for header, _ in log.batches() if header.is_control and header.records_count]
