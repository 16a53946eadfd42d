"""The tables of kbroker-share-groups. They have the columns of Kafka's tool."""
from __future__ import annotations

from typing import Any

from kbroker.client.descriptions import GroupInfo
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import View
from kbroker_tools.groups.group_kind import GroupKind
from kbroker_tools.groups.tables import assignment_text, cell, show, show_state_row

SHARE = GroupKind('share', ('Empty', 'Stable', 'Dead'))
list_groups = SHARE.list_groups


def describe_groups(view: View, output: Output, options: dict[str, Any]) -> None:
    missing = []
    for group_id in SHARE.wanted(view, options):
        group = view.group(group_id)
        if group is None or group.protocol_type != SHARE.protocol_type:
            missing.append(group_id)
            continue
        if group.state == 'Empty' and (options['members'] or options['state'] is not None):
            output.note('')
            output.note(f"Share group '{group_id}' has no active members.")
        if not (output.as_json or output.is_terminal):
            output.line()
        if options['members']:
            if group.members:
                show_members(output, group, options['verbose'])
        elif options['state'] is not None:
            show_state(view, output, group, options['verbose'])
        else:
            show_offsets(view, output, group, options['verbose'])
    SHARE.check_missing(view, missing)


def show_state(view: Any, output: Output, group: GroupInfo, verbose: bool) -> None:
    epochs = (cell('GROUP-EPOCH', 12), cell('ASSIGNMENT-EPOCH', 17)) if verbose else ()
    show_state_row(view, output, group, [(cell('STATE'), group.state)], epochs)


def show_members(output: Output, group: GroupInfo, verbose: bool) -> None:
    cells = [cell('GROUP'), cell('CONSUMER-ID'), cell('HOST'), cell('CLIENT-ID'), cell('#PARTITIONS', 12),
             *([cell('MEMBER-EPOCH', 13)] if verbose else []), cell('ASSIGNMENT', None)]
    show(output, cells, [[group.group_id, member.member_id, member.client_host, member.client_id,
                          len(member.assignment), *([member.epoch] if verbose else []),
                          assignment_text(member.assignment)]
                         for member in sorted(group.members, key=lambda member: member.member_id)])


def show_offsets(view: View, output: Output, group: GroupInfo, verbose: bool) -> None:
    cells = [cell('GROUP'), cell('TOPIC'), cell('PARTITION', 10), *([cell('LEADER-EPOCH', 13)] if verbose else []),
             cell('START-OFFSET', 13), cell('LAG', None)]
    show(output, cells, [[group.group_id, row.topic, row.partition, *([row.leader_epoch] if verbose else []),
                          row.start_offset, row.lag] for row in view.share_offsets(group.group_id)])
