"""A stream reports skipped offsets to `skippedTo`, once for each micro-batch, however often Spark repeats it."""
import shutil

from spark_rows import LogFiles, damage, schema_of

from kbroker_tools.spark.decoded import Columns
from kbroker_tools.spark.offsets import to_json
from kbroker_tools.spark.options import parse_options
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.stream import RecordsStreamReader


class Query:
    """A streaming query. It runs each micro-batch with a new reader, as Spark does after a restart."""

    def __init__(self, log, skipped_to, **options):
        self.skipped_to = skipped_to
        self.options = {'path': str(log.path), 'skippedTo': str(skipped_to), 'failOnDataLoss': 'false', **options}

    def play(self, begin, end, partition=('topic', 0)):
        """Run a micro-batch. Return the values from offset `begin` to `end`."""
        reader = RecordsStreamReader(parse_options(self.options), Columns.of(schema_of(self.options, ['value']), None))
        tasks = reader.partitions(to_json({partition: begin}), to_json({partition: end}))
        return [row['value'].decode() for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]

    @property
    def skipped(self):
        return Skipped.read(self.skipped_to)


def test_a_micro_batch_that_is_played_again_counts_once(log, tmp_path):
    for number in range(4):
        log.write(f'a{number}', producer_id=1)
        log.end(1, commit=False)
        log.write(str(number))
    log.flush()
    query = Query(log, tmp_path / 'told')
    assert query.play(0, 6) == ['0', '1']
    assert query.play(0, 6) == ['0', '1']
    assert query.skipped.aborted == {('topic', 0): 2}
    # The report of a range is named after the first batch of the range. Both ranges begin in the same batch, because
    # the index has only one entry.
    assert query.play(6, 12) == ['2', '3']
    assert query.skipped.aborted == {('topic', 0): 4}


def test_a_micro_batch_that_is_cut_otherwise_when_it_is_played_again_counts_once(log, tmp_path):
    for _ in range(4):
        log.write('a', producer_id=1)
        log.end(1, commit=False)
        log.roll()
    query = Query(log, tmp_path / 'told', maxRecordsPerPartition='1')
    assert query.play(0, 8) == []
    assert query.skipped.aborted == {('topic', 0): 4}
    assert len(list(query.skipped_to.iterdir())) > 2
    del query.options['maxRecordsPerPartition']
    assert query.play(0, 8) == []
    assert query.skipped.aborted == {('topic', 0): 4}


def test_damaged_or_lost_records_are_reported_for_a_micro_batch(log, tmp_path):
    for number in range(5):
        log.write(f'value {number}')
    log.flush()
    path = log.segments()[0]
    damage(path, path.read_bytes().index(b'value 3'), b'V')
    query = Query(log, tmp_path / 'told')
    for _ in range(2):
        assert query.play(0, 5) == [f'value {number}' for number in (0, 1, 2, 4)]
        assert [(loss.first_offset, loss.lost_offsets) for loss in query.skipped.losses] == [(3, 1)]
    # The micro-batch is repeated after the log start has moved past the damage. The report then has the loss of the
    # repetition.
    checkpoint = log.path / 'log-start-offset-checkpoint'
    checkpoint.write_text('0\n1\ntopic 0 4\n')
    assert query.play(0, 5) == ['value 4']
    assert [(loss.first_offset, loss.lost_offsets) for loss in query.skipped.losses] == [(0, 4)]


def test_a_partition_that_is_gone_is_lost_as_far_as_it_was_to_be_read(log, tmp_path):
    log.write('a')
    log.flush()
    other = LogFiles(tmp_path / 'other', 'gone')
    other.write('b', 'c')
    other.flush()
    shutil.copytree(other.partition, log.path / 'gone-0')
    query = Query(log, tmp_path / 'told')
    assert query.play(0, 2, ('gone', 0)) == ['b', 'c']
    assert query.skipped.losses == []
    shutil.rmtree(log.path / 'gone-0')
    assert query.play(1, 2, ('gone', 0)) == []
    assert query.play(2, 2, ('gone', 0)) == []
    assert [(loss.topic, loss.first_offset, loss.lost_offsets) for loss in query.skipped.losses] == [('gone', 1, 1)]


def test_a_query_that_skipped_nothing_reports_so(log, tmp_path):
    log.write('a')
    log.flush()
    query = Query(log, tmp_path / 'told')
    assert query.play(0, 1) == ['a']
    assert (query.skipped.lost_offsets, query.skipped.aborted_transactions) == (0, 0)
    assert [path.name for path in query.skipped_to.iterdir()] == ['plan.json']
