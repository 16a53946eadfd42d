"""The work of tasks. The readers of records, streams and tables share this module, and so do tasks without Spark."""
from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.file_ranges import DataLossError, ReadOptions
from kbroker_tools.spark.messages import message_first
from kbroker_tools.spark.options import Options
from kbroker_tools.spark.planning import Place
from kbroker_tools.spark.schema import Field
from kbroker_tools.spark.skipped import Skipped

if TYPE_CHECKING:
    import pyarrow as pa


def open_place(options: Options) -> Place:
    """Return the place that the options name: log directories or a cluster."""
    if options.bootstrap_servers is None:
        from kbroker_tools.spark.file_place import FilePlace
        return FilePlace(options)
    from kbroker_tools.spark.broker_place import BrokerPlace
    return BrokerPlace(options)


def read_task(task: Any, name: str, fields: list[Field], options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Then write the records that it skipped to the file `name`. Raise OSError if that
    fails."""
    freeze_imports()
    skipped = Skipped()
    with message_first(DataLossError):
        yield from rows_of([task], fields, options, skipped)
    write_skipped(skipped, options, name)


def rows_of(tasks: Sequence[Any], fields: list[Field], options: Options, skipped: Skipped) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tasks of one place, one after the other. Add the records that they skip to `skipped`."""
    yield from tasks[0].read_all(tasks, fields, ReadOptions(
        options['batchRows'], options['batchBytes'], options['checkCrcs'], options['failOnDataLoss'],
        options.is_read_committed, options['timestampOverflow'], skipped))


@cache
def freeze_imports() -> None:
    """Exclude all objects that exist now from garbage collection. This is done once per process.

    PySpark collects garbage after each task, and after each step of a driver: the creation of a source, a plan and a
    commit. Without this, each collection would scan all imported objects, which costs about 10 ms of CPU time.
    """
    gc.collect()
    gc.freeze()


def write_skipped(skipped: Skipped, options: Options, name: str) -> None:
    """Write the skipped records into the directory that `skippedTo` names, if the option is set. Raise OSError if that
    fails."""
    if options['skippedTo'] is not None:
        skipped.write(Path(options['skippedTo']), name)


def wants_outcomes(fields: list[Field]) -> bool:
    return any(field.name == 'outcome' for field in fields)
