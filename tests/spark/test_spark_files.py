"""Rows that the source reads from files, for every state of a log."""
import os
import pickle
import shutil
import time

import pytest
from spark_rows import WHEN_MS, LogFiles, as_time, batches, damage, make_reader, rows, values

from kbroker.base.errors import CorruptLogError
from kbroker.record.batch import read_header
from kbroker_tools.spark import pins
from kbroker_tools.spark.file_place import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from kbroker_tools.spark.file_ranges import ABORTED_OF_A_TASK, DataLossError
from kbroker_tools.spark.options import OptionError
from kbroker_tools.spark.partition_files import PartitionFiles
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.storage import FileFacts, Storage

# ---- ends and contents of a log

def test_a_log_that_ends_in_a_marker(log):
    log.write('a', 'b', producer_id=1)
    log.end(1)
    assert values(path=log.flush().path) == ['a', 'b']


def test_a_log_that_ends_in_an_aborted_transaction(log):
    log.write('a')
    log.write('b', producer_id=1)
    log.end(1, commit=False)
    assert values(path=log.flush().path) == ['a']
    assert values(path=log.path, isolation='read_uncommitted') == ['a', 'b']


def test_a_log_that_ends_in_an_open_transaction(log):
    log.write('a')
    log.write('b', producer_id=1)
    log.write('c')
    log.flush()
    assert values(path=log.path) == ['a']
    assert values(path=log.path, isolation='read_uncommitted') == ['a', 'b', 'c']


def test_an_aborted_transaction_that_ends_above_the_last_stable_offset(log):
    log.write('aborted', producer_id=2)
    log.write('open', producer_id=1)
    log.end(2, commit=False)
    log.flush()
    assert values(path=log.path) == []
    assert [(row['value'], row['outcome']) for row in rows(
        path=log.path, isolation='read_uncommitted', includeTransactions='true')] == [
            (b'aborted', 'aborted'), (b'open', 'open')]


def test_a_piece_in_which_all_is_aborted(log):
    log.write('first')
    for number in range(20):
        log.write('x' * 5000 + str(number), producer_id=1)
    log.end(1, commit=False)
    log.write('last')
    log.flush()
    tasks = batches(path=log.path, splitBytes='5000')
    assert len(tasks) > 10
    assert [batch['value'].to_pylist() for task in tasks for batch in task] == [[b'first'], [b'last']]


def test_an_empty_partition_and_an_empty_topic(log):
    log.flush()
    reader = make_reader(path=log.path)
    assert reader.partitions() == []
    assert list(reader.read(type('NoPartition', (), {'value': None})())) == []


def write_and_delete(log, values, start_offset):
    """Write each value to a separate segment. Then delete the records below `start_offset`."""
    for value in values:
        log.write(value)
        log.roll()
    log.log.delete_records(start_offset)
    log.directory.manager.start_offsets.write()


def test_a_log_that_begins_above_0(log):
    write_and_delete(log, 'abcd', 2)
    assert [row['offset'] for row in rows(path=log.path)] == [2, 3]
    # If the path is that of a single partition, the source finds the checkpoints in the log directory above it.
    assert [row['offset'] for row in rows(path=log.partition)] == [2, 3]
    assert LOG_START in os.listdir(log.path)


def test_a_compacted_log(tmp_path):
    log = LogFiles(tmp_path, cleanup_policy='compact')
    for number in range(5):
        log.write(f'a{number}', key=b'a')
        log.write(f'b{number}', key=b'b')
    log.directory.clean(log.log)
    log.write('c', key=b'c')
    assert [(row['offset'], row['value']) for row in rows(path=log.flush().path)] == [
        (8, b'a4'), (9, b'b4'), (10, b'c')]


def test_a_torn_tail(log):
    log.write('a')
    log.write('b')
    log.flush()
    os.truncate(log.segments()[0], log.segments()[0].stat().st_size - 1)
    assert values(path=log.path) == ['a']


def test_zeros_behind_the_last_batch(log):
    log.write('a')
    log.flush()
    os.truncate(log.segments()[0], 1_000_000)
    assert values(path=log.path) == ['a']


@pytest.mark.parametrize('codec', range(5))
def test_every_codec(log, codec):
    log.write(*'abc', codec=codec)
    log.flush()
    found = rows(path=log.path, includeTransactions='true')
    assert [row['value'] for row in found] == [b'a', b'b', b'c']
    assert {row['compression'] for row in found} == {('none', 'gzip', 'snappy', 'lz4', 'zstd')[codec]}


def test_keys_values_and_headers_that_are_null_or_empty(log):
    log.write(None, key=None)
    log.write('', key=b'', headers=[('h', None), ('', b''), ('h', b'x')])
    log.flush()
    found = [(row['key'], row['value'], row['headers']) for row in rows(path=log.path, includeHeaders='true')]
    assert found == [(None, None, None), (b'', b'', [{'key': 'h', 'value': None}, {'key': '', 'value': b''},
                                                     {'key': 'h', 'value': b'x'}])]


def test_times_of_creation_and_of_appending(log):
    log.write('a', at_ms=5)
    log.write('b', at_ms=5, log_append_time_ms=WHEN_MS + 9)
    found = rows(path=log.flush().path)
    assert [(row['timestamp'], row['timestampType']) for row in found] == [(as_time(5), 0), (as_time(9), 1)]


def test_a_narrow_schema_decodes_what_it_names_and_no_more(log, monkeypatch):
    log.write('a', headers=[('h', b'x')])
    log.flush()
    asked = []
    from kbroker_tools.spark import file_ranges
    decoder = file_ranges.ColumnDecoder
    monkeypatch.setattr(file_ranges, 'ColumnDecoder', lambda columns, **rest: (
        asked.append(list(columns)), decoder(columns, **rest))[1])
    assert rows(columns=['offset', 'topic'], path=log.path) == [{'offset': 0, 'topic': 'topic'}]
    assert rows(columns=['topic'], path=log.path) == [{'topic': 'topic'}]
    assert rows(columns=['headers'], path=log.path) == [{'headers': [{'key': 'h', 'value': b'x'}]}]
    assert asked == [['offset'], [], ['headers']]


def test_columns_of_transactions(log):
    log.write('a', 'b', producer_id=7)
    log.end(7)
    log.write('c')
    log.flush()
    found = rows(path=log.path, includeTransactions='true')
    names = ('producer_id', 'producer_epoch', 'sequence', 'is_transactional', 'outcome', 'batch_base_offset')
    assert [tuple(row[name] for name in names) for row in found] == [
        (7, 0, 0, True, 'committed', 0), (7, 0, 1, True, 'committed', 0), (-1, -1, -1, False, None, 3)]


# ---- starting and ending offsets

def test_offsets_and_times(log):
    for number in range(10):
        log.write(str(number), at_ms=number * 1000)
        if number % 3 == 2:
            log.roll()
    log.flush()
    at = {'path': log.path}
    assert values(**at, startingOffsets='{"topic":{"0":4}}', endingOffsets='{"topic":{"0":6}}') == ['4', '5']
    assert values(**at, startingOffsets='{"topic":{"0":-2}}', endingOffsets='{"topic":{"0":-1}}') == list('0123456789')
    assert values(**at, startingOffsets='latest') == []
    for number in range(10):
        expected = [str(each) for each in range(number, 10)]
        assert values(**at, startingTimestamp=WHEN_MS + number * 1000) == expected
        assert values(**at, startingTimestamp=WHEN_MS + number * 1000 - 1) == expected
    assert values(**at, endingTimestamp=WHEN_MS + 2500) == ['0', '1', '2']
    assert values(**at, startingOffsetsByTimestamp=f'{{"topic":{{"0":{WHEN_MS + 8000}}}}}') == ['8', '9']
    assert values(**at, endingOffsetsByTimestamp=f'{{"topic":{{"0":{WHEN_MS + 1000}}}}}') == ['0']
    # Times take precedence over offsets, as in Spark's connector.
    assert values(**at, startingTimestamp=WHEN_MS + 9000, startingOffsets='earliest') == ['9']
    assert values(**at, startingTimestamp=WHEN_MS + 99_000, startingOffsetsByTimestampStrategy='latest') == []
    with pytest.raises(OptionError, match='startingTimestamp: topic-0 has no record at or after'):
        values(**at, startingTimestamp=WHEN_MS + 99_000)


@pytest.mark.parametrize(('options', 'text'), [
    ({'startingOffsets': '{"topic":{"1":0}}'}, r'startingOffsets: found topic-1, expected some of topic-0'),
    ({'startingOffsets': '{"topic":{"0":99}}'}, 'found 99 for topic-0, which can be read up to 1'),
    ({'endingOffsets': '{"topic":{"0":99}}'}, 'found 99 for topic-0, which can be read up to 1'),
    ({'endingOffsets': '{"topic":{"0":-2}}'}, 'expected an offset or -1'),
    ({'subscribe': 'toppic'}, "found topic 'toppic', which does not exist; there are topic"),
    ({'assign': '{"topic":[0,3]}'}, 'found topic-3, which does not exist; there are topic-0'),
    ({'subscribePattern': 'top'}, "found 'top', which matches no whole topic name; there are topic-0"),
])
def test_what_was_asked_for_is_checked_against_what_is_there(log, options, text):
    log.write('a')
    with pytest.raises(OptionError, match=text):
        rows(path=log.flush().path, **options)


def test_an_offset_below_the_start_of_the_log(log):
    write_and_delete(log, 'abc', 2)
    asked = {'path': log.path, 'startingOffsets': '{"topic":{"0":1}}'}
    with pytest.raises(OptionError, match='found 1 for topic-0, whose log starts at 2; with failOnDataLoss=false'):
        rows(**asked)
    assert values(**asked, failOnDataLoss='false') == ['c']


def test_up_to_what_is_known_to_be_synced_or_replicated(log):
    log.write('a')
    log.write('b')
    log.flush()
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        (log.path / name).write_text('0\n1\ntopic 0 1\n')
    assert values(path=log.path) == ['a', 'b']
    assert values(path=log.path, upTo='recoveryPoint') == ['a']
    assert values(path=log.path, upTo='hw') == ['a']
    (log.path / HIGH_WATERMARK).unlink()
    with pytest.raises(OptionError, match=f'upTo: found hw, and no file {HIGH_WATERMARK} in '):
        rows(path=log.path, upTo='hw')


# ---- sizes

def test_more_tasks_where_they_are_asked_for(log):
    for number in range(200):
        log.write('x' * 1000 + str(number))
    log.flush()
    expected = values(path=log.path)
    assert len(batches(path=log.path)) == 1
    for options, least in (({'splitBytes': '20k'}, 8), ({'minPartitions': '5'}, 4),
                           ({'maxRecordsPerPartition': 10}, 15)):
        assert len(batches(path=log.path, **options)) >= least
        assert values(path=log.path, **options) == expected
    for task in batches(path=log.path, maxRecordsPerPartition=10):
        assert sum(batch.num_rows for batch in task) <= 20
    assert max(batch.num_rows for batch in batches(path=log.path, batchRows=7)[0]) == 7
    assert len(batches(path=log.path, batchBytes='900')[0]) == 200


def test_tasks_are_of_equal_size(log):
    """The last task is no smaller than the others."""
    for number in range(400):
        log.write('x' * 1000 + str(number).zfill(4))
    size = sum(segment.stat().st_size for segment in log.flush().segments())
    for tasks in (2, 3, 4, 7):
        counts = [sum(batch.num_rows for batch in task) for task in batches(path=log.path, splitBytes=size // tasks)]
        assert len(counts) == tasks
        assert max(counts) - min(counts) <= 4 * tasks, counts  # the index has an entry every 4 KiB


def test_the_zeros_of_an_index_that_a_broker_made_of_its_full_size(log):
    for number in range(200):
        log.write('x' * 1000 + str(number))
    index = log.flush().segments()[0].with_suffix('.index')
    written = index.read_bytes().rstrip(b'\0')
    for zeros in (0, 8, 100_000, 1_000_000):
        index.write_bytes(written.ljust(-(-len(written) // 8) * 8, b'\0') + bytes(zeros))
        assert len(batches(path=log.path, splitBytes='20k')) >= 8
        assert len(values(path=log.path, splitBytes='20k')) == 200


def test_small_partitions_share_a_task(tmp_path):
    for topic in 'abcdef':
        LogFiles(tmp_path / topic, topic).write(topic)
    paths = ','.join(str(tmp_path / topic) for topic in 'abcdef')
    assert len(batches(path=paths)) == 1
    assert values(path=paths) == list('abcdef')


# ---- loss

def write_each(log, values):
    """Write the values. Return for each value the position in the file at which its batch ends."""
    return [log.segments()[0].stat().st_size for value in values if log.write(value) >= 0 and log.flush()]


def test_damage_inside_the_log(log, caplog):
    positions = write_each(log, 'abcde')
    path = log.segments()[0]
    damage(path, positions[1] - 1, b'\xff')
    with pytest.raises(DataLossError) as loss:
        rows(path=log.path)
    for part in (str(path), f'position {positions[0]}', 'offsets 1 to 1 of topic-0', 'failOnDataLoss=false',
                 'kbroker-dump-log'):
        assert part in str(loss.value)
    assert values(path=log.path, failOnDataLoss='false') == ['a', 'c', 'd', 'e']
    for part in ('lost are records among the 1 offsets 1 to 1 of topic-0', 'They were skipped'):
        assert part in caplog.text


def test_a_hole_burnt_into_the_log(log):
    positions = write_each(log, [value * 100 for value in 'abcdefgh'])
    damage(log.segments()[0], positions[2] - 20, os.urandom(positions[4] - positions[2] + 10))
    with pytest.raises(DataLossError, match='offsets 2 to'):
        rows(path=log.path)
    assert [value[0] for value in values(path=log.path, failOnDataLoss='false')] == ['a', 'b', 'f', 'g', 'h']


def test_a_base_offset_that_goes_back(log):
    for value in 'abcd':
        log.write(value)
    path = log.flush().segments()[0]
    damage(path, path.stat().st_size // 2, bytes(8))
    with pytest.raises(DataLossError, match='found a batch at offset 0, expected 2 or above'):
        rows(path=log.path)
    assert values(path=log.path, failOnDataLoss='false') == ['a', 'b', 'd']


def test_damage_is_not_looked_for_when_checksums_are_not_checked(log):
    log.write('abc')
    log.write('d')
    path = log.flush().segments()[0]
    damage(path, path.read_bytes().index(b'abc'), b'x')
    assert values(path=log.path, checkCrcs='false') == ['xbc', 'd']


def planned(log, columns=None, **options):
    reader = make_reader(columns, path=log.path, **options)
    tasks = reader.partitions()
    return lambda: [row['value'].decode() for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


@pytest.fixture
def segmented(log):
    for value in 'abcdef':
        log.write(value * 50)
        log.roll()
    log.write('g' * 50)
    return log.flush()


@pytest.mark.parametrize(('gone', 'text'), [
    ([0, 1], 'the segment is gone, the log now begins at offset 2; lost are records among the 1 offsets 0 to 0'),
    ([3], 'the segment is gone, and no cleaner has touched the one before it; lost are records among the 1 offsets 3 '),
    (range(7), 'the segment and all others are gone'),
])
def test_segments_that_vanish_after_the_plan(segmented, gone, text):
    read = planned(segmented, splitBytes='1')
    skipping = planned(segmented, splitBytes='1', failOnDataLoss='false')
    for number in sorted(gone, reverse=True):
        segmented.segments()[number].unlink()
    with pytest.raises(DataLossError, match=text):
        read()
    assert [value[0] for value in skipping()] == [value for number, value in enumerate('abcdefg') if number not in gone]


def test_a_cleaning_after_the_plan_loses_nothing_but_what_is_superseded(tmp_path):
    log = LogFiles(tmp_path, cleanup_policy='compact', segment_bytes=600)
    for number in range(40):
        log.write(f'{number:050}', key=b'%d' % (number % 15))
    log.roll()
    read = planned(log, splitBytes='1')
    before = read()
    log.directory.clean(log.log)
    after = [int(value) for value in read()]
    assert len(before) == 40 and set(range(25, 40)) <= set(after) and after == sorted(after)
    assert after == [int(value) for value in values(path=log.path)]


def test_pinned_segments_outlive_their_deletion(segmented):
    (segmented.path / 'meta.properties').write_text('version=1\n')
    read = planned(segmented, pin='hardlink')
    pinned = list(segmented.path.parent.glob('kbroker-pin-*'))
    assert len(pinned) == 1 and len(list(pinned[0].glob('topic-0/*.log'))) == 7
    shutil.rmtree(segmented.partition)
    assert [value[0] for value in read()] == list('abcdefg')
    pins.remove_expired(segmented.path.parent, time.time() + pins.EXPIRY_S - 100)
    assert pinned[0].exists()
    pins.remove_expired(segmented.path.parent, time.time() + pins.EXPIRY_S + 100)
    assert not pinned[0].exists()


def test_a_partition_in_no_log_directory_is_pinned_beside_itself(segmented):
    planned(segmented, pin='hardlink')
    assert len(list(segmented.path.glob('kbroker-pin-*'))) == 1


def test_pins_are_for_local_paths(segmented):
    with pytest.raises(OptionError, match=r'pin: found hardlink with file://.*only local paths have'):
        rows(path=f'file://{segmented.path}', pin='hardlink')


# ---- directories

def test_uris_many_paths_and_single_partitions(tmp_path):
    logs = [LogFiles(tmp_path / topic, topic) for topic in 'abc']
    for log in logs:
        log.write(log.log.topic)
        log.flush()
    assert values(path=f'file://{logs[0].path}') == ['a']
    assert values(path=f'file://{logs[0].path}/, {logs[1].path}/,{logs[2].partition}') == ['a', 'b', 'c']
    assert values(paths=f'["{logs[0].path}", "{logs[1].path}"]', subscribe='b') == ['b']
    with pytest.raises(OptionError, match='found a-0 twice'):
        values(path=f'{logs[0].path},{logs[0].partition}')


def test_what_is_no_log_directory(tmp_path):
    for path, text in ((tmp_path, 'found no partition in .* expected a log directory with partitions such as orde'),
                       (tmp_path / 'nothing', 'is not a readable directory'), (__file__, 'is not a readable'),
                       ('nonsense://x/y', 'is not a readable directory')):
        with pytest.raises(OptionError, match=text):
            rows(path=path)


def test_internal_topics_have_to_be_named(tmp_path):
    LogFiles(tmp_path, '__consumer_offsets').write('x')
    with pytest.raises(OptionError, match='there are only __consumer_offsets-0, and topics whose names begin with __'):
        rows(path=tmp_path)
    assert values(path=tmp_path, subscribe='__consumer_offsets') == ['x']


def test_files_of_transactions_that_were_left_behind(segmented, caplog):
    """If a copy has only the `.log` files, or only these and the snapshots, the source reads all batch headers."""
    segmented.write('aborted', producer_id=1)
    segmented.end(1, commit=False)
    segmented.roll()
    segmented.write('h')
    segmented.flush()
    expected = values(path=segmented.path)
    assert expected[-2:] == ['g' * 50, 'h']
    for kind in ('txnindex', 'index', 'timeindex'):
        for path in segmented.partition.glob(f'*.{kind}'):
            path.unlink()
    assert values(path=segmented.path) == expected
    assert 'has no .index' in caplog.text
    for path in segmented.partition.glob('*.snapshot'):
        path.unlink()
    assert values(path=segmented.path) == expected


def test_an_index_of_transactions_that_was_lost_alone_takes_an_option(segmented):
    segmented.write('aborted', producer_id=1)
    segmented.end(1, commit=False)
    segmented.roll()
    segmented.directory.manager.close()  # an unclean stop leaves the indexes untrusted
    expected = values(path=segmented.path)
    for path in segmented.partition.glob('*.txnindex'):
        path.unlink()
    assert values(path=segmented.path) != expected
    assert values(path=segmented.path, verifyTxnIndex='true') == expected


def test_a_swap_that_is_not_over(segmented, monkeypatch):
    monkeypatch.setattr('kbroker_tools.spark.partition_files.SWAP_WAIT_S', 0)
    swap = segmented.segments()[1].rename(segmented.segments()[1].with_suffix('.log.swap'))
    with pytest.raises(CorruptLogError, match=r'\.log\.swap: a broker was killed .* kbroker-check'):
        rows(path=segmented.path)
    waits = []
    monkeypatch.setattr('kbroker_tools.spark.partition_files.time.sleep',
                        lambda _: waits.append(swap.rename(swap.with_suffix(''))))
    assert len(values(path=segmented.path)) == 7 and len(waits) == 1


def test_offline_bounds_are_those_of_the_broker_s_log(log):
    from kbroker_tools.spark.options import parse_options
    from kbroker_tools.spark.tasks import open_place
    log.write('a', producer_id=1)
    log.write('b', producer_id=2)
    log.end(1)
    log.write('c')
    log.flush()
    place = open_place(parse_options({'path': str(log.path)}))
    assert place.bounds('topic', 0).end_offset == log.log.first_unstable_offset() == 1
    uncommitted = open_place(parse_options({'path': str(log.path), 'isolation': 'read_uncommitted'}))
    assert uncommitted.bounds('topic', 0).end_offset == log.log.log_end_offset == 4
    assert read_header(log.segments()[0].read_bytes()).base_offset == 0


def test_many_aborted_transactions_make_small_tasks_not_large_ones(tmp_path):
    """Each task once received all aborted transactions of its segment."""
    log = LogFiles(tmp_path, segment_bytes=1 << 30)
    for number in range(100_000):
        log.write('no', producer_id=number % 7)
        log.end(number % 7, commit=False)
        if number % 1000 == 0:
            log.write(str(number))
    log.flush()
    plan = make_reader(path=log.path).partitions()
    assert len(plan) >= 100_000 / ABORTED_OF_A_TASK
    assert max(len(pickle.dumps(task)) for task in plan) < 500_000
    skipped_to = tmp_path / 'told'
    assert values(path=log.path, skippedTo=skipped_to) == [str(number) for number in range(0, 100_000, 1000)]
    assert Skipped.read(skipped_to).aborted_transactions == 100_000
    assert len(rows(table='aborted', path=log.path)) == 100_000


def test_a_listing_within_a_deletion_has_no_log_file_without_its_transaction_index():
    # A segment is removed during the second listing of its directory: the listing still has its log file, but not its
    # transaction index. The source once accepted two listings with the same log files, and returned aborted records.
    logs = {f'{base:020d}.log': FileFacts(100, 0) for base in (0, 10)}
    whole = logs | {f'{0:020d}.txnindex': FileFacts(34, 0)}
    rest = {name: facts for name, facts in logs.items() if name.startswith(f'{10:020d}')}
    listings = iter([whole, logs, rest, rest])

    class VanishingSegment(Storage):
        def list(self):
            return next(listings)

    files = PartitionFiles.list(VanishingSegment('/logs/topic-0'), 'topic', 0)
    assert [segment.base_offset for segment in files.segments] == [10]
