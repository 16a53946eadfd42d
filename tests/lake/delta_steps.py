"""Steps of a job on a Delta table, without a source: rows of a partition, and runs that write and commit them."""
import dataclasses

import pyarrow as pa
import pytest

pytest.importorskip('deltalake')

from kbroker_tools.spark.lake.delta import DeltaLakeTable
from kbroker_tools.spark.lake.table_format import Attempt, JobRecord

SCHEMA = pa.schema([('key', pa.binary()), ('value', pa.binary()), ('topic', pa.string()), ('partition', pa.int32()),
                    ('offset', pa.int64()), ('timestamp', pa.timestamp('us', 'UTC')), ('timestampType', pa.int32())])
CLUSTER, TOPIC_ID = 'abcdefghijklmnopqrstuv', 'vutsrqponmlkjihgfedcba'
DAY_US = 86_400_000_000


def rows(first, count, topic='orders', partition=0, every_us=1000):
    """Return rows with consecutive offsets, as tasks read them."""
    numbers = range(first, first + count)
    return pa.table({'key': [None] * count, 'value': [b'value %d' % each for each in numbers], 'topic': [topic] * count,
                     'partition': [partition] * count, 'offset': list(numbers),
                     'timestamp': [each * every_us for each in numbers], 'timestampType': [0] * count}, schema=SCHEMA)


class Job:
    """A job that ingests partition 0 of a topic into a table."""

    def __init__(self, uri, partition_by=(), store=None, job='default', cluster_id=CLUSTER):
        self.table = DeltaLakeTable(str(uri), store or {})
        self.job, self.partition_by, self.cluster_id, self.store = job, partition_by, cluster_id, store or {}

    def load(self):
        """Return the state. The first call creates the table."""
        state = self.table.load(self.job)
        if state is None:
            self.table.create(SCHEMA, self.partition_by)
            state = self.table.load(self.job)
        return state

    def record(self, state, offsets, attempt=None, **changes):
        run = state.record.run + 1 if state.record else 1
        before = state.record.offsets if state.record else {}
        record = JobRecord(self.job, self.cluster_id, {'orders': TOPIC_ID}, {'partition_by': list(self.partition_by)},
                           before | offsets, run, attempt or Attempt(self.job, run).id)
        return dataclasses.replace(record, **changes)

    def prepare(self, state, count, every_us=1000, **changes):
        """Write the next rows. Return (record, files)."""
        first = state.record.offsets.get(('orders', 0), 0) if state.record else 0
        record = self.record(state, {('orders', 0): first + count}, **changes)
        files = self.table.writer(state, Attempt(self.job, record.run, record.attempt)).write(
            rows(first, count, every_us=every_us), 'a')
        return record, files

    def run(self, count, **changes):
        """Ingest the next rows. Return the version."""
        state = self.load()
        return self.table.commit(state, *self.prepare(state, count, **changes))

    def offsets(self):
        """Return the offsets in the table, sorted."""
        return offsets(self.load().handle.table)


def offsets(table):
    return sorted(table.to_pyarrow_table(columns=['offset']).column('offset').to_pylist())
