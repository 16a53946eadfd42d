"""kbroker-exporter. It serves the metrics of any Kafka cluster to Prometheus: lags, transactions, offsets and sizes."""
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbroker.base.errors import ConfigError
from kbroker_tools.base.command import SETTINGS, Command, ToolError, version_option
from kbroker_tools.cluster.opening import live_cluster_options

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker_tools.exporter.collector import Options

PROGRAM = 'kbroker-exporter'
LISTEN = '127.0.0.1:9308'


@click.command(cls=Command, context_settings=SETTINGS)
@live_cluster_options
@click.option('--listen', default=LISTEN, show_default=True, metavar='HOST:PORT',
              help='The address for Prometheus. An empty host means every interface, port 0 a free port.')
@click.option('--interval', type=click.FloatRange(0, 86_400), default=10, show_default=True, metavar='SECONDS',
              help='Scrapes within this time share one collection.')
@click.option('--topics', metavar='REGEX', help='Only topics that match this expression as a whole.')
@click.option('--groups', metavar='REGEX', help='Only groups that match this expression as a whole.')
@click.option('--timeout', type=click.FloatRange(0.1, 3600), default=8, show_default=True, metavar='SECONDS',
              help='The time of a collection. The parts that do not fit are missing.')
@click.option('--read-bytes', type=click.IntRange(0, 1 << 30), default=8 << 20, show_default=True, metavar='BYTES',
              help='The bytes of records that a collection may read, to count records and to find their ages.')
@click.option('--max-transaction-timeout', type=click.IntRange(min=0), default=15, show_default=True,
              metavar='MINUTES', help='The longest timeout of any transaction. An open one of that age may hang.')
@click.option('--once', is_flag=True, help='Print the metrics once, instead of serving them.')
@version_option
def main(bootstrap_server: str, command_config: Path | None, listen: str, interval: float, topics: str | None,
         groups: str | None, timeout: float, read_bytes: int, max_transaction_timeout: int, once: bool) -> None:
    """Serve the metrics of a Kafka cluster to Prometheus.

    The cluster may be of Apache Kafka 3.0 or newer, or of kbroker. Lags are given to the high watermark and to the last
    stable offset, and as the number of records that a read_committed consumer gets.
    """
    from kbroker.client.cluster import Cluster
    from kbroker.client.config import ClientConfig
    from kbroker_tools.exporter.collector import Options
    options = Options(
        selects_topic=_matcher('--topics', topics), selects_group=_matcher('--groups', groups),
        is_filtered=topics is not None, timeout_ms=int(timeout * 1000), read_bytes=read_bytes,
        max_transaction_timeout_ms=max_transaction_timeout * 60_000)
    cluster = Cluster(ClientConfig.load(bootstrap_server, command_config))
    click.get_current_context().call_on_close(cluster.close)
    if once:
        print_once(cluster, options)
        return
    if sys.platform != 'linux':
        raise ToolError(f'found the system {sys.platform}, expected Linux, whose epoll the server needs. Run it in a '
                        'Linux container; with --once, it prints the metrics here')
    from kbroker.settings.listeners import parse_listener
    from kbroker_tools.base.render import warn
    from kbroker_tools.exporter.serving import serve
    try:
        address = parse_listener('--listen', f'METRICS://{listen}')
    except ConfigError:
        raise click.BadParameter(f'found {listen!r}, expected HOST:PORT, an IPv6 host in brackets',
                                 param_hint='--listen') from None
    place: tuple[str, ...] = ('--bootstrap-server', bootstrap_server)
    if command_config is not None:
        place = (*place, '--command-config', str(command_config))
    serve(cluster, options, address.host, address.port, int(interval * 1000), place,
          lambda text: warn(f'{PROGRAM}: {text}'))


def _matcher(option: str, pattern: str | None) -> Callable[[str], bool]:
    """Return the function that matches a name. Raise click.BadParameter for a pattern that is refused."""
    if pattern is None:
        from kbroker_tools.exporter.collector import every
        return every
    from kbroker.base.linear_pattern import LinearPattern, PatternError
    try:
        return LinearPattern(pattern).matches
    except PatternError as error:
        raise click.BadParameter(f'found {pattern!r}: {error}', param_hint=option) from None


def print_once(cluster: Cluster, options: Options) -> None:
    """Print the metrics of one collection. Print its problems on stderr."""
    from kbroker.client.errors import ClientError
    from kbroker.client.time_limit import OutOfTime
    from kbroker.metrics.exposition import PROMETHEUS, text_of
    from kbroker_tools.base.render import warn
    from kbroker_tools.exporter.collector import Collector
    from kbroker_tools.exporter.metrics import Counts, samples
    try:
        facts = Collector(cluster, options).collect()
    except OutOfTime as error:
        raise ClientError(f'{error}; give the collection more time by --timeout') from None
    for problem in facts.problems:
        warn(f'{PROGRAM}: {problem.line}')
    for part in text_of(samples(facts, Counts(successes=1)), PROMETHEUS):
        if part is not None:
            sys.stdout.buffer.write(part)


if __name__ == '__main__':
    main(prog_name=PROGRAM)
