"""The stored results in bench/results.json, and the page and the charts that are made from this file.

    python bench/results.py                write RESULTS.md and its charts from results.json
    python bench/results.py --take REPORT  first put the tables of a report into results.json

A report is what bench/peers.py, bench/transaction_cost.py, bench/spark.py, bench/lake.py or bench/lake_peers.py
printed, in Markdown. A row of a report replaces the row of the same name. The text in RESULTS.md is written by hand.
Each table is between the lines `<!-- table NAME -->` and `<!-- end -->`.
"""
from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE))

import svg  # noqa: E402

DATA, PAGE = HERE / 'results.json', HERE / 'RESULTS.md'

Value = float | str | list[float] | None
"""A figure, a text, a list of the median, minimum and maximum of the rounds, or None."""
Row = dict[str, Value]
Data = dict[str, Any]

TABLES = {  # by the first columns of the printed table: its name, and the columns that name a row
    ('cell', 'peer'): ('peers', 2),
    ('cell', 'figure', 'against'): ('targets', 3),
    ('client', 'broker'): ('transactions', 3),
    ('what grows', 'peer'): ('growth', 2),
    ('cell', 'ours, files / connector, Kafka (at least 3)'): ('spark-ratios', 1),
    ('200 records',): ('spark-few-records', 1),
    ('cell', 'source'): ('spark', 2),
    ('values', 'from', 'way'): ('lake', 3),
    ('command, 1,000,000 values of 200 B',): ('lake-commands', 1),
    ('table', 's, first run of a pool'): ('lake-start', 1),
    ('topic', 'from', 'table', 'processes'): ('lake-memory', 4),
    ('10,000 partitions, one record in each',): ('lake-partitions', 1),
    ('peer', 'Mrow/s'): ('lake-peers', 1),
}
PEERS = ('kafka', 'kfake', 'kbroker')
DIVISIONS = {'': ('kafka', 'kfake', 'kbroker'), ' (disk)': ('kafka-flush', 'kfake-sync', 'kbroker-disk'),
             ' (TLS)': ('kafka-tls', 'kfake-tls', 'kbroker-tls')}
CORE = (
    *(f'produce 16 KiB, {shape}' for shape in ('1 x 5', '8 x 5', '64 x 1')),
    *(f'produce 300 B, {shape}' for shape in ('8 x 5', '64 x 1')),
    'round trip of 1 record', 'fetch 64 KiB, 8 x 1', 'fetch 1 MiB, 4 x 1',
    *(f'transactions of 1, {producers} producers, version 2' for producers in (1, 64, 512)),
)
SOURCES = ('connector, Kafka', 'ours, broker', 'ours, files', 'transport')


# ---- from reports to data

def take(data: Data, report: str) -> None:
    """Put the tables of a report into `data`, each with the line about the machine that precedes it."""
    machine = ''
    for block in report.split('\n\n'):
        lines = block.strip().splitlines()
        if lines and re.match(r'(?:[\d-]+ [\d:]+ UTC, )?\d+ processors', lines[0]):
            machine = '; '.join(line.rstrip('.') for line in lines) + '.'
        elif len(lines) > 2 and lines[1].startswith('|--'):
            _take_table(data, lines, machine)


def _take_table(data: Data, lines: Sequence[str], machine: str) -> None:
    heads = cells_of(lines[0])
    heads = [head if head and head not in heads[:number] else f'{head or "column"} {number}'
             for number, head in enumerate(heads)]
    name, keys = next(kind for head, kind in TABLES.items() if tuple(heads[:len(head)]) == head)
    table = data.setdefault(name, {'machine': '', 'keys': keys, 'rows': []})
    table['machine'] = machine or table['machine']
    rows = {key_of(row, keys): row for row in table['rows']}
    for line in lines[2:]:
        row = {head: parse(cell) for head, cell in zip(heads, cells_of(line), strict=True) if cell}
        rows[key_of(row, keys)] = row
    table['rows'] = list(rows.values())


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip('|').split('|')]


def key_of(row: Row, keys: int) -> tuple[Value, ...]:
    return tuple(row.values())[:keys]


def parse(text: str) -> Value:
    """Return a number, a list for a median with a spread, or otherwise the text itself."""
    number = r'[+-]?[\d,]+(?:\.\d+)?'
    if re.fullmatch(number, text):
        return _number(text)
    if re.fullmatch(rf'{number}%', text):
        return round(_number(text[:-1]) / 100, 4)
    if spread := re.fullmatch(rf'({number}) \[({number})-({number})\]', text):
        return [_number(part) for part in spread.groups()]
    return text


def _number(text: str) -> float:
    value = float(text.replace(',', ''))
    return int(value) if value.is_integer() and '.' not in text else value


# ---- from data to tables

def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    rows = list(rows)
    yield '| ' + ' | '.join(heads) + ' |'
    yield '|' + ''.join('--:|' if all(re.fullmatch(r'([+-]?[\d,.]+( x|%)?)?', row[at]) for row in rows) else '---|'
                        for at in range(len(heads)))
    for row in rows:
        yield '| ' + ' | '.join(row) + ' |'


def median(row: Row | None, head: str) -> float | None:
    value = None if row is None else row.get(head)
    return value[0] if isinstance(value, list) else value if isinstance(value, int | float) else None


def shown(value: float | None, form: str = ',.0f') -> str:
    return '' if value is None else f'{value:{form}}'


def find(data: Data, table: str, **wanted: str) -> Row | None:
    return next((row for row in data[table]['rows'] if wanted.items() <= row.items()), None)


def peers_table(data: Data, division: str, cells: Iterable[str]) -> Iterator[str]:
    """Yield the table of rate, broker CPU and p99 of the three brokers."""
    figures = (('per s', ',.0f'), ('broker us each', ',.1f'), ('p99 us', ',.0f'))
    names = {'per s': 'requests/s', 'broker us each': 'CPU us', 'p99 us': 'p99 us'}
    heads = ['load', *(f'{peer}, {names[figure]}' for figure, _ in figures for peer in PEERS)]
    yield from table_of(heads, (
        [cell, *(shown(median(find(data, 'peers', cell=cell + division, peer=peer), figure), form)
                 for figure, form in figures for peer in DIVISIONS[division])]
        for cell in cells))


def cells_in(data: Data, division: str) -> list[str]:
    names = dict.fromkeys(str(row['cell']) for row in data['peers']['rows'])
    return [name.removesuffix(division) for name in names if name.endswith(division)]


def life_table(data: Data) -> Iterator[str]:
    """Yield the table of start, memory and recovery."""
    cells = [(cell, 'RSS MB' if cell == 'idle' else 'ms')
             for cell in cells_in(data, '') if cell.startswith(('start', 'idle', 'recovery'))]
    yield from table_of(['', *PEERS], (
        [f'{cell}, {figure}', *(shown(median(find(data, 'peers', cell=cell, peer=peer), figure)) for peer in PEERS)]
        for cell, figure in cells))


def targets_table(data: Data) -> Iterator[str]:
    """Yield the table of targets that were not met."""
    yield from table_of(['load', 'figure', 'against', 'target', 'found', 'what limits it'], (
        [str(row['cell']), str(row['figure']), str(row['against']), str(row['target']), str(row['found']),
         'kbroker' if row['column 5'] == '**short**' else str(row['column 5'])]
        for row in data['targets']['rows'] if row['column 5'] != 'met'))


def transactions_table(data: Data) -> Iterator[str]:
    yield from table_of(['client', 'broker', 'with', 'records/s without', 'records/s with', 'loss', '95% interval'], (
        [str(row['client']), str(row['broker']), str(row['column 2']), shown(median(row, 'records/s without')),
         shown(median(row, 'with')), shown(median(row, 'loss, median'), '+.1%'), str(row['95%'])]
        for row in data['transactions']['rows']))


def growth_table(data: Data) -> Iterator[str]:
    yield from table_of(['what grows', 'peer', 'broker CPU, us each', 'largest rise'], (
        [str(row['what grows']), str(row['peer']), str(row['broker CPU us each']),
         str(row['most rise, at most 1.2 x'])] for row in data['growth']['rows']))


def spark_table(data: Data) -> Iterator[str]:
    cells = dict.fromkeys(str(row['cell']) for row in data['spark']['rows'])
    yield from table_of(['read', *SOURCES, 'files / connector'], (
        [cell, *(shown(rate, '.2f') for rate in rates), f'{rates[2] / rates[0]:.1f} x']
        for cell in cells if (rates := [median(find(data, 'spark', cell=cell, source=source), 'Mrow/s') or math.nan
                                        for source in SOURCES])))


def lake_table(data: Data) -> Iterator[str]:
    """Yield the table of rates into tables, and of the ratios to files."""
    rows = data['lake']['rows']
    ways = list(dict.fromkeys(str(row['way']) for row in rows))
    yield from table_of(['values', 'from', *ways], (
        [size, source, *(_rate_and_ratio(find(data, 'lake', **{'values': size, 'from': source, 'way': way}))
                         for way in ways)]
        for size, source in dict.fromkeys((str(row['values']), str(row['from'])) for row in rows)))


def _rate_and_ratio(row: Row | None) -> str:
    ratio = row.get('to parquet') if row is not None else None
    if ratio == [1, 1, 1] or ratio is None:
        return shown(median(row, 'Mrow/s'), '.2f')
    number = ratio[0] if isinstance(ratio, list) else str(ratio).partition(' ')[0]
    return f'{shown(median(row, "Mrow/s"), ".2f")} ({float(number):.1f} x)'


def whole_table(data: Data, name: str) -> Iterator[str]:
    """Yield a table as it was printed, with medians alone."""
    rows = data[name]['rows']
    heads = list(dict.fromkeys(head for row in rows for head in row))
    yield from table_of(heads, ([_median_text(row.get(head)) for head in heads] for row in rows))


def _median_text(value: Value) -> str:
    value = value[0] if isinstance(value, list) else value
    return f'{value:,}' if isinstance(value, int | float) else value or ''


def machines(data: Data) -> Iterator[str]:
    for name, text in (('Brokers', 'peers'), ('Transactions', 'transactions'), ('Spark', 'spark'),
                       ('Tables', 'lake'), ('Tables, other programs', 'lake-peers')):
        yield f'* {name}: {data[text]["machine"]}'


CONTENTS: dict[str, Callable[[Data], Iterator[str]]] = {
    'brokers': lambda data: peers_table(data, '', CORE),
    'disk': lambda data: peers_table(data, ' (disk)', cells_in(data, ' (disk)')),
    'tls': lambda data: peers_table(data, ' (TLS)', cells_in(data, ' (TLS)')),
    'life': life_table, 'targets': targets_table, 'transactions': transactions_table, 'growth': growth_table,
    'spark': spark_table, 'machines': machines, 'lake': lake_table,
    **{name.replace('-', '_'): lambda data, name=name: whole_table(data, name) for name in (
        'lake-commands', 'lake-start', 'lake-memory', 'lake-partitions', 'lake-peers')},
}


def page(data: Data, text: str) -> str:
    """Return the page `text` with its tables made from `data`."""
    def filled(match: re.Match[str]) -> str:
        return f'<!-- table {match[1]} -->\n\n' + '\n'.join(CONTENTS[match[1]](data)) + '\n\n<!-- end -->'
    return re.sub(r'<!-- table (\w+) -->\n.*?<!-- end -->', filled, text, flags=re.DOTALL)


# ---- charts

COLOURS = ('#c0504d', '#7f7f7f', '#1f77b4', '#c9c9c9')
NAME_WIDTH, BAR_WIDTH, WIDTH = 320, 380, 800


def chart(title: str, series: Sequence[str], groups: dict[str, list[float | None]], form: str) -> str:
    """Return a bar chart as SVG. It has a group of bars for each name in `groups`, with a bar for each of `series`. The
    longest bar of a group has the full width."""
    parts, y = [svg.text(10, 20, title, 'font-weight="bold"')], 60
    for number, name in enumerate(series):
        parts += [svg.key(10 + 160 * number, 32, COLOURS[number]), svg.text(28 + 160 * number, 42, name)]
    for name, values in groups.items():
        parts.append(svg.text(10, y + svg.BAR * len(values) / 2 + 4, name))
        longest = max(value or 0 for value in values) or 1
        for number, value in enumerate(values):
            if value is not None:
                length, top = max(1, BAR_WIDTH * value / longest), y + svg.BAR * number
                parts += [svg.bar(NAME_WIDTH, top, length, COLOURS[number]),
                          svg.text(NAME_WIDTH + length + 5, top + 10, f'{value:{form}}')]
        y += svg.BAR * len(values) + svg.GAP
    return svg.picture(WIDTH, y, parts)


def charts(data: Data) -> dict[str, str]:
    """Return the charts by file name."""
    rates = {cell: [median(find(data, 'peers', cell=cell, peer=peer), 'per s') for peer in PEERS] for cell in CORE}
    rows = {str(row['cell']): [median(find(data, 'spark', cell=str(row['cell']), source=source), 'Mrow/s')
                               for source in SOURCES] for row in data['spark']['rows']}
    return {'brokers.svg': chart('Requests or transactions per second', PEERS, rates, ',.0f'),
            'spark.svg': chart('Million rows per second into Spark', SOURCES, rows, '.2f')}


# ---- files

def as_text(data: Data) -> str:
    """Return `data` as JSON with one row on a line, so that a change of a row is one line of a diff."""
    return '{\n' + ',\n'.join(f'{json.dumps(name)}: {_table_text(table)}' for name, table in data.items()) + '\n}\n'


def _table_text(table: Data) -> str:
    columns = list(dict.fromkeys(head for row in table['rows'] for head in row))
    rows = (json.dumps([row.get(head) for head in columns]) for row in table['rows'])
    return (f'{{"machine": {json.dumps(table["machine"])}, "keys": {table["keys"]},\n'
            f'"columns": {json.dumps(columns)},\n"rows": [\n' + ',\n'.join(rows) + '\n]}')


def from_text(text: str) -> Data:
    """Return the data with each row as a dict of the figures that it has."""
    data: Data = json.loads(text)
    for table in data.values():
        columns = table.pop('columns')
        table['rows'] = [{head: value for head, value in zip(columns, row, strict=True) if value is not None}
                         for row in table['rows']]
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--take', metavar='REPORT', type=pathlib.Path, action='append', default=[])
    data = from_text(DATA.read_text())
    for report in parser.parse_args().take:
        take(data, report.read_text())
    DATA.write_text(as_text(data))
    PAGE.write_text(page(data, PAGE.read_text()))
    for name, picture in charts(data).items():
        (HERE / name).write_text(picture)


if __name__ == '__main__':
    main()
