"""The changes that kbroker-streams-groups makes: it resets offsets, and deletes offsets, groups and internal topics."""
from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import StreamsGroupInfo
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.groups import changes
from kbroker_tools.groups.offset_resets import parse_scope
from kbroker_tools.groups.streams_tables import STREAMS

INTERNAL = re.compile(r'.+-(changelog|repartition|subscription-registration-topic|subscription-response-topic'
                      r'|KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic)')
"""Matches the names of the internal topics of Kafka Streams, after the group id and a hyphen."""


# ---- reset

def reset_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    """Reset the offsets of groups in their input topics. With --execute, also delete the internal topics that the
    options name."""
    groups = [described(view, group_id) for group_id in STREAMS.wanted(view, options)]
    internal = {group.group_id: internal_topics(group, options) for group in groups}
    if options['from_file'] is not None:
        changes.reset_groups(view, output, options, list(internal))
    else:
        for group in groups:
            check_inputs(group, parse_scope(options['input_topic'], inputs(group)))
            topics = offsets_of_inputs(view, group) if options['all_input_topics'] else options['input_topic']
            changes.reset_groups(view, output, options | {'topic': topics, 'all_topics': False}, [group.group_id],
                                 check_committed)
    for group_id, topics in internal.items():
        if options['execute'] and topics:
            delete_topics(view, output, group_id, topics)


def described(view: Any, group_id: str) -> StreamsGroupInfo:
    """Return the description of a streams group. Raise ToolError if the group does not exist or is not a streams
    group."""
    found: StreamsGroupInfo | None = view.streams_group(group_id)
    if found is None:
        raise ToolError(f'{view.place}: there is no streams group {group_id}; --list shows the existing ones')
    return found


def inputs(group: StreamsGroupInfo) -> set[str]:
    """Return the topics that the application reads but does not write."""
    return {topic for part in group.subtopologies for topic in part.sources}


def check_inputs(group: StreamsGroupInfo, topics: Collection[str]) -> None:
    """Raise ToolError if one of the topics is not an input topic of the group."""
    others = sorted(set(topics) - inputs(group))
    if others:
        raise ToolError(f"group '{group.group_id}': {', '.join(others)} is not an input topic of the application")


def check_committed(group_id: str, partitions: Collection[TopicPartition],
                    committed: Collection[TopicPartition]) -> None:
    """Raise ToolError if the group has no committed offset in one of the partitions. Kafka's tool refuses this too."""
    missing = sorted(set(partitions) - set(committed))
    if missing:
        names = ', '.join(f'{topic}-{partition}' for topic, partition in missing)
        raise ToolError(f"group '{group_id}' has no offset in {names}: name only partitions with an offset, or use "
                        '--all-input-topics')


def offsets_of_inputs(view: Any, group: StreamsGroupInfo) -> list[str]:
    """Return the partitions of the input topics in which the group has offsets, each in the form of the command
    line."""
    return [f'{offset.topic}:{offset.partition}' for offset in view.group_offsets(group.group_id)
            if offset.topic in inputs(group)]


# ---- delete

def delete_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    """Delete the offsets that one group has in its input topics."""
    group_id, = options['group']
    topics = options['input_topic'] or offsets_of_inputs(view, described(view, group_id))
    changes.delete_offsets(view, output, options | {'topic': topics})


def delete(view: Any, output: Output, options: dict[str, Any]) -> None:
    """Delete groups, then the internal topics of the groups that were deleted."""
    found = [view.streams_group(group_id) for group_id in STREAMS.wanted(view, options)]
    internal = {group.group_id: internal_topics(group, options) for group in found if group is not None}
    try:
        STREAMS.delete(view, output, options)
    finally:
        left = {group.group_id for group in STREAMS.groups(view)}
        for group_id, topics in internal.items():
            if topics and group_id not in left:
                delete_topics(view, output, group_id, topics)


def internal_topics(group: StreamsGroupInfo, options: dict[str, Any]) -> list[str]:
    """Return the internal topics to delete. The options name them, or ask for all internal topics of the group. Raise
    ToolError if a named topic is not an internal topic of the group."""
    known = {topic for part in group.subtopologies for topic in (*part.repartition_sources, *part.changelogs)
             if topic.startswith(f'{group.group_id}-') and INTERNAL.fullmatch(topic)}
    if options['delete_all_internal_topics']:
        return sorted(known)
    others = sorted(set(options['delete_internal_topic']) - known)
    if others:
        raise ToolError(f"group '{group.group_id}': {', '.join(others)} is not an internal topic of the application")
    return sorted(set(options['delete_internal_topic']))


def delete_topics(view: Any, output: Output, group_id: str, topics: list[str]) -> None:
    """Delete topics. Raise ToolError if some were not deleted; the message names them."""
    errors = {topic: error for topic, error in view.admin.delete_topics(topics).items() if error is not None}
    deleted = "', '".join(topic for topic in topics if topic not in errors)
    if deleted and not output.as_json:
        output.line(f"Deletion of internal topics of group '{group_id}' ('{deleted}') was successful.")
    if errors:
        raise ToolError('; '.join(f'{topic}: {error}' for topic, error in errors.items()))
