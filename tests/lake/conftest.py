"""Fixtures of the stores and catalogs of tables."""
import contextlib

import pytest
from support.lake.catalog_proxy import catalog_proxy
from support.lake.catalogs import rest_catalog, s3_settings, sql_catalog
from support.lake.object_store import BUCKET, ObjectStore


@pytest.fixture(scope='session')
def object_store():
    """Yield an S3 server without faults. A test that turns on faults turns them off."""
    with ObjectStore() as store:
        yield store


@pytest.fixture(scope='module')
def rest_on_s3(object_store, tmp_path_factory):
    """Yield the properties of a REST catalog whose files are in the S3 store, and the proxy in front of it."""
    with rest_catalog(tmp_path_factory.mktemp('rest'), f's3://{BUCKET}/rest', s3_settings(object_store.url)) as found, \
            catalog_proxy(found['uri']) as proxy:
        yield {**found, 'uri': proxy.address}, proxy


@pytest.fixture(scope='module')
def lake_writer(shared_broker):
    from support.spark.ingest_topics import Writer  # A version of Python without confluent-kafka skips the test.
    return Writer(shared_broker.address, 'lake-cells')


@pytest.fixture
def make_cell(request, tmp_path):
    """A function that returns a new table at a place such as `delta-s3`, with its topic on a broker."""
    with contextlib.ExitStack() as ends:
        def make(where, broker, writer):
            cell = cell_at(request, tmp_path, where, broker, writer)
            ends.callback(end, cell)
            return cell
        yield make


def cell_at(request, tmp_path, where, broker, writer):
    from support.lake.lake_cells import NUMBERS, Cell
    from support.lake.lake_runs import Place
    kind, where = where.split('-')
    name = f'cell{next(NUMBERS)}'
    if where == 'local':
        return Cell(Place(kind, f'lake.{name}', {}, sql_catalog(tmp_path)) if kind == 'iceberg' else
                    Place(kind, str(tmp_path / name), {}), broker, writer, tmp_path)
    store, proxy = request.getfixturevalue('object_store'), None
    if kind == 'delta':
        place = Place(kind, f's3://{BUCKET}/{tmp_path.name}/{name}', store.of_delta())
    elif where == 's3':
        place = Place(kind, f'lake.{name}', store.of_iceberg(),
                      sql_catalog(tmp_path) | {'warehouse': f's3://{BUCKET}/{tmp_path.name}'})
    else:
        catalog, proxy = request.getfixturevalue('rest_on_s3')
        place = Place(kind, f'lake.{name}', store.of_iceberg(), catalog)
    return Cell(place, broker, writer, tmp_path, store, proxy)


def end(cell):
    for driver in cell.drivers:
        driver.kill()
    if cell.store:
        cell.store.have()
    if cell.proxy:
        cell.proxy.answer = None
