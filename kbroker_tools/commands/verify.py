"""kbroker-verify. It checks any broker that speaks Kafka's protocol, while it disturbs the network and the broker.

The exit status is 0 if there is no anomaly, 1 if there is an anomaly or the run is incomplete, and 2 for wrong usage.
"""
from __future__ import annotations

import glob
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from kbroker.base.words import words_for_duration
from kbroker_tools.base.command import SETTINGS, Command, ToolError, version_option
from kbroker_tools.base.render import Output
from kbroker_tools.verify.broker_command import BrokerCommand, BrokerCommandError
from kbroker_tools.verify.checker import check
from kbroker_tools.verify.clients.java import JavaEnded
from kbroker_tools.verify.history import HistoryError, load
from kbroker_tools.verify.html import timeline_page
from kbroker_tools.verify.nemesis import FAULTS, NETWORK_FAULTS, PROCESS_FAULTS
from kbroker_tools.verify.report import page
from kbroker_tools.verify.run import CLIENTS, PROTOCOLS, WORKLOADS, Plan, Run, clients_available

FAKE_TIME_LIBRARIES = tuple(f'{place}/faketime/{name}' for name in ('libfaketimeMT.so.1', 'libfaketime.so.1')
                            for place in ('/usr/lib/*', '/usr/lib', '/usr/lib64', '/usr/local/lib'))
"""The places of libfaketime. The first path that exists is used. The library whose name contains MT supports programs
with threads."""
HISTORY, TIMELINE, BROKER_LOG, CLOCK = 'history.jsonl', 'timeline.html', 'broker.log', 'clock'


def names_of(choice: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...] | None]:
    """Return the callback of an option whose value is a list of names from `choice`, separated by commas."""
    def convert(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        names = tuple(name.strip() for name in value.split(',') if name.strip())
        for name in names:
            if name not in choice:
                raise click.BadParameter(f'found {name!r}, expected some of {",".join(choice)}', ctx, param)
        return names

    return convert


def checked_command(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the command line. Raise click.BadParameter if no program can be started with it."""
    try:
        if value is not None and not shlex.split(value):
            raise ValueError('found no word')
    except ValueError as error:
        raise click.BadParameter(f'{error}, expected the words of a command', ctx, param) from None
    return value


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--bootstrap-server', '--bootstrap-servers', 'bootstrap_server', metavar='HOST:PORT',
              help='The broker to verify. Its listener has to be PLAINTEXT without logins.')
@click.option('--minutes', type=click.FloatRange(min=0, min_open=True), default=10, show_default=True,
              help='How long the clients work. They go on for up to a minute more if one of them has not written yet, '
                   'and have up to 5 minutes for their last calls. The final reads come after it.')
@click.option('--nemesis', callback=names_of(FAULTS), metavar='NAME,...',
              help=f'The faults: {", ".join(FAULTS)}. The default is all of the network ('
                   f'{", ".join(NETWORK_FAULTS)}), and with --broker-command kill and pause.')
@click.option('--broker-command', callback=checked_command, metavar='COMMAND',
              help='Starts the broker, in the foreground. The command is started now, killed and paused by the '
                   'nemesis, and stopped at the end.')
@click.option('--workloads', callback=names_of(WORKLOADS), metavar='NAME,...',
              help=f'Some of {", ".join(WORKLOADS)}. The default is all that the broker serves. list: transactions '
                   'that append to several partitions and read. transform: consume, transform, produce. rebalance: '
                   'the same by members of groups, which come and go. share: members of a share group accept, reject '
                   'and release. fence: a fenced producer goes on writing.')
@click.option('--group-protocols', 'protocols', callback=names_of(PROTOCOLS), metavar='NAME,...',
              help=f'The protocols of the groups that rebalance: {", ".join(PROTOCOLS)}. The default is those that '
                   'the broker serves; consumer is KIP-848.')
@click.option('--clients', callback=names_of(CLIENTS), metavar='NAME,...',
              help='kbroker, confluent, java. The default is those that are installed.')
@click.option('--java-classpath', metavar='PATH',
              help='The jars of Kafka\'s Java client, as java takes them: "kafka/libs/*". Java compiles a program with '
                   'them, so a JDK of version 17 or newer is needed.')
@click.option('--seed', type=int, help='Fixes the random choices of faults and transactions. Threads still differ.')
@click.option('--output', type=click.Path(file_okay=False, path_type=Path), default=Path('kbroker-verify'),
              show_default=True, metavar='DIR',
              help=f'Where {HISTORY}, {TIMELINE} and {BROKER_LOG} are written. Older ones are replaced.')
@click.option('--check-history', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
              help='Only check a history that was recorded before.')
@version_option
def main(bootstrap_server: str | None, minutes: float, nemesis: tuple[str, ...] | None, broker_command: str | None,
         workloads: tuple[str, ...] | None, protocols: tuple[str, ...] | None,
         clients: tuple[str, ...] | None, java_classpath: str | None, **files: Path | int | None) -> None:
    """Verify that a broker keeps Kafka's promises while the network and the broker fail.

    Transactional producers and consumers of several clients work on new topics. A proxy between them and the broker
    delays frames, cuts connections, and holds requests back until the next transaction. The command records
    everything that the clients learned. It checks this history for lost and duplicate records, aborted and early reads,
    torn transactions, offsets without outputs, skipped records, circular reads, and writes of fenced producers.

    The broker gets three topics with names that begin with kbroker-verify. Do not run this against a cluster in use.
    """
    output, seed, recorded = files['output'], files['seed'], files['check_history']
    assert isinstance(output, Path)
    if isinstance(recorded, Path):
        if bootstrap_server is not None or broker_command is not None:
            raise click.UsageError('--check-history needs no broker')
        report(recorded, output, [])
        return
    if bootstrap_server is None:
        raise click.UsageError('give --bootstrap-server HOST:PORT, or --check-history FILE')
    address = address_of(bootstrap_server)
    faults = chosen_faults(nemesis, broker_command is not None)
    plan = Plan(bootstrap_server, minutes * 60, faults, workloads, chosen_clients(clients, java_classpath),
                java_classpath, protocols, seed=seed if isinstance(seed, int) else time.time_ns() % 1_000_000)
    output.mkdir(parents=True, exist_ok=True)
    clock_file = output / CLOCK if 'clock' in faults else None
    with running(broker_command, address, output, clock_file) as broker, \
            progress(plan.seconds) as advance:
        try:
            outcome = Run(plan, output / HISTORY, broker, clock_file, advance).run()
        except JavaEnded as error:
            raise ToolError(str(error)) from None
    report(output / HISTORY, output, outcome.problems)


def chosen_clients(clients: tuple[str, ...] | None, java_classpath: str | None) -> tuple[str, ...]:
    """Return the clients of the run. Raise ToolError or click.UsageError if a client is not installed."""
    try:
        available = clients_available(CLIENTS if clients is None else clients, java_classpath)
    except ImportError as error:
        raise ToolError(f'confluent-kafka is installed, but cannot be imported: {error}. Install it again: pip install '
                        '--force-reinstall confluent-kafka. Or leave it out, with --clients kbroker') from None
    if clients is None:
        return available
    if 'java' in clients and 'java' not in available:
        raise click.UsageError('--clients java needs --java-classpath, the jars of the Java client')
    if 'confluent' in clients and 'confluent' not in available:
        raise ToolError('found no confluent-kafka, expected it for --clients confluent: pip install confluent-kafka')
    return clients


def chosen_faults(nemesis: tuple[str, ...] | None, has_command: bool) -> tuple[str, ...]:
    """Return the faults of the run. Raise click.UsageError if a fault needs the broker command and no command is
    given."""
    if nemesis is None:
        return NETWORK_FAULTS + (('kill', 'pause') if has_command else ())
    for name in nemesis:
        if name in PROCESS_FAULTS and not has_command:
            raise click.UsageError(f'--nemesis {name} needs --broker-command, which starts the broker')
    return nemesis


def address_of(bootstrap_server: str) -> tuple[str, int]:
    host, _, port = bootstrap_server.split(',')[0].rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.UsageError(f'--bootstrap-server: found {bootstrap_server!r}, expected HOST:PORT')
    return host.strip('[]'), int(port)


@contextmanager
def running(command: str | None, address: tuple[str, int], output: Path,
            clock_file: Path | None) -> Iterator[BrokerCommand | None]:
    """Run the broker command during the block, if a command is given."""
    if command is None:
        yield None
        return
    broker = BrokerCommand(command, address, output / BROKER_LOG, {} if clock_file is None else fake_time(clock_file))
    try:
        broker.start()
        yield broker
    except BrokerCommandError as error:
        raise ToolError(str(error)) from None
    finally:
        broker.stop()


def fake_time(clock_file: Path) -> Mapping[str, str]:
    """Return the environment variables for libfaketime, which then reads the offset of the wall clock from
    `clock_file`. Raise ToolError if the library is not found."""
    libraries = [path for pattern in FAKE_TIME_LIBRARIES for path in glob.glob(pattern)]
    if not libraries:
        raise ToolError('--nemesis clock: found no libfaketime.so.1, expected the library of the package libfaketime')
    clock_file.write_text('+0\n')
    # Without the last variable, every wait of a Java process returns immediately, and its threads keep the processors
    # busy.
    return {'LD_PRELOAD': libraries[0], 'FAKETIME_TIMESTAMP_FILE': str(clock_file.resolve()), 'FAKETIME_NO_CACHE': '1',
            'FAKETIME_DONT_FAKE_MONOTONIC': '1', 'FAKETIME_FORCE_MONOTONIC_FIX': '0'}


@contextmanager
def progress(seconds: float) -> Iterator[Callable[[float, Mapping[str, int]], None]]:
    """Show the progress of the run on a terminal. Yield a function that updates it."""
    with Output().progress(f'verifying for {words_for_duration(seconds * 1000)}', round(seconds), 's') as bar:
        shown = 0

        def advance(spent: float, counts: Mapping[str, int]) -> None:
            nonlocal shown
            bar.advance(round(spent) - shown)
            shown = round(spent)

        yield advance


def report(history_path: Path, output: Path, problems: list[str]) -> None:
    """Check a history, print the text page, and write the timeline. End the command with exit status 1 if there is an
    anomaly or a problem."""
    try:
        history = load(history_path)
    except HistoryError as error:
        raise ToolError(f'{history_path}: {error}') from None
    verdict = check(history)
    for line in page(history, verdict, problems):
        click.echo(line)
    output.mkdir(parents=True, exist_ok=True)
    (output / TIMELINE).write_text(timeline_page(history, verdict), 'utf-8')
    click.echo(f'History: {history_path}. Timeline: {output / TIMELINE}')
    if problems or len(verdict.found) or not verdict.is_conclusive:
        click.get_current_context().exit(1)


if __name__ == '__main__':
    main(prog_name='kbroker-verify')
