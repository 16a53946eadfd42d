"""kbroker-cluster. It shows the state of a cluster in one screen, and has commands of kafka-cluster."""
from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from kbroker_tools.base.command import SETTINGS, Group, output_options, version_option
from kbroker_tools.base.render import Column, Output, words_for_age, words_for_count
from kbroker_tools.cluster.opening import command_here, live, live_cluster_options, open_view

if TYPE_CHECKING:
    from kbroker.client.descriptions import TransactionInfo
    from kbroker_tools.cluster.overview import ApiVersions, Broker, Held, Overview

DEFAULT_COMMAND = 'describe'
MOST_NAMED = 5
"""The most transactions and partitions that the screen names. `--json` has all."""


class Cluster(Group):
    """A command group that runs `describe` if the user names no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and not {*self.commands, '--version', *ctx.help_option_names} & set(args):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


@click.group(cls=Cluster, context_settings=SETTINGS)
@live_cluster_options
@version_option
@click.pass_context
def main(context: click.Context, /, **common: Any) -> None:
    """Show the brokers, features, API versions, offline partitions and open transactions of a cluster.

    Without a command, `describe` is run.
    """
    given = {name: value for name, value in common.items() if value is not None}
    context.default_map = dict.fromkeys(main.list_commands(context), given)


# ---- describe

@main.command()
@live_cluster_options
@output_options
@click.pass_context
def describe(context: click.Context, /, as_json: bool, **place: Any) -> None:
    """Show the state of the cluster in one screen.

    If the broker lacks an API or denies it, the command shows the other parts. The exit status is 1 if a partition is
    offline or if a part cannot be read for another reason than an API that the broker lacks.
    """
    from kbroker_tools.cluster.overview import read_overview
    view = live(open_view(data_dir=None, **place), DEFAULT_COMMAND)
    found, output = read_overview(view), Output(as_json)
    if as_json:
        output.row(as_fields(found, view.now_ms()))
    else:
        _show(found, output, view.now_ms(), command_here('kbroker-transactions', view, place['command_config']))
    for part, reason in found.missing.items():
        output.note(f'{part}: not shown: {reason}')
    if found.failed or found.offline:
        context.exit(1)


def _show(found: Overview, output: Output, now_ms: int, transactions_command: str) -> None:
    output.line(f'Cluster {found.cluster_id}')
    if found.brokers is not None:
        output.line()
        output.table([Column('broker', 'BROKER', 'right'), Column('address', 'ADDRESS'), Column('rack', 'RACK'),
                      Column('state', 'STATE'), Column('controller', 'CONTROLLER'), Column('apis', 'APIS')],
                     [(row.broker_id, _address(row), row.rack or '-', _state(row, found),
                       'yes' if row.is_controller else '-', _words_for_apis(found.api_versions.get(row.broker_id)))
                      for row in found.brokers])
    if found.features:
        output.line()
        output.line('Features    ' + ', '.join(
            f'{row.name} {"-" if row.finalized is None else row.finalized} (of {row.supported[0]}-{row.supported[1]})'
            for row in found.features))
    if found.topics is not None:
        output.line()
        output.line(f'Partitions  {found.partitions:,} in {words_for_count(len(found.topics), "topic")}; '
                    f'{_listed("offline", [f"{topic}-{number}" for topic, number in found.offline])}; '
                    f'{_listed("under-replicated", [f"{topic}-{number}" for topic, number in found.under_replicated])}')
    if found.open_transactions is not None:
        _show_transactions(found.open_transactions, found.held, output, now_ms)
    if found.held:
        output.line()
        output.line(f'Held        {words_for_count(len(found.held), "partition")}: readers of read_committed wait')
        output.table([Column('topic', 'TOPIC'), Column('partition', 'PARTITION', 'right'),
                      Column('last_stable_offset', 'LAST-STABLE-OFFSET', 'right'),
                      Column('high_watermark', 'HIGH-WATERMARK', 'right'), Column('distance', 'DISTANCE', 'right')],
                     [(*row, row.distance) for row in found.held[:MOST_NAMED]])
        output.line(f'why: {transactions_command} why-stuck {found.held[0].topic}:{found.held[0].partition}')


def _address(broker: Broker) -> str:
    return f'[{broker.host}]:{broker.port}' if ':' in broker.host else f'{broker.host}:{broker.port}'


def _state(broker: Broker, found: Overview) -> str:
    if broker.is_fenced:
        return 'fenced'
    return 'up' if broker.broker_id in found.api_versions else 'not reached'


def _words_for_apis(rows: list[ApiVersions] | None) -> str:
    """Return how many APIs the client can use, and those in which the broker is behind the client."""
    if rows is None:
        return '-'
    usable = [row for row in rows if row.chosen is not None]
    behind = sum(row.chosen != row.known[1] for row in usable if row.known is not None)
    return f'{len(usable)} usable, {behind or "none"} below the newest version of this client'


def _listed(word: str, names: Collection[str]) -> str:
    if not names:
        return f'none {word}'
    few = list(names)[:MOST_NAMED]
    more = f' and {len(names) - len(few):,} more' if len(names) > len(few) else ''
    return f'{len(names):,} {word}: {", ".join(few)}{more}'


def _show_transactions(rows: list[TransactionInfo], held: list[Held] | None, output: Output, now_ms: int) -> None:
    output.line()
    output.line(f'Transactions  {len(rows):,} open')
    if not rows:
        return
    distances = {(row.topic, row.partition): row.distance for row in held or ()}
    output.table([Column('transactional_id', 'TRANSACTIONAL-ID'), Column('state', 'STATE'), Column('open', 'OPEN'),
                  Column('coordinator_id', 'COORDINATOR', 'right'), Column('partitions', 'PARTITIONS'),
                  Column('holds', 'MOST-HELD', 'right')],
                 [(row.transactional_id, row.state,
                   '-' if row.start_timestamp_ms is None else words_for_age(now_ms, row.start_timestamp_ms),
                   row.coordinator_id, _few(row.partitions),
                   max((distances.get(at, 0) for at in row.partitions), default=0)) for row in rows[:MOST_NAMED]])
    if len(rows) > MOST_NAMED:
        output.line(f'and {len(rows) - MOST_NAMED:,} younger ones')


def _few(partitions: Collection[tuple[str, int]]) -> str:
    names = [f'{topic}-{number}' for topic, number in sorted(partitions)]
    more = f' and {len(names) - 2} more' if len(names) > 3 else ''
    return ', '.join(names[:2 if more else 3]) + more


def as_fields(found: Overview, now_ms: int) -> dict[str, Any]:
    """Return the overview as one JSON object. A part that could not be read is null."""
    def versions(row: ApiVersions) -> dict[str, Any]:
        return {'api_key': row.key, 'name': row.name, 'broker': _range(row.served), 'client': _range(row.known),
                'chosen': row.chosen}

    def transaction(row: TransactionInfo) -> dict[str, Any]:
        since = row.start_timestamp_ms
        return {'transactional_id': row.transactional_id, 'state': row.state, 'coordinator_id': row.coordinator_id,
                'producer_id': row.producer_id, 'producer_epoch': row.producer_epoch, 'start_timestamp_ms': since,
                'open_ms': None if since is None else now_ms - since, 'timeout_ms': row.timeout_ms,
                'partitions': [f'{topic}-{number}' for topic, number in sorted(row.partitions)]}

    topics, held = found.topics, found.held
    return {
        'cluster_id': found.cluster_id,
        'brokers': None if found.brokers is None else [row._asdict() for row in found.brokers],
        'features': None if found.features is None else [
            {'name': row.name, 'supported': list(row.supported), 'finalized': row.finalized} for row in found.features],
        'api_versions': {str(node_id): [versions(row) for row in rows]
                         for node_id, rows in found.api_versions.items()},
        'topics': None if topics is None else len(topics), 'partitions': None if topics is None else found.partitions,
        'offline_partitions': None if topics is None else [f'{topic}-{number}' for topic, number in found.offline],
        'under_replicated_partitions': None if topics is None else [
            f'{topic}-{number}' for topic, number in found.under_replicated],
        'open_transactions': None if found.open_transactions is None else [
            transaction(row) for row in found.open_transactions],
        'held_partitions': None if held is None else [row._asdict() | {'distance': row.distance} for row in held],
        'missing': found.missing}


def _range(versions: tuple[int, int] | None) -> list[int] | None:
    return None if versions is None else list(versions)


# ---- the commands of kafka-cluster

@main.command('cluster-id')
@live_cluster_options
@output_options
def cluster_id(as_json: bool, **place: Any) -> None:
    """Print the id of the cluster."""
    cluster = live(open_view(data_dir=None, **place)).cluster
    cluster.refresh(())
    output = Output(as_json)
    if as_json:
        output.row({'cluster_id': cluster.cluster_id})
    else:
        output.line(f'Cluster ID: {cluster.cluster_id}')


@main.command('list-endpoints')
@click.option('--include-fenced-brokers', is_flag=True, help='Also print the brokers that are fenced.')
@live_cluster_options
@output_options
def list_endpoints(include_fenced_brokers: bool, as_json: bool, **place: Any) -> None:
    """Print the address of each broker."""
    from kbroker_tools.cluster.overview import read_brokers
    cluster = live(open_view(data_dir=None, **place)).cluster
    rows = [row for row in read_brokers(cluster) if include_fenced_brokers or not row.is_fenced]
    output = Output(as_json)
    if as_json:
        for row in rows:
            output.row(row._asdict())
        return
    cells = [('ID', 'HOST', 'PORT', 'RACK', 'STATE', 'ENDPOINT_TYPE'), *(
        (str(row.broker_id), row.host, str(row.port), 'null' if row.rack is None else row.rack,
         'fenced' if row.is_fenced else 'unfenced', 'broker') for row in rows)]
    host = max((len(row.host) for row in rows), default=100)
    rack = max((len(row.rack) for row in rows if row.rack is not None), default=10)
    for row_of_cells in cells:
        output.line(' '.join(cell.ljust(width) for cell, width in zip(
            row_of_cells, (10, host, 10, rack, 10, 15), strict=True)))


@main.command('api-versions')
@live_cluster_options
@output_options
@click.pass_context
def api_versions(context: click.Context, /, as_json: bool, **place: Any) -> None:
    """Print the API versions of each broker, and the version that this client uses."""
    from kbroker.base.errors import KafkaError
    from kbroker.client.errors import ClientError
    from kbroker_tools.cluster.overview import read_brokers, read_versions
    cluster = live(open_view(data_dir=None, **place)).cluster
    output, failed = Output(as_json), False
    cluster.refresh(())
    for broker in read_brokers(cluster):
        try:
            rows = read_versions(cluster, broker.broker_id)
        except (KafkaError, ClientError) as error:
            output.note(f'broker {broker.broker_id}: {error}')
            failed = True
            continue
        if as_json:
            for row in rows:
                output.row({'broker_id': broker.broker_id, 'api_key': row.key, 'name': row.name,
                            'broker': _range(row.served), 'client': _range(row.known), 'chosen': row.chosen})
            continue
        fenced = 'true' if broker.is_fenced else 'false'
        rack = 'null' if broker.rack is None else broker.rack
        output.line(f'{broker.host}:{broker.port} (id: {broker.broker_id} rack: {rack} isFenced: {fenced}) -> (')
        for row in rows:
            end = '' if row is rows[-1] else ','
            output.line(f'\t{row.name}({row.key}): {_words_for_versions(row)}{end}')
        output.line(')')
    if failed:
        context.exit(1)


def _words_for_versions(row: ApiVersions) -> str:
    if row.served is None:
        return 'UNSUPPORTED'
    first, last = row.served
    served = str(first) if first == last else f'{first} to {last}'
    return f'{served} [{"unusable" if row.chosen is None else f"usable: {row.chosen}"}]'


if __name__ == '__main__':
    main(prog_name='kbroker-cluster')
