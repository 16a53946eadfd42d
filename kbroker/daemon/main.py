"""The command line: `kbroker serve`, `status`, `hand-over`, `storage`, `config`, `docs`, and `kbroker --version`."""
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from kbroker import __version__
from kbroker.base.errors import ConfigError, CorruptLogError, KafkaError, LogDirectoryError
from kbroker.base.garbage import exempting_the_old
from kbroker.daemon import logs, systemd
from kbroker.daemon.stopping import StopProgress
from kbroker.settings.config import Config
from kbroker.settings.exposure import addresses_for_clients, check_exposure
from kbroker.settings.file_modes import check_data_directory, check_secret_file, holds_secrets
from kbroker.settings.properties import read_properties, read_text
from kbroker.settings.table import SETTINGS

FILE = click.Path(exists=True, dir_okay=False, readable=False, path_type=Path)
"""A file whose reading reports a missing right, because click's message has no remedy."""
config_option = partial(click.option, '--config', 'config_file', type=FILE, metavar='FILE', envvar='KBROKER_CONFIG',
                        show_envvar=True)
data_dir_option = click.option('--data-dir', metavar='DIR', envvar='KBROKER_DATA_DIR', show_envvar=True,
                               help='The log directory (log.dirs).  [default: data]')

CONTAINER_VARIABLE, CONTAINERS = 'container', ('oci', 'podman', 'docker')
"""The variable that names the kind of the container, and its values in those that people remove and create again."""

log = logging.getLogger('kbroker')

FIRST_STEPS = """`kbroker serve` starts a broker on 127.0.0.1:9092, with its data in ./data. To write a first
transaction and to see it, type in another terminal:

\b
  echo hello |
  kbroker-produce --bootstrap-server localhost:9092 --topic hello --transactional-id first
  kbroker-transactions --bootstrap-server localhost:9092 timeline hello
"""


class Commands(click.Group):
    """The command `kbroker`. Besides its own commands, it runs programs such as `kbroker-topics`.

    Each method imports `subcommands` when it needs the programs. `kbroker serve` never needs them.
    """

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        own = super().get_command(ctx, name)
        if own is not None:
            return own
        from kbroker.daemon.subcommands import find

        return find(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kbroker.daemon.subcommands import write_help

        super().format_commands(ctx, formatter)
        write_help(formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from kbroker.daemon.subcommands import complete

        return super().shell_complete(ctx, incomplete) + complete(incomplete)


@click.group(cls=Commands, context_settings={'help_option_names': ['-h', '--help']}, epilog=FIRST_STEPS)
@click.version_option(__version__, prog_name='kbroker', message='%(prog)s %(version)s, Kafka protocol 4.4')
def main() -> None:
    """A single-node broker with Kafka's wire protocol and log format."""


@main.command()
@config_option(help='Settings, in server.properties syntax.')
@data_dir_option
@click.option('--listen', metavar='HOST:PORT', envvar='KBROKER_LISTEN', show_envvar=True,
              help='The address to bind (listeners).  [default: 127.0.0.1:9092]')
@click.option('--advertise', metavar='HOST:PORT|@FILE', envvar='KBROKER_ADVERTISE', show_envvar=True,
              help='The address given to clients (advertised.listeners). With @FILE, the broker waits until FILE '
                   'contains it.')
@click.option('--set', 'assignments', metavar='NAME=VALUE', multiple=True, envvar='KBROKER_SET', show_envvar=True,
              help='Set any setting by its dotted name; repeatable. It overrides FILE and the other options. The '
                   'variable may have several, with blanks between them.')
@click.option('--log-json', is_flag=True, envvar='KBROKER_LOG_JSON', show_envvar=True,
              help='Log JSON lines instead of human-readable ones.')
@click.option('--control', metavar='HOST:PORT', envvar='KBROKER_CONTROL', show_envvar=True,
              help='For tests: serve HTTP on this address, with which its clients stop the clock of the broker, hold '
                   'its operations, make them fail, and kill it.')
@click.option('--control-token-file', metavar='FILE', envvar='KBROKER_CONTROL_TOKEN_FILE', show_envvar=True,
              help='The file with the token that clients of --control need. Without it, the address must be one of '
                   'loopback.')
def serve(config_file: Path | None, data_dir: str | None, listen: str | None, advertise: str | None,
          assignments: tuple[str, ...], log_json: bool, control: str | None, control_token_file: str | None) -> None:
    """Run the broker until SIGTERM or SIGINT."""
    logs.set_up(log_json)
    _raise_descriptor_limit()
    if os.getpid() == 1:
        for number in _stopping_signals():
            _end_at_once_on(number)
    with keeping_everything():
        broker = _start(config_file, data_dir, listen, advertise, assignments, control, control_token_file)
    with exempting_the_old():
        _run(broker)


@contextlib.contextmanager
def keeping_everything() -> Iterator[None]:
    """Exempt the objects that are created in this context from garbage collection.

    The objects that the start creates live as long as the process.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _start(config_file: Path | None, data_dir: str | None, listen: str | None, advertise: str | None,
           assignments: tuple[str, ...], control: str | None, control_token_file: str | None) -> Any:
    _check_system()
    from kbroker.daemon.broker import Broker  # `kbroker --help` needs no compiled rooms

    given: dict[str, str] = {}
    warnings: list[str] = []
    if config_file is not None:
        given, warnings = _read_file(config_file)
    names_in_file = list(given)
    if data_dir is not None:
        given['log.dirs'] = data_dir
    if listen is not None:
        given['listeners'] = f'PLAINTEXT://{listen}'
    if advertise is not None:
        given['advertised.listeners'] = f'PLAINTEXT://{_address_of(advertise)}'
    given |= dict(_parse_assignment(text) for text in assignments)
    with _failing_in_one_line():
        config = _configure(given, warnings, config_file, names_in_file)
    with _failing_in_one_line(config):
        controlling = _controlling(control, control_token_file, config)
        broker = Broker(config, None if controlling is None else controlling.clock, controlling)
        broker.start()
    if os.environ.get(CONTAINER_VARIABLE) in CONTAINERS:
        from kbroker.daemon.container import warnings_in_a_container  # only containers need it

        for warning in warnings_in_a_container(os.environ, broker.directory):
            log.warning('%s', warning)
    return broker


def _controlling(address: str | None, token_file: str | None, config: Config) -> Any:
    """Return the control of a broker by a test, or None without --control."""
    if address is None:
        if token_file is not None:
            _fail('--control-token-file: found no --control, expected its address, too: --control HOST:PORT')
        return None
    from kbroker.daemon.controlling import Controlling  # only tests need it

    return Controlling(address, token_file, config)


def _address_of(advertise: str) -> str:
    """Return the address for clients. `@FILE` means the text of that file, as soon as the file has one."""
    if not advertise.startswith('@'):
        return advertise
    from kbroker.daemon.container import await_text  # only containers need it

    path = Path(advertise[1:])
    try:
        return await_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else 'not UTF-8 text'
        _fail(f'--advertise: {path}: {reason}; expected a file with HOST:PORT')


@contextlib.contextmanager
def _failing_in_one_line(config: Config | None = None) -> Iterator[None]:
    """End the process with one line on stderr if an error is raised that an operator can mend.

    With `config`, the process needs to write the log directory.
    """
    try:
        yield
    except OSError as error:
        _fail_by(error, config)
    except (ConfigError, KafkaError, CorruptLogError, LogDirectoryError) as error:
        cause = error.__context__
        if isinstance(error, KafkaError) and isinstance(cause, OSError) and cause.filename:
            _fail_by(cause, config)     # a failed write of the metadata log
        _fail(str(error))


def _fail_by(error: OSError, config: Config | None = None) -> NoReturn:
    """End the process with one line on stderr about an error of the operating system."""
    from kbroker.base.os_errors import describe  # needed only after an error

    _fail(describe(error, None if config is None else config.log_directory))


def _configure(given: dict[str, str], warnings: list[str], config_file: Path | None,
               names_in_file: list[str]) -> Config:
    """Return the configuration, set the umask, and log all warnings. Raise ConfigError."""
    config = Config(given)
    for warning in warnings + config.warnings:
        log.warning('%s', warning)
    os.umask(int(config.kbroker_file_umask, 8))
    for warning in _check_modes(config, config_file, names_in_file):
        log.warning('%s', warning)
    return config


def _check_modes(config: Config, config_file: Path | None, names_in_file: list[str]) -> list[str]:
    """Return warnings about files that other users of the machine may read.

    Raise ConfigError if every user may read a file with secrets.
    """
    warnings = []
    if config_file is not None and holds_secrets(names_in_file):
        warnings += check_secret_file(str(config_file), 'the passwords in it', config.kbroker_allow_readable_secrets)
    if any(listener.has_login for listener in config.bound_listeners):
        warnings += check_data_directory(config.log_directory)
    return warnings


def _run(broker: Any) -> None:
    """Serve until a signal stops the broker."""
    with _failing_in_one_line():
        for number in _stopping_signals():
            broker.reactor.on_signal(number, partial(_stop, broker, number))
        if sys.stdin is None or not sys.stdin.isatty():      # with a terminal, SIGHUP still ends the broker
            broker.reactor.on_signal(signal.SIGHUP, broker.reload)
    durability = broker.config.kbroker_durability
    log.info('ready on %s, data in %s, durability %s', broker.address, broker.directory, durability,
             extra={'event': 'ready', 'address': broker.address, 'directory': str(broker.directory),
                    'durability': durability})
    systemd.notify('READY=1', f'STATUS=Serving on {broker.address}')
    interval_ms = systemd.watchdog_interval_ms()
    if interval_ms is not None:
        broker.reactor.machine_timers.every(interval_ms, lambda: systemd.notify('WATCHDOG=1'))
    broker.run()
    log.info('stopped')


def _raise_descriptor_limit() -> None:
    """Raise the descriptor limit to the maximum. Each partition in use needs a descriptor, and each connection, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # e.g. in a container that allows less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_system() -> None:
    """End the process with one line unless the system is Linux."""
    if sys.platform != 'linux':
        _fail(f'serve: found the system {sys.platform}, expected Linux, whose epoll and eventfd the broker needs. Run '
              'it in a Linux container or virtual machine; the client and the other commands work here')


def _stopping_signals() -> list[signal.Signals]:
    """Return the signals that stop the broker: SIGTERM, and SIGINT unless the parent process has set it to be ignored.

    A script ignores SIGINT for a broker that runs in the background: Ctrl-C must not end that broker.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGINT]


def _end_at_once_on(number: int) -> None:
    """Let a signal end the process, which is as safe as a crash.

    The kernel's default action does that even if no Python code can run. Process 1 of a container has no such action.
    """
    signal.signal(number, signal.SIG_DFL if os.getpid() != 1 else lambda number, frame: os._exit(128 + number))


def _stop(broker: Any, number: int) -> None:
    # While the broker stops, a second signal ends the process, and so does the alarm of a stop that hangs.
    for again in _stopping_signals():
        _end_at_once_on(again)
    log.info('%s: stopping; a second signal ends at once', signal.Signals(number).name)
    systemd.notify('STOPPING=1')
    broker.stop(StopProgress())


@main.command()
@config_option(help='The settings that the broker was given.')
@data_dir_option
@click.option('--json', 'as_json', is_flag=True, help='Print one JSON object; sizes in bytes. With --watch, one on '
              'each line.')
@click.option('--watch', 'interval_s', metavar='[SECONDS]', is_flag=False, flag_value=2.0,
              type=click.FloatRange(0.1, 3600),
              help='Print it again and again, with the rates in between, until Ctrl-C.  [default: 2]')
def status(config_file: Path | None, data_dir: str | None, as_json: bool, interval_s: float | None) -> None:
    """Print the state of a running broker: rates, open transactions, lags, offline partitions, disk, certificates.

    The last table has what the broker holds in memory, and the bound of each structure.
    """
    from kbroker.daemon.status import lines_of, read_status  # `kbroker --help` needs no compiled rooms

    given = {} if config_file is None else _read_file(config_file)[0]
    if data_dir is not None:
        given['log.dirs'] = data_dir
    with _failing_in_one_line():
        directory = Config(given).log_directory
    before = None
    try:
        while True:
            with _failing_in_one_line():
                report = read_status(directory)
            if interval_s is None:
                click.echo(json.dumps(report, indent=2) if as_json else '\n'.join(lines_of(report)))
                return
            if not as_json:
                click.clear()       # does nothing unless stdout is a terminal
            click.echo(json.dumps(report) if as_json else '\n'.join((*lines_of(report, before), '')))
            before = report
            time.sleep(interval_s)
    except KeyboardInterrupt:
        sys.exit(130)


@main.command('hand-over')
@config_option(help='The settings that the broker was given.')
@data_dir_option
@click.option('--json', 'as_json', is_flag=True, help='Print one JSON object; times in milliseconds.')
def hand_over(config_file: Path | None, data_dir: str | None, as_json: bool) -> None:
    """Bring the log directory of a stopped or killed broker to rest, before Apache Kafka opens it.

    The command writes the missing markers of decided transactions, and stops the directory cleanly. It prints which
    releases of Kafka can open the directory, and which transactions stay open.
    """
    from kbroker.daemon.hand_over import WITHOUT_DELETIONS, lines_of  # `kbroker --help` needs no compiled rooms
    from kbroker.daemon.hand_over import hand_over as hand_over_directory

    logs.set_up(False)
    _raise_descriptor_limit()
    given, warnings = ({}, []) if config_file is None else _read_file(config_file)
    names_in_file = list(given)
    if data_dir is not None:
        given['log.dirs'] = data_dir
    with _failing_in_one_line():
        config = _configure({**given, **WITHOUT_DELETIONS}, warnings, config_file, names_in_file)
    with _failing_in_one_line(config):
        report = hand_over_directory(config)
    click.echo(json.dumps(report, indent=2) if as_json else '\n'.join(lines_of(report)))


@main.command()
@click.argument('action', type=click.Choice(['format']), default='format', required=False)
@config_option(help='The settings that the broker will be given.')
@data_dir_option
@click.option('--cluster-id', metavar='ID', help='The id of the cluster, 22 characters.  [default: a random one]')
@click.option('--add-scram', 'scram', metavar='MECHANISM=[name=NAME,password=PASSWORD]', multiple=True,
              help='A user of SCRAM-SHA-256 or SCRAM-SHA-512; repeatable. The list in brackets may also have '
                   'iterations=N, and salt and saltedpassword in base64 instead of the password.')
@click.option('--release-version', 'release', metavar='VERSION', help='The release of Apache Kafka, 4.3 or 4.4, '
              'whose feature levels the directory gets. Kafka 4.3 cannot open a directory of 4.4.  [default: 4.3]')
@click.option('--feature', 'features', metavar='NAME=LEVEL', multiple=True,
              help='Another level for one feature; repeatable.')
def storage(action: str, config_file: Path | None, data_dir: str | None, cluster_id: str | None,
            scram: tuple[str, ...], release: str | None, features: tuple[str, ...]) -> None:
    """Format a new log directory, with the first users in it before a broker serves it.

    On the log directory of a stopped broker, --add-scram adds users or replaces their credentials.
    """
    from kbroker.log.fs import FileSystem  # `kbroker --help` needs no compiled rooms
    from kbroker.metadata.added_scram import add_offline, parse_add_scram
    from kbroker.metadata.directory import META_PROPERTIES_FILE, format_directory, parse_uuid
    from kbroker.metadata.features import DEFAULT_RELEASE, costs_of, levels_of

    given = {} if config_file is None else _read_file(config_file)[0]
    if data_dir is not None:
        given['log.dirs'] = data_dir
    with _failing_in_one_line():
        settings = Config(given)
    try:
        os.umask(int(settings.kbroker_file_umask, 8))
        if cluster_id is not None:
            parse_uuid(cluster_id)
        records = {(record.name, record.mechanism): record for record in map(parse_add_scram, scram)}
        if len(records) < len(scram):
            raise ValueError('--add-scram: found a user and mechanism twice, expected them once')
        levels = levels_of(release or DEFAULT_RELEASE, features)
        directory = os.path.abspath(settings.log_directory)
        if os.path.exists(os.path.join(directory, META_PROPERTIES_FILE)):
            if not records or cluster_id is not None or release is not None or features:
                raise ValueError(f'{directory}: found {META_PROPERTIES_FILE}, so the directory is already formatted; '
                                 'expected an empty directory, or --add-scram alone')
            add_offline(directory, list(records.values()))
            click.echo(f'{directory}: {len(records)} SCRAM credentials written')
            return
        properties = format_directory(FileSystem(), directory, settings.node_id, int(time.time() * 1000), cluster_id,
                                      list(records.values()), levels)
    except OSError as error:
        _fail_by(error, settings)
    except (ConfigError, KafkaError, LogDirectoryError, ValueError) as error:
        _fail(str(error))
    click.echo(f'{directory}: formatted for cluster {properties.cluster_id}, with {len(records)} SCRAM credentials')
    for cost in costs_of(levels):
        click.echo(cost)


@main.command()
@click.option('--check', 'config_file', type=FILE, metavar='FILE', help='Check FILE instead; exit 1 if it is invalid.')
def config(config_file: Path | None) -> None:
    """Print every setting with its default and description, as a file for `serve --config`."""
    if config_file is None:
        click.echo('\n\n'.join(_describe_settings()))
        return
    given, warnings = _read_file(config_file)
    errors = list(_errors(given))
    if not errors:
        checked = Config(given)
        warnings += checked.warnings + addresses_for_clients(checked)[1] + check_exposure(checked)
        from kbroker.network.tls_contexts import problems_of_files  # `kbroker --help` needs no compiled rooms

        for problem in problems_of_files(checked, int(time.time())):
            (errors if problem.level == logging.ERROR else warnings).append(problem.text)
    for text in errors:
        click.echo(f'error: {text}', err=True)
    for text in warnings:
        click.echo(f'warning: {text}', err=True)
    if errors:
        sys.exit(1)
    click.echo(f'{config_file}: {len(given)} settings, all valid')


@main.command()
@click.option('--print', 'only_print', is_flag=True, help='Only print the address of the first page.')
def docs(only_print: bool) -> None:
    """Open the pages of this version in a browser; no network is needed.

    The command prints the address of the first page. Without a display, it opens no browser.
    """
    from kbroker.daemon.docs import NoSiteError, can_show, show, start_page  # no other command needs a browser

    try:
        address = start_page(os.environ).as_uri()
    except NoSiteError as error:
        _fail(str(error))
    click.echo(address)
    if not only_print and can_show(os.environ) and not show(address):
        _fail(f'no browser has started: open {address} in one')


def _errors(given: dict[str, str]) -> Iterator[str]:
    """Yield a message for each error in the settings of a file."""
    from kbroker.apis.serving.listener_logins import check_logins  # `kbroker --help` needs no compiled rooms

    given = dict(given)
    while True:
        try:
            checked = Config(given)
            addresses_for_clients(checked)
            check_exposure(checked)
            check_logins(checked)
            return
        except ConfigError as error:
            yield str(error)
            if given.pop(error.name, None) is None:
                return


def _describe_settings() -> Iterator[str]:
    for setting in SETTINGS.values():
        if setting.internal:
            continue
        notes = [setting.expected()]
        if setting.topic_name:
            notes.append(f'per topic: {setting.topic_name}')
        notes.append(setting.update.value)
        default = setting.text(setting.default)
        assignment = f'#{setting.name}=' if default is None else f'{setting.name}={default}'
        yield f'# {setting.doc}\n# ({"; ".join(notes)})\n{assignment}'


def _read_file(path: Path) -> tuple[dict[str, str], list[str]]:
    try:
        return read_properties(read_text(path))
    except OSError as error:
        _fail_by(error)
    except UnicodeDecodeError:
        _fail(f'{path}: not UTF-8 text')
    except ValueError as error:
        _fail(f'{path}: {error}')


def _parse_assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition('=')
    if not separator or not name.strip():
        raise click.BadParameter(f'found {text!r}, expected NAME=VALUE', param_hint='--set')
    return name.strip(), value


def _fail(message: str) -> NoReturn:
    """Print `message` as one line on stderr, and end with exit status 1."""
    prefix = logs.journal_prefix(logging.ERROR) if logs.stderr_is_the_journal() else ''
    click.echo(f'{prefix}kbroker: {message}', err=True)
    sys.exit(1)
