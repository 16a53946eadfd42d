"""The settings of a catalog of Iceberg tables: each mistake is one line that names it, without a password."""
import json
import pathlib
import re
import sys

import pytest
from support.lake.catalogs import sql_catalog
from support.lake.iceberg_runs import COLUMNS, offsets_in, prepare, run

from kbroker_tools.spark.lake import iceberg_private
from kbroker_tools.spark.lake.catalogs import CatalogSettings
from kbroker_tools.spark.lake.iceberg import IcebergTable
from kbroker_tools.spark.lake.table_format import Refused, TableUnavailable
from kbroker_tools.spark.ledger import IngestError

CLOSED = '127.0.0.1:1'


def error_of(catalog, store=None, name='lake.orders'):
    table = IcebergTable(name, catalog, store or {})
    with pytest.raises((IngestError, TableUnavailable, OSError)) as error:
        if table.load('default') is None:
            table.create(COLUMNS, [])
    assert '\n' not in str(error.value)
    assert 'hunter2' not in str(error.value)
    return error.value


@pytest.mark.parametrize(('catalog', 'message'), [
    ({}, 'neither a type nor a uri that begins with http'),
    ({'uri': 'ftp://x'}, r'catalog default \(ftp://x\): found neither a type nor'),
    ({'type': 'mysql', 'name': 'prod'}, 'catalog prod: found type mysql, expected one of rest, sql, hive'),
    ({'type': 'in-memory'}, 'found type in-memory, expected one of'),
    ({'type': 'sql'}, 'found no property uri, expected the address'),
    ({'type': 'rest'}, 'found no property uri, expected the address'),
    ({'type': 'sql', 'uri': 'garbage'}, 'Could not parse SQLAlchemy URL'),
    ({'type': 'sql', 'uri': 'nosql://user:hunter2@host/x'}, r"catalog default \(nosql://host/x\): Can't load plugin"),
    ({'type': 'sql', 'uri': 'sqlite://', 'warehouse': 'tables'}, 'found warehouse tables, expected a URI, or a path'),
    ({'type': 'bigquery'}, r"pip install 'pyiceberg\[bigquery\]'"),
    ({'type': 'hive', 'uri': f'thrift://{CLOSED}'}, r"pip install 'pyiceberg\[hive\]'"),
    ({'py-catalog-impl': 'no.such.Class'}, 'Could not initialize Catalog: no.such.Class'),
    ({'uri': f'http://{CLOSED}', 'auth.type': 'oauth3'}, "Could not load AuthManager class for 'oauth3'"),
    ({'uri': f'http://{CLOSED}', 'auth.type': 'oauth2', 'auth.oauth2.client_id': 'a'},
     "missing 2 required .*'token_url'"),
])
def test_a_wrong_catalog(catalog, message):
    error = error_of(catalog)
    assert isinstance(error, IngestError)
    assert re.search(message, str(error))


@pytest.mark.parametrize(('name', 'hint'), [('wharehouse', '; did you mean warehouse'),
                                            ('s3.acces-key-id', '; did you mean s3.access-key-id'),
                                            ('s3.path-style-access', '')])
def test_a_property_that_pyiceberg_would_ignore(tmp_path, name, hint):
    for settings in ((sql_catalog(tmp_path) | {name: 'hunter2'}, {}), (sql_catalog(tmp_path), {name: 'hunter2'})):
        error = error_of(*settings)
        assert str(error).endswith(f'found property {name}, which pyiceberg does not know{hint}{"?" if hint else ""}')


def test_properties_of_all_parts_of_pyiceberg_are_known(tmp_path):
    store = {'s3.endpoint': 'x', 'gcs.oauth2.token': 'x', 'adls.account-name': 'x', 'hdfs.host': 'x',
             'client.region': 'x'}
    catalog = {'glue.id': 'x', 'rest.sigv4-enabled': 'false', 'header.x-y': 'z', 'credential': 'x', 'scope': 'x',
               'lock-check-retries': '3', 'table-name': 'x', 'pool_pre_ping': 'true'}
    CatalogSettings(sql_catalog(tmp_path) | catalog, store).open()


def test_properties_with_dots_reach_the_login_of_a_rest_catalog():
    settings = CatalogSettings({'uri': f'http://{CLOSED}', 'auth.type': 'basic', 'auth.basic.username': 'u',
                                'auth.basic.password': 'hunter2', 'ssl.cabundle': '/x.pem'}, {})
    with pytest.raises(TableUnavailable, match='does not reply'):      # it accepted the login
        settings.open()


def test_a_catalog_without_a_warehouse(tmp_path):
    catalog = sql_catalog(tmp_path)
    del catalog['warehouse']
    assert 'found no property warehouse, expected the directory or URI of new tables' in str(error_of(catalog))


def test_a_uri_of_azure_names_a_container_and_an_account():
    pytest.importorskip('pyarrow', '21')
    from pyarrow.fs import AzureFileSystem
    token = {'adls.sas-token.account.dfs.core.windows.net': 'sig=x'}
    io = iceberg_private.SyncedFileIO(token)
    location = 'abfss://lake@account.dfs.core.windows.net/tables/orders'
    scheme, host, path = io.parse_location(location)
    assert path == 'lake/tables/orders'
    assert io.parse_location('abfss://lake/tables/orders')[2] == path
    expected = AzureFileSystem('account', sas_token='sig=x')
    assert io.fs_by_scheme(scheme, host) == expected != AzureFileSystem('account')


@pytest.mark.parametrize('name', ['orders', 'a..b', '.x', 'a.', ''])
def test_a_name_without_a_namespace(tmp_path, name):
    assert str(error_of(sql_catalog(tmp_path), name=name)).endswith(f'found {name!r}, expected NAMESPACE.TABLE')


def test_a_warehouse_that_cannot_be_reached(tmp_path):
    error = error_of(sql_catalog(tmp_path) | {'warehouse': f'file://localhost{tmp_path}'})
    assert 'expected file:///PATH' in str(error)
    assert isinstance(error_of(sql_catalog(tmp_path) | {'warehouse': 'foo://x'}), IngestError)
    assert isinstance(error_of(sql_catalog(tmp_path) | {'warehouse': '/proc/x'}), OSError)


@pytest.mark.parametrize('warehouse', ['file://{}', 'file:{}', '{}/', '{}/with space & 50%20'])
def test_forms_of_a_local_warehouse(tmp_path, warehouse):
    table = IcebergTable('lake.orders', sql_catalog(tmp_path) | {'warehouse': warehouse.format(tmp_path)}, {})
    table.create(COLUMNS, ['topic'])
    attempt = run(table, 0, 1)
    assert offsets_in(table) == [0, 1]
    assert table.committed_files(table.load('default'), attempt) == set(table.store.list(table.directory(attempt)))


def test_a_file_access_of_the_user_is_refused(tmp_path):
    error = error_of(sql_catalog(tmp_path), {'py-io-impl': 'pyiceberg.io.fsspec.FsspecFileIO'})
    assert 'found property py-io-impl, expected none' in str(error)


def test_a_database_that_cannot_be_opened_may_return(tmp_path):
    error = error_of({'type': 'sql', 'uri': f'sqlite:///{tmp_path}/no/such/catalog.db'})
    assert isinstance(error, TableUnavailable)
    assert str(error).endswith('unable to open database file')


def test_missing_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pyiceberg.catalog.sql', None)
    assert "pip install 'pyiceberg[sql-sqlite]' (import of pyiceberg" in str(error_of(sql_catalog(tmp_path)))
    monkeypatch.setattr('pyiceberg.__version__', '0.13.0')
    assert 'found pyiceberg 0.13.0, expected 0.12.*' in str(error_of(sql_catalog(tmp_path)))
    monkeypatch.setitem(sys.modules, 'pyiceberg', None)
    assert 'pyiceberg is not installed: pip install "kbroker[iceberg]"' in str(error_of(sql_catalog(tmp_path)))


def test_the_name_of_a_catalog_keeps_its_tables_apart(tmp_path):
    table = IcebergTable('lake.orders', sql_catalog(tmp_path), {})
    table.create(COLUMNS, [])
    assert IcebergTable('lake.orders', sql_catalog(tmp_path) | {'name': 'prod'}, {}).load('default') is None


def test_a_format_version_that_kbroker_does_not_write(tmp_path):
    table = IcebergTable('lake.orders', sql_catalog(tmp_path), {})
    table.create(COLUMNS, [])
    handle = table.load('default').handle
    path = pathlib.Path(handle.metadata_location)
    path.write_text(json.dumps(json.loads(path.read_text()) | {'format-version': 3, 'next-row-id': 0}))
    handle.catalog.create_table('lake.old', handle.schema(), properties={'format-version': '1'})
    for each, version in (table, 3), (IcebergTable('lake.old', sql_catalog(tmp_path), {}), 1):
        with pytest.raises(IngestError, match=f'found a table of format version {version}, expected version 2'):
            each.load('default')


@pytest.mark.parametrize(('text', 'found'), [('{', 'found'), ('[]', 'found'), ('{"version": 2, "sequence_number": 1}',
                                                                               'found version 2')])
def test_a_record_that_kbroker_did_not_write(tmp_path, text, found):
    table = IcebergTable('lake.orders', sql_catalog(tmp_path), {})
    table.create(COLUMNS, [])
    with table.load('default').handle.transaction() as change:
        change.set_properties({'kbroker.ingest.default': text})
    with pytest.raises(IngestError, match=rf'lake\.orders, property kbroker\.ingest\.default: {found}.*, expected'):
        table.load('default')


def test_a_table_that_was_dropped_refuses_the_commit(tmp_path):
    table = IcebergTable('lake.orders', sql_catalog(tmp_path), {})
    table.create(COLUMNS, [])
    mine = prepare(table, 0)
    table.load('default').handle.catalog.drop_table('lake.orders')
    with pytest.raises(Refused):
        table.commit(*mine)
    assert table.load('default') is None


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_a_glue_catalog(tmp_path):
    moto = pytest.importorskip('moto')
    with moto.mock_aws():
        catalog = {'type': 'glue', 'glue.region': 'us-east-1', 'glue.access-key-id': 'a',
                   'glue.secret-access-key': 'secret', 'glue.max-retries': '1', 'warehouse': str(tmp_path)}
        table, other = (IcebergTable('lake.orders', catalog, {}) for _ in range(2))
        assert table.load('default') is None
        table.create(COLUMNS, ['topic'])
        other.create(COLUMNS, ['topic'])
        run(table, 0, 1)
        mine, theirs = prepare(table, 2), prepare(other, 2)
        other.commit(*theirs)
        with pytest.raises(Refused):
            table.commit(*mine)
        assert offsets_in(table) == [0, 1, 2]
