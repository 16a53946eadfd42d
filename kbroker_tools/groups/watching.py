"""Watches consumer groups: reads their offsets again and again, and prints lag, rates and the share of each member."""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from kbroker.base.errors import KafkaError
from kbroker.base.words import words_for_duration
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output, words_for_time
from kbroker_tools.base.view import View
from kbroker_tools.groups.tables import CONSUMER_TYPES, cell, consumer_groups, log_offsets, show
from kbroker_tools.groups.trends import Position, Sample, Trend, bars

MOST_GROUPS = 100
"""The most groups that are watched. A group takes some requests each time."""
GONE = 'Dead'
GROUP_CELLS = (cell('GROUP'), cell('STATE'), cell('#MEMBERS', 8), cell('LAG', 10), cell('STABLE-LAG', 10),
               cell('CONSUMED/S', 10, 'consumed_per_s'), cell('PRODUCED/S', 10, 'produced_per_s'),
               cell('CATCH-UP', None))
MEMBER_CELLS = (cell('GROUP'), cell('CONSUMER-ID'), cell('HOST'), cell('CLIENT-ID'), cell('#PARTITIONS', 11),
                cell('LAG', 10), cell('SHARE-OF-LAG', 12), cell('CONSUMED/S', 10, 'consumed_per_s'),
                cell('SHARE-CONSUMED', None))
HISTORY_CELL = cell('LAG-OVER-TIME', None)


def watch_groups(view: View, output: Output, options: dict[str, Any], sleep: Callable[[float], None] = time.sleep,
                 now_s: Callable[[], float] = time.monotonic) -> None:
    """Print the lag of groups, every `interval` seconds and `rounds` times.

    Raise ToolError if a named group does not exist at first, or if there are too many groups. The errors of a later
    round are printed as notes, because a broker may restart.
    """
    trends: dict[str, Trend] = {}
    rounds = options['rounds']
    number = 0
    while rounds is None or number < rounds:
        if number:
            sleep(options['interval'])
        number += 1
        try:
            found = samples(view, output, options, now_s)
        except (KafkaError, OSError) as error:
            if not trends:
                raise
            output.note(str(error))
            continue
        adopt(trends, found, is_first=not trends)
        print_round(view, output, trends)
        output.stream.flush()


# ---- sampling

def samples(view: View, output: Output, options: dict[str, Any],
            now_s: Callable[[], float]) -> dict[str, Sample | None]:
    """Return a sample of each group. The value for a group that does not exist is None."""
    group_ids = consumer_groups(view) if options['all_groups'] else sorted(set(options['group']))
    if len(group_ids) > MOST_GROUPS:
        raise ToolError(f'{view.place}: found {len(group_ids)} groups, expected at most {MOST_GROUPS} to watch; name '
                        'some by --group')
    groups = {group_id: view.group(group_id) for group_id in group_ids}
    others = [group_id for group_id, group in groups.items()
              if group is not None and group.group_type not in CONSUMER_TYPES]
    if others:
        raise ToolError(f'{view.place}: {", ".join(others)}: found another type of group, expected a consumer group')
    committed = {group_id: {(row.topic, row.partition): row.offset for row in view.group_offsets(group_id)}
                 for group_id, group in groups.items() if group is not None}
    owners = {group_id: {at: member.member_id for member in group.members for at in member.assignment}
              for group_id, group in groups.items() if group is not None}
    wanted = {at for group_id in committed for at in committed[group_id].keys() | owners[group_id].keys()}
    ends = log_offsets(view, sorted(wanted), output)
    at_s = now_s()

    def position(group_id: str, at: tuple[str, int]) -> Position:
        end = ends.get(at)
        stable, high = (None, None) if end is None else (end.last_stable_offset, end.high_watermark)
        return Position(committed[group_id].get(at), stable, high, owners[group_id].get(at))

    return {group_id: None if group is None else Sample(
        at_s, group.state, group.members,
        {at: position(group_id, at) for at in sorted(committed[group_id].keys() | owners[group_id].keys())})
        for group_id, group in groups.items()}


def adopt(trends: dict[str, Trend], found: dict[str, Sample | None], is_first: bool) -> None:
    """Add the samples to the trends. Raise ToolError if a group is missing in the first round. Later, a group that is
    gone stays in the output with the state Dead, until it comes back."""
    missing = [group_id for group_id, sample in found.items() if sample is None]
    if is_first and missing:
        raise ToolError(f'there is no group {", ".join(missing)}; --list shows the existing ones')
    if is_first and not found:
        raise ToolError('there are no groups to watch')
    for group_id in trends.keys() - found.keys():
        del trends[group_id]
    for group_id, sample in found.items():
        if sample is None and group_id in trends:
            last = trends[group_id].newest
            trends[group_id] = Trend(Sample(last.at_s, GONE, (), {}))
        elif sample is not None and (group_id not in trends or trends[group_id].newest.state == GONE):
            trends[group_id] = Trend(sample)
        elif sample is not None:
            trends[group_id].add(sample)


# ---- output

def print_round(view: View, output: Output, trends: dict[str, Trend]) -> None:
    if output.as_json:
        for group_id, trend in sorted(trends.items()):
            output.row(json_of(group_id, trend, view.now_ms()))
        return
    if output.is_terminal and os.environ.get('TERM') != 'dumb':
        output.console().clear()
    output.line(words_for_time(view.now_ms()), style='bold')
    cells = (*GROUP_CELLS, HISTORY_CELL) if output.is_terminal else GROUP_CELLS
    show(output, cells, [[*group_row(group_id, trend), *([bars(trend.lags)] if output.is_terminal else [])]
                         for group_id, trend in sorted(trends.items())])
    rows = [row for group_id, trend in sorted(trends.items()) for row in member_rows(group_id, trend)]
    if rows:
        output.line()
        show(output, MEMBER_CELLS, rows)
    output.line()


def group_row(group_id: str, trend: Trend) -> list[Any]:
    sample, left_s = trend.newest, trend.seconds_to_catch_up
    return [group_id, sample.state, len(sample.members), sample.lag, sample.stable_lag,
            rounded(trend.consumed_per_s), rounded(trend.produced_per_s),
            None if left_s is None else words_for_duration(left_s * 1000)]


def member_rows(group_id: str, trend: Trend) -> list[list[Any]]:
    rows = []
    for member in sorted(trend.newest.members, key=lambda member: member.member_id):
        lag, rate = trend.newest.lag_of(member.member_id), trend.consumed_per_s_by(member.member_id)
        rows.append([group_id, member.member_id, member.client_host, member.client_id, len(member.assignment), lag,
                     percent(lag, trend.newest.lag), rounded(rate), percent(rate, trend.consumed_per_s)])
    return rows


def json_of(group_id: str, trend: Trend, now_ms: int) -> dict[str, Any]:
    sample = trend.newest
    return {'timestamp_ms': now_ms, 'group': group_id, 'state': sample.state, 'lag': sample.lag,
            'stable_lag': sample.stable_lag, 'consumed_per_s': trend.consumed_per_s,
            'produced_per_s': trend.produced_per_s, 'seconds_to_catch_up': trend.seconds_to_catch_up,
            'members': [{'consumer_id': member.member_id, 'host': member.client_host, 'client_id': member.client_id,
                         'partitions': len(member.assignment), 'lag': sample.lag_of(member.member_id),
                         'share_of_lag': share(sample.lag_of(member.member_id), sample.lag),
                         'consumed_per_s': trend.consumed_per_s_by(member.member_id),
                         'share_consumed': share(trend.consumed_per_s_by(member.member_id), trend.consumed_per_s)}
                        for member in sample.members]}


def share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def percent(part: float | None, whole: float | None) -> str | None:
    found = share(part, whole)
    return None if found is None else f'{found:.0%}'


def rounded(rate: float | None) -> str | None:
    """Return a rate with one digit behind the point below 100, and without one above."""
    return None if rate is None else f'{rate:.1f}' if rate < 100 else f'{rate:.0f}'
