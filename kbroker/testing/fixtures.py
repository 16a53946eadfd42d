"""The brokers behind the fixtures of the pytest plugin, and the checks at the end of a test."""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbroker.testing import report
from kbroker.testing.access import USER, Access, ClientConfig, Tls, make_certificates
from kbroker.testing.broker import NO_SETTINGS, Broker
from kbroker.testing.errors import BrokerError
from kbroker.testing.process import Process

MOST_WARNINGS = 40
WARNING_LEVELS = ('warning', 'error', 'critical')


class FactoryBroker(Broker):
    """A broker of `kafka_factory`. `client_config` has the settings with which clients reach it."""

    def __init__(self, access: Access, *, data_dir: Path | str | None = None,
                 settings: Mapping[str, str] = NO_SETTINGS):
        super().__init__(data_dir=data_dir, settings={**access.broker_settings(), **settings},
                         listeners=access.listeners())
        self._access = access
        try:
            with self._questions.admin() as admin:
                access.add_user(admin)
        except BaseException:
            self.close()
            raise

    @property
    def client_config(self) -> ClientConfig:
        """The settings of clients: of confluent-kafka, kafka-python, aiokafka, and as a file."""
        return self._access.client_config(self.bootstrap_servers, self.log_path.parent / 'client.properties')


class SharedBroker(Broker):
    """The broker of all tests of a session. Each test uses topics, groups and transactional ids with its prefix."""

    prefix = ''
    """The prefix of the test that runs."""

    def topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] = NO_SETTINGS) -> str:
        """Create a topic whose name is the prefix of the test and `name`. Return this name."""
        self.create_topic(f'{self.prefix}{name}', partitions, settings)
        return f'{self.prefix}{name}'

    def begin(self, test: str, number: int) -> Use:
        """Begin a test, and return its use of the broker. Start the broker if an earlier test has ended it."""
        self.prefix = f'{re.sub(r"[^A-Za-z0-9_]+", "-", test).strip("-")[:80]}-{number}-'
        self.start()
        return Use(self, self.prefix)

    def left_open(self) -> str | None:
        """End a test. Return one line about what it has left, or None. A broker with something left is emptied."""
        self.resume()
        self.start()
        found = [f'transaction {each.transactional_id!r} is {each.state}' for each in self.transactions()]
        found += [f'group {each.group_id!r} has members' for each in self.groups() if each.members]
        found += [f'{rule.description} is in force' for rule in self.control.rules if rule.is_active]
        if self.clock.is_stopped:
            found.append('the clock is stopped')
            self.clock.run()
        if found:
            self.reset()
        else:
            self.control.rules.clear()
            self.control.ask('DELETE', '/steps')
        return f'the test left on the shared broker: {"; ".join(found)}' if found else None


@dataclass
class Use:
    """The use of a broker by a test."""

    broker: Broker
    prefix: str = ''
    """The prefix of the test on a broker that tests share."""
    has_own_directory: bool = True
    """True if the directory is removed when the broker is closed."""


@dataclass
class BrokersOfTest:
    """The brokers of one test that come from fixtures, and the directory for what a failed test leaves."""

    name: str
    new_directory: Callable[[str], Path]
    uses: list[Use] = field(default_factory=list)
    has_failed: bool = False
    is_explained: bool = False
    """True if the report of an earlier run of the same test has the sections."""
    _kept: dict[int, Path] = field(default_factory=dict)

    def end(self, use: Use) -> None:
        """Close a broker of this test only. If the test failed, its directory is kept, and the report has named it."""
        broker = use.broker
        if self.has_failed and use.has_own_directory and broker.data_dir.exists():
            broker.close(keep_as=self.kept(use))
        broker.close()

    def kept(self, use: Use) -> Path:
        """Return the path at which the data of a broker is after a failure."""
        if not use.has_own_directory or use.prefix:
            return use.broker.data_dir
        if id(use) not in self._kept:
            self._kept[id(use)] = self.new_directory('kafka-' + report.file_name_of(self.name)[-60:]) / 'data'
        return self._kept[id(use)]

    # ---- the report

    def sections(self, pages: Path | None) -> list[report.Section]:
        """Return the sections of the report. Write the HTML files into the directory `pages`, if one is given.

        All brokers share the time for the report. A broker that the test has paused continues.
        """
        found = []
        uses = [use for use in self.uses if use.broker._process.is_open]
        for number, use in enumerate(uses, 1):
            title = '' if len(uses) == 1 else f' ({number} of {len(uses)})'
            try:
                found += [(f'{name}{title}', text) for name, text in self._sections_of(use, pages, 1 / len(uses))]
            except (BrokerError, OSError) as error:
                found.append((f'kafka: no report{title}', str(error)))
        return found

    def _sections_of(self, use: Use, pages: Path | None, share: float) -> list[report.Section]:
        broker, kept = use.broker, str(self.kept(use))
        broker.resume()
        ids = {step.transactional_id for step in broker.steps() if step.transactional_id} if use.prefix else None
        sections = [*_section('kafka: holds and faults', rule_lines(broker)),
                    *_section('kafka: warnings of the broker', warning_lines(broker.log_lines()))]
        sections += [(title, text.replace(str(broker.data_dir), kept)) for title, text in
                     report.sections_of(broker.data_dir, use.prefix, ids, share * report.REPORT_LIMIT_S)]
        if pages is not None:
            files = report.write_pages(broker.data_dir, pages, self.name, use.prefix, share * report.PAGES_LIMIT_S)
            sections += _section('kafka: timelines as HTML', map(str, files))
        if not use.prefix:
            sections.append(('kafka: the directory of the broker',
                             f'{kept}\nOpen it: kbroker.testing.Broker(data_dir={kept!r})'))
        return sections


def _section(title: str, lines: Iterable[str]) -> list[report.Section]:
    text = '\n'.join(lines)
    return [(title, text)] if text else []


def rule_lines(broker: Broker) -> list[str]:
    """Return a line for each hold and fault of the test."""
    if broker._control is None:
        return []
    broker.unmatched()      # reads the counts
    lines = []
    for rule in broker.control.rules:
        count = words_for_count(rule.matched) if rule.is_known else 'its count ended with the process'
        lines.append(f'{rule.description}: {count}{f", holds {rule.held}" if rule.is_active and rule.held else ""}')
    return lines


def words_for_count(matched: int) -> str:
    return {0: 'matched no step', 1: 'matched 1 step'}.get(matched, f'matched {matched:,} steps')


def warning_lines(log: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the warnings and errors in the log of a broker, the last ones if there are many. Each broker of a test
    warns about its control port, which is left out.
    """
    lines = []
    for entry in log:
        if entry.get('event') == 'control':
            continue
        if entry.get('level') in WARNING_LEVELS or 'level' not in entry:
            at = time.strftime('%H:%M:%S', time.gmtime(entry['time_ms'] / 1000)) if 'time_ms' in entry else ''
            lines.append(' '.join(filter(None, (at, str(entry.get('level', '')), str(entry.get('message', ''))))))
            lines += str(entry.get('traceback', '')).splitlines()
    return lines[-MOST_WARNINGS:]


# ---- the checks at the end of a test

def unfired(uses: Iterable[Use]) -> str | None:
    """Return one line about the holds and faults that matched no step, or None."""
    found = [each for use in uses if use.broker._process.is_open for each in use.broker.unmatched()]
    return (f'matched no step: {"; ".join(found)}: let the test reach the point, or remove the line'
            if found else None)


def close_left(processes: Iterable[Process]) -> str:
    """Close the brokers that a test left open. Return one line about them."""
    names = []
    for process in processes:
        names.append(f'process {process.pid} on {process.data_dir}')
        process.close()
    return f'the test left a broker open ({", ".join(names)}): use `with Broker()`, or the fixture kafka_factory'


class BrokerFactory:
    """The fixture `kafka_factory`: a function that starts brokers for one test.

    `tls` is True for a listener with TLS, and `'mutual'` if clients must also show a certificate. `sasl` is PLAIN,
    SCRAM-SHA-256 or SCRAM-SHA-512. The broker's `client_config` has the settings of clients.
    """

    def __init__(self, add: Callable[[Broker, bool], None], certificates: Callable[[], Path]):
        self._add, self._certificates = add, certificates

    def __call__(self, *, settings: Mapping[str, str] = NO_SETTINGS, tls: Tls = False, sasl: str | None = None,
                 data_dir: Path | str | None = None) -> FactoryBroker:
        access = Access(tls, sasl, self._certificates() if tls else None)
        broker = FactoryBroker(access, settings=settings, data_dir=data_dir)
        self._add(broker, data_dir is None)
        return broker


def certificates_in(directory: Path) -> Path:
    """Return a directory with certificates, which are made when it is first used."""
    return directory if (directory / f'{USER}.pem').exists() else make_certificates(directory)
