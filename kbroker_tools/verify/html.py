"""The timeline of a run as one self-contained HTML file. It shows a lane for each producer, the faults, and the
evidence of anomalies.

The page and its script are also used for the timeline of a partition (`timeline/html.py`).
"""
from __future__ import annotations

from html import escape
from typing import Any

from kbroker import __version__
from kbroker.base.words import words_for_duration
from kbroker_tools.base.render import words_for_count, words_for_time
from kbroker_tools.timeline.html import MAX_LANES, facts_of, filled, table
from kbroker_tools.verify.anomalies import Kind
from kbroker_tools.verify.checker import Verdict
from kbroker_tools.verify.history import NONE, History
from kbroker_tools.verify.lines import Outcome

MOST_ROWS = 20_000
"""The most transactions on the page. A browser is slow with more. The page shows the last transactions, and the
transactions that are evidence of anomalies."""
REST = 'all other producers'
_ORDER = {Outcome.COMMITTED: 0, Outcome.ABORTED: 1, Outcome.UNKNOWN: 2}
_WORDS = ('committed', 'aborted', 'end unknown')


def timeline_page(history: History, verdict: Verdict) -> str:
    """Return the whole HTML file."""
    started_ms, outcomes = _started_ms(history), list(history.transactions.outcome)
    evidence = _evidence(verdict)
    found = list(verdict.found)
    shown = _shown(history, evidence)
    summary = [f'{words_for_count(history.operations, "operation")} in '
               f'{words_for_duration(history.end / 1000)}, {words_for_count(len(history.faults), "fault")}']
    if len(shown) < len(outcomes):
        summary.append(f'{words_for_count(len(outcomes) - len(shown), "earlier transaction")} not shown')
    facts = [('committed', outcomes.count(Outcome.COMMITTED), 'committed'),
             ('aborted', outcomes.count(Outcome.ABORTED), 'aborted'),
             ('end unknown', outcomes.count(Outcome.UNKNOWN), 'open'),
             ('kinds of anomalies', len(found), 'aborted')]
    return filled({
        'title': 'kbroker-verify', 'heading': f'{escape(str(history.run.get("servers", "")))} <span>verified</span>',
        'summary': ''.join(f'<p>{escape(line)}</p>\n' for line in summary)
                   + f'<p class="muted">started {words_for_time(started_ms)}</p>',
        'facts': facts_of(facts), 'axes': '', 'marked': 'evidence of an anomaly',
        'open': 'end unknown', 'waiting': 'after the request to commit',
        'label': escape('Transactions of the run, a lane for each transactional id. ' + summary[0]),
        'tables': _tables(verdict), 'made': f'kbroker-verify, kbroker {__version__}. Times are UTC.',
    }, _data(history, shown, evidence, started_ms))


def _started_ms(history: History) -> int:
    started = history.run.get('started')
    return started if isinstance(started, int) else 0


def _evidence(verdict: Verdict) -> dict[int, str]:
    """Return {transaction: the kinds of anomalies for which it is evidence}."""
    titles: dict[int, list[str]] = {}
    for kind, found in verdict.found:
        for transaction in found.evidence.transactions:
            titles.setdefault(transaction, []).append(kind.title)
    return {transaction: ', '.join(names) for transaction, names in titles.items()}


def _shown(history: History, evidence: dict[int, str]) -> list[int]:
    first = max(len(history.transactions) - MOST_ROWS, 0)
    return sorted({*range(first, len(history.transactions)), *evidence})


def _data(history: History, shown: list[int], evidence: dict[int, str], started_ms: int) -> dict[str, Any]:
    transactions = history.transactions
    names = {number: producer.transactional_id or producer.client for number, producer in history.producers.items()}
    lanes: dict[str, int] = {}
    rows = []
    for number in shown:
        producer = transactions.producer[number]
        if producer == NONE:
            continue
        name = names.get(producer, f'producer {producer}')
        if name not in lanes and len(lanes) >= MAX_LANES - 1:
            name = REST
        rows.append([lanes.setdefault(name, len(lanes)), *_row(history, number, started_ms), evidence.get(number)])
    return {
        'start': 0, 'end': max(len(transactions), 1), 'startMs': started_ms,
        'endMs': started_ms + history.end // 1000 + 1, 'words': _WORDS,
        'ids': {str(number): name for number, name in names.items()},
        'lanes': [{'title': name.removeprefix(f'{history.run.get("prefix", "")}-'), 'detail': name} for name in lanes],
        'rows': rows,
        'faults': [[fault.name, started_ms + fault.begin / 1000, started_ms + fault.end / 1000]
                   for fault in history.faults],
    }


def _row(history: History, number: int, started_ms: int) -> list[Any]:
    """Return the values of a transaction, without lane and mark. They are in the order of the column numbers in the
    script."""
    transactions = history.transactions
    begin, end, commit = (started_ms + max(column[number], 0) / 1000
                          for column in (transactions.begin, transactions.end, transactions.commit))
    has_commit = transactions.commit[number] != NONE
    return [_ORDER[Outcome(transactions.outcome[number])], number, number, number if has_commit else None, begin,
            commit if has_commit else end, end, transactions.producer[number], None, None, None,
            transactions.writes[number], None]


def _tables(verdict: Verdict) -> str:
    found = dict(verdict.found)
    rows = [(kind.title, f'{found[kind].count:,}' if kind in found else 'none',
             found[kind].evidence.text if kind in found else kind.meaning) for kind in Kind]
    return '<h2>Anomalies</h2>\n' + table(('Kind', 'Found', 'Smallest evidence, or meaning'), rows, 'texts')
