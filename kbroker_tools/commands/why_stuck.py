"""`kbroker-transactions why-stuck [TOPIC[:PARTITION]]`. It says what holds a partition and what the operator can do."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition, named_partition, parse_topic_partition
from kbroker_tools.base.command import SETTINGS, Command, ToolError, output_options
from kbroker_tools.base.render import Output, words_for_count
from kbroker_tools.base.view import Unreadable, View
from kbroker_tools.cluster.opening import cluster_options, command_here, existing_topic, live, open_view

if TYPE_CHECKING:
    from kbroker_tools.stuck.causes import Verdict
    from kbroker_tools.stuck.facts import Facts
    from kbroker_tools.stuck.gatherer import Gatherer
    from kbroker_tools.stuck.holds import Holds

MOST_IN_FULL = 50
"""Up to this number of partitions, all of them are examined. If there are more, only partitions whose last stable
offset is held are examined."""


@click.command('why-stuck', cls=Command, context_settings=SETTINGS)
@click.argument('where', metavar='[TOPIC[:PARTITION]]', required=False)
@click.option('--group', 'group_id', metavar='GROUP',
              help='Check all partitions that a group reads, and the one with its offsets.')
@cluster_options
@output_options
@click.pass_context
def why_stuck(context: click.Context, /, where: str | None, group_id: str | None, as_json: bool,
              **place: Any) -> None:
    """Explain what holds a partition, and what to do. Without a topic or a group, look at all partitions.

    The report names the transaction that holds the last stable offset, up to which read_committed consumers read. The
    report says since when and why the transaction holds it, which groups wait, what will happen next and when, and
    which command to run. The exit status is 0 if no transaction holds a partition, and 1 otherwise.

    On the machine of a running kbroker, it also lists the records that members of share groups hold.
    """
    if where is not None and group_id is not None:
        raise click.UsageError('give one of TOPIC, TOPIC:PARTITION and --group GROUP, or none')
    wanted = _parse_where(where) if where is not None else None
    view = open_view(**place)
    from kbroker_tools.stuck.gatherer import Gatherer
    command = command_here('kbroker-transactions', view, place['command_config'])
    gatherer = Gatherer(view, command, lambda node: _expiry_interval(view, node))
    if wanted is not None:
        wanted = named_partition(*wanted, gatherer.topics)
        partitions = _partitions_named(view, gatherer, *wanted)
    elif group_id is not None:
        partitions = _partitions_of_group(gatherer, group_id)
    else:
        partitions = [(name, row.partition) for name, found in gatherer.topics.items() for row in found.partitions]
    seen, unseen = _judge(view, gatherer, partitions)
    from kbroker_tools.stuck.holds import Wanted, find_holds
    topic, partition = wanted or (None, None)
    holds = find_holds(view, place['data_dir'], Wanted(topic, partition, group_id))
    _explain(Output(as_json), where or (f'group {group_id}' if group_id is not None else 'all topics'), seen, unseen,
             holds, len(partitions))
    if unseen or any(verdict.is_stuck for _, verdict in seen):
        context.exit(1)


def _parse_where(where: str) -> tuple[str, int | None]:
    try:
        return parse_topic_partition(where)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _expiry_interval(view: View, node_id: int) -> int | None:
    """Return the interval in milliseconds at which the coordinator looks for expired transactions. Return None if the
    broker does not report it."""
    if not view.is_live:
        return None
    from kbroker_tools.stuck.expiry_interval import expiry_interval_ms
    try:
        return expiry_interval_ms(live(view).admin, node_id)
    except (KafkaError, OSError):
        return None


def _partitions_named(view: View, gatherer: Gatherer, topic: str, partition: int | None) -> list[TopicPartition]:
    found = existing_topic(view, gatherer.topics, topic)
    numbers = [each.partition for each in found.partitions]
    if partition is not None and partition not in numbers:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                         f'{view.place}: found {len(numbers)} partitions of {topic}, no {partition}')
    return [(topic, number) for number in numbers if partition in (None, number)]


def _partitions_of_group(gatherer: Gatherer, group_id: str | None) -> list[TopicPartition]:
    assert group_id is not None
    found = gatherer.group_partitions(group_id)
    if not found:
        raise ToolError(f'found no group {group_id!r}: it has neither members nor offsets')
    return found


def _judge(view: View, gatherer: Gatherer,
           partitions: list[TopicPartition]) -> tuple[list[tuple[Facts, Verdict]], dict[str, Unreadable]]:
    """Return the facts and the verdict of each partition, and the reason for each partition that could not be
    checked."""
    from kbroker_tools.stuck.causes import judge
    from kbroker_tools.stuck.held import held_of
    unreadable = view.unreadable(partitions)
    seen, unseen = [], {f'{topic}-{partition}': each for (topic, partition), each in unreadable.items()}
    readable = [at for at in partitions if at not in unreadable]
    for topic, partition in held_of(view, readable) if len(readable) > MOST_IN_FULL else readable:
        try:
            facts = gatherer.facts(topic, partition)
            seen.append((facts, judge(facts)))
        except (KafkaError, CorruptLogError) as error:
            if len(partitions) == 1:
                raise
            unseen[f'{topic}-{partition}'] = Unreadable(f'{topic}-{partition} could not be checked: {error}')
    return seen, unseen


def _explain(output: Output, where: str, seen: list[tuple[Facts, Verdict]], unseen: dict[str, Unreadable],
             holds: Holds, count: int) -> None:
    """Print the report of one or more partitions. `count` is the number of all partitions, including those that are not
    held and not in `seen`."""
    from kbroker_tools.stuck.holds import holds_as_json, show_holds
    from kbroker_tools.stuck.report import as_json, show, show_many
    stuck = [(facts, verdict) for facts, verdict in seen if verdict.is_stuck]
    if output.as_json:
        output.row({'is_stuck': bool(stuck), 'partitions': [as_json(*each) for each in seen],
                    'not_seen': {name: each.reason for name, each in unseen.items()},
                    'share_groups': holds_as_json(holds)})
        return
    readable = count - len(unseen)
    if len(seen) == count == 1:
        show(output, *seen[0])
    else:
        held = f'{len(stuck)} of {readable} partitions are held' if stuck else 'no partition is held'
        missed = f'{words_for_count(len(unseen), "partition")} cannot be read' if unseen else ''
        output.line(f'{where}: {", and ".join(each for each in (held if readable else "", missed) if each)}',
                    style='bold red' if stuck or unseen else 'bold green')
        show_many(output, stuck)
        for each in unseen.values():
            output.line()
            output.line(each.reason, style='bold red')
            if each.advice is not None:
                output.line(f'  do           {each.advice}')
    show_holds(output, holds)
