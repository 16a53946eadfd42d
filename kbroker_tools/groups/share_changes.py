"""The changes that kbroker-share-groups makes: it resets offsets, and deletes offsets and groups."""
from __future__ import annotations

from typing import Any

from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.groups.changes import (
    INACTIVE,
    LiveOffsets,
    in_scope,
    raise_first,
    raise_left_out,
    show_deletions,
    show_plan,
    specification,
    split_readable,
)
from kbroker_tools.groups.offset_resets import plan
from kbroker_tools.groups.share_tables import SHARE
from kbroker_tools.groups.tables import cell

# ---- reset

def reset_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    """Reset the offsets of a group without members. With --execute, a group that does not exist is created."""
    reset = specification(view, options)
    assert reset is not None
    group_id, = options['group']
    group = view.group(group_id)
    if group is not None and group.protocol_type != SHARE.protocol_type:
        raise ToolError(f"group '{group_id}' is not a share group")
    if group is not None and group.state not in INACTIVE:
        raise ToolError(f"group '{group_id}' is {group.state}: offsets can be reset only while no member is active")
    if options['all_topics']:
        scope = [(row.topic, row.partition) for row in view.share_offsets(group_id)] if group is not None else []
        if not scope:
            raise ToolError(f"group '{group_id}' has no offsets: --topic names the topics to begin with")
    else:
        scope = in_scope(view, options['topic'], '--topic')
    scope, unreadable = split_readable(view, output, scope)
    planned, notes = plan(reset, scope, {}, LiveOffsets(view.admin)) if scope else ({}, [])
    for note in notes:
        output.note(note)
    if options['execute'] and planned:
        raise_first(view.admin.alter_share_group_offsets(group_id, planned))
    show_plan(output, [(group_id, *at, offset) for at, offset in sorted(planned.items())])
    raise_left_out([], unreadable)


# ---- delete

delete = SHARE.delete


def delete_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    group_id, = options['group']
    results = view.admin.delete_share_group_offsets(group_id, sorted(set(options['topic'])))
    show_deletions(output, group_id, [cell('TOPIC'), cell('STATUS', None)],
                   {(topic,): error for topic, error in results.items()}, 'topics')
