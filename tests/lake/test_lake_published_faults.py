"""Faults that were published of Iceberg's sink for Kafka Connect do not occur here.

The sink keeps its offsets in a control topic, in a consumer group and in summaries of snapshots, and a coordinator
commits files that tasks report to it. Here the offsets are in the commit of the files, and nowhere else.
"""
import pytest
from support.lake.lake_runs import COMMITTED, KILL, rows_in
from support.spark.ingest_topics import Writer, create_topic, delete_records

TALLIED = 'failures of an ingest into a table'
PLACES = ['iceberg-local', 'delta-local']
ELSEWHERE = [pytest.param(place, marks=pytest.mark.soak) for place in ('iceberg-s3', 'delta-s3')]


@pytest.mark.parametrize('where', [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.soak), *ELSEWHERE])
def test_a_driver_that_was_replaced_does_not_set_offsets_back(where, make_cell, shared_broker, lake_writer, tally):
    """apache/iceberg #17551: a coordinator that outlives its replacement writes its older offset of the control topic.
    If retention has removed the records after it, rows are lost."""
    cell = make_cell(where, shared_broker, lake_writer)
    cell.write()
    zombie = cell.held()
    assert cell.succeed().run == 1
    cell.write()
    assert cell.succeed().run == 2
    expected = cell.expected()
    for partition in (0, 1):
        last = max(offset for _, at, offset, *_ in expected if at == partition)
        delete_records(shared_broker.address, cell.topic, partition, last)
    zombie.release()
    assert cell.succeed(zombie).run is None
    assert rows_in(cell.place) == expected
    cell.write()
    assert cell.succeed().rows == 20
    new = [row for row in cell.expected() if row not in expected]
    assert rows_in(cell.place) == sorted(expected + new)
    tally(TALLIED, 1)


@pytest.mark.soak
@pytest.mark.parametrize('where', [*PLACES, *ELSEWHERE])
def test_the_files_of_a_task_that_is_restarted_are_committed_once(where, make_cell, shared_broker, lake_writer, tally):
    """apache/iceberg #17340: after a restart of tasks in the middle of a commit, two commits add the same files,
    because the offset of the control topic is set back."""
    cell = make_cell(where, shared_broker, lake_writer)
    for _ in range(2):
        cell.write()
        assert cell.succeed(task=KILL, workers=2).rows == 20
        cell.assert_exactly_once()
    cell.finish()
    tally(TALLIED, 1)


@pytest.mark.soak
@pytest.mark.parametrize('where', [*PLACES, *ELSEWHERE])
def test_drivers_that_take_over_after_a_commit_do_not_repeat_it(where, make_cell, shared_broker, lake_writer, tally):
    """apache/iceberg #16282: a coordinator dies after a commit to the table, and before it commits its offset of the
    control topic. The next one adds the same files in another snapshot."""
    cell = make_cell(where, shared_broker, lake_writer)
    cell.write()
    cell.killed(COMMITTED)
    successors = [cell.start(), cell.start()]
    assert [cell.succeed(each).run for each in successors] == [None, None]
    cell.finish()
    tally(TALLIED, 1)


@pytest.mark.soak
@pytest.mark.parametrize('where', [*PLACES, *ELSEWHERE])
def test_a_cluster_that_was_created_again_is_refused_and_another_job_reads_it(where, make_cell, start_broker, tally):
    """apache/iceberg #15293: offsets of the new cluster begin at 0, below those in the table. The sink writes files and
    commits none of them, without an error."""
    old, new = start_broker(), start_broker()
    cell = make_cell(where, old, Writer(old.address, 'lake-old'))
    cell.write()
    cell.succeed()
    expected = cell.expected()
    create_topic(new.address, name=cell.topic)
    cell.broker, cell.writer = new, Writer(new.address, 'lake-new')
    cell.write()
    outcome = cell.run()
    assert 'job default has ingested cluster' in outcome.error
    assert outcome.error.startswith('IngestError')
    assert rows_in(cell.place) == expected
    assert cell.succeed(job='new-cluster').rows == 20
    assert rows_in(cell.place) == sorted(expected + cell.expected())
    tally(TALLIED, 1)
