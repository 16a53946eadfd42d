"""The writer of the data files of a Delta table, and their statistics."""
from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker_tools.spark.ingest_source import DATE
from kbroker_tools.spark.lake.delta_store import open_store, plain_errors
from kbroker_tools.spark.ledger import IngestError

ROW_GROUP_ROWS = 1 << 20
PREFIX = 32
"""The number of characters of a string in the statistics, as other writers have it."""
FIELDS = 32
"""The fields of structs that have statistics. Spark's Delta has 32 columns and fields."""
GREATEST = '\U0010ffff'


@dataclass(frozen=True)
class DeltaFileWriter:
    """The writer of one attempt. Rows of different partitions go to different files."""

    where: str
    settings: Mapping[str, str]
    directory: str
    """The directory of the attempt, below the table."""
    schema: pa.Schema
    """The columns of the table. Columns that the rows lack are not written, and readers see null."""
    partition_by: list[str]

    def write(self, rows: pa.Table, name: str) -> list[bytes]:
        """Write rows to new files and return their entries. A local file and its directories are synced before the
        return."""
        rows = self._in_table_types(rows)
        return [self._write_file(part, values, f'{self.directory}/{name}-{number}.parquet')
                for number, (part, values) in enumerate(self._parts(rows))]

    def _in_table_types(self, rows: pa.Table) -> pa.Table:
        if DATE in self.partition_by and DATE not in rows.column_names:
            rows = rows.append_column(DATE, dates(rows.column('timestamp')))
        for field in self.schema:
            if not field.nullable and (field.name not in rows.column_names or rows.column(field.name).null_count):
                raise IngestError(f'{self.where}: column {field.name} is NOT NULL in the table, but rows of the ingest '
                                  'have null in it; drop the constraint')
        # A struct stays as it is. Readers see null in the fields that only the table has.
        return rows.cast(pa.schema([field if pa.types.is_nested(field.type) else self.schema.field(field.name)
                                    for field in rows.schema]))

    def _parts(self, rows: pa.Table) -> Iterator[tuple[pa.Table, dict[str, str | None]]]:
        """Yield the rows of each partition and its values. The rows keep their order."""
        if not self.partition_by:
            yield rows, {}
            return
        groups = _counted(rows, self.partition_by)
        if groups.num_rows > 1:
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, 'ascending') for name in self.partition_by]))
            groups = _counted(rows, self.partition_by)
        at = 0
        for group in groups.to_pylist():
            count = group.pop('count_all')
            yield (rows.slice(at, count).drop_columns(self.partition_by),
                   {name: _partition_value(group[name]) for name in self.partition_by})
            at += count

    def _write_file(self, rows: pa.Table, values: dict[str, str | None], path: str) -> bytes:
        footers: list[pq.FileMetaData] = []
        store = open_store(self.where, self.settings)
        with plain_errors(f'{self.where}/{path}: '):
            if store.is_local:
                store.filesystem.create_dir(f'{store.root}/{self.directory}', recursive=True)
            with store.filesystem.open_output_stream(f'{store.root}/{path}') as stream:
                _write_parquet(rows, stream, footers)
                size = stream.tell()
            store.sync([path])
        return json.dumps({'path': path, 'size': size, 'partition_values': values,
                           'modification_time': time.time_ns() // 1_000_000, 'data_change': True,
                           'stats': statistics(footers[0])}).encode()


def _counted(rows: pa.Table, names: list[str]) -> pa.Table:
    """Return the distinct values of columns in the order of their first rows, with the number of their rows."""
    return rows.select(names).group_by(names, use_threads=False).aggregate([([], 'count_all')])


def _write_parquet(rows: pa.Table, file: Any, footers: list[pq.FileMetaData]) -> None:
    repeated = [path for field in rows.schema for path in _repeated(field.type, field.name)]
    writer = pq.ParquetWriter(file, rows.schema, compression='zstd', use_dictionary=repeated)
    try:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
    finally:
        writer.close()
    footers.append(writer.writer.metadata)


def _repeated(kind: pa.DataType, path: str) -> Iterator[str]:
    """Yield the paths of the leaf columns whose values probably repeat, so that a dictionary pays."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _repeated(field.type, f'{path}.{field.name}')
    elif pa.types.is_list(kind):
        yield from _repeated(kind.value_type, f'{path}.list.element')
    elif pa.types.is_string(kind) or pa.types.is_int32(kind):
        yield path


def dates(timestamps: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the dates in UTC. A date outside of the years 1 to 9999, which not all readers can parse, is null."""
    days = pc.cast(timestamps, pa.date32(), safe=False)
    numbers = pc.cast(days, pa.int32())
    first, last = (each.toordinal() - datetime.date(1970, 1, 1).toordinal()
                   for each in (datetime.date.min, datetime.date.max))
    is_known = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(is_known, days, pa.scalar(None, pa.date32()))


def _partition_value(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def statistics(footer: pq.FileMetaData) -> str:
    """Return the statistics of a file, by which readers skip it: JSON of the Delta protocol. They come from the
    footer, so no value is read again.

    A column without exact bounds is left out: readers then do not skip the file because of it. These are binary
    columns, booleans, floating-point numbers (readers order NaN differently) and columns within lists. Of the fields of
    structs, only the first have any: each commit has the statistics of all files.
    """
    found: dict[str, Any] = {'numRecords': footer.num_rows, 'minValues': {}, 'maxValues': {}, 'nullCount': {}}
    names, fields = footer.schema.to_arrow_schema().names, 0
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        path = column.path.split('.')
        if column.max_repetition_level or path[0] not in names:  # in a list, or with a point in its name
            continue
        fields += len(path) > 1
        if len(path) > 1 and fields > FIELDS:
            continue
        groups = [footer.row_group(each).column(number).statistics for each in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in groups):
            continue
        _put(found['nullCount'], path, sum(each.null_count for each in groups))
        bounded = [each for each in groups if each.has_min_max]
        if len(bounded) == sum(1 for each in groups if each.num_values):
            _put_bounds(found, path, column, bounded)
    return json.dumps(found, ensure_ascii=False)


def _put_bounds(found: dict[str, Any], path: list[str], column: Any, groups: list[Any]) -> None:
    logical = json.loads(column.logical_type.to_json())
    try:
        low, high = min(each.min for each in groups), max(each.max for each in groups)
    except (ValueError, OverflowError):  # no groups, or a time that Python cannot represent
        return
    lower, upper = _bound(low, logical, is_upper=False), _bound(high, logical, is_upper=True)
    if lower is not None and upper is not None:
        _put(found['minValues'], path, lower)
        _put(found['maxValues'], path, upper)


def _bound(value: Any, logical: Mapping[str, Any], is_upper: bool) -> str | int | None:
    """Return the bound of a column in the form of the statistics, None if it has none."""
    if logical['Type'] == 'String':
        return _upper(value) if is_upper else str(value[:PREFIX])
    if logical['Type'] == 'Date':
        return str(value.isoformat())
    if logical['Type'] == 'Timestamp':
        return _milliseconds(value, is_upper, 'Z' if logical['isAdjustedToUTC'] else '')
    return value if type(value) is int and logical['Type'] in ('None', 'Int') else None


def _upper(text: str) -> str | None:
    """Return an upper bound of all strings that are at most `text`, in the order of their bytes in UTF-8."""
    if len(text) <= PREFIX:
        return text
    return None if text[PREFIX] == GREATEST else text[:PREFIX] + GREATEST


def _milliseconds(time: datetime.datetime, is_upper: bool, zone: str) -> str | None:
    if is_upper and time.microsecond % 1000:
        try:
            time += datetime.timedelta(milliseconds=1)
        except OverflowError:
            return None
    return f'{time.replace(tzinfo=None).isoformat(timespec="milliseconds")}{zone}'


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
