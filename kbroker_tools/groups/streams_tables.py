"""The tables of kbroker-streams-groups. They have the columns of Kafka's tool."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kbroker.base.errors import KafkaError
from kbroker.client.descriptions import StreamsGroupInfo, StreamsMemberInfo, TopologyDescription, TopologyNode
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import View
from kbroker_tools.groups.group_kind import GroupKind
from kbroker_tools.groups.tables import EPOCHS, Cell, cell, log_offsets, show, show_state_row

STREAMS = GroupKind('streams', ('Empty', 'NotReady', 'Stable', 'Assigning', 'Reconciling', 'Dead'))
list_groups = STREAMS.list_groups

NO_DESCRIPTION = {
    'NOT_STORED': "no topology description is stored for streams group '{}'",
    'FAILED': "the broker failed to get the topology description of streams group '{}'; its log has the reason",
}
"""Maps the status of a description that is missing to the message for the user."""
UNKNOWN_STATUS = "no topology description is available for streams group '{}'"


def describe_groups(view: View, output: Output, options: dict[str, Any]) -> None:
    if options['topology']:
        show_topologies(view, output, options)
        return
    missing = []
    for group_id in STREAMS.wanted(view, options):
        group = view.streams_group(group_id)
        if group is None:
            missing.append(group_id)
            continue
        if not group.members:
            output.note('')
            output.note(f"Streams group '{group_id}' has no active members.")
        if not (output.as_json or output.is_terminal):
            output.line()
        if options['state'] is not None:
            show_state(view, output, group, options['verbose'])
        elif options['members']:
            if group.members:
                show_members(output, group, options['verbose'])
        elif group.members:
            show_offsets(view, output, group, options['verbose'])
    STREAMS.check_missing(view, missing)


def show_state(view: Any, output: Output, group: StreamsGroupInfo, verbose: bool) -> None:
    # Kafka's tool leaves the cell empty if the broker is too old to report the assignor.
    assignor = group.assignor if output.as_json else group.assignor or ''
    show_state_row(view, output, group, [(cell('ASSIGNOR'), assignor), (cell('STATE', 25), group.state)],
                   EPOCHS if verbose else (), ' ')


def show_topologies(view: Any, output: Output, options: dict[str, Any]) -> None:
    """Print the descriptions of the topologies of groups. Then raise ToolError if a group has none."""
    missing = []
    for group_id, group in view.admin.describe_streams_groups(STREAMS.wanted(view, options), True).items():
        if isinstance(group, KafkaError):
            missing.append(str(group))
        elif group.topology_description is None:
            missing.append(NO_DESCRIPTION.get(group.topology_status, UNKNOWN_STATUS).format(group_id))
        elif output.as_json:
            output.row({'group': group_id, **topology_fields(group.topology_description)})
        else:
            for line in topology_lines(group.topology_description):
                output.line(line)
    if missing:
        raise ToolError('; '.join(missing))


def topology_fields(description: TopologyDescription) -> dict[str, Any]:
    """Return the fields of a description for JSON."""
    return {
        'subtopologies': [{'subtopology': subtopology_id, 'nodes': list(map(_node_fields, nodes))}
                          for subtopology_id, nodes in description.subtopologies.items()],
        'global_stores': [{'source': _node_fields(source), 'processor': _node_fields(processor)}
                          for source, processor in description.global_stores]}


def _node_fields(node: TopologyNode) -> dict[str, Any]:
    return {name: getattr(node, name) for name in ('name', 'kind', 'topics', 'stores', 'successors')}


def topology_lines(description: TopologyDescription) -> Iterator[str]:
    """Yield the lines of a description. Global stores are numbered after the subtopologies."""
    yield 'Topologies:'
    parts = [(subtopology_id, nodes) for subtopology_id, nodes in description.subtopologies.items()]
    parts += [(f'{number} for global store (will not generate tasks)', nodes)
              for number, nodes in enumerate(description.global_stores, len(parts))]
    for heading, nodes in parts:
        yield f'   Sub-topology: {heading}'
        predecessors: dict[str, list[str]] = {}
        for node in nodes:
            for successor in node.successors:
                predecessors.setdefault(successor, []).append(node.name)
        for node in nodes:
            yield f'    {node.kind.capitalize()}: {node.name} ({_used(node)})'
            if node.kind != 'sink':
                yield f'      --> {_names(node.successors)}'
            if node.kind != 'source':
                yield f'      <-- {_names(predecessors.get(node.name, ()))}'
        yield ''
    yield ''


def _used(node: TopologyNode) -> str:
    """Return the topics of a source or a sink, or the stores of a processor."""
    if node.kind == 'sink':
        return f'topic: {node.topics[0] if node.topics else "null"}'
    used = node.topics if node.kind == 'source' else node.stores
    return f'{"topics" if node.kind == "source" else "stores"}: [{", ".join(sorted(set(used)))}]'


def _names(nodes: Iterable[str]) -> str:
    return ', '.join(sorted(set(nodes))) or 'none'


def show_members(output: Output, group: StreamsGroupInfo, verbose: bool) -> None:
    members = sorted(group.members, key=lambda member: member.member_id)
    cells = [cell('GROUP'), cell('MEMBER'), cell('PROCESS'), cell('CLIENT-ID'), cell('ASSIGNMENTS', None)]
    rows: list[list[Any]] = [[group.group_id, member.member_id, member.process_id, member.client_id,
                              tasks_text(member.tasks)] for member in members]
    if verbose:
        cells[1:2] = [cell('TARGET-ASSIGNMENT-EPOCH', 25), cell('TOPOLOGY-EPOCH'), cell('MEMBER'),
                      cell('MEMBER-PROTOCOL'), cell('MEMBER-EPOCH')]
        rows = [verbose_row(group, member) for member in members]
    show(output, cells, rows)


def verbose_row(group: StreamsGroupInfo, member: StreamsMemberInfo) -> list[Any]:
    return [group.group_id, group.assignment_epoch, member.topology_epoch, member.member_id,
            'classic' if member.is_classic else 'streams', member.epoch, member.process_id, member.client_id,
            tasks_text(member.tasks) + tasks_text(member.target, 'TARGET-')]


def tasks_text(tasks: Mapping[str, Mapping[str, Sequence[int]]], prefix: str = '') -> str:
    """Return the tasks of each role as text. An example is `ACTIVE: 0:[0,1]; 1:[0]; `."""
    return ''.join(f'{prefix}{role.upper()}: ' + ''.join(
        f'{subtopology}:[{",".join(map(str, numbers))}]; ' for subtopology, numbers in sorted(found.items()))
        for role, found in tasks.items() if found)


def show_offsets(view: View, output: Output, group: StreamsGroupInfo, verbose: bool) -> None:
    """Print the partitions that the active tasks of the members read, with their offsets. If a partition has no
    committed offset, OFFSET-LAG counts from the log start."""
    sources = {part.subtopology_id: (*part.sources, *part.repartition_sources) for part in group.subtopologies}
    read = {(topic, number) for member in group.members
            for subtopology, numbers in member.tasks.get('active', {}).items()
            for topic in sources.get(subtopology, ()) for number in numbers}
    committed = {(offset.topic, offset.partition): offset for offset in view.group_offsets(group.group_id)}
    logs = log_offsets(view, sorted(read), output)
    rows = []
    for at in sorted(logs):
        offset, log = committed.get(at), logs[at]
        lag = log.high_watermark - (max(log.log_start_offset, 0) if offset is None else offset.offset)
        row: list[Any] = [group.group_id, *at]
        if verbose:
            row += [offset and offset.offset, offset.leader_epoch if offset and offset.leader_epoch >= 0 else None,
                    log.high_watermark]
        rows.append([*row, lag])
    cells: list[Cell] = [cell('GROUP'), cell('TOPIC'), cell('PARTITION', 10)]
    if verbose:
        cells += [cell('CURRENT-OFFSET'), cell('LEADER-EPOCH'), cell('LOG-END-OFFSET')]
    show(output, [*cells, cell('OFFSET-LAG', 15 if verbose else None)], rows)


