"""A log directory in an S3-compatible store."""
from urllib.parse import quote

import pytest
from spark_rows import LogFiles, batches, rows, values
from support.lake.object_store import BUCKET, ObjectStore

from kbroker_tools.spark.options import OptionError


@pytest.fixture(scope='module')
def store():
    """Yield an S3 server."""
    with ObjectStore() as store:
        yield store


@pytest.fixture(scope='module')
def uploaded(store, tmp_path_factory):
    """Return (a local log directory, the URI of its copy in the store)."""
    log = LogFiles(tmp_path_factory.mktemp('logs') / 'data', index_interval_bytes='1000')
    for number in range(60):
        log.write('x' * 1000 + str(number), producer_id=number % 3, at_ms=number)
        if number % 7 == 6:
            log.end(number % 3, commit=number % 2 == 0)
        if number % 20 == 19:
            log.roll()
    log.directory.manager.close()
    client = store.client()
    for path in log.path.rglob('*'):
        if path.is_file():
            client.upload_file(str(path), BUCKET, f'kafka/{path.relative_to(log.path)}')
    return log.path, s3(store, 'kafka')


def s3(store, path):
    return (f's3://key:secret@{BUCKET}/{path}?scheme=http&region=us-east-1'
            f'&endpoint_override={quote(store.address, safe="")}')


def test_rows_are_those_of_the_local_directory(uploaded):
    local, remote = uploaded
    for isolation in ('read_committed', 'read_uncommitted'):
        for options in ({}, {'splitBytes': '5k'}, {'startingTimestamp': '1700000000030'}):
            expected = rows(path=local, isolation=isolation, includeTransactions='true', **options)
            assert rows(path=remote, isolation=isolation, includeTransactions='true', **options) == expected
    assert 0 < len(values(path=remote)) < 60 == len(values(path=remote, isolation='read_uncommitted'))
    assert len(batches(path=remote, splitBytes='5k')) > 5


def test_a_partition_directory_by_itself(uploaded, store):
    assert values(path=s3(store, 'kafka/topic-0/')) == values(path=uploaded[0])


def test_tables(uploaded):
    local, remote = uploaded
    for table in ('batches', 'aborted', 'producers'):
        assert rows(table=table, path=remote) == rows(table=table, path=local)


def test_errors_name_the_place_and_no_password(uploaded, store):
    for path in ('nothing', 'kafka/topic-0/00000000000000000000.log'):
        with pytest.raises(OptionError, match=f's3://lake/{path} is not a readable directory') as error:
            rows(path=s3(store, path))
        assert 'secret' not in str(error.value)
    with pytest.raises(OptionError, match='pin: found hardlink with s3://lake/kafka/topic-0, but only local paths'):
        rows(path=uploaded[1], pin='hardlink')
