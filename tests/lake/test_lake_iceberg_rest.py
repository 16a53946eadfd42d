"""Iceberg tables of a REST catalog: its errors, lost replies, and credentials that it lends for a while."""
import pickle
import re
import threading
import time

import pytest
from support.lake.catalog_proxy import Reply, catalog_proxy, refusal
from support.lake.catalogs import rest_catalog, s3_settings
from support.lake.iceberg_runs import COLUMNS, offsets_in, prepare, record_of, rows_of, run
from support.lake.lending import BUCKET, lend_with_tables, lending_store

from kbroker_tools.spark.lake import iceberg_private
from kbroker_tools.spark.lake.iceberg import IcebergTable
from kbroker_tools.spark.lake.table_format import Attempt, Refused, ReplyLost, TableUnavailable
from kbroker_tools.spark.ledger import IngestError

pytestmark = pytest.mark.jvm


@pytest.fixture(scope='module')
def store():
    with lending_store() as store:
        yield store


@pytest.fixture(scope='module')
def catalog(store, tmp_path_factory):
    """A catalog whose tables are in the object store."""
    with rest_catalog(tmp_path_factory.mktemp('rest'), f's3://{BUCKET}/warehouse',
                      s3_settings(store.address)) as catalog:
        yield catalog


@pytest.fixture
def proxy(catalog):
    with catalog_proxy(catalog['uri']) as proxy:
        yield proxy


@pytest.fixture
def settings(store):
    return {'s3.endpoint': store.address, 's3.access-key-id': 'key', 's3.secret-access-key': 'secret',
            's3.region': 'us-east-1'}


@pytest.fixture
def table(request, catalog, proxy, settings):
    """A table that is reached through the proxy, with credentials of its own."""
    table = IcebergTable(f'lake.{re.sub(r"[^a-z0-9]+", "_", request.node.name)}', catalog | {'uri': proxy.address},
                         settings)
    table.create(COLUMNS, ['topic', 'date'])
    return table


def on_commit(table, action):
    """Return the answer of a proxy that applies the action to commits of the table."""
    end = f'/tables/{table.name.rpartition(".")[2]}'

    def answer(method, path, forward):
        return action(forward) if method == 'POST' and path.endswith(end) else forward()
    return answer


def forward_and(reply):
    def action(forward):
        forward()
        return reply
    return action


def test_runs_of_two_drivers(table, proxy):
    other = IcebergTable(table.name, {'uri': proxy.address}, table._settings.store)
    other.create(COLUMNS, [])                   # it exists
    run(table, 0, 1)
    mine, theirs = prepare(table, 2), prepare(other, 2)
    other.commit(*theirs)
    with pytest.raises(Refused):
        table.commit(*mine)
    assert offsets_in(table) == [0, 1, 2]
    state = table.load('default')
    assert state.partition_by == ['topic', 'date']
    assert len(table.committed_files(state, Attempt('default', 2, theirs[1].attempt))) == 1


@pytest.mark.parametrize('reply', [None, *(refusal(status) for status in (500, 502, 503, 504)),
                                   Reply(200, b'no JSON'), Reply(200, b'{}')],
                         ids=['closed', '500', '502', '503', '504', 'no JSON', 'no metadata'])
def test_a_commit_whose_reply_is_lost_is_in_the_table(table, proxy, reply):
    mine = prepare(table, 0)
    proxy.answer = on_commit(table, forward_and(reply))
    with pytest.raises(ReplyLost):
        table.commit(*mine)
    assert len([each for each in proxy.requests if each[0] == 'POST' and table.name[5:] in each[1]]) == 1
    assert table.load('default').record == mine[1]


def test_a_commit_that_a_proxy_sends_twice_is_in_the_table_once(table, proxy):
    mine = prepare(table, 0)
    proxy.answer = on_commit(table, lambda forward: forward() and forward())
    with pytest.raises(Refused):
        table.commit(*mine)
    assert table.load('default').record == mine[1]
    assert offsets_in(table) == [0]


def test_a_commit_that_never_ends_is_given_up(table, proxy):
    mine = prepare(table, 0)
    limits = table._opened._session.request.keywords
    assert limits['timeout'] == (iceberg_private.CONNECT_TIMEOUT_S, iceberg_private.REPLY_TIMEOUT_S)
    limits['timeout'] = (iceberg_private.CONNECT_TIMEOUT_S, 0.1)
    ended = threading.Event()
    proxy.answer = on_commit(table, lambda forward: ended.wait() and None)
    with pytest.raises(ReplyLost, match='timed out'):
        table.commit(*mine)
    ended.set()


@pytest.mark.parametrize(('status', 'kind', 'text'), [
    (400, IngestError, 'as the test wants'), (401, IngestError, 'for want of rights'),
    (403, IngestError, 'for want of rights'), (404, Refused, 'as the test wants'), (409, Refused, 'as the test wants'),
    (419, IngestError, 'for want of rights'), (422, IngestError, 'as the test wants'),
    (429, TableUnavailable, 'as the test wants')])
def test_a_refused_commit_is_not_in_the_table(table, proxy, status, kind, text):
    mine = prepare(table, 0)
    proxy.answer = on_commit(table, lambda forward: refusal(status))
    with pytest.raises(kind, match=text) as error:
        table.commit(*mine)
    assert '\n' not in str(error.value)
    assert table.load('default').record is None
    proxy.answer = None
    table.commit(*mine)
    assert offsets_in(table) == [0]


def test_a_commit_to_another_branch_refuses_the_sequence_number_and_not_the_run(catalog, settings):
    table = IcebergTable('lake.branches', catalog, settings)
    table.create(COLUMNS, [])
    run(table, 0)
    _, record, files = mine = prepare(table, 1)
    handle = table.load('default').handle
    handle.manage_snapshots().create_branch(handle.current_snapshot().snapshot_id, 'audit').commit()
    handle.append(rows_of(9), branch='audit')
    with pytest.raises(Refused):
        table.commit(*mine)
    table.commit(table.load('default'), record, files)
    assert offsets_in(table) == [0, 1]


def test_a_catalog_that_is_gone_when_a_run_commits(table, catalog, proxy, settings):
    with catalog_proxy(catalog['uri']) as gone:
        table = IcebergTable(table.name, {'uri': gone.address}, settings)
        mine = prepare(table, 0)
    with pytest.raises(TableUnavailable, match=r'does not reply: .*Connection refused'):
        table.commit(*mine)
    with pytest.raises(TableUnavailable, match=r'does not reply: .*Connection refused'):
        table.load('default')


@pytest.mark.parametrize(('status', 'kind'), [(401, IngestError), (403, IngestError), (500, TableUnavailable),
                                              (503, TableUnavailable), (429, TableUnavailable), (400, IngestError)])
def test_errors_of_a_load(table, proxy, status, kind):
    proxy.answer = lambda method, path, forward: refusal(status)
    for each in (table, IcebergTable(table.name, {'uri': proxy.address}, {})):
        with pytest.raises(kind, match='as the test wants') as error:
            each.load('default')
        assert '\n' not in str(error.value)


def test_a_table_may_not_be_created(table, proxy):
    other = IcebergTable('forbidden.orders', {'uri': proxy.address}, {})
    assert other.load('default') is None
    proxy.answer = lambda method, path, forward: refusal(403) if method == 'POST' else forward()
    with pytest.raises(IngestError, match=r'table forbidden\.orders refuses the request for want of rights'):
        other.create(COLUMNS, [])


def test_credentials_are_renewed_before_they_expire(table, proxy, store):
    soon = round(time.time() * 1000) + 60_000
    lend_with_tables(proxy, store, soon)
    borrower = IcebergTable(table.name, {'uri': proxy.address}, {})
    state, attempt = borrower.load('default'), Attempt('default', 1)
    borrower._access.obtained_ms -= 3_600_000       # borrowed an hour ago
    writer = pickle.loads(pickle.dumps(borrower.writer(state, attempt)))
    lend_with_tables(proxy, store, soon + 3_600_000)
    store.expire()
    before = store.refused
    files = writer.write(rows_of(0), 'task-0') + writer.write(rows_of(1), 'task-1')
    borrower.commit(state, record_of(attempt, 2), files)
    assert store.refused == before
    assert offsets_in(borrower) == [0, 1]


@pytest.mark.parametrize('expires_at_ms', [None, 1])
def test_credentials_are_renewed_when_the_store_refuses_them(table, proxy, store, expires_at_ms):
    """The time is unknown, or was over on arrival because the clocks differ."""
    lend_with_tables(proxy, store, expires_at_ms)
    borrower = IcebergTable(table.name, {'uri': proxy.address}, {})
    state, attempt = borrower.load('default'), Attempt('default', 1)
    writer = pickle.loads(pickle.dumps(borrower.writer(state, attempt)))
    files = writer.write(rows_of(0), 'task-0')
    store.expire()
    files += writer.write(rows_of(1), 'task-1')
    store.expire()
    borrower.commit(state, record_of(attempt, 2), files)
    assert offsets_in(borrower) == [0, 1]
    store.expire()
    assert len(borrower.committed_files(borrower.load('default'), attempt)) == 2
    assert len(list(borrower.store.list(borrower.directory(attempt)))) == 2


def test_credentials_of_the_user_are_not_renewed(table, proxy, store):
    lend_with_tables(proxy, store, None)
    run(table, 0)
    table.load('default')
    assert table._access.properties['s3.access-key-id'] == 'key'
    assert store.valid
    assert offsets_in(table) == [0]
