"""A log directory in an S3-compatible store."""
import threading
from urllib.parse import quote

import boto3
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from spark_rows import LogFiles, batches, rows, values
from werkzeug.serving import make_server

from kbroker_tools.spark.options import OptionError

ACCESS = {'aws_access_key_id': 'key', 'aws_secret_access_key': 'secret', 'region_name': 'us-east-1'}


@pytest.fixture(scope='module')
def store():
    """Yield the address of an S3 server in this process."""
    server = make_server('127.0.0.1', 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f'127.0.0.1:{server.server_port}'
    server.shutdown()
    thread.join()


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
    client = boto3.client('s3', endpoint_url=f'http://{store}', **ACCESS)
    client.create_bucket(Bucket='lake')
    for path in log.path.rglob('*'):
        if path.is_file():
            client.upload_file(str(path), 'lake', f'kafka/{path.relative_to(log.path)}')
    return log.path, s3(store, 'kafka')


def s3(store, path):
    return f's3://key:secret@lake/{path}?scheme=http&region=us-east-1&endpoint_override={quote(store, safe="")}'


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
