"""Runs of a job that fills an Iceberg table, without a source."""
import datetime

import pyarrow as pa

from kbroker_tools.spark.lake.table_format import Attempt, JobRecord

COLUMNS = pa.schema([('key', pa.binary()), ('value', pa.binary()), ('topic', pa.string()), ('partition', pa.int32()),
                     ('offset', pa.int64()), ('timestamp', pa.timestamp('us', 'UTC')), ('timestampType', pa.int32())])
DAY = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


def rows_of(*offsets, day=0):
    at = DAY + datetime.timedelta(days=day)
    return pa.Table.from_pylist([{'key': None, 'value': b'v%d' % offset, 'topic': 'orders', 'partition': 0,
                                  'offset': offset, 'timestamp': at, 'timestampType': 0} for offset in offsets],
                                COLUMNS)


def record_of(attempt, end):
    return JobRecord(attempt.job, 'cluster', {'orders': 'id-1'}, {'values': 'bytes'}, {('orders', 0): end},
                     attempt.run, attempt.id)


def prepare(table, *offsets, job='default', day=0):
    """Write the files of one run. Return the arguments of its commit."""
    state = table.load(job)
    attempt = Attempt(job, (state.record.run if state.record else 0) + 1)
    files = table.writer(state, attempt).write(rows_of(*offsets, day=day), 'task-0') if offsets else []
    return state, record_of(attempt, max(offsets, default=0) + 1), files


def run(table, *offsets, job='default', day=0):
    """Write and commit one run. Return its attempt."""
    state, record, files = prepare(table, *offsets, job=job, day=day)
    table.commit(state, record, files)
    return Attempt(job, record.run, record.attempt)


def offsets_in(table):
    return sorted(table.load('default').handle.scan().to_arrow().column('offset').to_pylist())
