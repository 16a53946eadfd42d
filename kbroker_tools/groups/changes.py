"""The changes that kbroker-groups makes: it resets offsets, and deletes offsets and groups."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from kbroker.base.errors import KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import EARLIEST, LATEST, OffsetAndMetadata
from kbroker.settings.properties import read_text
from kbroker_tools.base import actions
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.cluster.opening import note_unreadable
from kbroker_tools.groups.offset_resets import (
    CannotReset,
    Reset,
    csv_row,
    parse_datetime_ms,
    parse_duration_ms,
    parse_scope,
    plan,
    read_plan,
    within_log,
)
from kbroker_tools.groups.tables import Cell, cell, consumer_groups, show

INACTIVE = ('Empty', 'Dead')
KINDS = {'to_datetime': 'to_time', 'by_duration': 'to_time'}
Check = Callable[[str, Collection[TopicPartition], Collection[TopicPartition]], None]
"""A function that checks a group id, the partitions to reset, and the partitions with a committed offset. It raises
ToolError if the reset is not allowed."""
NEITHER = 'No offset is changed without --execute; --dry-run silences this note.'


class LiveOffsets:
    """The offsets of a live cluster, in the form of `offset_resets.Offsets`."""

    def __init__(self, admin: Any):
        self._admin = admin

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.at_time(partitions, EARLIEST)

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.at_time(partitions, LATEST)

    def at_time(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        return {at: found.offset
                for at, found in self._admin.list_offsets(dict.fromkeys(partitions, timestamp_ms)).items()}


# ---- reset

def reset_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    """Reset the offsets of groups without members. Then raise ToolError if other groups have members."""
    if not options['dry_run'] and not options['execute']:
        output.note(NEITHER)
    reset_groups(view, output, options, sorted(set(options['group'])) or consumer_groups(view))


def reset_groups(view: Any, output: Output, options: dict[str, Any], group_ids: Sequence[str],
                 check: Check | None = None) -> None:
    """Reset the offsets of these groups. `check` is called first, for each group, with the partitions that the options
    name."""
    reset = specification(view, options)
    from_file = read_file(options, group_ids) if options['from_file'] is not None else None
    active, rows, left_out = [], [], set()
    for group_id in group_ids:
        group = view.group(group_id)
        if group is not None and group.state not in INACTIVE:
            active.append(f"group '{group_id}' is {group.state}: offsets can be reset only while no member is active")
            continue
        planned, unreadable = _planned(view, output, options, group_id, reset, from_file, check)
        rows += [(group_id, *at, offset) for at, offset in planned.items()]
        left_out |= unreadable
    show_or_export(output, options, rows, with_group=len(group_ids) > 1)
    raise_left_out(active, left_out)


def raise_left_out(problems: list[str], left_out: Collection[TopicPartition]) -> None:
    """Raise ToolError if `problems` has texts, or if partitions keep their offsets because they cannot be read."""
    if left_out:
        problems = [*problems, f'the offsets of {", ".join(f"{topic}-{number}" for topic, number in sorted(left_out))} '
                               'stay as they are']
    if problems:
        raise ToolError('; '.join(problems))


def _planned(view: Any, output: Output, options: dict[str, Any], group_id: str, reset: Reset | None,
             from_file: dict[str, dict[TopicPartition, int]] | None,
             check: Check | None) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
    """Return the new offsets of one group, and the partitions that cannot be read. With --execute, also commit the new
    offsets."""
    if from_file is not None:
        planned, notes, unreadable = planned_in_file(view, output, from_file.get(group_id, {}))
    else:
        assert reset is not None
        committed = {at: found.offset for at, found in view.admin.list_group_offsets(group_id).items()}
        scope = list(committed) if options['all_topics'] else in_scope(view, options['topic'], '--topic')
        if check is not None:
            check(group_id, scope, committed)
        scope, unreadable = split_readable(view, output, scope)
        try:
            planned, notes = plan(reset, scope, committed, LiveOffsets(view.admin)) if scope else ({}, [])
        except CannotReset as error:
            raise ToolError(f"group '{group_id}': {error}") from None
    for note in notes:
        output.note(note)
    if options['execute'] and planned:
        raise_first(view.admin.alter_group_offsets(
            group_id, {at: OffsetAndMetadata(offset) for at, offset in planned.items()}))
    return dict(sorted(planned.items())), unreadable


def planned_in_file(view: Any, output: Output, wanted: Mapping[TopicPartition, int]) -> tuple[
        dict[TopicPartition, int], list[str], set[TopicPartition]]:
    """Return the new offsets for the offsets of a file, notes for the user, and the partitions that cannot be read.
    Raise ToolError if a partition does not exist."""
    check_existing(view, wanted)
    readable, unreadable = split_readable(view, output, wanted)
    planned, notes = within_log({at: wanted[at] for at in readable}, LiveOffsets(view.admin)) if readable else ({}, [])
    return planned, notes, unreadable


def split_readable(view: Any, output: Output,
                   partitions: Collection[TopicPartition]) -> tuple[list[TopicPartition], set[TopicPartition]]:
    """Return (readable partitions, unreadable partitions). Report the unreadable partitions on stderr."""
    unreadable = view.unreadable(partitions)
    note_unreadable(output, unreadable)
    return [at for at in partitions if at not in unreadable], set(unreadable)


def specification(view: Any, options: dict[str, Any]) -> Reset | None:
    """Return the reset that the options specify, or None if --from-file is given. Raise click.BadParameter if the
    argument of an option is invalid."""
    kind = actions.chosen_action(options, [name for name in options if name.startswith('to_')
                                           or name in ('shift_by', 'by_duration', 'from_file')])
    value = options[kind]
    if kind == 'from_file':
        return None
    try:
        if kind == 'to_datetime':
            value = parse_datetime_ms(value)
        elif kind == 'by_duration':
            value = max(view.now_ms() - parse_duration_ms(value), 0)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=actions.spelled(kind)) from None
    return Reset(KINDS.get(kind, kind), int(value))


def in_scope(view: Any, texts: Collection[str], option: str) -> list[TopicPartition]:
    """Return the partitions that the texts name in the form `TOPIC[:N,...]`. Raise ToolError if a partition does not
    exist."""
    topics = view.topics()
    try:
        scope = parse_scope(texts, topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
    found = []
    for topic, partitions in scope.items():
        if topic not in topics:
            raise ToolError(f'{view.place}: there is no topic {topic}')
        numbers = [row.partition for row in topics[topic].partitions] if partitions is None else partitions
        found += [(topic, number) for number in numbers]
    check_existing(view, found)
    return found


def check_existing(view: Any, partitions: Collection[TopicPartition]) -> None:
    topics = view.topics()
    for topic, partition in partitions:
        if topic not in topics or not any(row.partition == partition for row in topics[topic].partitions):
            raise ToolError(f'{view.place}: there is no partition {topic}-{partition}')


def read_file(options: dict[str, Any], group_ids: Collection[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return {group id: {partition: offset}} of the file of --from-file. Raise ToolError if it has another form."""
    path = options['from_file']
    try:
        return read_plan(read_text(path), group_ids)
    except UnicodeDecodeError:
        raise ToolError(f'{path}: not UTF-8 text') from None
    except ValueError as error:
        raise ToolError(f'{path}: {error}') from None


def show_or_export(output: Output, options: Mapping[str, Any], rows: list[tuple[str, str, int, int]],
                   with_group: bool = False) -> None:
    """Print planned offsets as a table, or as CSV with --export. Each row has the group, the topic, the partition and
    the new offset.

    The CSV has the groups only if `with_group` is True.
    """
    if options['export'] and not output.as_json:
        for row in rows:
            output.line(csv_row(row if with_group else row[1:]))
        output.line()
        return
    if not (output.as_json or output.is_terminal):
        output.line()
    show(output, [cell('GROUP'), cell('TOPIC'), cell('PARTITION', 10), cell('NEW-OFFSET', None)], rows)


# ---- delete

def delete_offsets(view: Any, output: Output, options: dict[str, Any]) -> None:
    group_id, = options['group']
    partitions = sorted(in_scope(view, options['topic'], '--topic'))
    results = view.admin.delete_group_offsets(group_id, partitions)
    show_deletions(output, group_id, [cell('TOPIC'), cell('PARTITION', 10), cell('STATUS')], results, 'partitions')


def show_deletions(output: Output, group_id: str, cells: Sequence[Cell],
                   results: Mapping[Any, KafkaError | None], noun: str) -> None:
    """Print the results of deleting offsets. `results` maps the values of the first cells to an error or None. Raise
    ToolError if some offsets were not deleted."""
    failed = sum(error is not None for error in results.values())
    if not (output.as_json or output.is_terminal):
        if not failed:
            output.line(f'Request succeeded for deleting offsets from group {group_id}.')
        output.line()
    show(output, cells, [(*at, 'Successful' if error is None else f'Error: {error}')
                         for at, error in sorted(results.items())])
    if failed:
        raise ToolError(f"group '{group_id}': offsets of {failed} of {len(results)} {noun} were not deleted")


def delete(view: Any, output: Output, options: dict[str, Any]) -> None:
    group_ids = sorted(set(options['group'])) or consumer_groups(view)
    results = view.admin.delete_groups(group_ids)
    errors = {group_id: error for group_id, error in results.items() if error is not None}
    deleted = [group_id for group_id in group_ids if group_id not in errors]
    if output.as_json:
        for group_id in group_ids:
            output.row({'group': group_id, 'deleted': group_id in deleted})
    elif not errors:
        names = "', '".join(deleted)
        output.line(f"Deletion of requested consumer groups ('{names}') was successful.")
    elif deleted:
        names = "', '".join(deleted)
        output.line()
        output.line(f"These consumer groups were deleted successfully: '{names}'")
    if errors:
        raise ToolError('; '.join(map(str, errors.values())))


def raise_first(results: Mapping[Any, KafkaError | None]) -> None:
    for error in results.values():
        if error is not None:
            raise error
