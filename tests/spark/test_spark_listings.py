"""The number of times that a reader lists a directory in which a writer rolls and deletes segments."""
import pytest
from spark_rows import LogFiles, make_reader

from kbroker_tools.spark.partition_files import PartitionFiles
from kbroker_tools.spark.storage import FileFacts, Storage

SEGMENTS = 5
LISTINGS_OF_A_LOST_RANGE = 2
"""Two that agree."""


@pytest.fixture
def log(tmp_path):
    """Return a log with two batches in each segment."""
    files = LogFiles(tmp_path / 'logs')
    for number in range(2 * SEGMENTS):
        files.write(f'value {number}')
        if number % 2:
            files.roll()
    return files.flush()


@pytest.fixture
def calls(monkeypatch):
    """Return a list of the reader's accesses: the name of each opened file, and 'list' for each listing of the
    directory."""
    found = []
    plain_list, plain_open = Storage.list, Storage.open
    monkeypatch.setattr(Storage, 'list', lambda self: found.append('list') or plain_list(self))
    monkeypatch.setattr(Storage, 'open', lambda self, name: found.append(name) or plain_open(self, name))
    return found


def plan(log, **options):
    """Return (a reader, its tasks). There is one task for each batch."""
    reader = make_reader(path=log.path, splitBytes=1, **options)
    return reader, reader.partitions()


def values_of(reader, tasks):
    return [row['value'].decode() for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


@pytest.mark.parametrize('scheme', ['', 'file://'])
def test_tasks_whose_segments_are_as_planned_list_nothing(log, calls, scheme):
    reader = make_reader(path=f'{scheme}{log.path}', splitBytes=1)
    tasks = reader.partitions()
    calls.clear()
    assert values_of(reader, tasks) == [f'value {number}' for number in range(2 * SEGMENTS)]
    assert len(tasks) == 2 * SEGMENTS and 'list' not in calls


def test_lost_ranges_cost_the_same_while_the_writer_rolls(log, calls, monkeypatch):
    """Two listings of the directory differ in their last segments. For the last range of the plan, the reader once
    opened all of these segments."""
    reader, tasks = plan(log, failOnDataLoss='false')
    log.roll()
    log.log.delete_records(log.log.log_end_offset)
    log.log.apply_retention(log.log.log_end_offset)
    counted_list = Storage.list

    def list_between_rolls(self):
        log.write('new')
        log.roll()
        return counted_list(self)

    monkeypatch.setattr(Storage, 'list', list_between_rolls)
    calls.clear()
    assert values_of(reader, tasks) == []
    assert calls.count('list') == LISTINGS_OF_A_LOST_RANGE * len(tasks)
    assert len(calls) - calls.count('list') == len(tasks)


def segment(base, *kinds):
    return {f'{base:020d}.{kind}': FileFacts(100, 0) for kind in ('log', *kinds)}


@pytest.mark.parametrize(('listings', 'bases'), [
    ([segment(0) | segment(10), segment(0) | segment(10) | segment(20)], [0, 10]),
    ([segment(0) | segment(10), segment(0) | segment(10, 'txnindex') | segment(20)], [0, 10]),
    ([segment(0) | segment(10), segment(0, 'txnindex') | segment(10), segment(0, 'txnindex') | segment(10)], [0, 10]),
    ([segment(0) | segment(20), segment(0) | segment(10) | segment(20), segment(0) | segment(10) | segment(20)],
     [0, 10, 20]),
    ([segment(0) | segment(10), segment(0) | segment(20), segment(0) | segment(20)], [0, 20]),
    ([{}, {}], []), ([{}, segment(0), segment(0)], [0]),
], ids=['roll', 'abort-in-the-last', 'abort-in-a-sealed', 'missed-one', 'deleted-last', 'empty', 'first'])
def test_listings_agree_on_the_segments_of_the_earlier_one(listings, bases):
    left = list(listings)

    class Changing(Storage):
        def list(self):
            return left.pop(0)

    files = PartitionFiles.list(Changing('/logs/topic-0'), 'topic', 0)
    assert [each.base_offset for each in files.segments] == bases and left == []
