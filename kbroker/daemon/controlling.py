"""The control of a broker by a test: `kbroker serve --control`. The module is imported only with that option."""
from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker import __version__
from kbroker.base.errors import ConfigError
from kbroker.base.ledger import Line
from kbroker.control import process
from kbroker.control.clock import ClockControl, ClockFile, open_clock
from kbroker.control.disk import ControlledFileSystem, ControlledSync
from kbroker.control.reset import answer_reset
from kbroker.control.routes import MOST_RULE_BYTES, Controlled, routes_of
from kbroker.control.rules import MOST_RECORD_BYTES, MOST_RULES, Rules
from kbroker.control.server import ControlPort, Polls
from kbroker.control.snapshot import answer_snapshot
from kbroker.http.tokens import read_token
from kbroker.log.fs import FileSystem
from kbroker.settings.exposure import is_loopback
from kbroker.settings.listeners import parse_listener

if TYPE_CHECKING:
    from kbroker.base.clock import Timers
    from kbroker.daemon.broker import Broker
    from kbroker.log.jobs import Sync
    from kbroker.settings.config import Config

OPTION, TOKEN_OPTION = '--control', '--control-token-file'

logger = logging.getLogger('kbroker')


class Controlling:
    """The parts of a broker that a test controls, and the port through which the test does."""

    rules: Rules
    _sync: ControlledSync
    _clock_control: ClockControl | None = None

    def __init__(self, address: str, token_file: str | None, config: Config):
        """Read the options, and bind the address. Raise ConfigError or OSError, with a text for the operator."""
        try:
            where = parse_listener(OPTION, f'CONTROL://{address}')
        except ConfigError:
            raise ConfigError(OPTION, f'{OPTION}: found {address!r}, expected HOST:PORT, an IPv6 host in brackets'
                              ) from None
        is_local = is_loopback(where.host)
        if not is_local and not token_file:
            raise ConfigError(OPTION, f'{OPTION}: other machines reach {address}, and whoever reaches it can kill the '
                              f'broker. Expected an address of loopback, or a token: {TOKEN_OPTION} FILE')
        self._token = read_token(token_file, TOKEN_OPTION, allows_readable=config.kbroker_allow_readable_secrets
                                 ) if token_file else None
        self._is_local = is_local
        self._port = ControlPort(where.host, where.port, self._token, is_local=is_local)
        self._directory = os.path.abspath(config.log_directory)
        self.clock = open_clock(FileSystem(), self._directory)

    @property
    def address(self) -> str:
        """HOST:PORT of the control port."""
        return self._port.address

    def parts(self, sync: Sync, timers: Timers) -> tuple[FileSystem, Sync, Rules]:
        """Return the file system, the function that syncs files, and the steps of a broker with these timers."""
        self.rules = Rules(self.clock, timers, process.send_signal)
        self._sync = ControlledSync(self.rules, sync, timers)
        return ControlledFileSystem(self.rules), self._sync, self.rules

    def serve(self, broker: Broker) -> None:
        """Answer requests from now on, for a broker that has started."""
        polls = Polls(broker.reactor.machine_timers)
        self.rules.listeners.append(polls.note)
        self._clock_control = self._control_of_clock(broker)
        broker.reactor.at_tick_end.append(self._clock_control.end_tick)
        self._port.serve(broker.reactor, broker.node.long_work, routes_of(self._controlled(broker, polls)), polls)
        warning = '' if self._is_local else '; its token travels without TLS'
        logger.warning('the control port is on http://%s: its clients can stop, kill and falsify this broker%s',
                       self.address, warning, extra={'event': 'control', 'address': self.address})

    def ledger(self) -> list[Line]:
        """Return the lines of the ledger about what clients of the control port can grow."""
        rules = self.rules
        return [*self._port.ledger(),
                Line('rules of the control port', '', lambda: len(rules.all()), lambda: MOST_RULES,
                     f'at most {MOST_RULE_BYTES} bytes each'),
                Line('recorded steps', 'bytes', lambda: rules.record_bytes, lambda: MOST_RECORD_BYTES,
                     'the oldest are forgotten')]

    def stop(self) -> None:
        """Let the clock run, and let everything go on that is held or delayed, because the broker stops."""
        if self._clock_control is not None:
            self._clock_control.close()
        self.rules.close()
        self._sync.end_delays()

    def close(self) -> None:
        """Close the control port."""
        self._port.close()

    def _control_of_clock(self, broker: Broker) -> ClockControl:
        jobs = (broker.sync_threads, broker.cleaning_worker, broker.reading_worker, broker.validating_worker,
                broker.searching_worker, broker.login_worker, broker.token_worker)
        traffic = broker.server.traffic
        return ClockControl(self.clock, broker.reactor, jobs, lambda: traffic.received_bytes,
                            ClockFile(FileSystem(), self._directory))

    def _controlled(self, broker: Broker, polls: Polls) -> Controlled:
        def facts() -> dict[str, Any]:
            listeners = {listener.name: f'{host}:{port}' if ':' not in host else f'[{host}]:{port}'
                         for listener, (host, port) in zip(broker.config.bound_listeners, broker.server.addresses,
                                                           strict=True)}
            return {'version': __version__, 'pid': os.getpid(), 'directory': broker.directory, 'listeners': listeners,
                    'control': self.address, 'cluster_id': broker.node.metadata.cluster_id}

        assert self._clock_control is not None
        node, rules = broker.node, self.rules
        return Controlled(rules, polls, facts, self._clock_control, {
            '/reset': partial(answer_reset, node, rules, node.metadata.image),
            '/snapshot': partial(answer_snapshot, node, rules)})
