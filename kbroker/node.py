"""The broker without its sockets: every room with state, opened and closed in order; handlers have it in a Request."""
from __future__ import annotations

import logging
import os
from collections.abc import Callable

from kbroker.apis.fetch_sessions import FetchSessions
from kbroker.apis.waiting import WaitingRoom
from kbroker.clock import Clock, Timers
from kbroker.config import Config, Listener
from kbroker.errors import KafkaError
from kbroker.group.coordinator import GroupCoordinator
from kbroker.log.cleaner import Cleaner
from kbroker.log.directory_names import LOCK_FILE
from kbroker.log.fs import FileSystem, sync_inline
from kbroker.log.jobs import Submit, Sync, run_inline
from kbroker.log.manager import LogManager
from kbroker.log.shortage import SHORTAGE_PAUSE_MS, shortage
from kbroker.long_work import LongWork
from kbroker.metadata.changes import Steps
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.image import ResourceType
from kbroker.settings import LONG_MAX
from kbroker.topics.flusher import Flusher
from kbroker.topics.partition import Tick
from kbroker.topics.registry import TopicRegistry
from kbroker.transaction.coordinator import TransactionCoordinator
from kbroker.transaction.producer_ids import ProducerIds

logger = logging.getLogger('kbroker')


class Node:
    """All state of a broker: `take_directory`, `open`, then requests and ticks, then `close` or `abandon`."""

    metadata: MetadataController
    topics: TopicRegistry
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    logs: LogManager
    cleaner: Cleaner
    _advertised: dict[str, tuple[str, int]]

    def __init__(self, config: Config, clock: Clock, timers: Timers, fs: FileSystem, sync: Sync = sync_inline,
                 submit: Submit = run_inline, validate: Submit = run_inline):
        """`sync` syncs files, `submit` runs jobs of the cleaner and removes files, `validate` validates long produced
        batches. Each blocks the loop if inline."""
        self.config = config
        self.clock = clock
        self.timers = timers
        self.fs = fs
        self.directory = os.path.abspath(config.log_directory)
        self.waiting_room = WaitingRoom()
        self.long_work = LongWork(timers)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, clock, self.waiting_room,
                                            self.long_work)
        self.tick = Tick()
        self.flusher = Flusher(sync, lambda error: self.logs.fail(f'cannot sync: {error}'), self._flush_later,
                               clock, timers)
        self._unreported_failure: KafkaError | None = None
        self.on_reconfigured: list[Callable[[], None]] = []
        """Called after `config` took over settings that were changed at run time."""
        self.validate = validate
        self._sync = sync
        self._submit = submit
        self._closers: list[Callable[[], None]] = []
        """Calls that close the open parts, in reverse order."""

    def take_directory(self) -> None:
        """Lock the log directory and read its metadata: from here on no other process writes to it.

        Raises OSError, ConfigError, KafkaError, CorruptLogError with a text for the operator.
        """
        if not self.fs.exists(os.path.join(self.directory, LOCK_FILE)):
            # A directory that is refused does not even get a lock file.
            MetadataController.check(self.fs, self.directory, self.config, self.clock)
        self.logs = LogManager(self.fs, self.directory, self.config, self.clock, self.timers, self._sync, self._submit,
                               self.long_work)
        self._closers.append(lambda: self.logs.close(clean=False))
        self.metadata = MetadataController.open(self.fs, self.directory, self.config, self.clock, self.logs.past())
        self._closers.append(self.metadata.close)
        self.logs.begin()

    def open(self, listeners: list[Listener]) -> None:
        """Register under `listeners`, recover and open the partitions, and load what the coordinators keep in them.

        Raises as `take_directory`.
        """
        self._advertised = {listener.name: (listener.host, listener.port) for listener in listeners}
        self.metadata.register(listeners)
        self.topics = TopicRegistry(self.config, self.metadata, self.logs, self.flusher, self.tick)
        self._adopt_configs()
        self.topics.open_all()
        # A clean stop left the log ends there, but what is rolled from now on is not whole on the disk at once.
        self.logs.checkpoint_recovery_points()
        self.logs.on_failure = self._go_offline
        self.metadata.on_failure = self.logs.fail
        self.groups = GroupCoordinator(self.config, self.clock, self.timers, self.topics, self.long_work)
        self.transactions = TransactionCoordinator(
            self.config, self.clock, self.long_work, self.topics, ProducerIds(self.metadata),
            transaction_version=self.metadata.image.features.get('transaction.version', 0))
        # The group coordinator replays markers, which make a transaction's offsets visible. So it starts before the
        # transaction coordinator, which sends markers.
        self.groups.start()
        self.transactions.start()
        self._closers.append(self.transactions.stop)
        self.logs.start()
        self.cleaner = Cleaner(self.logs, self.config, self.clock, self.timers, self._submit)
        self.cleaner.start()
        self._closers.append(self.cleaner.stop)
        if self.config.log_flush_scheduler_interval_ms < LONG_MAX:
            self.timers.every(self.config.log_flush_scheduler_interval_ms,
                              lambda: self.long_work.start(self.topics.flush_by_time()))

    def advertised_address(self, listener_name: str) -> tuple[str, int]:
        """Return the address for clients of a listener, or the first address if the listener has none of its own."""
        first = next(iter(self._advertised.values()))
        return self._advertised.get(listener_name, first)

    def end_tick(self) -> None:
        """Write and flush the appends of the tick, then answer the waiting requests that they woke."""
        self.tick.end()
        self.flusher.kick()
        while self.tick:       # a sync was done at once, and its completion appended
            self.tick.write()
            self.flusher.kick()
        if self._unreported_failure is not None:
            failure, self._unreported_failure = self._unreported_failure, None
            self._report_failure(failure)
        self.waiting_room.end_tick()

    def _flush_later(self, error: OSError) -> None:
        """Retry the flush after a pause. Each tick retries it too, but there may be none."""
        shortage.refusal(self.clock, 'cannot sync yet', error)
        self.timers.after(SHORTAGE_PAUSE_MS, self.flusher.kick)

    def _go_offline(self, failure: KafkaError) -> None:
        """Write nothing from here on: the log directory has failed.

        The failure is reported to waiting requests at the end of the tick: an append may be in progress now.
        """
        self.flusher.halt()
        self.metadata.take_offline(str(failure))
        self._unreported_failure = failure

    def _report_failure(self, failure: KafkaError) -> None:
        """Fail the requests that wait for the disk. The coordinators stop first, so their state does not change."""
        self.cleaner.stop()
        self.transactions.stop()
        self.groups.close()
        for partition in self.topics.partitions():
            partition.fail(failure)

    def reconfigure(self) -> Steps[None]:
        """Put the BROKER configs of the metadata log into effect. The caller has a turn of `metadata.turns`."""
        self._adopt_configs()
        for callback in self.on_reconfigured:
            callback()
        yield from self.topics.configure()

    def _adopt_configs(self) -> None:
        configs = self.metadata.image.configs
        self.config.adopt(self.config.with_changes(
            cluster_wide=configs.get((ResourceType.BROKER, ''), {}),
            per_broker=configs.get((ResourceType.BROKER, str(self.metadata.node_id)), {})))

    def close(self) -> None:
        """Stop cleanly: resign, close the logs, fence, and only then mark the directory as cleanly stopped."""
        if self.logs.failure is not None:
            # Only a recovery can find out what is on the disk: the directory must not be marked as cleanly stopped.
            self.abandon()
            return
        self.cleaner.stop()
        self.long_work.finish()
        self.transactions.close()
        self.tick.write()
        self.metadata.begin_shutdown()
        broker_epoch = self.metadata.finish_shutdown()
        self.logs.close(broker_epoch, self.metadata.end_offset)
        self._closers.clear()

    def abandon(self) -> None:
        """Close everything without a clean stop: the next start recovers."""
        while self._closers:
            self._closers.pop()()
