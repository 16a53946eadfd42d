"""The changes that kbroker-share-groups makes: it resets offsets, and deletes offsets and groups."""
from __future__ import annotations

from typing import Any

from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.groups.changes import (
    INACTIVE,
    LiveOffsets,
    in_scope,
    planned_in_file,
    raise_first,
    raise_left_out,
    read_file,
    show_deletions,
    show_or_export,
    specification,
    split_readable,
)
from kbroker_tools.groups.offset_resets import Reset, plan
from kbroker_tools.groups.share_tables import SHARE
from kbroker_tools.groups.tables import cell

# ---- reset

def reset_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    """Reset the offsets of a group without members. With --execute, a group that does not exist is created."""
    reset = specification(view, options)
    group_id, = options['group']
    group = view.group(group_id)
    if group is not None and group.protocol_type != SHARE.protocol_type:
        raise ToolError(f"group '{group_id}' is not a share group")
    if group is not None and group.state not in INACTIVE:
        raise ToolError(f"group '{group_id}' is {group.state}: offsets can be reset only while no member is active")
    if reset is None:
        wanted = read_file(options, [group_id]).get(group_id, {})
        planned, notes, unreadable = planned_in_file(view, output, wanted)
    else:
        offsets = {(row.topic, row.partition): row.start_offset
                   for row in (view.share_offsets(group_id) if group is not None else ())}
        planned, notes, unreadable = planned_in_scope(view, output, options, reset, offsets)
    for note in notes:
        output.note(note)
    if options['execute'] and planned:
        raise_first(view.admin.alter_share_group_offsets(group_id, planned))
    show_or_export(output, options, [(group_id, *at, offset) for at, offset in sorted(planned.items())])
    raise_left_out([], unreadable)


def planned_in_scope(view: Any, output: Output, options: dict[str, Any], reset: Reset,
                     offsets: dict[TopicPartition, int | None]) -> tuple[
                         dict[TopicPartition, int], list[str], set[TopicPartition]]:
    """Return the new offsets of the partitions that the options select, notes for the user, and the partitions that
    cannot be read.

    `offsets` has the start offsets of the group, and None for a partition in which it has not begun. Raise ToolError
    if the group has no offsets, or none that --to-current can keep.
    """
    group_id, = options['group']
    if options['all_topics'] and not offsets:
        raise ToolError(f"group '{group_id}' has no offsets: --topic names the topics to begin with")
    scope = list(offsets) if options['all_topics'] else in_scope(view, options['topic'], '--topic')
    started = {at: offset for at, offset in offsets.items() if offset is not None}
    if reset.kind == 'to_current' and (missing := sorted(set(scope) - started.keys())):
        names = ', '.join(f'{topic}-{number}' for topic, number in missing)
        raise ToolError(f"group '{group_id}' has not begun in {names}: name only partitions with a start offset by "
                        '--topic')
    scope, unreadable = split_readable(view, output, scope)
    planned, notes = plan(reset, scope, started, LiveOffsets(view.admin)) if scope else ({}, [])
    return planned, notes, unreadable


# ---- delete

delete = SHARE.delete


def delete_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    group_id, = options['group']
    results = view.admin.delete_share_group_offsets(group_id, sorted(set(options['topic'])))
    show_deletions(output, group_id, [cell('TOPIC'), cell('STATUS', None)],
                   {(topic,): error for topic, error in results.items()}, 'topics')
