"""The text page with the verdict."""
from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from kbroker_tools.base.render import printable, words_for_count
from kbroker_tools.verify.anomalies import Kind
from kbroker_tools.verify.checker import Verdict
from kbroker_tools.verify.history import History
from kbroker_tools.verify.lines import Outcome

WIDTH = 100
TITLE_WIDTH = 29


def page(history: History, verdict: Verdict, problems: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the page: a summary of the run, a line for each kind of anomaly, and the verdict."""
    yield from _run(history)
    yield ''
    found = dict(verdict.found)
    for kind in Kind:
        if kind not in found:
            yield f'  {kind.title:<{TITLE_WIDTH}} none'
            continue
        yield f'! {kind.title:<{TITLE_WIDTH}} {found[kind].count:,}: {kind.meaning}'
        yield from textwrap.wrap(printable(found[kind].evidence.text), WIDTH, initial_indent='      ',
                                 subsequent_indent='      ')
    cycles = verdict.cycles
    yield (f'  {"write cycles (G0), permitted":<{TITLE_WIDTH}} {cycles.writes:,}, with up to '
           f'{words_for_count(cycles.largest_of_writes, "transaction")}; {cycles.mixed:,} with reads' if cycles.writes
           or cycles.mixed else f'  {"write cycles (G0), permitted":<{TITLE_WIDTH}} none')
    yield ''
    yield from _conclusion(verdict, problems)


def _run(history: History) -> Iterator[str]:
    run, outcomes = history.run, Counter(history.transactions.outcome)
    yield (f'{words_for_count(history.operations, "operation")} in {history.end / 1e6:,.0f} s: '
           f'{words_for_count(len(history.writes), "record")} written, {history.records_read:,} read')
    yield (f'{words_for_count(len(history.transactions), "transaction")}: {outcomes[Outcome.COMMITTED]:,} committed, '
           f'{outcomes[Outcome.ABORTED]:,} aborted, {outcomes[Outcome.UNKNOWN]:,} with an unknown end')
    faults = Counter(fault.name for fault in history.faults)
    yield 'faults: ' + (', '.join(f'{count} {name}' for name, count in sorted(faults.items())) or 'none')
    if run:
        yield (f'broker {run.get("servers")}, clients {", ".join(run.get("clients", ()))}, workloads '
               f'{", ".join(run.get("workloads", ()))}, seed {run.get("seed")}')


def _conclusion(verdict: Verdict, problems: Sequence[str]) -> Iterator[str]:
    for problem in problems:
        yield from textwrap.wrap(f'! {printable(problem)}', WIDTH, subsequent_indent='  ')
    if len(verdict.found):
        yield f'Verdict: {words_for_count(len(verdict.found), "kind")} of anomalies.'
    elif not verdict.is_finished:
        yield 'Verdict: none. The run was not completed, so records that are missing prove nothing.'
    elif verdict.idle_clients:
        yield f'Verdict: none. No record of {" and ".join(verdict.idle_clients)} was acknowledged.'
    else:
        yield 'Verdict: no anomaly.'
