"""The broker without its sockets: every room with state, opened and closed in order; `request.node` to handlers."""
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
    """`take_directory`, `open`, then requests and turns of the loop, then `close` (or `abandon`, as a crash would)."""

    metadata: MetadataController
    topics: TopicRegistry
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    logs: LogManager
    cleaner: Cleaner
    _advertised: dict[str, tuple[str, int]]

    def __init__(self, config: Config, clock: Clock, timers: Timers, fs: FileSystem, sync: Sync = sync_inline,
                 submit: Submit = run_inline):
        """`sync` syncs files, `submit` runs jobs of the cleaner and removes files; inline they hold up the loop."""
        self.config = config
        self.clock = clock
        self.timers = timers
        self.fs = fs
        self.directory = os.path.abspath(config.log_directory)
        self.waiting_room = WaitingRoom()
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, clock, self.waiting_room)
        self.tick = Tick()
        self.flusher = Flusher(sync, lambda error: self.logs.fail(f'cannot sync: {error}'), self._flush_later)
        self._untold_failure: KafkaError | None = None
        self.on_reconfigured: list[Callable[[], None]] = []
        """Called after `config` took over settings that were changed at run time."""
        self._sync = sync
        self._submit = submit
        self._let_go: list[Callable[[], None]] = []
        """How to let go of what is open; the last one first."""

    def take_directory(self) -> None:
        """Lock the log directory and read its metadata: from here on nobody else writes to it.

        Raises OSError, ConfigError, KafkaError, CorruptLogError with a text for the operator.
        """
        if not self.fs.exists(os.path.join(self.directory, LOCK_FILE)):
            # Even a lock file is not put into a directory that is refused.
            MetadataController.check(self.fs, self.directory, self.config, self.clock)
        self.logs = LogManager(self.fs, self.directory, self.config, self.clock, self.timers, self._sync, self._submit)
        self._let_go.append(lambda: self.logs.close(clean=False))
        self.metadata = MetadataController.open(self.fs, self.directory, self.config, self.clock)
        self._let_go.append(self.metadata.close)
        self.logs.begin()

    def open(self, listeners: list[Listener]) -> None:
        """Register under `listeners`, recover and open the partitions, and load what the coordinators keep in them.

        Raises as `take_directory`.
        """
        self._advertised = {listener.name: (listener.host, listener.port) for listener in listeners}
        self.metadata.register(listeners)
        self.topics = TopicRegistry(self.config, self.metadata, self.logs, self.flusher, self.tick)
        self.reconfigure()
        self.topics.open_all()
        # A clean stop left the log ends there, but what is rolled from now on is not whole on the disk at once.
        self.logs.checkpoint_recovery_points()
        self.logs.on_failure = self._go_offline
        self.metadata.on_failure = self.logs.fail
        self.groups = GroupCoordinator(self.config, self.clock, self.timers, self.topics)
        self.transactions = TransactionCoordinator(
            self.config, self.clock, self.timers, self.topics, ProducerIds(self.metadata),
            transaction_version=self.metadata.image.features.get('transaction.version', 0))
        # Offsets of a transaction become visible by markers, so whoever sends markers starts after who replays them.
        self.groups.start()
        self.transactions.start()
        self._let_go.append(self.transactions.stop)
        self.logs.start()
        self.cleaner = Cleaner(self.logs, self.config, self.clock, self.timers, self._submit)
        self.cleaner.start()
        self._let_go.append(self.cleaner.stop)
        if self.config.log_flush_scheduler_interval_ms < LONG_MAX:
            self.timers.every(self.config.log_flush_scheduler_interval_ms, self.topics.flush_by_time)

    def advertised_address(self, listener_name: str) -> tuple[str, int]:
        """Where clients of a listener are told to connect; the first address if this listener has none of its own."""
        first = next(iter(self._advertised.values()))
        return self._advertised.get(listener_name, first)

    def turn_ends(self) -> None:
        """Called by the loop after each batch of events: write what was gathered, flush it, look at what was woken."""
        self.tick.end()
        self.flusher.kick()
        while self.tick:       # a sync was over at once, and somebody went on
            self.tick.write()
            self.flusher.kick()
        if self._untold_failure is not None:
            failure, self._untold_failure = self._untold_failure, None
            self._tell_failure(failure)
        self.waiting_room.turn_ends()

    def _flush_later(self, error: OSError) -> None:
        """Each turn of the loop tries again by itself; without one, this does."""
        shortage.refusal(self.clock, 'cannot sync yet', error)
        self.timers.after(SHORTAGE_PAUSE_MS, self.flusher.kick)

    def _go_offline(self, failure: KafkaError) -> None:
        """The log directory has failed: nothing is written from here on.

        Those who wait for the disk are told when the turn ends: now somebody may be in the middle of an append.
        """
        self.flusher.halt()
        self.metadata.take_offline(str(failure))
        self._untold_failure = failure

    def _tell_failure(self, failure: KafkaError) -> None:
        """The coordinators let go of their partitions first, so that what is answered below changes nothing there."""
        self.cleaner.stop()
        self.transactions.stop()
        self.groups.close()
        for partition in self.topics.partitions():
            partition.fail(failure)

    def reconfigure(self) -> None:
        """Put the BROKER configs of the metadata log into effect."""
        configs = self.metadata.image.configs
        self.config.adopt(self.config.with_changes(
            cluster_wide=configs.get((ResourceType.BROKER, ''), {}),
            per_broker=configs.get((ResourceType.BROKER, str(self.metadata.node_id)), {})))
        self.topics.configure(self.config)
        for callback in self.on_reconfigured:
            callback()

    def close(self) -> None:
        """Leave a directory that was stopped cleanly: resign, close the logs, fence, and only then say so."""
        if self.logs.failure is not None:
            # What the disk holds is known only to recovery: the directory must not say that it was stopped cleanly.
            self.abandon()
            return
        self.cleaner.stop()
        self.transactions.close()
        self.tick.write()
        self.metadata.begin_shutdown()
        self.logs.close(self.metadata.finish_shutdown())
        self._let_go.clear()

    def abandon(self) -> None:
        """Let go of everything without a clean stop: the next start recovers."""
        while self._let_go:
            self._let_go.pop()()
