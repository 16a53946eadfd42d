"""The failure table of ingests into tables: after each failure and the next run, every row is in the table once.

Each cell is a format, a place and a failure. The default run has a few cells, and the soak all of them. Rows are those
that a read_committed consumer of another project receives. The store has no other files than those of the table.
"""
import itertools
from dataclasses import dataclass, field

import pytest
from support.lake.catalog_proxy import catalog_proxy
from support.lake.catalogs import rest_catalog, s3_settings, sql_catalog
from support.lake.lake_runs import (
    BEFORE_COMMIT,
    BEFORE_WRITE,
    COMMITTED,
    FAIL,
    FILES_WRITTEN,
    HOLD,
    JOB,
    KILL,
    LOSE,
    STEPS,
    Act,
    Driver,
    Place,
    files_of,
    rows_in,
)
from support.lake.object_store import BUCKET, Fault
from support.spark.ingest_topics import Writer, consumed, create_topic

NUMBERS = itertools.count()
PLACES = ('iceberg-local', 'iceberg-s3', 'iceberg-rest', 'delta-local', 'delta-s3')
ON_S3 = ('iceberg-s3', 'iceberg-rest', 'delta-s3')


@pytest.fixture(scope='module')
def rest(request, tmp_path_factory):
    """Yield the REST catalog of Iceberg's tests, whose files are in the S3 store, behind a proxy."""
    store = request.getfixturevalue('object_store')
    with rest_catalog(tmp_path_factory.mktemp('rest'), f's3://{BUCKET}/rest', s3_settings(store.url)) as properties, \
            catalog_proxy(properties['uri']) as proxy:
        yield {**properties, 'uri': proxy.address}, proxy


@pytest.fixture(scope='module')
def writer(shared_broker):
    return Writer(shared_broker.address, 'lake-failures')


@pytest.fixture
def place(request, tmp_path):
    """Return the place with the name in the parameter. It has no table yet."""
    kind, where = request.param.split('-')
    name = f'failures{next(NUMBERS)}'
    if where == 'local':
        return Place(kind, f'lake.{name}', {}, sql_catalog(tmp_path)) if kind == 'iceberg' else \
            Place(kind, str(tmp_path / name), {})
    store = request.getfixturevalue('object_store')
    if kind == 'delta':
        return Place(kind, f's3://{BUCKET}/{tmp_path.name}/{name}', store.of_delta())
    if where == 's3':
        catalog = sql_catalog(tmp_path) | {'warehouse': f's3://{BUCKET}/{tmp_path.name}'}
    else:
        catalog = request.getfixturevalue('rest')[0]
    return Place(kind, f'lake.{name}', store.of_iceberg(), catalog)


@dataclass
class Cell:
    """One table, its topic, and the runs of a test."""

    place: Place
    broker: object
    writer: Writer
    directory: object
    store: object = None
    proxy: object = None
    topic: str = ''
    drivers: list = field(default_factory=list)

    def __post_init__(self):
        self.topic = create_topic(self.broker.address, name=f'lake-failures{next(NUMBERS)}')

    def write(self):
        """Write three transactions, one of which aborts."""
        for end in ('commit', 'abort', 'commit'):
            self.writer.write(self.topic, 10, end)

    def start(self, **act):
        flag = self.directory / f'flag{len(self.drivers)}'
        self.drivers.append(Driver(self.place, self.broker.address, [self.topic], flag, Act(**act)))
        return self.drivers[-1]

    def run(self, **act):
        return self.start(**act).outcome()

    def held(self, at=BEFORE_COMMIT):
        """Start a run. Return it when it waits at a step."""
        driver = self.start(at=at, what=HOLD)
        driver.await_step()
        return driver

    def succeed(self, driver=None, **act):
        outcome = (driver or self.start(**act)).outcome()
        assert (outcome.error, outcome.exit_code, list(outcome.notes)) == (None, 0, [])
        return outcome

    def survive(self, driver=None, **act):
        """Wait for a run that may fail, but only because something did not work for a while."""
        outcome = (driver or self.start(**act)).outcome()
        assert outcome.exit_code == 0
        assert (outcome.error or 'OSError').startswith(('SourceUnavailable', 'OSError')), outcome.error

    def killed(self, at):
        assert self.run(at=at, what=KILL).exit_code == -9

    def expected(self):
        return [(self.topic, *row) for row in consumed(self.broker.address, self.topic)]

    def assert_exactly_once(self):
        """Assert that the table has every row once, and that nothing else is left."""
        assert rows_in(self.place) == self.expected()
        named, stored, markers = files_of(self.place)
        assert stored - named == set()
        assert markers == []

    def finish(self):
        """Run until the next two runs succeed, with and without new records, and judge the table after each."""
        self.succeed()
        self.assert_exactly_once()
        self.write()
        assert self.succeed().rows == 20
        self.assert_exactly_once()
        assert self.succeed().run is None


@pytest.fixture
def cell(request, place, shared_broker, writer, tmp_path):
    needs_rest = 'rest' in request.node.callspec.params['place']
    cell = Cell(place, shared_broker, writer, tmp_path,
                store=request.getfixturevalue('object_store') if place.store else None,
                proxy=request.getfixturevalue('rest')[1] if needs_rest else None)
    yield cell
    for driver in cell.drivers:
        driver.kill()
    if cell.store:
        cell.store.have()
    if cell.proxy:
        cell.proxy.answer = None


# ---- failures, each with the number of faults that it makes

def kill_at_each_step(cell):
    cell.write()
    for step in STEPS:
        before = rows_in(cell.place)
        cell.killed(step)
        assert rows_in(cell.place) == (cell.expected() if step == COMMITTED else before)
    return len(STEPS)


def kill_before_write(cell):
    cell.write()
    cell.killed(BEFORE_WRITE)
    return 1


def kill_after_files(cell):
    cell.write()
    cell.killed(FILES_WRITTEN)
    assert rows_in(cell.place) == []
    return 1


def kill_before_commit(cell):
    cell.write()
    cell.succeed()
    cell.write()
    cell.killed(BEFORE_COMMIT)
    return 1


def kill_after_commit(cell):
    cell.write()
    cell.killed(COMMITTED)
    assert rows_in(cell.place) == cell.expected()
    return 1


def two_drivers(cell):
    cell.write()
    both = [cell.held(), cell.held()]
    for driver in both:
        driver.release()
    assert sorted(str(cell.succeed(driver).run) for driver in both) == ['1', 'None']
    return 1


def foreign_commit(cell):
    """Another program rewrites the files of the table while a run waits to commit."""
    cell.write()
    cell.succeed()
    cell.write()
    driver = cell.held()
    rewrite(cell.place)
    driver.release()
    assert cell.succeed(driver).run == 2
    return 1


def lost_reply(cell):
    cell.write()
    assert cell.succeed(at=COMMITTED, what=LOSE).run == 1
    return 1


def commit_not_sent(cell):
    """The request of a commit is lost, so its outcome is as unknown as that of a lost reply."""
    cell.write()
    assert cell.succeed(at=BEFORE_COMMIT, what=LOSE).run == 1
    return 1


def failed_run(cell):
    cell.write()
    assert 'the run fails' in cell.run(at=BEFORE_COMMIT, what=FAIL).error
    return 1


def failed_task(cell):
    cell.write()
    assert 'the task fails' in cell.run(task=FAIL).error
    return 1


def killed_worker(cell):
    """A process that writes files is killed. Another one takes its task, and the run succeeds."""
    cell.write()
    assert cell.succeed(task=KILL, workers=2).rows == 20
    cell.assert_exactly_once()
    return 1


def maintenance_between(cell):
    """Compaction, expiry of snapshots, and VACUUM between runs and in the middle of one."""
    for _ in range(3):
        cell.write()
        cell.succeed()
    rewrite(cell.place)
    forget(cell.place)
    assert rows_in(cell.place) == cell.expected()
    cell.write()
    driver = cell.held(FILES_WRITTEN)
    rewrite(cell.place)
    driver.release()
    assert cell.succeed(driver).run == 4
    forget(cell.place)
    return 2


def store_fails(cell):
    """The store refuses a few requests, then all of the second half of a run, then it is back."""
    cell.write()
    cell.store.have(Fault('', 'fail', count=2))
    cell.survive()
    cell.write()
    driver = cell.held(FILES_WRITTEN)
    cell.store.have(Fault('', 'fail', status='404 Not Found', count=1_000_000))
    driver.release()
    assert driver.outcome().error is not None
    cell.store.have()
    return 2


def store_slows_down(cell):
    cell.write()
    cell.store.have(Fault('', 'slow', seconds=0.2, count=30))
    assert cell.succeed().run == 1
    cell.store.have()
    return 1


def store_does_twice_what_was_asked(cell):
    """A proxy repeats each write. The condition of the second one fails, because of the first."""
    cell.write()
    cell.store.have(Fault('PUT', 'twice', count=1_000_000))
    assert cell.succeed().run == 1
    cell.store.have()
    return 1


def store_loses_a_reply(cell):
    """The store has done what was asked, and replies with an error. The client sends the request again."""
    cell.write()
    cell.store.have(Fault('PUT.*(_delta_log|metadata|parquet)', 'lose', status='500 Internal Server Error', count=3))
    cell.survive()
    cell.store.have()
    return 3


def catalog_gone(cell):
    """The database of the catalog is away in the middle of a run."""
    cell.write()
    driver = cell.held()
    database = cell.directory / 'catalog.db'
    database.rename(database.with_suffix('.away'))
    driver.release()
    assert driver.outcome().error.startswith(('SourceUnavailable', 'IngestError'))
    database.unlink(missing_ok=True)        # SQLite creates an empty one
    database.with_suffix('.away').rename(database)
    return 1


def broker_killed(cell):
    cell.write()
    driver = cell.held(BEFORE_WRITE)
    cell.broker.kill9()
    driver.release()
    driver.outcome()
    cell.broker.start()
    return 1


def rewrite(place):
    """Replace the files of the table by others, as a compaction does."""
    if place.kind == 'delta':
        from deltalake import DeltaTable
        DeltaTable(place.name, storage_options=dict(place.store)).optimize.z_order(['offset'])
        return
    table = place.open().load(JOB).handle
    table.overwrite(table.scan().to_arrow())


def forget(place):
    """Drop all but the newest version, and the files that only older ones have."""
    if place.kind == 'delta':
        from deltalake import DeltaTable
        table = DeltaTable(place.name, storage_options=dict(place.store))
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        table.create_checkpoint()
        return
    table = place.open().load(JOB).handle
    old = [each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


# ---- cells

EVERYWHERE = (kill_at_each_step, kill_before_write, kill_after_files, kill_before_commit, kill_after_commit,
              two_drivers, foreign_commit, lost_reply, commit_not_sent, failed_run, failed_task, killed_worker,
              maintenance_between)
OF_STORES = (store_fails, store_slows_down, store_does_twice_what_was_asked, store_loses_a_reply)
SAMPLE = {('iceberg-local', kill_after_files), ('iceberg-s3', kill_after_commit), ('delta-local', two_drivers),
          ('delta-s3', kill_at_each_step)}


def cells():
    found = [(place, failure) for place in PLACES for failure in EVERYWHERE]
    found += [(place, failure) for place in ON_S3 for failure in OF_STORES]
    found += [('iceberg-local', catalog_gone)]
    for place, failure in found:
        marks = [] if (place, failure) in SAMPLE else [pytest.mark.soak, pytest.mark.timeout(600)]
        if place.endswith('rest'):
            marks.append(pytest.mark.jvm)
        yield pytest.param(place, failure, id=f'{place}-{failure.__name__}', marks=marks)


@pytest.mark.parametrize(('place', 'failure'), list(cells()), indirect=['place'])
def test_every_row_is_in_the_table_once_after(failure, cell, tally):
    count = failure(cell)
    cell.finish()
    tally('failures of an ingest into a table', count)
