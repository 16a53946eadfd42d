"""The rows of a table: what tasks read, which columns they make of it, and how they write files.

Nothing here needs Spark, so the same work runs in a process of this machine and in a task of Spark.
"""
from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from kbroker_tools.spark.lake.table_format import FileWriter
from kbroker_tools.spark.options import MIB, Options
from kbroker_tools.spark.planning import split_bytes
from kbroker_tools.spark.schema import BY_NAME, FIELDS, Field, arrow_type
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.tasks import rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker_tools.registry.decoding import ValueDecoder

UNDECODED = 'value_undecoded'
ABORTED = 'aborted'
SMALL_BATCH_BYTES = MIB // 16
"""Batches that are smaller on average are combined before they are written. pyiceberg takes 1.3 s of processor time for
10,000 batches of one row, and 0.05 s if they are combined."""
LEAST_BYTES = 8 * MIB
"""The least bytes of the log for a task. So a run over little data writes few files, and starts few processes."""


@dataclass(frozen=True)
class Rows:
    """The rows of a job. It can be pickled."""

    options: Options
    is_aborted: bool = False
    """True for the records of aborted transactions, instead of those that a consumer would receive."""
    decoder: ValueDecoder | None = None

    @property
    def fields(self) -> list[Field]:
        """The columns of the reader that the table has."""
        return [each for each in FIELDS if not each.group or self.options[each.group]]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        import pyarrow as pa
        schema = pa.schema([pa.field(each.name, arrow_type(each.spark_type, pa)) for each in self.fields])
        if self.decoder is not None:
            at = schema.get_field_index('value')
            schema = schema.set(at, pa.field('value', self.decoder.type))
            schema = schema.append(pa.field(UNDECODED, pa.binary()))
        return schema

    def _read_fields(self) -> list[Field]:
        """Return the columns to read. Some of them decide about a row, and are in no table."""
        wanted = list(self.fields)
        if self.is_aborted:
            wanted.append(BY_NAME['outcome'])
        if self.decoder is not None and self.decoder.needs_headers:
            wanted.append(BY_NAME['headers'])
        return list(dict.fromkeys(wanted))

    def read(self, tasks: Sequence[Any], totals: Totals) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tasks of the reader. Add their counts to `totals`. Raise what tasks of the reader raise."""
        import pyarrow as pa
        import pyarrow.compute as pc
        schema = self.schema
        for batch in rows_of(tasks, self._read_fields(), self.options, totals.skipped):
            if self.is_aborted:
                batch = batch.filter(pc.equal(batch.column('outcome'), ABORTED))
            totals.count(batch)
            columns = {name: batch.column(name) for name in batch.schema.names}
            if self.decoder is not None:
                columns['value'], columns[UNDECODED] = self.decoder.decode(columns['value'], columns.get('headers'))
                totals.undecoded += len(batch) - columns[UNDECODED].null_count
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


@dataclass
class Totals:
    """The counts of a task, or the sum of several."""

    rows: int = 0
    size_bytes: int = 0
    """The bytes of keys and values."""
    undecoded: int = 0
    skipped: Skipped = field(default_factory=Skipped)

    def count(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc
        self.rows += batch.num_rows
        for name in ('key', 'value'):
            self.size_bytes += pc.sum(pc.binary_length(batch.column(name))).as_py() or 0

    def add(self, other: Totals) -> None:
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        self.undecoded += other.undecoded
        self.skipped.add(other.skipped)


@dataclass
class Written:
    """The result of one task: an entry of the format for each file, and its counts."""

    files: list[bytes]
    totals: Totals


@dataclass(frozen=True)
class TableWork:
    """The work of every task of a run. It can be pickled."""

    rows: Rows
    writer: FileWriter
    target_bytes: int
    """A file has rows of about this many bytes in Arrow's form. A larger row has a file of its own."""
    write_threads: int = 0
    """The threads that write files while the next rows are read. The rows of one more file are in memory. With 0, the
    thread that reads also writes."""

    def run(self, tasks: Sequence[Any], name: str) -> Written:
        """Read tasks of the reader, and write their rows to files. `name` begins the names of the files, and no other
        attempt has it."""
        totals = Totals()
        held: list[pa.RecordBatch] = []
        number = held_bytes = 0
        with _Files(self.writer, self.write_threads) as files:
            for batch in self.rows.read(tasks, totals):
                if held and held_bytes + batch.nbytes > self.target_bytes:
                    files.write(_table(held, held_bytes), f'{name}-{number:05d}')
                    number, held, held_bytes = number + 1, [], 0
                if batch.num_rows:
                    held.append(batch)
                    held_bytes += batch.nbytes
            # Nothing is left to read. A small run needs no thread, and no copy of its writer.
            last = self.writer.write(_table(held, held_bytes), f'{name}-{number:05d}') if held else []
            return Written(files.entries() + last, totals)


class _Files:
    """The files that a task writes before it has read all rows. No thread writes after the `with` block."""

    def __init__(self, writer: FileWriter, threads: int):
        self._writer = writer
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._own = threading.local()
        self._running: deque[Future[list[bytes]]] = deque()
        self._entries: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def write(self, rows: pa.Table, name: str) -> None:
        """Write rows, and return when each file that is not finished has a thread. Raise what a writer raises."""
        if self._pool is None:
            self._entries += self._writer.write(rows, name)
            return
        self._running.append(self._pool.submit(self._write, rows, name))
        self._await(self._threads)

    def entries(self) -> list[bytes]:
        """Wait for all files. Return their entries in the order of the calls of `write`."""
        self._await(0)
        return self._entries

    def _await(self, most: int) -> None:
        while len(self._running) > most:
            self._entries += self._running.popleft().result()

    def _write(self, rows: pa.Table, name: str) -> list[bytes]:
        if not hasattr(self._own, 'writer'):
            self._own.writer = pickle.loads(pickle.dumps(self._writer))     # credentials are renewed in each copy
        writer: FileWriter = self._own.writer
        return writer.write(rows, name)


def _table(batches: list[pa.RecordBatch], size_bytes: int) -> pa.Table:
    import pyarrow as pa
    table = pa.Table.from_batches(batches)
    return table.combine_chunks() if size_bytes < len(batches) * SMALL_BATCH_BYTES else table


def bundled(tasks: Sequence[Any], options: Options) -> list[list[Any]]:
    """Put small tasks of the reader together. A bundle has the bytes that the options give to a task, so the number of
    files does not grow with the number of partitions."""
    total = sum(each.size_bytes for each in tasks)
    limit = max(split_bytes(total, options), LEAST_BYTES)
    bundles: list[list[Any]] = []
    left = 0
    for each in tasks:
        if not bundles or each.size_bytes > left:
            bundles.append([])
            left = limit
        bundles[-1].append(each)
        left -= each.size_bytes
    return bundles
