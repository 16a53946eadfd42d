"""The report of `why-stuck`. It has the verdict, the command to run, and the facts from which the verdict was
derived."""
from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.base.words import words_for_duration
from kbroker.client.descriptions import GroupMemberInfo, ProducerInfo
from kbroker.transaction.state import NEVER_TIMES_OUT_MS
from kbroker_tools.base.render import Output, printable, shell_word, words_for_count, words_for_time
from kbroker_tools.stuck.causes import Verdict
from kbroker_tools.stuck.facts import Facts, HeldGroup, Writer

LABEL_WIDTH = 13
PLAIN_WIDTH = 100
MOST_NAMED = 10
"""The most partitions, transactions or members that are listed by name. The number of further ones is printed."""
WHOLE_REPORTS = 5
"""The most reports that are printed in full. For further partitions, only the verdict and the command are printed."""
NOT_REPORTED = 'not reported by the protocol'


def show_many(output: Output, found: Iterable[tuple[Facts, Verdict]]) -> None:
    """Print the reports of many partitions.

    If one transaction holds several partitions, its command is printed once, with the first of them. For each further
    partition, only a headline and the transactions behind the first one are printed.
    """
    shown: set[str] = set()
    for facts, verdict in found:
        if verdict.command is not None and verdict.command in shown:
            _headline(output, verdict)
            for text in _behind(facts):
                _paragraph(output, 'behind it', text, PLAIN_WIDTH)
            continue
        output.line()
        if len(shown) < WHOLE_REPORTS:
            show(output, facts, verdict)
        else:
            _headline(output, verdict)
            _command(output, verdict)
        shown.add(verdict.command or verdict.headline)


def show(output: Output, facts: Facts, verdict: Verdict) -> None:
    """Print the report of one partition as text."""
    _headline(output, verdict)
    width = min(PLAIN_WIDTH, shutil.get_terminal_size().columns) if output.is_terminal else PLAIN_WIDTH
    for label, text in _conclusions(verdict):
        _paragraph(output, label, text, width)
    _command(output, verdict)
    if verdict.is_stuck:
        output.line()
        for label, text in _facts(facts, verdict):
            _paragraph(output, label, text, width)


def _headline(output: Output, verdict: Verdict) -> None:
    output.line(verdict.headline, style='bold red' if verdict.is_stuck else 'bold green')


def _command(output: Output, verdict: Verdict) -> None:
    """Print the command on one line without wrapping, so that the user can copy it."""
    if verdict.command is not None:
        output.line()
        output.line('  ' + verdict.command, style='bold cyan')


def _paragraph(output: Output, label: str, text: str, width: int) -> None:
    indent = ' ' * (LABEL_WIDTH + 2)
    filled = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
                           break_on_hyphens=False)
    output.labelled(f'  {label:{LABEL_WIDTH}}', filled[len(indent):])


def _conclusions(verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield 'why', verdict.why
    yield 'next', verdict.next
    yield 'do', verdict.advice


def _facts(facts: Facts, verdict: Verdict) -> Iterator[tuple[str, str]]:
    if facts.holder is not None:
        yield 'producer', f'id {facts.holder.producer_id}, epoch {facts.epoch}; transactional.id ' + (
            repr(facts.transactional_id) if facts.transactional_id is not None else 'not known')
        yield from (('client' if index == 0 else '', text) for index, text in enumerate(_clients(facts.writers)))
        yield 'open since', _age(facts, facts.holder)
    yield 'held back', (f'{words_for_count(facts.held_offsets, "offset")} (records and markers): last stable offset '
                        f'{facts.offsets.last_stable_offset}, high watermark {facts.offsets.high_watermark}')
    yield from (('consumers' if index == 0 else '', text) for index, text in enumerate(_consumers(facts)))
    if facts.holder is not None:
        yield 'coordinator', _coordinator(facts)
    yield from (('behind it', text) for text in _behind(facts))
    if verdict.known_as:
        yield 'known as', ', '.join(verdict.known_as)


def _behind(facts: Facts) -> Iterator[str]:
    """Yield a text about the open transactions that begin after the first one. Yield nothing if there are none."""
    ids = facts.behind_ids or (None,) * len(facts.behind)
    if facts.behind:
        yield _some(
            ('' if name is None else f'transactional.id {name!r}, ')
            + f'producer id {producer.producer_id} from offset {producer.transaction_first_offset}'
            for producer, name in zip(facts.behind, ids, strict=True)) + ': open too, and next to hold it'


def _consumers(facts: Facts) -> Iterator[str]:
    if facts.topic == CONSUMER_OFFSETS:
        groups = _some(repr(writer.group_id) for writer in facts.writers) or 'a group'
        yield f'members of {groups} that ask for stable offsets get UNSTABLE_OFFSET_COMMIT, and wait'
    elif not facts.groups:
        yield 'no group has committed an offset here'
    yield from (_group(group, facts) for group in facts.groups)
    if facts.unread_groups:
        yield f'could not read the offsets of {_some(map(printable, facts.unread_groups))}'


def _clients(writers: tuple[Writer, ...]) -> Iterator[str]:
    """Yield texts about the clients that use the producer. They are known only if the producer commits offsets of a
    group."""
    if not writers:
        yield f'id and address {NOT_REPORTED}'
    for writer in writers:
        members = _some(map(_member, writer.members)) or 'without members now'
        yield f'it commits offsets of group {writer.group_id!r}: {members}'


def _member(member: GroupMemberInfo) -> str:
    return printable(f'{member.client_id} at {member.client_host.removeprefix("/")}')


def _age(facts: Facts, holder: ProducerInfo) -> str:
    log, transaction = facts.log, facts.transaction
    if facts.is_covered and transaction is not None and transaction.start_timestamp_ms is not None:
        since_ms, by = transaction.start_timestamp_ms, ''
    else:
        since_ms, by = (log.max_timestamp_ms if log else holder.last_timestamp_ms), ', by the time of its records'
    age = (f'{words_for_duration(facts.now_ms - since_ms)} ago' if since_ms <= facts.now_ms
           else f'{words_for_duration(since_ms - facts.now_ms)} from now')
    records = (f'; {"" if log.is_counted else "at least "}{words_for_count(log.records, "record")} since then' if log
               else '; its records could not be read')
    return f'{words_for_time(since_ms)} ({age}{by}), offset {holder.transaction_first_offset}{records}'


def _group(group: HeldGroup, facts: Facts) -> str:
    ahead = facts.offsets.last_stable_offset - group.offset
    if group.is_past_end:
        groups = facts.command.replace('kbroker-transactions', 'kbroker-groups', 1)
        waits = (f'the log ends below it, at {facts.offsets.high_watermark}, so it needs a reset once it has no '
                 f'members: {groups} --reset-offsets --group {shell_word(group.group_id)} --topic '
                 f'{shell_word(f"{facts.topic}:{facts.partition}")} --to-latest --execute')
    elif ahead < 0:
        waits = 'is past it, as it reads uncommitted records too'
    elif ahead == 0:
        waits = 'waits here if it reads committed records only'
    else:
        waits = f'has {ahead} to go, and then waits if it reads committed records only'
    members = f' ({_some(map(_member, group.members))})' if group.members else ''
    return f'{printable(group.group_id)}: at {group.offset}, lag {group.lag}; {waits}{members}'


def _coordinator(facts: Facts) -> str:
    row = facts.transaction
    if row is None:
        return 'has no transactional.id with this producer id' + (
            '' if facts.state_log.is_readable else ', as far as can be seen from here')
    start = 'no start' if row.start_timestamp_ms is None else f'began {words_for_time(row.start_timestamp_ms)}'
    partitions = _some(f'{topic}-{partition}' for topic, partition in sorted(row.partitions)) or 'no partitions'
    timeout = ('no timeout' if row.timeout_ms == NEVER_TIMES_OUT_MS
               else f'timeout {words_for_duration(row.timeout_ms)}')
    by = f'broker {row.coordinator_id}' if facts.is_live else 'its last row'
    return (f'{by}: {row.transactional_id!r} is {row.state}, epoch {row.producer_epoch}, '
            f'{timeout}, {start}; {partitions}')


def _some(words: Iterable[str]) -> str:
    named = list(words)
    rest = len(named) - MOST_NAMED
    return ', '.join(named[:MOST_NAMED]) + (f' and {rest} more' if rest > 0 else '')


# ---- for programs

def as_json(facts: Facts, verdict: Verdict) -> dict[str, Any]:
    """Return the report of one partition as JSON values. An unknown value is null."""
    row, log = facts.transaction, facts.log
    return {
        'topic': facts.topic, 'partition': facts.partition, 'is_stuck': verdict.is_stuck, 'cause': verdict.cause,
        'verdict': verdict.headline, 'why': verdict.why, 'next': verdict.next, 'advice': verdict.advice,
        'command': verdict.command, 'known_as': list(verdict.known_as),
        'log_start_offset': facts.offsets.log_start_offset,
        'last_stable_offset': facts.offsets.last_stable_offset, 'high_watermark': facts.offsets.high_watermark,
        'held_offsets': facts.held_offsets, 'now_ms': facts.now_ms,
        'transactional_id': facts.transactional_id if facts.holder else None,
        'producer': facts.holder and {
            'producer_id': facts.holder.producer_id, 'producer_epoch': facts.epoch,
            'first_offset': facts.holder.transaction_first_offset,
            'last_timestamp_ms': facts.holder.last_timestamp_ms, 'records': log and log.records},
        'clients': [{'group_id': writer.group_id, **_member_json(member)}
                    for writer in facts.writers for member in writer.members],
        'coordinator': row and {
            'coordinator_id': row.coordinator_id, 'state': row.state, 'producer_epoch': row.producer_epoch,
            'timeout_ms': row.timeout_ms, 'start_timestamp_ms': row.start_timestamp_ms,
            'expires_at_ms': (facts.expires_at_ms if row.state == 'Ongoing' and row.timeout_ms != NEVER_TIMES_OUT_MS
                              else None),
            'partitions': [f'{topic}-{partition}' for topic, partition in sorted(row.partitions)]},
        'groups': [{'group_id': group.group_id, 'offset': group.offset, 'lag': group.lag,
                    'is_past_end': group.is_past_end,
                    'members': [_member_json(member) for member in group.members]} for group in facts.groups],
        'behind': [{'producer_id': producer.producer_id, 'first_offset': producer.transaction_first_offset,
                    'transactional_id': name} for producer, name in zip(
                        facts.behind, facts.behind_ids or (None,) * len(facts.behind), strict=True)],
    }


def _member_json(member: GroupMemberInfo) -> dict[str, str]:
    return {'client_id': member.client_id, 'client_host': member.client_host}
