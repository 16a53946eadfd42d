"""Data files of a Delta table: their partitions, types and statistics, and the filters of readers."""
import datetime
import errno
import json
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_steps import DAY_US, SCHEMA, Job, rows
from deltalake import DeltaTable, QueryBuilder

from kbroker_tools.spark.lake.delta_files import DeltaFileWriter, dates
from kbroker_tools.spark.lake.table_format import Attempt

TIMES = pa.timestamp('us', 'UTC')


def statistics(tmp_path, columns, schema=None):
    """Write columns to a file. Return its statistics."""
    table = pa.table(columns, schema=schema)
    (entry,) = DeltaFileWriter(str(tmp_path), {}, 'kbroker/x', table.schema, []).write(table, 'a')
    return json.loads(json.loads(entry)['stats'])


def bounds(tmp_path, name, values, kind):
    """Return (minimum, maximum, number of nulls) of a column."""
    found = statistics(tmp_path, {name: pa.array(values, kind)})
    assert found['numRecords'] == len(values)
    return found['minValues'].get(name), found['maxValues'].get(name), found['nullCount'].get(name)


@pytest.mark.parametrize('values, kind, expected', [
    ([3, None, -5], pa.int64(), (-5, 3, 1)),
    ([None, None], pa.int64(), (None, None, 2)),
    ([7], pa.int8(), (7, 7, 0)),
    (['b', None, 'a'], pa.string(), ('a', 'b', 1)),
    ([''], pa.string(), ('', '', 0)),
    (['\u2028', 'é"\\'], pa.string(), ('é"\\', '\u2028', 0)),
    (['x' * 32], pa.string(), ('x' * 32, 'x' * 32, 0)),
    (['a' * 33, 'x' * 40], pa.string(), ('a' * 32, 'x' * 32 + '\U0010ffff', 0)),
    (['x' * 32 + '\U0010ffff'], pa.string(), (None, None, 0)),
    (['a' * 5000], pa.string(), (None, None, 0)),
    ([1_000, 2_000], TIMES, ('1970-01-01T00:00:00.001Z', '1970-01-01T00:00:00.002Z', 0)),
    ([1_999, 2_001], TIMES, ('1970-01-01T00:00:00.001Z', '1970-01-01T00:00:00.003Z', 0)),
    ([-1, -1], TIMES, ('1969-12-31T23:59:59.999Z', '1970-01-01T00:00:00.000Z', 0)),
    ([0, 2**62], TIMES, (None, None, 0)),
    ([253_402_300_799_999_999], TIMES, (None, None, 0)),
    ([0, -1], pa.date32(), ('1969-12-31', '1970-01-01', 0)),
    ([b'a', None], pa.binary(), (None, None, 1)),
    ([True, None], pa.bool_(), (None, None, 1)),
    ([1.5, float('nan')], pa.float64(), (None, None, 0)),
    ([1], pa.decimal128(10, 2), (None, None, 0)),
    ([[1], []], pa.list_(pa.int64()), (None, None, None)),
])
def test_the_bounds_of_a_column_are_exact_or_left_out(tmp_path, values, kind, expected):
    assert bounds(tmp_path, 'column', values, kind) == expected


def test_fields_of_structs_have_bounds_and_count_a_null_struct(tmp_path):
    name = pa.struct([('first', pa.string())])
    kind = pa.struct([('id', pa.int64()), ('name', name), ('tags', pa.list_(pa.string()))])
    found = statistics(tmp_path, {'value': pa.array([{'id': 1, 'name': {'first': 'a'}, 'tags': ['x']}, None,
                                                     {'id': 3, 'name': None}], kind)})
    assert found == {'numRecords': 3, 'minValues': {'value': {'id': 1, 'name': {'first': 'a'}}},
                     'maxValues': {'value': {'id': 3, 'name': {'first': 'a'}}},
                     'nullCount': {'value': {'id': 1, 'name': {'first': 2}}}}


def test_a_struct_with_many_fields_has_statistics_of_the_first_and_other_columns_of_all(tmp_path):
    wide = {f'field {number}': number for number in range(100)}
    found = statistics(tmp_path, {'value': [wide], 'offset': [7]})
    assert found['minValues'] == {'value': dict(list(wide.items())[:32]), 'offset': 7}


def test_a_column_with_a_point_in_its_name_has_no_statistics(tmp_path):
    assert statistics(tmp_path, {'a.b': [1]}) == {'numRecords': 1, 'minValues': {}, 'maxValues': {}, 'nullCount': {}}


def test_bounds_are_those_of_all_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr('kbroker_tools.spark.lake.delta_files.ROW_GROUP_ROWS', 2)
    assert bounds(tmp_path, 'column', [5, 4, None, None, 9], pa.int64()) == (4, 9, 2)


def test_readers_that_skip_files_by_statistics_find_all_rows(tmp_path):
    job = Job(tmp_path / 'table')
    for _ in range(3):
        job.run(5)
    table = DeltaTable(job.table.name)
    assert table.to_pyarrow_table(filters=[('offset', '>=', 12)]).num_rows == 3
    assert table.to_pyarrow_table(filters=[('topic', '=', 'orders')]).num_rows == 15
    for condition, count in (('"offset" = 14', 1), ('"timestamp" >= timestamp \'1970-01-01T00:00:00.014Z\'', 1),
                             ('topic = \'events\'', 0)):
        found = QueryBuilder().register('rows', table).execute(f'select "offset" from rows where {condition}')
        assert found.read_all().num_rows == count


def written(tmp_path, partition_by, *tables):
    """Commit rows to a new partitioned table. Return (the table, the entries of the files)."""
    job = Job(tmp_path / 'table', partition_by)
    state = job.load()
    record = job.record(state, {('orders', 0): sum(each.num_rows for each in tables)})
    writer = pickle.loads(pickle.dumps(job.table.writer(state, Attempt('default', 1, record.attempt))))
    files = [entry for number, each in enumerate(tables) for entry in writer.write(each, f'{number}')]
    job.table.commit(state, record, files)
    return DeltaTable(job.table.name), [json.loads(each) for each in files]


def test_rows_of_different_partitions_are_in_different_files_and_keep_their_order(tmp_path):
    mixed = pa.concat_tables([rows(0, 3, every_us=DAY_US // 2), rows(0, 3, topic='events'), rows(3, 2)])
    table, files = written(tmp_path, ['topic', 'date'], mixed)
    assert [each['partition_values'] for each in files] == [
        {'topic': 'events', 'date': '1970-01-01'}, {'topic': 'orders', 'date': '1970-01-01'},
        {'topic': 'orders', 'date': '1970-01-02'}]
    assert pq.read_table(Path(table.table_uri.removeprefix('file://'), files[1]['path']),
                         partitioning=None).column('offset').to_pylist() == [0, 1, 3, 4]
    found = table.to_pyarrow_table(filters=[('date', '=', datetime.date(1970, 1, 2))])
    assert found.select(['topic', 'offset', 'date']).to_pylist() == [
        {'topic': 'orders', 'offset': 2, 'date': datetime.date(1970, 1, 2)}]
    assert table.to_pyarrow_table().num_rows == 8


def test_partitions_by_numbers_booleans_and_nulls(tmp_path):
    schema = pa.schema([('offset', pa.int64()), ('partition', pa.int32()), ('is_transactional', pa.bool_()),
                        ('outcome', pa.string())])
    given = [{'offset': 0, 'partition': 7, 'is_transactional': True, 'outcome': None},
             {'offset': 1, 'partition': 7, 'is_transactional': None, 'outcome': 'a b/c=%41'},
             {'offset': 2, 'partition': 7, 'is_transactional': False, 'outcome': None}]
    by = ['partition', 'is_transactional', 'outcome']
    job = Job(tmp_path / 'table', by)
    job.table.create(schema, by)
    state = job.load()
    files = job.table.writer(state, Attempt('default', 1)).write(pa.Table.from_pylist(given, schema=schema), 'a')
    job.table.commit(state, job.record(state, {('orders', 0): 3}), files)
    found = DeltaTable(job.table.name).to_pyarrow_table().sort_by('offset').select(schema.names)
    assert found.to_pylist() == given


def test_no_rows_make_no_file_in_a_partitioned_table(tmp_path):
    table, files = written(tmp_path, ['topic'], rows(0, 0), rows(0, 1))
    assert len(files) == 1
    assert table.to_pyarrow_table().num_rows == 1


def test_dates_are_in_utc_and_a_date_that_readers_cannot_parse_is_null(tmp_path):
    times = pa.chunked_array([[-1, 0, DAY_US - 1, DAY_US, None, 2**62, -2**62]], TIMES)
    assert [each and str(each) for each in dates(times).to_pylist()] == [
        '1969-12-31', '1970-01-01', '1970-01-01', '1970-01-02', None, None, None]
    given = rows(0, 1).set_column(5, 'timestamp', pa.array([2**62], TIMES))
    table, files = written(tmp_path, ['date'], given)
    assert files[0]['partition_values'] == {'date': None}
    assert table.to_pyarrow_table(columns=['offset', 'date']).to_pylist() == [{'offset': 0, 'date': None}]


def test_fields_that_the_rows_lack_are_null_in_a_struct_of_the_table(tmp_path):
    narrow = pa.schema([('offset', pa.int64()), ('value', pa.struct([('id', pa.int64())]))])
    wide = pa.schema([('offset', pa.int64()), ('value', pa.struct([('name', pa.string()), ('id', pa.int64())]))])
    job = Job(tmp_path / 'table')
    job.table.create(wide, [])
    state = job.load()
    given = pa.Table.from_pylist([{'offset': 0, 'value': {'id': 7}}], schema=narrow)
    files = job.table.writer(state, Attempt('default', 1)).write(given, 'a')
    job.table.commit(state, job.record(state, {('orders', 0): 1}), files)
    found = QueryBuilder().register('rows', DeltaTable(job.table.name)).execute('select * from rows').read_all()
    assert pa.table(found).to_pylist() == [{'offset': 0, 'value': {'name': None, 'id': 7}}]


def test_a_file_and_its_directories_are_synced_before_its_entry_is_returned(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, 'fsync', lambda descriptor: (
        synced.append(os.readlink(f'/proc/self/fd/{descriptor}').removeprefix(f'{tmp_path}/')), fsync(descriptor)))
    DeltaFileWriter(f'{tmp_path}/table', {}, 'kbroker/x', SCHEMA, []).write(rows(0, 1), 'a')
    assert synced.index('table/kbroker/x/a-0.parquet') == 0
    assert {'table/kbroker/x', 'table/kbroker', 'table'} <= {*synced}


def test_a_file_that_cannot_be_synced_is_an_os_error(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, 'Input/output error')
    monkeypatch.setattr(os, 'fsync', fail)
    with pytest.raises(OSError, match=r'table/kbroker/x/a-0\.parquet: .*Input/output error'):
        DeltaFileWriter(f'{tmp_path}/table', {}, 'kbroker/x', SCHEMA, []).write(rows(0, 1), 'a')
