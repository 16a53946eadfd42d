"""The broker without its sockets.

The node opens and closes all packages that have state, in the right order. Handlers use it as `request.node`.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kbroker.apis.fetch.sessions import FetchSessions
from kbroker.apis.serving.authentication import Authentication
from kbroker.apis.serving.client_software import ClientSoftware
from kbroker.apis.serving.waiting import WaitingRoom
from kbroker.base.clock import Clock, Timers
from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.base.long_work import LongWork
from kbroker.group.coordinator import GroupCoordinator
from kbroker.group.share.partitions import SharePartitions
from kbroker.group.share.queues import DeadLetterQueues
from kbroker.group.share.sessions import ShareSessions
from kbroker.log.clean_stop import Progress, ignore_progress
from kbroker.log.cleaner import Cleaner
from kbroker.log.directory_names import LOCK_FILE
from kbroker.log.fs import FileSystem, sync_inline
from kbroker.log.jobs import Submit, Sync, run_inline
from kbroker.log.manager import LogManager
from kbroker.log.shortage import SHORTAGE_PAUSE_MS, shortage
from kbroker.log.timestamps import Searches
from kbroker.metadata.changes import Steps
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.features import TRANSACTION_VERSION
from kbroker.metadata.image import ResourceType
from kbroker.metadata.snapshot_writer import Limits, SnapshotWriter
from kbroker.protocol.messages import FeatureLevelRecord
from kbroker.security.audit import Audit
from kbroker.security.principal import parse_principals
from kbroker.security.quotas import ClientQuotas, Window
from kbroker.settings.config import Config, validate_broker_configs
from kbroker.settings.listeners import Listener
from kbroker.settings.rows import LONG_MAX
from kbroker.topics.flusher import Flusher
from kbroker.topics.partition import Tick
from kbroker.topics.registry import TopicRegistry
from kbroker.transaction.coordinator import TransactionCoordinator
from kbroker.transaction.producer_ids import ProducerIds

if TYPE_CHECKING:
    from kbroker.apis.serving.address_watch import AddressWatch
    from kbroker.apis.serving.change_log import ChangeLog
    from kbroker.apis.serving.request import RequestCounts
    from kbroker.base.completion import Steps as ReachedSteps
    from kbroker.metadata.access_control import AclFollower
    from kbroker.security.authorizer import Authorizer

logger = logging.getLogger('kbroker')

NO_CONFIGS: Mapping[str, str] = MappingProxyType({})


class Node:
    """All state of a broker.

    Call `take_directory` and `open`, then serve requests and ticks, then call `close` or `abandon`.
    """

    # Handlers in C look up these attributes for each request. Looking up a slot takes less time than looking up a key
    # in a dict with more than 30 keys.
    __slots__ = (
        '_advertised', '_began_ms', '_closers', '_submit', '_sync', '_unreported_failure', 'acls', 'address_watch',
        'audit', 'authentication', 'authorizer', 'change_log', 'checks', 'cleaner', 'client_software', 'clock',
        'config', 'directory', 'fetch_sessions', 'flusher', 'fs', 'groups', 'logs', 'long_work', 'metadata',
        'on_progress', 'on_reconfigured', 'quotas', 'request_counts', 'searches', 'share_partitions', 'share_sessions',
        'share_states', 'snapshots', 'start_took_ms', 'started_ms', 'steps', 'tick', 'timers', 'topics', 'transactions',
        'validate', 'waiting_room')

    metadata: MetadataController
    acls: AclFollower
    topics: TopicRegistry
    groups: GroupCoordinator
    share_partitions: SharePartitions
    transactions: TransactionCoordinator
    logs: LogManager
    cleaner: Cleaner
    started_ms: int
    """The wall time at which the start began."""
    start_took_ms: int
    """The time in ms from the lock of the directory to the end of the recovery."""
    _began_ms: int
    snapshots: SnapshotWriter
    request_counts: RequestCounts
    """The counts of the dispatcher, which sets them: a directory can be opened without APIs."""
    _advertised: dict[str, tuple[str, int]]

    def __init__(self, config: Config, clock: Clock, timers: Timers, fs: FileSystem, sync: Sync = sync_inline,
                 submit: Submit = run_inline, validate: Submit = run_inline, search: Submit = run_inline,
                 steps: ReachedSteps | None = None):
        """Create the parts of the node that need no log directory.

        `sync` syncs files, `submit` runs jobs of the cleaner and removes files, `validate` validates long produced
        batches, and `search` searches logs by time. A function that does its work inline blocks the loop. `steps` hold
        operations at their points, if a test controls the broker.
        """
        self.config = config
        self.clock = clock
        self.timers = timers
        self.fs = fs
        self.steps = steps
        self.directory = os.path.abspath(config.log_directory)
        self.quotas = ClientQuotas(
            clock, Window(config.quota_window_num, 1000 * config.quota_window_size_seconds),
            Window(config.controller_quota_window_num, 1000 * config.controller_quota_window_size_seconds))
        self.client_software = ClientSoftware()
        self.waiting_room = WaitingRoom()
        self.long_work = LongWork(timers)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, clock, self.waiting_room,
                                            self.long_work)
        self.share_sessions = ShareSessions(lambda: config.group_share_max_share_sessions)
        self.tick = Tick()
        make_flusher: Callable[..., Flusher] = Flusher
        if steps is not None:
            from kbroker.topics.controlled_flusher import ControlledFlusher  # only needed under control

            make_flusher = partial(ControlledFlusher, steps)
        self.flusher = make_flusher(sync, lambda error: self.logs.fail(f'cannot sync: {error}'), self._flush_later,
                                    clock, timers)
        self.authorizer: Authorizer | None = None
        """The object that checks the rights of clients, or None if every client may do everything."""
        self._unreported_failure: KafkaError | None = None
        self.on_progress: Progress = ignore_progress
        """The function to which `close` reports its progress."""
        self.on_reconfigured: list[Callable[[], None]] = []
        """The functions to call after settings were changed at run time and `config` has adopted the changes."""
        self.checks: list[Callable[[Config, Iterable[str]], Steps[None]]] = []
        """The checks of settings that a client wants to change at run time.

        Each gets the configuration after the change, and the names that the change sets. A check is a generator. It
        raises KafkaError to refuse the change.
        """
        self.validate = validate
        self.searches = Searches(search)
        self.audit = Audit()
        """The audit. This one records nothing; the broker replaces it if `kbroker.audit.log` names a file."""
        self.change_log: ChangeLog | None = None
        """The lines of the log about administrative changes; None until the first one."""
        self.authentication = Authentication(self)
        self.address_watch: AddressWatch | None = None
        """The listeners to warn about when a client of another machine asks for the brokers; None if there is none."""
        self._sync = sync
        self._submit = submit
        self._closers: list[Callable[[], None]] = []
        """The functions that close the open parts, in the order in which the parts were opened.

        `abandon` calls the functions in reverse order.
        """

    def take_directory(self) -> None:
        """Lock the log directory and read its metadata. No other process can write to the locked directory.

        Raise OSError, ConfigError, KafkaError or CorruptLogError, with a text for the operator.
        """
        self.started_ms, self._began_ms = self.clock.wall_ms(), self.clock.monotonic_ms()
        if not self.fs.exists(os.path.join(self.directory, LOCK_FILE)):
            # Check the directory before locking it: a directory that kbroker refuses must not even get a lock file.
            MetadataController.check(self.fs, self.directory, self.config, self.clock)
        self.logs = LogManager(self.fs, self.directory, self.config, self.clock, self.timers, self._sync, self._submit,
                               self.long_work)
        self._closers.append(lambda: self.logs.close(clean=False))
        self.metadata = MetadataController.open(self.fs, self.directory, self.config, self.clock, self.logs.past(),
                                                self._sync)
        self._closers.append(self.metadata.close)
        self._adopt_configs()
        if self.config.authorizer_class_name:
            self._open_authorizer()
        self.logs.begin()

    def open(self, listeners: list[Listener]) -> None:
        """Register the broker under `listeners`, recover and open the partitions, and load the state of the
        coordinators.

        Raise the errors that `take_directory` raises.
        """
        self._advertised = {listener.name: (listener.host, listener.port) for listener in listeners}
        self.metadata.register(listeners)
        self.quotas.adopt(self.metadata.image.client_quotas)
        self.metadata.commits.on_change.append(self.quotas.replay)
        self.topics = TopicRegistry(self.config, self.metadata, self.logs, self.flusher, self.tick)
        self.topics.open_all()
        # A clean stop wrote the log ends as recovery points. Write the recovery points again now, because a segment
        # that is rolled after the start is not durable immediately.
        self.logs.recovery_points.write()
        self.logs.on_failure = self._go_offline
        self.metadata.commits.on_failure = self.logs.fail
        self.groups = GroupCoordinator(self.config, self.clock, self.timers, self.topics, self.long_work,
                                       self._group_overrides, self.steps)
        self.on_reconfigured.append(self.groups.reconfigure)
        self.transactions = TransactionCoordinator(
            self.config, self.clock, self.long_work, self.topics, ProducerIds(self.metadata, self.long_work),
            transaction_version=self.metadata.image.features.get(TRANSACTION_VERSION, 0))
        self.transactions.ender.steps = self.steps
        self.metadata.commits.on_change.append(self._adopt_features)
        self.share_states = self.groups.share_states
        self.share_partitions = SharePartitions(self.share_states, self.share_sessions, self.clock, self.timers,
                                                self.long_work, self.groups.memory, self.groups.group_config,
                                                self.searches)
        self.topics.on_topic_deleted.append(lambda topic: self.share_partitions.drop_topic(topic.topic_id))
        # The group coordinator starts first. It replays markers, which make a transaction's offsets visible, and the
        # transaction coordinator sends markers when it starts.
        self.groups.start()
        self.share_partitions.start(DeadLetterQueues(self.topics, self.config))
        self.transactions.start()
        self._closers.append(self.transactions.stop)
        self.logs.start()
        self.cleaner = Cleaner(self.logs, self.config, self.clock, self.timers, self._submit)
        self.cleaner.start()
        self._closers.append(self.cleaner.stop)
        self.snapshots = SnapshotWriter(self.metadata, Limits.of(self.config), self.fs, self.clock, self.long_work,
                                        self._sync, self._submit)
        self.snapshots.start()
        self._closers.append(self.snapshots.stop)
        if self.config.log_flush_scheduler_interval_ms < LONG_MAX:
            self.timers.every(self.config.log_flush_scheduler_interval_ms,
                              lambda: self.long_work.start(self.topics.flush_by_time()))
        self.start_took_ms = self.clock.monotonic_ms() - self._began_ms

    def _open_authorizer(self) -> None:
        """Put the ACLs of the metadata log into effect. Each later change of the ACLs takes effect immediately."""
        from kbroker.metadata.access_control import AclFollower, may_be_administered  # slow to import, not always used
        from kbroker.security.authorizer import Authorizer
        from kbroker.security.decision_log import DecisionLog

        self.authorizer = Authorizer(parse_principals(self.config.super_users),
                                     self.config.allow_everyone_if_no_acl_found,
                                     DecisionLog(self.timers, self.audit.denied))
        self._closers.append(self.authorizer.log.close)
        self.acls = AclFollower(self.authorizer, self.metadata, self.long_work)
        if not may_be_administered(self.authorizer):
            logger.warning('access control is on, and no user may change it: super.users is empty, and no ACL '
                           'allows ALTER on the cluster. To add one, stop the broker and run: kbroker-acls '
                           '--data-dir %s --add --allow-principal User:NAME --operation All --cluster', self.directory)

    def connection_closed(self, connection_id: int) -> None:
        """Drop all waiting requests of a closed connection, and close its share sessions."""
        self.client_software.connection_closed(connection_id)
        self.waiting_room.connection_closed(connection_id)
        self.share_sessions.connection_closed(connection_id)
        if self.steps is not None:
            self.steps.connection_closed(connection_id)

    def advertised_address(self, listener_name: str) -> tuple[str, int]:
        """Return the address for clients of a listener. If the listener has none, return the first address."""
        first = next(iter(self._advertised.values()))
        return self._advertised.get(listener_name, first)

    def end_tick(self) -> None:
        """Write and flush the appends of the tick, then answer the waiting requests that these appends woke."""
        self.tick.end()
        self.flusher.kick()
        while self.tick:       # the completion of an inline sync may append again
            self.tick.write()
            self.flusher.kick()
        if self._unreported_failure is not None:
            failure, self._unreported_failure = self._unreported_failure, None
            self._report_failure(failure)
        self.waiting_room.end_tick()

    def _flush_later(self, error: OSError) -> None:
        """Retry the flush after a pause. Each tick retries it, too, but no tick may follow."""
        shortage.refusal(self.clock, 'cannot sync yet', error)
        self.timers.after(SHORTAGE_PAUSE_MS, self.flusher.kick)

    def _go_offline(self, failure: KafkaError) -> None:
        """Stop all writes, because the log directory has failed.

        Waiting requests get the failure at the end of the tick, because an append may be in progress now.
        """
        self.flusher.halt()
        self.metadata.take_offline(str(failure))
        self._unreported_failure = failure

    def _report_failure(self, failure: KafkaError) -> None:
        """Fail the requests that wait for the disk.

        First stop the coordinators, so that their state does not change.
        """
        self.cleaner.stop()
        self.transactions.stop()
        self.share_partitions.close()
        self.groups.close()
        for partition in self.topics.partitions():
            partition.fail(failure)

    def reconfigure(self) -> Steps[None]:
        """Put the BROKER configs of the metadata log into effect.

        The caller must hold a turn of `metadata.commits.turns`.
        """
        self._adopt_configs()
        for callback in self.on_reconfigured:
            callback()
        yield from self.topics.configure()

    def check_configs(self, name: str, wanted: Mapping[str, str]) -> Steps[None]:
        """Raise KafkaError unless the BROKER resource `name` may have the configs `wanted`."""
        before = self.metadata.image.configs.get((ResourceType.BROKER, name), {})
        # Validate the names first, because a request may contain very many unknown names. The configuration is then
        # built only from known names.
        validate_broker_configs(self.config, {key: value for key, value in wanted.items() if before.get(key) != value},
                                per_broker=bool(name))
        try:
            after = self._with_configs({name: wanted})
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
        for check in self.checks:
            yield from check(after, wanted)

    def _with_configs(self, changed: Mapping[str, Mapping[str, str]]) -> Config:
        """Return the configuration with the BROKER configs of the metadata log.

        `changed` maps some resource names to the configs that replace theirs.
        """
        found = {name: changed.get(name, self.metadata.image.configs.get((ResourceType.BROKER, name), {}))
                 for name in ('', str(self.metadata.node_id))}
        return self.config.with_changes(cluster_wide=found[''], per_broker=found[str(self.metadata.node_id)])

    def _group_overrides(self, group_id: str) -> Mapping[str, str]:
        """Return a group's GROUP configs in the metadata log."""
        return self.metadata.commits.image.configs.get((ResourceType.GROUP, group_id), NO_CONFIGS)

    def _adopt_features(self, records: Iterable[Any]) -> None:
        """Pass a changed transaction version to the transaction coordinator.

        All other packages read their feature levels in the image.
        """
        if any(type(record) is FeatureLevelRecord for record in records):
            self.transactions.use_version(self.metadata.image.features.get(TRANSACTION_VERSION, 0))

    def _adopt_configs(self) -> None:
        self.config.adopt(self._with_configs({}))

    def sync_inline(self) -> None:
        """From now on, sync in the calling thread and write no snapshots, because the sync threads are about to end."""
        self.flusher.sync_inline()
        self.metadata.commits.sync_here()
        self.snapshots.stop()

    def close(self) -> None:
        """Stop cleanly: close the coordinators, end the registration, and close the logs.

        Then mark the directory as cleanly stopped.
        """
        if self.steps is not None:
            self.steps.close()
        if self.logs.failure is not None:
            # After a failure, only a recovery can find out which bytes are on the disk. So the directory must not be
            # marked as cleanly stopped.
            self.abandon()
            return
        self.cleaner.stop()
        self.sync_inline()
        self.share_partitions.stop_dead_letters()
        self.tick.write()
        self.flusher.kick()     # the records of durable dead letters become ARCHIVED: the next start need not search
        self.on_progress('finishing the work under way')
        self.metadata.commits.finish()
        self.long_work.finish()
        if self.authorizer is not None:
            self.authorizer.log.close()
        self.transactions.close()
        self.tick.write()
        self.metadata.begin_shutdown()
        broker_epoch = self.metadata.finish_shutdown()
        self.logs.close(broker_epoch, self.metadata.end_offset, progress=self.on_progress)
        self._closers.clear()

    def abandon(self) -> None:
        """Close all parts without a clean stop. The next start recovers."""
        while self._closers:
            self._closers.pop()()
