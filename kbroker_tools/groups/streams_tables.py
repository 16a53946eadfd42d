"""The tables of kbroker-streams-groups. They have the columns of Kafka's tool."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.client.descriptions import StreamsGroupInfo, StreamsMemberInfo
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import View
from kbroker_tools.groups.group_kind import GroupKind
from kbroker_tools.groups.tables import EPOCHS, Cell, cell, log_offsets, show, show_state_row

STREAMS = GroupKind('streams', ('Empty', 'NotReady', 'Stable', 'Assigning', 'Reconciling', 'Dead'))
list_groups = STREAMS.list_groups


def describe_groups(view: View, output: Output, options: dict[str, Any]) -> None:
    missing = []
    for group_id in STREAMS.wanted(view, options):
        group = view.streams_group(group_id)
        if group is None:
            missing.append(group_id)
            continue
        if not group.members:
            output.note(f"\nStreams group '{group_id}' has no active members.")
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
    show_state_row(view, output, group, [(cell('STATE', 25), group.state)], EPOCHS if verbose else (), ' ')


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


