"""The broker process: a node, the loop that drives it, and the sockets of its clients."""
from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker import __version__
from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.served import apis_under
from kbroker.base.clock import Clock, Timers
from kbroker.base.garbage import YoungSearch, log_garbage
from kbroker.base.lean_dataclasses import replace
from kbroker.base.ledger import Line
from kbroker.base.turn_watch import TurnWatch
from kbroker.daemon.clock_watch import LOOK_INTERVAL_MS, ClockWatch
from kbroker.daemon.ledger import ledger_of
from kbroker.daemon.node import Node
from kbroker.daemon.status import MOST_PEERS, Report, StatusSocket
from kbroker.daemon.stopping import StopProgress
from kbroker.group.share.holds import HoldsFilter, describe_holds
from kbroker.log.fs import FileSystem, shared_open_files
from kbroker.metadata.changes import Steps
from kbroker.network.admission import ListenerLimits
from kbroker.network.connection import Connection
from kbroker.network.limits import UNBOUNDED, Limits, SocketOptions
from kbroker.network.reactor import Reactor
from kbroker.network.server import Endpoint, Hooks, Server
from kbroker.network.sync_threads import SyncThreads
from kbroker.network.transport import Transport
from kbroker.network.worker import Worker
from kbroker.security.quotas import ClientQuotas
from kbroker.security.surroundings import Background
from kbroker.settings.config import Config
from kbroker.settings.exposure import addresses_for_clients, check_exposed_metrics, check_exposure, may_be_unreachable
from kbroker.settings.listeners import Listener
from kbroker.settings.rows import INT_MAX
from kbroker.settings.table import addresses_with_limits

if TYPE_CHECKING:
    from kbroker.daemon.controlling import Controlling
    from kbroker.daemon.monitoring import Monitoring
    from kbroker.log.jobs import Sync
    from kbroker.network.tls_contexts import TlsContexts
    from kbroker.security.certificates import Certificate

logger = logging.getLogger('kbroker')

DRAIN_MS = 5_000
"""The time in milliseconds for which a stop waits for the replies to requests in flight."""
SYNC_THREADS = 4
"""The number of threads that sync files.

Measured with 64 dirty files: four threads take a tenth of the time of one thread, and eight threads take as long as
four.
"""
ACCEPTED_AT_ONCE = 64
FILES_LEAST_SHARE = 8
"""The inverse of the share of file descriptors that is reserved for the files of the logs: 8 means one eighth."""
LEAST_RESERVED = 48
"""The least number of descriptors that connections must leave free.

If half of the descriptor limit is less, that half counts instead. The broker itself keeps about 20 descriptors open.
"""
MOST_NAMED, MOST_REASON = 20, 1000
"""The most offline partitions in the status, and the most characters of the reason for each of them."""
STATM = Path('/proc/self/statm')
EXIT_BROKEN = 70
"""The exit status of a broker that ends because an invariant is broken: EX_SOFTWARE of sysexits.h."""


def limit_of(value: int) -> int:
    """Return the value of a setting that is a limit. INT_MAX means no limit: return UNBOUNDED for it."""
    return UNBOUNDED if value == INT_MAX else value


def measure_memory() -> tuple[int, int]:
    """Return the bytes of memory that this process has now, and the most that it has had.

    Without /proc, the maximum stands for the present size.
    """
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        resident_bytes = int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return most_bytes, most_bytes
    # The kernel updates the maximum less often than the current size, so the current size may be larger.
    return resident_bytes, max(resident_bytes, most_bytes)


class Broker:
    """The broker process. Call `start`, then `run`. `run` returns after a call of `stop`."""

    server: Server
    ledger: list[Line]
    _started_ms: int
    _status_socket: StatusSocket | None = None
    _progress: StopProgress | None = None
    _tls: TlsContexts | None = None
    _monitoring: Monitoring | None = None
    _is_stopping = False

    def __init__(self, config: Config, controlled_clock: Clock | None = None, controlling: Controlling | None = None):
        """Create the parts of a broker. With `controlled_clock`, its timers and its records follow this clock.

        With `controlling`, a test controls its steps, its disk and its process, too.
        """
        self.config = config
        self.controlling = controlling
        clock = controlled_clock or Clock()
        self.turn_watch = TurnWatch(config.kbroker_measure_turns)
        self.timers = Timers(clock, self.turn_watch)
        machine_timers = None if controlled_clock is None else Timers(Clock(), self.turn_watch)
        self.reactor = Reactor(clock, self.timers, machine_timers)
        self.sync_threads = SyncThreads(self.reactor, SYNC_THREADS)
        self.cleaning_worker = Worker(self.reactor, name='cleaner')
        self.reading_worker = Worker(self.reactor, name='reader')
        # This worker has one thread, so that only one batch at a time takes memory for its decompressed records.
        self.validating_worker = Worker(self.reactor, name='validator')
        # Searches of logs have their own thread: a search may take long, and must not delay the batches of producers.
        self.searching_worker = Worker(self.reactor, name='searcher')
        # Logins have their own thread, because a login may wait for the keys of an identity provider.
        self.login_worker = Worker(self.reactor, name='logins')
        # The thread for tokens never waits for the network: it only verifies the signatures of tokens.
        self.token_worker = Worker(self.reactor, name='tokens')
        sync: Sync = self.sync_threads.sync
        parts = (FileSystem(), sync, None) if controlling is None else controlling.parts(sync, self.timers)
        fs, sync, steps = parts
        self.node = Node(config, clock, self.timers, fs, sync, self.cleaning_worker.submit,
                         self.validating_worker.submit, self.searching_worker.submit, steps)
        self.directory = self.node.directory

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener."""
        host, port = self.server.addresses[0]
        return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'

    def start(self) -> None:
        """Lock the directory, bind the listeners, and recover. Then `run` serves requests.

        The listeners are bound before the recovery, so that an address in use is reported without a long wait. Clients
        that connect before `run` wait in the backlog. Raise OSError, ConfigError, KafkaError or CorruptLogError, with a
        text for the operator. After an error nothing stays open.
        """
        try:
            advertised, warnings = addresses_for_clients(self.config)
            for warning in warnings + check_exposure(self.config):
                logger.warning('%s', warning)
            if self.config.kbroker_audit_log:
                from kbroker.security.audit_file import open_audit  # slow to import, and not always used

                self.node.audit = open_audit(self.config.kbroker_audit_log, self.reactor.clock)
            self.node.take_directory()
            self.node.authentication.start(Background(self.timers, self.login_worker.submit),
                                           self.token_worker.submit)
            self._bind()
            if self.config.metrics_listen:
                self._answer_about_start()
            advertised = self._with_bound_ports(advertised)
            self._watch_addresses(advertised)
            self.node.open(advertised)
        except BaseException:
            self._release(self.node.abandon)
            raise
        self.node.transactions.store.stale_requests.find_connection = self.server.connections.get
        young_search = YoungSearch(self.server.traffic, self.node.long_work)
        self.reactor.at_tick_end.extend((self.node.end_tick, young_search.end_tick))
        if self.turn_watch.measures_cpu:
            self.turn_watch.watch_collections()
            self.reactor.on_signal(signal.SIGUSR1, self.turn_watch.log_longest)
            self.reactor.on_signal(signal.SIGUSR2, log_garbage)
        self._started_ms = self.reactor.clock.monotonic_ms()
        self.timers.every(LOOK_INTERVAL_MS, ClockWatch(self.reactor.clock).look)
        status_socket = StatusSocket(self.reactor, self.node.long_work, self.directory, self._answer)
        if self._monitoring is not None:
            self._serve_metrics(self._monitoring)
        if self.controlling is not None:
            self.controlling.serve(self)
        self.ledger = [*ledger_of(self.node, self.server), Line(
            'processes that ask for the status', '', lambda: len(status_socket), lambda: MOST_PEERS,
            'the oldest gives way'), *([] if self._monitoring is None else self._monitoring.ledger()),
            *([] if self.controlling is None else self.controlling.ledger())]
        self._status_socket = status_socket

    def _answer(self, question: Report) -> Steps[Report]:
        """Return the reply to a request to the status socket.

        If the request contains `holds`, return the records that share groups hold. Otherwise return `report`.
        """
        wanted = question.get('holds')
        if not isinstance(wanted, dict):
            return (yield from self.report())
        node = self.node
        holds = yield from describe_holds(node.share_partitions, node.clock, HoldsFilter(
            wanted.get('topic'), wanted.get('partition'), wanted.get('group_id')))
        return {'cluster_id': node.metadata.cluster_id, **holds}

    def report(self) -> Steps[Report]:
        """Return the report that `kbroker status` prints."""
        from kbroker.daemon.report import numbers_of  # the broker does not need it before the first question

        numbers = yield from numbers_of(self.node, self.server.traffic, self.certificates)
        resident_bytes, most_resident_bytes = measure_memory()
        offline = self.node.logs.verification.offline()
        uptime_ms = self.reactor.clock.monotonic_ms() - self._started_ms
        return {
            'version': __version__, 'pid': os.getpid(), 'address': self.address, 'directory': self.directory,
            'durability': self.config.kbroker_durability,
            'control': None if self.controlling is None else self.controlling.address,
            'uptime_s': uptime_ms // 1000, 'uptime_ms': uptime_ms,
            'resident_bytes': resident_bytes, 'most_resident_bytes': most_resident_bytes,
            'failure': None if self.node.logs.failure is None else str(self.node.logs.failure),
            'offline_partitions': len(offline),
            'offline': [{'topic': note.key[0], 'partition': note.key[1], 'reason': str(note.damages[0])[:MOST_REASON]}
                        for note in offline[:MOST_NAMED]],
            'refused_stale_requests': self.node.transactions.store.stale_requests.refused,
            'ledger': [{'what': line.what, 'unit': line.unit, 'now': line.now(), 'bound': line.bound(),
                        'limit': line.limit} for line in self.ledger],
            **numbers}

    def run(self) -> None:
        """Serve requests until `stop` is called, then stop cleanly.

        An exception that the loop raises means that an invariant is broken, so the state in memory may be wrong. The
        process then raises SystemExit without any further write, and the next start recovers.
        """
        try:
            self.reactor.run()
        except Exception:
            logger.critical('the broker ends: an invariant is broken; the next start recovers', exc_info=True)
            self._release(self.node.abandon)
            raise SystemExit(EXIT_BROKEN) from None
        self._stop_cleanly()
        if self._progress is not None:
            self._progress.end()

    def _stop_cleanly(self) -> None:
        if self._monitoring is not None:
            self._monitoring.close()
        self.node.on_progress('ending the work of other threads')
        self.node.cleaner.stop()
        self.node.logs.end_background_work()
        self.node.sync_inline()
        self.sync_threads.close()
        self.cleaning_worker.close()
        self.validating_worker.close(drop_jobs=True)
        self.searching_worker.close(drop_jobs=True)
        self.login_worker.close(drop_jobs=True)
        self.token_worker.close(drop_jobs=True)
        self.reactor.run_once()  # runs the completions of the last syncs and of the cleaner's last job
        self._release(self.node.close)

    def reload(self) -> None:
        """Continue the audit in a new file, and read the token of the metrics and changed TLS files again."""
        self.node.audit.reopen()
        if self._monitoring is not None:
            self._monitoring.reload()
        if self._tls is not None:
            self._tls.reload()

    def stop(self, progress: StopProgress | None = None) -> None:
        """Accept no connections, and answer the requests in flight.

        Then let `run` stop cleanly, after at most DRAIN_MS.

        `run` reports its progress to `progress`, and finally calls `progress.end`.
        """
        self._progress = progress
        self._is_stopping = True
        if self.controlling is not None:
            self.controlling.stop()
        if progress is not None:
            self.node.on_progress = progress.note
        self.node.waiting_room.answer_all()
        self.server.drain(DRAIN_MS, self.reactor.stop)

    def _bind(self) -> None:
        config = self.config
        dispatcher = Dispatcher(self.node, apis_under(self.config), self.node.tick, self.turn_watch,
                                self.node.steps)
        self.node.quotas.on_switch.append(dispatcher.apply_quotas)
        limits = Limits(
            max_request_bytes=config.socket_request_max_bytes,
            max_held_bytes=config.queued_max_request_bytes,
            max_idle_ms=config.connections_max_idle_ms, max_connections=self._max_connections(),
            max_connections_per_ip=config.max_connections_per_ip)
        options = SocketOptions(config.socket_listen_backlog_size, config.socket_send_buffer_bytes,
                                config.socket_receive_buffer_bytes)
        self.server = Server(
            self.reactor, self._endpoints(), dispatcher, limits, options,
            hooks=Hooks(self.node.authentication.open, self._connection_closed, self.reading_worker.submit,
                        partial(shared_open_files().release, ACCEPTED_AT_ONCE)),
            quotas=self.node.quotas)
        self.node.quotas.on_switch.append(self._measure_time)
        self._limit_connections()
        self.node.on_reconfigured.append(self._limit_connections)

    def _answer_about_start(self) -> None:
        """Bind `metrics.listen`, and answer there that the broker starts."""
        from kbroker.daemon.monitoring import Monitoring  # slow to import, and not always used

        listener = self.config.metrics_listener
        assert listener is not None
        for warning in check_exposed_metrics(self.config, listener):
            logger.warning('%s', warning)
        context = partial(self._tls_contexts().context, listener.name) if listener.has_tls else None
        self._monitoring = Monitoring(self.config, context)

    def _serve_metrics(self, monitoring: Monitoring) -> None:
        """Answer on `metrics.listen` for a broker that has started."""
        # These are slow to import, and not always used.
        from kbroker.daemon.monitoring import metrics_route, page_routes, samples_of
        from kbroker.daemon.page_facts import SAMPLE_MS, PageSource, Throughput
        from kbroker.http.routes import health_route
        from kbroker.page.child import Commands
        from kbroker.page.outputs import OutputPages

        self.reactor.takes_times = True
        throughput = Throughput(self.node, self.server.traffic)
        self.timers.every(SAMPLE_MS, throughput.sample)
        source = PageSource(self.node, self.address, throughput, lambda: self.certificates)
        commands = Commands(self.reactor, self.timers)
        outputs = OutputPages(commands, source.current, ('--data-dir', self.directory))
        monitoring.serve(self.reactor, self.node.long_work, [
            *page_routes(source, outputs), metrics_route(partial(samples_of, self)),
            health_route('/livez', lambda: None), health_route('/readyz', self._problem)],
            on_close=commands.close)
        logger.info('metrics, health and the page are on %s', monitoring.url,
                    extra={'event': 'metrics', 'url': monitoring.url})

    @property
    def certificates(self) -> Mapping[str, Sequence[Certificate]]:
        """The certificates of each listener with TLS."""
        return {} if self._tls is None else self._tls.certificates

    def _problem(self) -> str | None:
        """Return why clients are not served, or None if they are."""
        if self._is_stopping:
            return 'the broker stops'
        failure = self.node.logs.failure
        return None if failure is None else f'the log directory is offline: {failure}'

    def _measure_time(self, quotas: ClientQuotas | None) -> None:
        self.server.traffic.measures_time = quotas is not None

    def _limit_connections(self) -> None:
        """Put the settings that limit connections into effect."""
        config, admission = self.config, self.server.admission
        self.server.limit(self._max_connections(), config.max_connections_per_ip)
        admission.overrides = addresses_with_limits(config.max_connections_per_ip_overrides)
        admission.max_rate = limit_of(config.max_connection_creation_rate)
        of_listeners = {listener.name: config.for_listener(listener.name) for listener in config.bound_listeners}
        admission.listeners = {name: ListenerLimits(limit_of(of_listener['max.connections']),
                                                    limit_of(of_listener['max.connection.creation.rate']))
                               for name, of_listener in of_listeners.items()}

    def _max_connections(self) -> int:
        """Return the most connections that leave enough file descriptors for the logs.

        The logs close files when descriptors run out, but need a few.
        """
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most: int = self.config.max_connections
        reserved = max(descriptors // FILES_LEAST_SHARE, min(LEAST_RESERVED, descriptors // 2))
        return min(most, descriptors - reserved)

    def _endpoints(self) -> list[Endpoint]:
        return [Endpoint(listener.host, listener.port, listener.name, self._transport(listener))
                for listener in self.config.bound_listeners]

    def _transport(self, listener: Listener) -> Callable[[int], Transport]:
        if not listener.has_tls:
            return Transport
        from kbroker.network.tls import TlsTransport  # slow to import, and seldom used

        contexts = self._tls_contexts()
        return lambda fd: TlsTransport(fd, contexts.context(listener.name))

    def _tls_contexts(self) -> TlsContexts:
        """Return the contexts of all listeners with TLS.

        The first call reads the files, and starts to check them for changes at intervals.
        """
        from kbroker.network.tls_contexts import TlsContexts

        if self._tls is None:
            self._tls = TlsContexts(self.config, self.reading_worker.submit, self.reactor.clock)
            self.timers.after(self._tls.next_look_ms, self._look_at_certificates)
            self.node.checks.append(self._tls.check)
            self.node.on_reconfigured.append(self._tls.reload)
            if self.config.kbroker_ssl_reload_interval_ms:
                self.timers.every(self.config.kbroker_ssl_reload_interval_ms, self._tls.reload)
        return self._tls

    def _look_at_certificates(self) -> None:
        """Log which certificates have expired, or soon will."""
        assert self._tls is not None
        self._tls.look()
        self.timers.after(self._tls.next_look_ms, self._look_at_certificates)

    def _with_bound_ports(self, advertised: list[Listener]) -> list[Listener]:
        """Return the addresses for clients. A port of 0 is replaced by the port that the listener is bound to."""
        bound = {listener.name: address[1]
                 for listener, address in zip(self.config.bound_listeners, self.server.addresses, strict=True)}
        return [replace(listener, port=listener.port or bound[listener.name]) for listener in advertised]

    def _watch_addresses(self, advertised: list[Listener]) -> None:
        unreachable = may_be_unreachable(self.config, advertised)
        if unreachable:
            from kbroker.apis.serving.address_watch import AddressWatch  # seldom needed

            self.node.address_watch = AddressWatch(unreachable)

    def _connection_closed(self, connection: Connection) -> None:
        self.node.connection_closed(connection.connection_id)
        self.node.authentication.connection_closed(connection)

    def _release(self, end_node: Callable[[], None]) -> None:
        try:
            end_node()
        finally:
            self.node.authentication.stop()
            if self._status_socket is not None:
                self._status_socket.close()
            if self._monitoring is not None:
                self._monitoring.close()
            if self.controlling is not None:
                self.controlling.close()
            if hasattr(self, 'server'):
                self.server.close()
            self.sync_threads.close()
            self.cleaning_worker.close()
            self.validating_worker.close(drop_jobs=True)
            self.searching_worker.close(drop_jobs=True)
            self.login_worker.close(drop_jobs=True)
            self.token_worker.close(drop_jobs=True)
            self.reading_worker.close()
            self.reactor.close()
            self.node.audit.close()
