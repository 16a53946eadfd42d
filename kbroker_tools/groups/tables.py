"""The tables of kbroker-groups. They are Kafka's tables, with more columns for read_committed consumers."""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import click

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import GroupInfo, GroupMemberInfo, StreamsGroupInfo
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Column, Output, shell_word
from kbroker_tools.base.view import GroupOffset, PartitionOffsets, View
from kbroker_tools.cluster.opening import command_here, note_incomplete, note_unreadable
from kbroker_tools.cluster.record_counts import count_records

MISSING = '-'
STATES = ('Empty', 'Stable', 'PreparingRebalance', 'CompletingRebalance', 'Assigning', 'Reconciling', 'Dead')
TYPES = ('Classic', 'Consumer')
CONSUMER_TYPES = frozenset(('classic', 'consumer'))
COMMAND_OF_TYPE = {'share': 'kbroker-share-groups', 'streams': 'kbroker-streams-groups'}
REBALANCING = frozenset(('PreparingRebalance', 'CompletingRebalance', 'Assigning', 'Reconciling'))
CONSUMER_PROTOCOL_TYPES = ('consumer', '')
"""The protocol types of two kinds of groups: consumer groups, and groups that have only committed offsets."""


class Cell(NamedTuple):
    """A column in the layout of Kafka's tools, padded to `width` characters. A width of None is for the last column,
    which is not padded."""

    column: Column
    width: int | None = 15


def cell(title: str, width: int | None = 15, name: str | None = None) -> Cell:
    return Cell(Column(name or title.strip('#').lower().replace('-', '_'), title), width)


EPOCHS = cell('GROUP-EPOCH'), cell('TARGET-ASSIGNMENT-EPOCH', 25)


def show(output: Output, cells: Sequence[Cell], rows: Sequence[Sequence[Any]], ending: str = '') -> None:
    """Print rows. The output is JSON, the format of Kafka's tools in a pipe, or a table without empty columns on a
    terminal."""
    if output.is_terminal:
        filled = [index for index in range(len(cells)) if not rows or any(row[index] is not None for row in rows)]
        output.table([cells[index].column for index in filled], [[row[index] for index in filled] for row in rows])
        return
    if output.as_json:
        output.table([each.column for each in cells], rows)
        return
    texts = [[each.column.title for each in cells],
             *([MISSING if value is None else str(value) for value in row] for row in rows)]
    widths = [0 if each.width is None else max(each.width, *(len(row[index]) for row in texts))
              for index, each in enumerate(cells)]
    for row in texts:
        output.line(' '.join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + ending)


# ---- list

def list_groups(view: View, output: Output, options: dict[str, Any]) -> None:
    states, types = state_words(options['state'], STATES), _words('type', options['type'], TYPES)
    note_incomplete(output, view, CONSUMER_OFFSETS)
    rows = sorted(_listed(view, states, types))
    cells = [cell('GROUP', max([15, *(len(group) for group, _, _ in rows)]) + 10)]
    if options['type'] is not None:
        cells.append(cell('TYPE', 20))
    if options['state'] is not None:
        cells.append(cell('STATE', 20))
    shown = [[{'group': group, 'type': kind, 'state': state}[each.column.name] for each in cells]
             for group, kind, state in rows]
    if len(cells) == 1 and not output.as_json:
        for group, in shown:
            output.line(group)
    else:
        show(output, cells, shown)


def state_words(text: str | None, known: Collection[str]) -> list[str]:
    """Return the states that `--state` names. Raise click.BadParameter if a state is unknown."""
    return _words('state', text, known)


def _words(name: str, text: str | None, known: Collection[str]) -> list[str]:
    """Return the words of a comma-separated list. Each word must be one of `known`, in upper or lower case. Raise
    click.BadParameter if a word is unknown."""
    found = []
    for word in (text or '').split(','):
        match = next((each for each in known if each.lower() == word.strip().lower()), None)
        if match is not None:
            found.append(match)
        elif text:
            raise click.BadParameter(f'found {word!r}, expected some of {", ".join(known)}', param_hint=f'--{name}')
    return found


def _listed(view: Any, states: Collection[str] = (), types: Collection[str] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield (group id, type, state) of each consumer group."""
    if view.is_live:
        for row in view.admin.list_groups(states, types):
            if row.protocol_type in CONSUMER_PROTOCOL_TYPES and row.group_type.capitalize() in (*TYPES, ''):
                yield row.group_id, row.group_type.capitalize(), row.state
        return
    for group_id in view.groups():
        group = view.group(group_id)
        if (group is not None and group.protocol_type in CONSUMER_PROTOCOL_TYPES and group.state in (states or STATES)
                and group.group_type.capitalize() in (types or TYPES)):
            yield group_id, group.group_type.capitalize(), group.state


def consumer_groups(view: View) -> list[str]:
    """Return the group ids that `--all-groups` means. Share groups, streams groups and groups of Kafka Connect are not
    among them."""
    return sorted({group_id for group_id, _, _ in _listed(view)})


# ---- describe

def describe_groups(view: View, output: Output, options: dict[str, Any]) -> None:
    group_ids = consumer_groups(view) if options['all_groups'] else sorted(set(options['group']))
    if not group_ids:
        raise ToolError(f'{view.place}: there are no groups')
    note_incomplete(output, view, CONSUMER_OFFSETS)
    missing, others = [], []
    holders = Holders(view)
    for group_id in group_ids:
        group = view.group(group_id)
        if group is None:
            missing.append(group_id)
            continue
        if group.group_type not in CONSUMER_TYPES:
            others.append(group)
            continue
        note_state(output, group)
        if not (output.as_json or output.is_terminal):
            output.line()
        if options['members']:
            show_members(output, group, options['verbose'])
        elif options['state'] is not None:
            show_state(view, output, group, options['verbose'])
        else:
            show_offsets(view, output, group, options['verbose'],
                         holders if options['isolation_level'] == 'read_committed' else None,
                         options['command_config'])
    problems = [f'group {group.group_id} is a {group.protocol_type} group, see {COMMAND_OF_TYPE[group.group_type]}'
                for group in others]
    if missing:
        problems.append(f'there is no group {", ".join(missing)}; --list shows the existing ones')
    if problems:
        raise ToolError(f'{view.place}: {"; ".join(problems)}')


def note_state(output: Output, group: GroupInfo) -> None:
    if group.state == 'Empty':
        output.note('')
        output.note(f"Consumer group '{group.group_id}' has no active members.")
    elif group.state in REBALANCING:
        output.note('')
        output.note(f"Warning: Consumer group '{group.group_id}' is rebalancing.")


def show_state(view: Any, output: Output, group: GroupInfo, verbose: bool) -> None:
    columns = [(cell('ASSIGNMENT-STRATEGY', 20), group.protocol or MISSING), (cell('STATE', 20), group.state)]
    show_state_row(view, output, group, columns, EPOCHS if verbose else ())


def show_state_row(view: Any, output: Output, group: GroupInfo | StreamsGroupInfo,
                   columns: Sequence[tuple[Cell, str | None]], epochs: Sequence[Cell], gap: str = '  ') -> None:
    """Print one row about a group. Its cells are the coordinator, the cells of `columns`, the epochs if `epochs` has
    cells for them, and the number of members.

    `gap` is the text between the address and the id of the coordinator.
    """
    node = view.cluster.nodes.get(group.coordinator_id) if view.is_live else None
    where = f'{node.host}:{node.port}{gap}' if node is not None else ''
    numbers = (group.epoch, group.assignment_epoch) if epochs else ()
    show(output, [cell('GROUP'), cell('COORDINATOR (ID)', 25, 'coordinator'), *(each for each, _ in columns), *epochs,
                  cell('#MEMBERS', None)],
         [[group.group_id, f'{where}({group.coordinator_id})', *(text for _, text in columns), *numbers,
           len(group.members)]])


def show_members(output: Output, group: GroupInfo, verbose: bool) -> None:
    has_instances = any(member.instance_id for member in group.members)
    cells = [cell('GROUP'), cell('CONSUMER-ID'), *([cell('GROUP-INSTANCE-ID', 17)] if has_instances else []),
             cell('HOST'), cell('CLIENT-ID'), cell('#PARTITIONS')]
    if verbose:
        cells += [cell('CURRENT-EPOCH'), cell('CURRENT-ASSIGNMENT', 20), cell('TARGET-EPOCH'),
                  cell('TARGET-ASSIGNMENT', 20)]
    rows = []
    for member in sorted(group.members, key=lambda member: member.member_id):
        row: list[Any] = [group.group_id, member.member_id]
        if has_instances:
            row.append(member.instance_id or '')
        row += [member.client_host, member.client_id, len(member.assignment)]
        if verbose:
            target = member.target_assignment
            row += [member.epoch, assignment_text(member.assignment), group.assignment_epoch,
                    None if target is None else assignment_text(target)]
        rows.append(row)
    show(output, cells, rows, ending='' if verbose else ' ')


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """Return partitions as text, in the form `orders:0,1;payments:0`."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return ';'.join(f'{topic}:{",".join(map(str, numbers))}' for topic, numbers in topics.items()) or MISSING


def show_offsets(view: View, output: Output, group: GroupInfo, verbose: bool, holders: Holders | None,
                 command_config: Any = None) -> None:
    """Print each partition in which the group has an offset or which is assigned to a member. Then print the members
    without a partition."""
    begins = {program: command_here(f'kbroker-{program}', view, command_config)
              for program in ('groups', 'transactions')}
    offsets = {(offset.topic, offset.partition): offset for offset in view.group_offsets(group.group_id)}
    owners = {at: member for member in group.members for at in member.assignment}
    log_ends = log_offsets(view, sorted(offsets.keys() | owners.keys()), output)
    rows: list[list[Any]] = []
    for at in sorted(offsets.keys() | owners.keys()):
        committed, log = offsets.get(at), log_ends.get(at)
        row: list[Any] = [group.group_id, *at]
        if verbose:
            row.append(committed.leader_epoch if committed and committed.leader_epoch >= 0 else None)
        row += [committed and committed.offset, log and log.high_watermark,
                log.high_watermark - committed.offset if committed and log else None, *_member_cells(owners.get(at))]
        if committed and log:
            note_offset(output, group.group_id, committed, log, begins)
        if holders is not None:
            row += holders.row(at, log, committed.offset) if committed and log else [None] * len(HELD_CELLS)
        rows.append(row)
    for member in group.members:
        if not member.assignment:
            rows.append([group.group_id, *[None] * (6 if verbose else 5), *_member_cells(member),
                         *[None] * (0 if holders is None else len(HELD_CELLS))])
    cells = [cell('GROUP'), cell('TOPIC'), cell('PARTITION', 10), *([cell('LEADER-EPOCH')] if verbose else []),
             cell('CURRENT-OFFSET'), cell('LOG-END-OFFSET'), cell('LAG'), cell('CONSUMER-ID'), cell('HOST'),
             cell('CLIENT-ID', None if holders is None else 15)]
    show(output, cells if holders is None else [*cells, *HELD_CELLS], rows)


def note_offset(output: Output, group_id: str, committed: GroupOffset, log: PartitionOffsets,
                begins: dict[str, str]) -> None:
    """Print a note about a fact that the lag does not show. This is an offset beyond the end of the log, or a
    transaction that keeps read_committed consumers from reading on.

    `begins` has the beginnings of the command lines in the advice.
    """
    name = f'{committed.topic}-{committed.partition}'
    where = shell_word(f'{committed.topic}:{committed.partition}')
    if committed.offset > log.high_watermark:
        output.note(f'{name} ends at {log.high_watermark}, below offset {committed.offset} of group {group_id}: it '
                    'lost records, or the topic was created again. The group needs a reset once it has no members')
        output.note(f'  do: {begins["groups"]} --reset-offsets --group {shell_word(group_id)} --topic {where} '
                    '--to-latest --execute')
    elif log.last_stable_offset < log.high_watermark:
        output.note_once(f'{name} is held at offset {log.last_stable_offset} by an open transaction: consumers that '
                         'read committed records only wait there')
        output.note_once(f'  do: {begins["transactions"]} why-stuck {where}')


def _member_cells(member: GroupMemberInfo | None) -> list[str | None]:
    return [None] * 3 if member is None else [member.member_id, member.client_host, member.client_id]


HELD_CELLS = (cell('LAST-STABLE-OFFSET'), cell('RECORDS-LEFT'), cell('HELD'), cell('UNDECIDED'), cell('HELD-BY', None))


def log_offsets(view: View, partitions: list[TopicPartition],
                output: Output) -> dict[TopicPartition, PartitionOffsets]:
    """Return the log offsets of the partitions that exist. A group may also have offsets in deleted topics.

    Report and omit the partitions that this view cannot read.
    """
    topics = view.topics()
    there = [(topic, partition) for topic, partition in partitions
             if topic in topics and any(row.partition == partition for row in topics[topic].partitions)]
    unreadable = view.unreadable(there)
    note_unreadable(output, unreadable)
    return view.partition_offsets_of([at for at in there if at not in unreadable])


class Holders:
    """The columns for read_committed consumers. They show which transaction holds the last stable offset of a
    partition, and how many records are left."""

    def __init__(self, view: View):
        self._view = view
        self._transactional_ids: dict[int, str] | None = None
        self._names: dict[TopicPartition, str] = {}

    def row(self, at: TopicPartition, log: PartitionOffsets, position: int) -> list[Any]:
        """Return the values of the columns HELD_CELLS for one partition."""
        left = count_records(self._view.batch_headers(at[0], at[1], position, log.high_watermark), position,
                             log.last_stable_offset)
        holder = self._holder(at) if log.last_stable_offset < log.high_watermark else None
        return [log.last_stable_offset, left.committed, left.held, left.undecided, holder]

    def _holder(self, at: TopicPartition) -> str | None:
        if at not in self._names:
            open_ones = [producer for producer in self._view.producers(*at)
                         if producer.transaction_first_offset is not None]
            first = min(open_ones, key=lambda producer: producer.transaction_first_offset or 0, default=None)
            if first is None:
                return None
            self._names[at] = self._name_of(first.producer_id)
        return self._names[at]

    def _name_of(self, producer_id: int) -> str:
        if self._transactional_ids is None:
            self._transactional_ids = {}
            try:
                self._transactional_ids = {row.producer_id: row.transactional_id for row in self._view.transactions()}
            except KafkaError as error:
                if error.code != ErrorCode.UNSUPPORTED_VERSION:
                    raise
        return self._transactional_ids.get(producer_id, f'producer-id {producer_id}')
