"""The failure table of ingests into tables: after each failure and the next run, every row is in the table once.

Each cell is a format, a place and a failure. The default run has a few cells, and the soak all of them. Rows are those
that a read_committed consumer of another project receives. The store has no other files than those of the table.
"""
from threading import Event

import pytest
from support.lake.catalog_proxy import refusal
from support.lake.lake_runs import (
    BEFORE_COMMIT,
    BEFORE_WRITE,
    COMMITTED,
    FAIL,
    FILES_WRITTEN,
    JOB,
    KILL,
    LOSE,
    STEPS,
    files_of,
    rows_in,
)
from support.lake.object_store import Fault
from support.spark.ingest_topics import Writer

TALLIED = 'failures of an ingest into a table'
PLACES = ('iceberg-local', 'iceberg-s3', 'iceberg-rest', 'delta-local', 'delta-s3')
ON_S3 = ('iceberg-s3', 'iceberg-rest', 'delta-s3')


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


def four_drivers_at_full_speed(cell):
    """The drivers create the table at the same time. Then they race for the run, and some lose it."""
    for _ in range(2):
        cell.write()
        drivers = [cell.start() for _ in range(4)]
        rows = [cell.succeed(driver).rows for driver in drivers]
        assert sorted(rows) == [0, 0, 0, 20]
        assert rows_in(cell.place) == cell.expected()
    return 2


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


def store_does_not_delete(cell):
    """The rights to delete are missing. The rows are in the table, and a note names the leftovers."""
    cell.write()
    cell.killed(FILES_WRITTEN)
    cell.store.have(Fault(r'DELETE|POST \S*\?delete', 'fail', status='403 Forbidden', count=1_000_000))
    for run in (1, None):
        outcome = cell.run()
        assert (outcome.error, outcome.run) == (None, run)
        assert 'kbroker/default-000001-' in str(outcome.notes)
        assert '\n' not in ''.join(outcome.notes)
        assert rows_in(cell.place) == cell.expected()
    cell.store.have()
    return 1


def catalog_gone(cell):
    """The database of the catalog is unreadable in the middle of a run."""
    cell.write()
    driver = cell.held()
    database = cell.directory / 'catalog.db'
    content = database.read_bytes()
    database.write_bytes(b'x' * len(content))
    driver.release()
    assert driver.outcome().error.startswith(('TableUnavailable', 'IngestError'))
    database.write_bytes(content)
    return 1


def catalog_read_only(cell):
    """The database of the catalog is moved away in the middle of a run. SQLite still reads it, and does not write."""
    cell.write()
    driver = cell.held()
    database = cell.directory / 'catalog.db'
    away = database.rename(cell.directory / 'away.db')
    driver.release()
    assert 'commits failed, and their rows are not in the table' in cell.survive(driver).error
    away.rename(database)
    return 1


def commits_meet(proxy, *answers):
    """Let the next commits to the catalog meet these answers, each a function of `forward`. Return the answers left."""
    left = list(answers)

    def answer(method, path, forward):
        return left.pop(0)(forward) if left and method == 'POST' and '/tables/' in path else forward()
    proxy.answer = answer
    return left


def catalog_fails(cell):
    """The catalog refuses commits without doing them, or does one and reports a failure."""
    cell.write()
    cell.succeed()
    cell.write()
    left = commits_meet(cell.proxy, lambda forward: refusal(503), lambda forward: refusal(500),
                        lambda forward: forward() and refusal(500))
    assert cell.succeed().run == 2
    assert left == []
    return 3


def catalog_loses_requests_and_replies(cell):
    cell.write()
    cell.succeed()
    cell.write()
    left = commits_meet(cell.proxy, lambda forward: None, lambda forward: forward() and None)
    assert cell.succeed().run == 2
    assert left == []
    return 2


def catalog_does_twice_what_was_asked(cell):
    cell.write()
    cell.succeed()
    cell.write()
    left = commits_meet(cell.proxy, lambda forward: (forward(), forward())[1])
    assert cell.succeed().run == 2
    assert left == []
    return 1


def catalog_slows_down(cell):
    cell.write()
    cell.proxy.answer = lambda method, path, forward: Event().wait(0.5) or forward()
    assert cell.succeed().run == 1
    return 1


def a_commit_arrives_late(cell):
    """A commit whose reply is lost is repeated. The first request reaches the catalog after the second."""
    cell.write()
    cell.succeed()
    cell.write()
    late = []
    commits_meet(cell.proxy, late.append)
    assert cell.succeed().run == 2
    assert late[0]().status == 409
    return 1


def catalog_is_down(cell):
    cell.write()
    driver = cell.held()
    cell.proxy.answer = lambda method, path, forward: None
    driver.release()
    cell.survive(driver)
    cell.proxy.answer = None
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
    opened = place.open()
    table = opened.load(JOB).handle
    before, *_ = files_of(place)
    old = [each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    for path in before - files_of(place)[0]:    # pyiceberg leaves the files to others
        opened.store.delete(path)


# ---- cells

EVERYWHERE = (kill_at_each_step, kill_before_write, kill_after_files, kill_before_commit, kill_after_commit,
              two_drivers, four_drivers_at_full_speed, foreign_commit, lost_reply, commit_not_sent, failed_run,
              failed_task, killed_worker, maintenance_between)
OF_STORES = (store_fails, store_slows_down, store_does_twice_what_was_asked, store_loses_a_reply,
             store_does_not_delete)
OF_CATALOGS = (catalog_fails, catalog_loses_requests_and_replies, catalog_does_twice_what_was_asked,
               catalog_slows_down, a_commit_arrives_late, catalog_is_down)
SAMPLE = {('iceberg-local', kill_after_files), ('iceberg-s3', kill_after_commit), ('delta-local', two_drivers),
          ('delta-s3', kill_at_each_step)}


def cells():
    found = [(place, failure) for place in PLACES for failure in EVERYWHERE]
    found += [(place, failure) for place in ON_S3 for failure in OF_STORES]
    found += [('iceberg-rest', failure) for failure in OF_CATALOGS]
    found += [('iceberg-local', failure) for failure in (catalog_gone, catalog_read_only)]
    for place, failure in found:
        marks = [] if (place, failure) in SAMPLE else [pytest.mark.soak, pytest.mark.timeout(600)]
        if place.endswith('rest'):
            marks.append(pytest.mark.jvm)
        yield pytest.param(place, failure, id=f'{place}-{failure.__name__}', marks=marks)


@pytest.mark.parametrize(('where', 'failure'), list(cells()))
def test_every_row_is_in_the_table_once_after(where, failure, make_cell, shared_broker, lake_writer, tally):
    cell = make_cell(where, shared_broker, lake_writer)
    count = failure(cell)
    cell.finish()
    tally(TALLIED, count)


@pytest.mark.soak
@pytest.mark.parametrize('where', ['iceberg-local', 'delta-local'])
@pytest.mark.parametrize('step', [BEFORE_WRITE, FILES_WRITTEN, COMMITTED])
def test_every_row_is_in_the_table_once_after_the_broker_is_killed(where, step, make_cell, start_broker, tally):
    """The run is at a step when the broker dies. It fails or ends, as the step needs the broker."""
    broker = start_broker()
    cell = make_cell(where, broker, Writer(broker.address, 'lake-kills'))
    cell.write()
    driver = cell.held(step)
    broker.kill9()
    if step != BEFORE_WRITE:        # its tasks wait for the broker
        driver.release()
        driver.outcome()
    broker.start()
    driver.release()
    driver.outcome()
    cell.finish()
    tally(TALLIED, 1)
