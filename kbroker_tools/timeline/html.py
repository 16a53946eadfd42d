"""The timeline of a partition as one self-contained HTML file with style, script and data inside.

The content security policy of the page has the hash of the page's script, so no other script can run. The data for the
script is JSON that cannot contain markup. All other texts are escaped in this module.
"""
from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from kbroker import __version__
from kbroker.base.words import words_for_duration
from kbroker_tools.base.render import as_utf8, words_for_age, words_for_time
from kbroker_tools.timeline.layout import Lane, Timeline, lanes_of
from kbroker_tools.timeline.text import extent, stability
from kbroker_tools.timeline.transactions_of_partition import Outcome, PartitionTransaction

MAX_LANES = 60
MAX_TABLE_ROWS = 50
_HERE = Path(__file__).parent
_PLACE = re.compile(r'\{\{(\w+)\}\}')
_OUTCOMES = list(Outcome)
_AXES = '''<fieldset aria-label="Axis">
<label><input type="radio" name="axis" value="offset" checked>Offsets</label>
<label><input type="radio" name="axis" value="time">Time</label>
</fieldset>'''
_TABLE_COLUMNS = ('Producer', 'Producer id', 'Epoch', 'First offset', 'Last offset', 'Marker', 'Records', 'Began',
                  'Duration')


def page(timeline: Timeline) -> str:
    """Return the whole HTML file."""
    name = f'{timeline.topic}-{timeline.partition}'
    return filled({
        'title': escape(f'{name}: transactions'),
        'heading': f'{escape(timeline.topic)} <span>partition {timeline.partition}</span>',
        'summary': ''.join(f'<p>{escape(line)}</p>\n' for line in extent(timeline))
                   + f'<p class="muted">{escape(timeline.place)}, read {words_for_time(timeline.read_at_ms)}</p>',
        'facts': _facts(timeline),
        'axes': _AXES,
        'marked': 'epoch jumped: started again, or wrote elsewhere',
        'open': 'open',
        'waiting': 'after the last record, until the marker',
        'label': escape(f'Transactions of {name}, a lane for each producer. '
                        + '; '.join([*extent(timeline), stability(timeline)])),
        'tables': _tables(timeline),
        'made': f'kbroker-transactions timeline, kbroker {__version__}. Times are UTC.',
    }, _data(timeline))


def filled(fields: Mapping[str, str], data: Any) -> str:
    """Return the page. `fields` maps the names of places in the page to HTML. `data` is the data that the script
    draws."""
    script = (_HERE / 'page.js').read_text('utf-8')
    texts = {'script_hash': 'sha256-' + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
             'data': _json(data), 'script': script, **fields}
    template = (_HERE / 'page.html').read_text('utf-8')
    return as_utf8(_PLACE.sub(lambda place: texts[place[1]], template))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(',', ':')).replace('<', '\\u003c')


def _data(timeline: Timeline) -> dict[str, Any]:
    lanes = lanes_of(timeline, MAX_LANES)
    rows = [_row(transaction, number, lane) for number, lane in enumerate(lanes) for transaction in lane.transactions]
    rows.sort(key=lambda row: row[2])
    return {
        'start': timeline.start_offset, 'end': max(timeline.end_offset, timeline.start_offset + 1),
        'startMs': timeline.start_timestamp_ms, 'endMs': timeline.end_timestamp_ms, 'readMs': timeline.read_at_ms,
        'lastStable': timeline.offsets.last_stable_offset, 'highWatermark': timeline.offsets.high_watermark,
        'lastStableMs': timeline.last_stable_timestamp_ms,
        'ids': {str(producer_id): owner for producer_id, owner in timeline.transactional_ids.items()},
        'lanes': [{'title': lane.title, 'detail': lane.detail} for lane in lanes],
        'rows': rows,
    }


def _row(transaction: PartitionTransaction, lane_number: int, lane: Lane) -> list[Any]:
    """Return the values of a transaction. They are in the order of the column numbers in page.js."""
    marker = transaction.marker
    restart = None
    if transaction.first_offset in lane.restarts:
        before = transaction.epoch_before
        restart = 'with a new producer id' if before is None else f'epoch {before} before'
    return [lane_number, _OUTCOMES.index(transaction.outcome), transaction.first_offset, transaction.last_offset,
            marker and marker.offset, transaction.begin_timestamp_ms, transaction.last_timestamp_ms,
            marker and marker.timestamp_ms, transaction.producer_id, transaction.producer_epoch,
            marker and marker.producer_epoch, marker and marker.coordinator_epoch, transaction.records,
            transaction.size_bytes, restart]


def _facts(timeline: Timeline) -> str:
    offsets = timeline.offsets
    facts: list[tuple[str, int, str]] = [(outcome.value, count, outcome.value)
                                         for outcome, count in timeline.counts().items()]
    facts += [('last stable offset', offsets.last_stable_offset, ''), ('high watermark', offsets.high_watermark, ''),
              ('offsets held back', offsets.high_watermark - offsets.last_stable_offset, ''),
              ('records in transactions', sum(one.records for one in timeline.transactions), ''),
              ('records outside', timeline.plain_records, '')]
    return facts_of(facts)


def facts_of(facts: Iterable[tuple[str, int, str]]) -> str:
    """Return the numbers at the top of a page as HTML. Each fact is (name, count, class of its colour or '')."""
    return '\n'.join(f'<div><dt>{name}</dt><dd{f" class={kind}" if kind and count else ""}>{count:,}</dd></div>'
                     for name, count, kind in facts)


def _tables(timeline: Timeline) -> str:
    """Return HTML tables of open and aborted transactions, newest first. They are for screen readers and for
    printing."""
    parts = []
    for outcome, title in ((Outcome.OPEN, 'Open transactions'), (Outcome.ABORTED, 'Aborted transactions')):
        found = [one for one in timeline.transactions if one.outcome is outcome]
        if found:
            rest = f', the last {MAX_TABLE_ROWS} of {len(found):,}' if len(found) > MAX_TABLE_ROWS else ''
            rows = (_cells(timeline, one) for one in found[:-MAX_TABLE_ROWS - 1:-1])
            parts.append(f'<h2>{title}{rest}</h2>\n{table(_TABLE_COLUMNS, rows)}')
    return '\n'.join(parts)


def _cells(timeline: Timeline, one: PartitionTransaction) -> list[str]:
    duration = (words_for_age(timeline.read_at_ms, one.begin_timestamp_ms) if one.duration_ms is None
                else words_for_duration(one.duration_ms))
    return [timeline.transactional_ids.get(one.producer_id, '-'), str(one.producer_id), str(one.producer_epoch),
            f'{one.first_offset:,}', f'{one.last_offset:,}', '-' if one.marker is None else f'{one.marker.offset:,}',
            f'{one.records:,}', words_for_time(one.begin_timestamp_ms), duration.removeprefix('for ')]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], kind: str = 'numbers') -> str:
    """Return an HTML table of texts. `kind` is 'numbers', or 'texts' if cells may wrap."""
    def line(tag: str, cells: Sequence[str]) -> str:
        return '<tr>' + ''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells) + '</tr>\n'
    return (f'<div class="scroll"><table class="{kind}">\n<thead>' + line('th', columns) + '</thead>\n<tbody>\n'
            + ''.join(line('td', row) for row in rows) + '</tbody></table></div>')
