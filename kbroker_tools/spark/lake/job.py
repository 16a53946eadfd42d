"""The steps of a run: load the table, write files, and commit files and offsets together, once.

    1. load      the table, with the record of this job; refuse a table that does not belong to it
    2. plan      the offsets from the recorded ones to the last stable offset
    3. mark      put an object that names this attempt, so that a later run finds its files
    4. write     tasks write data files, whose names have the attempt
    5. commit    the files and the new record, in one commit on the table of step 1
    6. clean     the files of failed tasks, then the marker

Only step 5 changes the table. A commit is sent once. After a refusal, or a reply that was lost, the table is loaded
again, and its record decides: the record of this attempt means success; the record of step 1 means that another program
wrote, so the same files are committed on the new state; any other record means that another driver of this job was
first, and the run starts again. A driver that was slow to load the table may find a record of the run after its own. So
it deletes only files that no version of the table names.
"""
from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.identity import Identity, identify
from kbroker_tools.spark.ingest_source import (
    IngestResult,
    IngestSource,
    advanced,
    since_ms,
    total_offsets,
)
from kbroker_tools.spark.lake import leftovers
from kbroker_tools.spark.lake.columns import check_columns, is_extended
from kbroker_tools.spark.lake.rows import Rows, TableWork, Totals, bundled
from kbroker_tools.spark.lake.runners import Advance, Runner
from kbroker_tools.spark.lake.table_format import (
    Attempt,
    JobRecord,
    Refused,
    ReplyLost,
    State,
    TableFormat,
    TableUnavailable,
    same_progress,
)
from kbroker_tools.spark.ledger import IngestError, Progress
from kbroker_tools.spark.options import MIB, Options
from kbroker_tools.spark.planning import Slice, chosen_partitions
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.tasks import open_place

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker_tools.registry.decoding import ValueSchema

JOB_NAME = re.compile(r'[A-Za-z0-9_.-]{1,100}')
COMMITS = 50
"""The commits of one run that other programs may make fail. Between two of them is a growing pause."""
LOST_REPLIES = 8
"""The commits of one run whose outcome may be unknown. A catalog or a store that can only be read makes all fail."""
LOST_RUNS = 5
"""The runs that other drivers of the same job may win before this one gives up."""
TARGET_BYTES = 128 * MIB


@dataclass
class TableJob:
    """A job that ingests topics into a table. Methods raise what IngestJob raises, and TableUnavailable."""

    source: IngestSource
    table: TableFormat
    name: str = 'default'
    partition_by: Sequence[str] = ()
    target_bytes: int = TARGET_BYTES
    values: ValueSchema | None = None
    """The format of the values. With None, values are not decoded and stay binary."""
    is_aborted: bool = False
    """True to ingest the records of aborted transactions, and only these."""
    accepts_rollback: bool = False
    may_add_columns: bool = False
    _pause_s: float = field(default=0.05, repr=False)

    def __post_init__(self) -> None:
        if not JOB_NAME.fullmatch(self.name):
            raise IngestError(f'--job: found {self.name!r}, expected up to 100 letters, digits, "_", "." and "-"')
        if self.is_aborted and 'isolation' in {name.lower() for name in self.source.options}:
            raise IngestError('--rows aborted: option isolation cannot be given, because the rows are those that '
                              'read_committed leaves out')

    def run(self, runner: Runner, advance: Advance) -> IngestResult:
        """Run the job once. After a failure or a kill, either both the rows and the offsets are in the table, or
        neither is."""
        began_s = time.monotonic()
        options = self.source.parsed(self.partition_by)
        for _ in range(LOST_RUNS):
            try:
                result = self._run_once(options, runner, advance, began_s)
            except OSError as error:
                if error.errno is not None:
                    raise
                # Only an object store fails without a number of the system.
                raise TableUnavailable(' '.join(str(error).split())) from error
            if result is not None:
                return result
        raise IngestError(f'{self.table.name}: {LOST_RUNS} runs were lost to other drivers of job {self.name}; give '
                          'each driver another --job, or run only one')

    def _run_once(self, options: Options, runner: Runner, advance: Advance, began_s: float) -> IngestResult | None:
        """Run once. Return None if another driver of this job committed first."""
        identity = identify(options, self.source.topics)
        place = open_place(options)
        chosen_partitions(place, options)   # a wrong topic is an error before a table is created
        plan = _Plan(self, options, identity)
        state = plan.opened()
        notes = leftovers.clean(self.table, state)
        before, skipped = plan.progress(state), Skipped()
        slices = self.source.slices(place, options, before, identity, skipped, '--job or table')
        if not slices:
            return IngestResult(None, 0, 0, 0, 0, [], 0, None, 0, since_ms(began_s), state.version, 0, notes)
        lost_before = skipped.lost_offsets
        done = advanced(before, slices, identity)
        attempt = Attempt(self.name, done.run)
        record = JobRecord(self.name, identity.cluster_id, done.topic_ids, plan.shape, done.offsets, done.run,
                           attempt.id)
        leftovers.begin(self.table, attempt)
        try:
            files, totals = self._write(runner, plan.rows, state, attempt, slices, advance)
        except BaseException as error:
            if runner.stop():  # otherwise a later run deletes the files
                leftovers.discard(self.table, attempt)
            if isinstance(error, Exception) and self._is_overtaken(state, attempt):
                return None
            raise
        # From here on the files may be in the table, also below a later run of another driver. So only files that no
        # version of the table names are deleted.
        try:
            version = self._commit(plan, state, attempt, record, files)
        except (TableUnavailable, IngestError, OSError):
            if not self._is_overtaken(state, attempt):
                raise
            version = None
        if version is None:
            self._tidied(attempt)
            return None
        notes = self._tidied(attempt)
        skipped.add(totals.skipped)
        place.refresh()
        without_row = total_offsets(slices) - totals.rows - (skipped.lost_offsets - lost_before)
        return IngestResult(done.run, totals.rows, totals.size_bytes, without_row, skipped.lost_offsets, skipped.words,
                            skipped.aborted_transactions, None if self.values is None else totals.undecoded,
                            self.source.lag(place, options, done), since_ms(began_s), version, len(files), notes)

    def _is_overtaken(self, state: State, attempt: Attempt) -> bool:
        """Return True if another driver of this job has committed since the state was loaded. It deletes the files of
        all other attempts at its run, so these may fail at any step."""
        try:
            newest = self.table.load(self.name)
        except (TableUnavailable, IngestError, OSError):
            return False
        return (newest is not None and newest.record is not None and newest.record.attempt != attempt.id
                and not same_progress(newest.record, state.record))

    def _tidied(self, attempt: Attempt) -> list[str]:
        """Delete the files of the attempt that the table does not have. A failure is a note: no row depends on it."""
        try:
            newest = self.table.load(self.name)
        except (TableUnavailable, IngestError, OSError) as error:
            return [f'{self.table.name}: the commits are done, and the table cannot be read now: {error}. The next run '
                    'deletes the files that it does not have']
        return leftovers.finish(self.table, newest, attempt) if newest is not None else []

    # ---- steps

    def _write(self, runner: Runner, rows: Rows, state: State, attempt: Attempt, slices: Sequence[Slice],
               advance: Advance) -> tuple[list[bytes], Totals]:
        options = rows.options
        if not options['minPartitions']:
            options = options.with_value('minPartitions', runner.workers)
        tasks = open_place(options).tasks(slices, options, with_outcomes=self.is_aborted)
        work = TableWork(rows, self.table.writer(state, attempt), self.target_bytes, runner.write_threads)
        totals, files = Totals(), []
        for written in runner.run(work, bundled(tasks, options), advance) if tasks else ():
            files += written.files
            totals.add(written.totals)
        return files, totals

    def _commit(self, plan: _Plan, state: State, attempt: Attempt, record: JobRecord,
                files: Sequence[bytes]) -> str | None:
        """Commit. Return the version of the table that has the files, or None if another driver of this job committed
        first."""
        before, pause_s, lost = state.record, self._pause_s, 0
        for _ in range(COMMITS):
            try:
                return self.table.commit(state, record, files)
            except (Refused, ReplyLost) as error:
                reason = error
            lost += isinstance(reason, ReplyLost)
            state = self._loaded_after(reason)
            if not same_progress(state.record, before):
                # Another driver may have committed the next run before this one could load the table.
                is_mine = state.record is not None and (state.record.attempt == attempt.id
                                                        or self.table.committed_files(state, attempt))
                return (state.version or '') if is_mine else None
            plan.check(state)
            if lost == LOST_REPLIES:
                raise TableUnavailable(f'{self.table.name}: {lost} commits failed, and their rows are not in the '
                                        f'table: {reason}')
            time.sleep(pause_s * random.random())
            pause_s = min(pause_s * 2, 5.0)
        raise IngestError(f'{self.table.name}: {COMMITS} commits were refused, because other programs write to the '
                          f'table all the time: {reason}')

    def _loaded_after(self, reason: Exception) -> State:
        """Load the table after a commit that failed."""
        try:
            state = self.table.load(self.name)
        except (TableUnavailable, IngestError, OSError) as error:
            if isinstance(reason, ReplyLost):
                raise TableUnavailable(f'{self.table.name}: the reply to a commit was lost ({reason}), and the table '
                                        f'cannot be read now: {error}. Its rows are in the table, or not; the next '
                                        'run finds out') from None
            raise
        if state is None:
            raise IngestError(f'{self.table.name}: the table was dropped during the run')
        return state


@dataclass
class _Plan:
    """The rows of a run and the table that fits them."""

    job: TableJob
    options: Options
    identity: Identity
    rows: Rows = field(init=False)
    shape: dict[str, Any] = field(init=False)

    def opened(self) -> State:
        """Load or create the table, and decide which rows it gets. Raise IngestError if the table does not belong to
        this job, or does not have its columns."""
        table = self.job.table
        state = table.load(self.job.name)
        self._decide(state.record if state is not None else None)
        if state is None:
            table.create(self.columns, self.job.partition_by)
            state = table.load(self.job.name)
            if state is None:
                raise IngestError(f'{table.name}: the table was created, and is not found')
        if self.job.may_add_columns and is_extended(state.schema, self.columns):
            try:
                table.add_columns(state, self.columns)
            except (Refused, ReplyLost) as error:
                raise TableUnavailable(f'{table.name}: the columns could not be added: {error}') from None
            state = table.load(self.job.name) or state
        self.check(state)
        return state

    def _decide(self, record: JobRecord | None) -> None:
        options, values, decoder = self.options, self.job.values, None
        if values is not None:
            recorded = record.shape.get('values') if record is not None else None
            decoder = values.decoder(self.job.source.topics, recorded, self.job.may_add_columns)
        if self.job.is_aborted:
            options = options.with_value('isolation', 'read_uncommitted')
        self.rows = Rows(options, self.job.is_aborted, decoder)
        self.shape = {'columns': self.rows.schema.names, 'rows': 'aborted' if self.job.is_aborted else 'committed',
                      'isolation': self.options['isolation'], 'values': decoder and decoder.shape}

    @property
    def columns(self) -> pa.Schema:
        return self.job.table.columns(self.rows.schema, self.job.partition_by)

    def check(self, state: State) -> None:
        """Raise IngestError unless the table belongs to this job and has its columns."""
        name = self.job.table.name
        if state.record is not None:
            self._check_record(state.record)
        if state.rolled_back is not None and not self.job.accepts_rollback:
            raise IngestError(f'{name}: {state.rolled_back}; --accept-rollback continues from the recorded offsets, '
                              'without these rows; another --job begins from the start')
        check_columns(name, state.schema, self.columns)
        if list(self.job.partition_by) != state.partition_by:
            raise IngestError(f'{name}: found partitioning by {", ".join(state.partition_by) or "nothing"}, but '
                              f'--partition-by has {", ".join(self.job.partition_by) or "nothing"}')

    def _check_record(self, record: JobRecord) -> None:
        name, identity = self.job.table.name, self.identity
        if record.cluster_id != identity.cluster_id and None not in (record.cluster_id, identity.cluster_id):
            raise IngestError(f'{name}: job {self.job.name} has ingested cluster {record.cluster_id}, but '
                              f'{self.job.source.source} is cluster {identity.cluster_id}; give another --job or table')
        if None in (record.cluster_id, identity.cluster_id):
            without = sorted(topic for topic, _ in record.offsets if topic not in record.topic_ids)
            without += sorted(set(self.job.source.topics) - identity.topic_ids.keys())
            if without:
                raise IngestError(f'{name}: {self.job.source.source} has no cluster.id, and topic {without[0]} has no '
                                  'topic id: nothing shows that it is the log that was ingested before')
        for key in sorted(self.shape.keys() - ({'columns', 'values'} if self.job.may_add_columns else set())):
            if record.shape.get(key) != self.shape[key]:
                raise IngestError(f'{name}: job {self.job.name} has {key} {record.shape.get(key)}, but this run has '
                                  f'{self.shape[key]}; give another --job' + (
                                      ', or --evolve add for more columns' if key in ('columns', 'values') else ''))

    def progress(self, state: State) -> Progress:
        return state.record.progress if state.record is not None else Progress(self.job.name)
