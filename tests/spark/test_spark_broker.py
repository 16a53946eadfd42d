"""Rows from a broker: tasks, lost records, damage, and the tables of the log compared with the output of the
commands."""
import contextlib
import time
from types import SimpleNamespace

import confluent_kafka
import pytest
from pyspark.sql.types import IntegerType, StructType
from spark_rows import WHEN_MS, LogFiles, batches, damage, make_reader, rows, values

from kbroker.client.admin import LATEST, Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings
from kbroker.record.batch import encode_batch
from kbroker_tools.cluster.directory_view import DirectoryView
from kbroker_tools.cluster.live_view import LiveView
from kbroker_tools.spark import KafkaLogDataSource, broker_place
from kbroker_tools.spark.broker_place import BrokerTask, Fetches
from kbroker_tools.spark.file_ranges import DataLossError, ReadOptions
from kbroker_tools.spark.options import OptionError, parse_options
from kbroker_tools.spark.planning import Slice, resolve
from kbroker_tools.spark.schema import BY_NAME
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.tasks import open_place, rows_of


@pytest.fixture(scope='module')
def kafka(shared_broker):
    cluster = Cluster(ClientConfig.from_settings({'bootstrap.servers': shared_broker.address}))
    yield SimpleNamespace(cluster=cluster, admin=Admin(cluster), address=shared_broker.address,
                          directory=shared_broker.directory)
    cluster.close()


def create(kafka, topic, partitions=1, **configs):
    assert kafka.admin.create_topics([NewTopic(topic, partitions, 1, {
        name.replace('_', '.'): value for name, value in configs.items()})])[topic] is None


def write(kafka, topic, *texts, transactional_id=None, end='commit', partition=0):
    properties = {} if transactional_id is None else {'transactional.id': transactional_id}
    producer = Producer(kafka.cluster, ProducerSettings.from_properties(properties))
    if transactional_id is not None:
        producer.init_transactions()
        producer.begin_transaction()
    for number, text in enumerate(texts):
        producer.send(topic, text.encode(), b'k', partition=partition, timestamp_ms=WHEN_MS + number)
        producer.flush()
    if transactional_id is not None and end == 'commit':
        producer.commit_transaction()
    elif transactional_id is not None and end == 'abort':
        producer.abort_transaction()


def wait_for_end(kafka, topic, offset):
    """Wait until the log end reaches `offset`: markers are written after the response to EndTxn."""
    deadline = time.monotonic() + 120
    while kafka.admin.list_offsets({(topic, 0): LATEST})[topic, 0].offset < offset:
        assert time.monotonic() < deadline, 'no markers'


def at(kafka, topic, **options):
    return {'kafka_bootstrap_servers': kafka.address, 'subscribe': topic, **options}


def table(name, kafka, topic, **options):
    return {key: {tuple(sorted(row.items(), key=str)) for row in rows(table=name, **options, **place)}
            for key, place in (('broker', at(kafka, topic)), ('files', {'path': kafka.directory, 'subscribe': topic}))}


def test_tables_of_one_partition_are_cut_into_tasks(kafka):
    create(kafka, 'cut')
    write(kafka, 'cut', 'a', 'b', transactional_id='cut-1', end='abort')
    write(kafka, 'cut', 'c', 'd', transactional_id='cut-1')
    write(kafka, 'cut', 'e', transactional_id='cut-2', end='abort')
    started = Producer(kafka.cluster, ProducerSettings.from_properties({'transactional.id': 'cut-3'}))
    started.init_transactions()
    started.begin_transaction()
    started.send('cut', b'f', b'k', partition=0)
    started.flush()
    write(kafka, 'cut', 'open', transactional_id='cut-4', end='')
    started.send('cut', b'g', b'k', partition=0)
    started.flush()
    started.abort_transaction()  # it began below the last stable offset and ended above it
    write(kafka, 'cut', 'h', 'i', transactional_id='cut-1', end='abort')
    wait_for_end(kafka, 'cut', 15)
    for name in ('batches', 'aborted'):
        assert len(make_reader(table=name, **at(kafka, 'cut'), splitBytes=150).partitions()) >= 4
        found = table(name, kafka, 'cut', splitBytes=150)
        facts = [{tuple(pair for pair in row if pair[0] not in ('segment', 'position')) for row in found[key]}
                 for key in ('broker', 'files')]
        assert facts[0] == facts[1]
        assert len(facts[0]) == len(rows(table=name, **at(kafka, 'cut'), splitBytes=150)) == {
            'batches': 15, 'aborted': 4}[name]


def test_many_aborted_transactions_above_the_last_stable_offset_make_small_tasks(kafka, monkeypatch):
    create(kafka, 'many-above')
    write(kafka, 'many-above', 'open', transactional_id='many-open', end='')
    for number in range(30):
        write(kafka, 'many-above', str(number), transactional_id='many', end='abort' if number % 3 else 'commit')
    wait_for_end(kafka, 'many-above', 61)
    asked = at(kafka, 'many-above', isolation='read_uncommitted', includeTransactions='true')
    whole = [(row['offset'], row['outcome']) for row in rows(**asked)]
    assert [outcome for _, outcome in whole] == ['open', *['committed', 'aborted', 'aborted'] * 10]
    monkeypatch.setattr(broker_place, 'ABORTED_OF_A_TASK', 5)
    plan = make_reader(**asked).partitions()
    assert len(plan) == 5
    assert max(len(each.value.outcomes.aborted) for each in plan) <= 5
    assert [(row['offset'], row['outcome']) for row in rows(**asked)] == whole


# ---- records

def test_pieces_and_offsets(kafka):
    create(kafka, 'pieces', 2)
    write(kafka, 'pieces', *map(str, range(50)))
    write(kafka, 'pieces', *map(str, range(50, 60)), partition=1)
    asked = at(kafka, 'pieces')
    expected = values(**asked)
    assert len(expected) == 60 and len(batches(**asked)) == 2
    for options, tasks in (({'maxRecordsPerPartition': 7}, 10), ({'minPartitions': 6}, 6), ({'splitBytes': 500}, 8)):
        assert len(batches(**asked, **options)) >= tasks
        assert values(**asked, **options) == expected
    assert values(**asked, startingOffsets='{"pieces":{"0":48,"1":-1}}') == ['48', '49']
    assert values(**asked, endingOffsets='{"pieces":{"0":2,"1":1}}') == ['0', '1', '50']
    assert values(**asked, startingTimestamp=WHEN_MS + 48, startingOffsetsByTimestampStrategy='latest') == ['48', '49']
    assert rows(columns=['partition', 'offset'], **asked, endingOffsets='{"pieces":{"0":1,"1":0}}') == [
        {'partition': 0, 'offset': 0}]
    with pytest.raises(OptionError, match="found topic 'peaces', which does not exist"):
        rows(**at(kafka, 'peaces'))
    with pytest.raises(OptionError, match='found pieces-7, expected some of pieces-0, pieces-1'):
        rows(**asked, startingOffsets='{"pieces":{"7":0}}')


def test_transactions(kafka):
    create(kafka, 'transactions')
    write(kafka, 'transactions', 'aborted', transactional_id='t1', end='abort')
    write(kafka, 'transactions', 'committed', transactional_id='t1')
    write(kafka, 'transactions', 'open', transactional_id='t2', end='')
    write(kafka, 'transactions', 'above', transactional_id='t1', end='abort')
    write(kafka, 'transactions', 'plain')
    assert values(**at(kafka, 'transactions')) == ['committed']
    found = rows(**at(kafka, 'transactions', isolation='read_uncommitted', includeTransactions='true'))
    assert [(row['value'].decode(), row['outcome']) for row in found] == [
        ('aborted', 'aborted'), ('committed', 'committed'), ('open', 'open'), ('above', 'aborted'), ('plain', None)]
    # The column is also returned if only the schema of the query selects it.
    assert [row['outcome'] for row in rows(columns=['outcome'], **at(
        kafka, 'transactions', isolation='read_uncommitted'))] == [row['outcome'] for row in found]


def test_records_that_are_deleted_after_the_plan(kafka):
    create(kafka, 'deleted')
    write(kafka, 'deleted', *map(str, range(10)))
    readers = [make_reader(**at(kafka, 'deleted', failOnDataLoss=word)) for word in ('true', 'false')]
    plans = [reader.partitions() for reader in readers]
    kafka.admin.delete_records({('deleted', 0): 6})
    with pytest.raises(DataLossError, match='deleted-0: the log begins at offset 6 now; lost are records among the 6 '
                                            'offsets 0 to 5; with failOnDataLoss=false'):
        list(readers[0].read(plans[0][0]))
    found = [value for batch in readers[1].read(plans[1][0]) for value in batch['value'].to_pylist()]
    assert found == [b'6', b'7', b'8', b'9']


def test_skipped_offsets_are_reported_in_a_directory(kafka, tmp_path):
    create(kafka, 'told', 2)
    write(kafka, 'told', *map(str, range(5)))
    write(kafka, 'told', 'x', 'y', transactional_id='told', end='abort')
    wait_for_end(kafka, 'told', 8)
    write(kafka, 'told', 'aaa', 'bbb', 'ccc', partition=1)
    path = next((kafka.directory / 'told-1').glob('*.log'))
    damage(path, path.read_bytes().index(b'bbb'), b'x')
    kafka.admin.delete_records({('told', 0): 2})
    # The directory shows a deletion once the broker has written its checkpoint.
    for place, gone in ((at(kafka, 'told'), ['1']), ({'path': kafka.directory, 'subscribe': 'told'}, [])):
        skipped_to = tmp_path / next(iter(place))
        asked = {**place, 'failOnDataLoss': 'false', 'skippedTo': skipped_to, 'startingOffsets': '{"told":{"0":1}}'}
        for _ in range(2):  # a task that runs again reports the same
            assert sorted([*values(**asked, splitBytes=1), *gone]) == ['1', '2', '3', '4', 'aaa', 'ccc']
            found = Skipped.read(skipped_to)
            assert sorted((loss.partition, loss.first_offset, loss.lost_offsets) for loss in found.losses) == [
                *[(0, 1, 1)] * len(gone), (1, 1, 1)]
            assert (found.lost_offsets, found.aborted) == (1 + len(gone), {('told', 0): 1})
        assert len(list(skipped_to.iterdir())) == 3  # the plan, and one file for the task of each partition


def test_a_log_that_was_recreated_after_the_plan(kafka):
    create(kafka, 'anew')
    write(kafka, 'anew', *map(str, range(10)))
    reader = make_reader(**at(kafka, 'anew', startingOffsets='{"anew":{"0":5}}'))
    plan = reader.partitions()
    assert kafka.admin.delete_topics(['anew'])['anew'] is None
    create(kafka, 'anew')
    with pytest.raises(DataLossError, match='anew-0: the log ends below offset 5, and its end was reported as 10'):
        list(reader.read(plan[0]))


def test_damage_that_a_broker_hands_on(kafka):
    create(kafka, 'damaged')
    write(kafka, 'damaged', 'aaa', 'bbb', 'ccc')
    path = next((kafka.directory / 'damaged-0').glob('*.log'))
    damage(path, path.read_bytes().index(b'bbb'), b'x')
    asked = at(kafka, 'damaged')
    with pytest.raises(DataLossError, match=r'damaged-0: .* lost .* among the 1 offsets 1 to 1, .*kbroker-check'):
        rows(**asked)
    assert values(**asked, failOnDataLoss='false') == ['aaa', 'ccc']
    assert values(**asked, checkCrcs='false') == ['aaa', 'xbb', 'ccc']


def test_many_partitions_need_few_samples_and_tasks_read_together_one_cluster(kafka, monkeypatch):
    """A sample for each partition, and the metadata of all partitions for each task, would make 10,000 partitions
    slow."""
    create(kafka, 'many-partitions', 12)
    for partition in range(12):
        write(kafka, 'many-partitions', *('v' * 100 for _ in range(1 + partition)), partition=partition)
    sampled, opened = [], []
    monkeypatch.setattr(broker_place, 'SAMPLES', 3)
    sample = Fetches.sample
    monkeypatch.setattr(Fetches, 'sample', lambda self: sampled.append(self._each.partition) or sample(self))
    options = parse_options({'kafka.bootstrap.servers': kafka.address, 'subscribe': 'many-partitions'})
    place = open_place(options)
    tasks = place.tasks(resolve(place, options), options)
    assert sorted(sampled) == [9, 10, 11]
    sizes = {each.each.partition: each.size_bytes for each in tasks}
    assert sizes[11] == 12 * sizes[0] > 12 * 100
    monkeypatch.setattr(broker_place, 'Cluster', lambda config: opened.append(Cluster(config)) or opened[-1])
    found = [row for batch in rows_of(tasks, [BY_NAME['partition']], options, Skipped())
             for row in batch['partition'].to_pylist()]
    assert found == [partition for partition in range(12) for _ in range(1 + partition)]
    assert len(opened) == 1


def answered(monkeypatch, *answers):
    """Run a task over offsets 0 to 5. Its broker sends the `answers`, one after the other, and repeats the last one."""
    left = list(answers)
    monkeypatch.setattr(Fetches, '_receive', lambda self, connection, position: (
        left.pop(0) if len(left) > 1 else left[0], None))
    monkeypatch.setattr(Fetches, '_send', lambda self, connection, position: None)
    task = BrokerTask((('bootstrap.servers', 'localhost:1'),), Slice('t', 0, 0, 5))
    return [row for batch in task.read([BY_NAME['offset']], ReadOptions()) for row in batch['offset'].to_pylist()]


def answer(records, last_stable_offset):
    return SimpleNamespace(records=bytes(records), aborted_transactions=[], last_stable_offset=last_stable_offset,
                           high_watermark=last_stable_offset)


def test_a_query_that_ends_after_a_few_rows_fetches_few_bytes(kafka, monkeypatch):
    """Spark ends the tasks of `show()` early. All responses once had the size of kafka.fetch.max.bytes, 2 MiB."""
    create(kafka, 'shown')
    with Producer(kafka.cluster, ProducerSettings.from_properties({'batch.size': '65536'})) as producer:
        producer.send_batch('shown', [b'x' * 1000] * 8000)
    fetched = []

    def row(self, answer, connection):
        found = known(self, answer, connection)
        fetched.append(len(found.records))
        return found
    known = Fetches._row
    monkeypatch.setattr(Fetches, '_row', row)
    reader = make_reader(**at(kafka, 'shown'))
    (task,) = reader.partitions()
    fetched.clear()
    rows_of_task = reader.read(task)
    assert next(rows_of_task).num_rows < 200 and next(rows_of_task).num_rows < 400 and sum(fetched) < 400_000
    assert sum(batch.num_rows for batch in rows_of_task) > 7000
    assert max(fetched) > 1_500_000 and len(fetched) < 12


def test_a_slice_that_begins_inside_a_batch_is_as_large_as_its_share_of_the_batch(kafka):
    """The whole batch once counted for the rest of its offsets, so maxBytesPerTrigger made ever smaller
    micro-batches."""
    create(kafka, 'inside')
    with Producer(kafka.cluster) as producer:
        producer.send_batch('inside', [b'x' * 100] * 100)
    place = open_place(parse_options({name.replace('_', '.'): text for name, text in at(kafka, 'inside').items()}))
    whole, rest = (place.size_bytes(Slice('inside', 0, first, 100)) for first in (0, 90))
    assert 0 < rest <= whole // 9


def test_an_end_without_records_is_an_end(monkeypatch):
    batch = encode_batch([(WHEN_MS, b'k', b'v')], base_offset=2)
    assert answered(monkeypatch, answer(batch, 5), answer(b'', 5)) == [2]


def test_an_end_that_the_broker_does_not_have_any_more_is_loss(monkeypatch):
    batch = encode_batch([(WHEN_MS, b'k', b'v')], base_offset=2)
    with pytest.raises(DataLossError, match=r'no whole batch from offset 3 on\. Its log now ends at 3, below 5'):
        answered(monkeypatch, answer(batch, 3), answer(b'', 3))
    assert broker_place.IDLE_ANSWERS * broker_place.MAX_WAIT_MS == 10_000


# ---- tables

@pytest.fixture(scope='module')
def lived_in(kafka):
    """Yield a broker with topics, groups and transactions of every kind."""
    create(kafka, 'life', 2)
    write(kafka, 'life', 'a', 'b', transactional_id='life-1')
    write(kafka, 'life', 'c', transactional_id='life-2', end='abort')
    write(kafka, 'life', 'd', transactional_id='life-3', end='')
    write(kafka, 'life', 'e', partition=1)
    consumer = confluent_kafka.Consumer({'bootstrap.servers': kafka.address, 'group.id': 'readers',
                                         'enable.auto.commit': False, 'auto.offset.reset': 'earliest'})
    consumer.subscribe(['life'])
    read = []
    for _ in range(100):
        read += consumer.consume(10, 0.2)
        if len(read) >= 3:
            break
    consumer.commit(offsets=[confluent_kafka.TopicPartition('life', partition, 1) for partition in (0, 1)],
                    asynchronous=False)
    yield kafka
    consumer.close()


@pytest.fixture(params=['broker', 'files'])
def place(request, lived_in):
    """Yield (the options that name the broker or its directory, the view of it that the commands use)."""
    with contextlib.ExitStack() as stack:
        if request.param == 'files':
            view = DirectoryView(lived_in.directory)
            options = {'path': lived_in.directory}
        else:
            view = LiveView(ClientConfig.from_settings({'bootstrap.servers': lived_in.address}))
            options = {'kafka_bootstrap_servers': lived_in.address}
        stack.callback(view.close)
        yield options, view


def test_transactions_as_a_table(place):
    options, view = place
    found = {row['transactional_id']: row for row in rows(table='transactions', **options)}
    assert {listing.transactional_id: (listing.producer_id, listing.state) for listing in view.transactions()} == {
        name: (row['producer_id'], row['state']) for name, row in found.items()}
    info = view.transaction('life-3')
    row = found['life-3']
    assert (info.producer_epoch, info.timeout_ms, set(info.partitions)) == (
        row['producer_epoch'], row['timeout_ms'], {(each['topic'], each['partition']) for each in row['partitions']})
    assert (row['client_producer_id'], row['client_producer_epoch']) == (row['producer_id'], row['producer_epoch'])
    history = [row['state'] for row in sorted(rows(table='transaction_history', **options), key=lambda row: (
        row['coordinator_partition'], row['offset'])) if row['transactional_id'] == 'life-2']
    assert history == ['Empty', 'Ongoing', 'PrepareAbort', 'CompleteAbort']


def test_groups_and_their_offsets_as_tables(place):
    options, view = place
    found = [row for row in rows(table='offsets', **options) if row['group_id'] == 'readers']
    expected = sorted((row.topic, row.partition, row.offset) for row in view.group_offsets('readers'))
    assert sorted((row['topic'], row['partition'], row['committed_offset']) for row in found) == expected
    assert {(row['partition'], row['last_stable_offset'], row['lag']) for row in found} == {(0, 5, 4), (1, 1, 0)}
    group = next(row for row in rows(table='groups', **options) if row['group_id'] == 'readers')
    info = view.group('readers')
    assert (group['members'], group['protocol']) == (len(info.members), info.protocol)
    assert {(each['topic'], each['partition']) for each in group['assignment']} == {('life', 0), ('life', 1)}


def test_producers_batches_and_aborted_ones_as_tables(place, lived_in):
    options, view = place
    found = [row for row in rows(table='producers', **options, subscribe='life') if row['partition'] == 0]
    assert sorted((row['producer_id'], row['producer_epoch'], row['last_sequence'], row['transaction_first_offset'])
                  for row in found) == sorted((info.producer_id, info.producer_epoch, info.last_sequence,
                                               info.transaction_first_offset) for info in view.producers('life', 0))
    assert sum(row['transaction_first_offset'] is not None for row in found) == 1
    ranges = rows(table='aborted', **options, subscribe='life')
    assert [(row['first_offset'], row['last_offset']) for row in ranges] == [(3, 4)]
    headers = [(row['partition'], row['base_offset'], row['is_control'], row['marker'], row['crc_is_right'])
               for row in rows(table='batches', **options, subscribe='life')]
    assert sorted(headers) == [(0, 0, False, None, True), (0, 1, False, None, True), (0, 2, True, 'commit', True),
                               (0, 3, False, None, True), (0, 4, True, 'abort', True), (0, 5, False, None, True),
                               (1, 0, False, None, True)]


def test_the_partitions_of_a_coordinator_share_tasks_by_their_size(place, monkeypatch):
    """Fifty partitions were once divided evenly among eight tasks, most of them empty."""
    options, _ = place
    (task,) = make_reader(table='transactions', **options).partitions()
    assert 3 <= len(task.value) < 10  # the partitions that have rows
    known = rows(['transactional_id'], table='transactions', **options)
    assert len(make_reader(table='transactions', minPartitions=3, **options).partitions()) == 3
    assert sorted(rows(['transactional_id'], table='transactions', minPartitions=3, **options), key=str) == sorted(
        known, key=str) != []
    monkeypatch.setattr('kbroker_tools.spark.tables.BYTES_OF_A_TASK', 1)
    tasks = [task.value for task in make_reader(table='transactions', **options).partitions()]
    assert 3 <= len(tasks) <= 8
    assert len({piece for pieces in tasks for piece in pieces}) == sum(map(len, tasks)) == len(task.value)


def test_a_coordinator_without_rows_is_no_task(tmp_path):
    LogFiles(tmp_path, '__transaction_state').flush()
    assert make_reader(table='transactions', path=tmp_path).partitions() == []


def test_what_a_group_committed_of_a_topic_that_was_not_asked_for(place):
    """The table once failed with a KeyError for a broker, because the source knew only the ends of the requested
    topics."""
    options, _ = place
    found = rows(table='offsets', **options, subscribe='__consumer_offsets')
    assert {(row['topic'], row['last_stable_offset']) for row in found if row['group_id'] == 'readers'} == {
        ('life', 5), ('life', 1)}


def test_segments_as_a_table(lived_in):
    found = [row for row in rows(table='segments', path=lived_in.directory, subscribe='life') if row['partition'] == 0]
    files = sorted((lived_in.directory / 'life-0').glob('*.log'))
    assert [(row['base_offset'], row['size_bytes']) for row in found] == [
        (int(path.stem), path.stat().st_size) for path in files]
    assert [row['is_active'] for row in found] == [path is files[-1] for path in files]
    # Only the active segment may lack an index, until the first entry.
    assert all(row['has_index'] for row in found if not row['is_active'])
    assert len(found) > 1 and any(row['has_transaction_index'] for row in found)
    with pytest.raises(OptionError, match='table: found segments with'):
        make_reader(table='segments', kafka_bootstrap_servers=lived_in.address)
    with pytest.raises(ValueError, match="found column 'size' in the schema, expected some of topic, partition"):
        KafkaLogDataSource({'table': 'segments', 'path': str(lived_in.directory)}).reader(
            StructType().add('size', IntegerType()))
