"""A view of a log directory gives the same answers as its broker, even while the broker changes the directory."""
from __future__ import annotations

import os
import pathlib
import shutil
import tarfile

import pytest
from support.brokers.broker_fixtures import in_process_broker
from support.clients.promises import GROUP, TRANSACTIONAL_ID, Client, Promises
from support.disk.faulty_file_systems import MeddlingFileSystem
from support.messages.message_builder import build

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError, LogDirectoryError
from kbroker.log.fs import ReadOnlyFileSystem
from kbroker.log.partition_reader import PartitionReader
from kbroker.record.batch import encode_batch
from kbroker.record.records import decode_records
from kbroker_tools.base.view import GroupOffset, PartitionOffsets
from kbroker_tools.cluster.directory_view import DirectoryView

ARCHIVES = sorted((pathlib.Path(__file__).parent.parent / 'data' / 'kafka-directories').glob('*.tgz'))
SETTINGS = {'log.index.interval.bytes': '200', 'log.index.size.max.bytes': '48',
            'offsets.topic.num.partitions': '3', 'transaction.state.log.num.partitions': '3'}
A, B = ('orders', 0), ('orders', 1)


broker = in_process_broker(SETTINGS)


@pytest.fixture
def client(broker):
    client = Client(broker, Promises())
    client.create_topic('orders', 2)
    client.find_coordinators()
    return client


@pytest.fixture
def view(broker, tmp_path):
    return DirectoryView(tmp_path / 'data')


def transact(client, values):
    client.begin()
    client.produce_in_transaction(values)


def run_transactions(client, count=12):
    client.init_transactions()
    for number in range(count):
        transact(client, {A: [f'{number}-a'], B: [f'{number}-b1', f'{number}-b2']})
        client.end(number % 3 != 0)


def answers_of(broker, topic, partition):
    """Return the responses of ListOffsets: earliest, high watermark, last stable offset."""
    def ask(timestamp, isolation_level):
        answer = broker.ask(build('ListOffsetsRequest', replica_id=-1, isolation_level=isolation_level, topics=[
            {'name': topic, 'partitions': [{'partition_index': partition, 'timestamp': timestamp}]}]), 7)
        return answer.topics[0].partitions[0].offset
    return PartitionOffsets(ask(-2, 0), ask(-1, 0), ask(-1, 1))


def producers_of(broker, topic, partition):
    answer = broker.ask(build('DescribeProducersRequest', topics=[{'name': topic, 'partition_indexes': [partition]}]))
    return sorted((each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp,
                   each.coordinator_epoch, each.current_txn_start_offset)
                  for each in answer.topics[0].partitions[0].active_producers)


def producers_in(view, topic, partition):
    return sorted((each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp_ms,
                   each.coordinator_epoch,
                   -1 if each.transaction_first_offset is None else each.transaction_first_offset)
                  for each in view.producers(topic, partition))


# ---- the same answers as the broker's ----

def test_topics_are_those_of_the_metadata_log(broker, client, view):
    run_transactions(client, 1)
    topics = view.topics()
    assert list(topics) == ['__consumer_offsets', '__transaction_state', 'orders']
    assert topics['orders'].topic_id == client.promises.topics['orders']
    assert [(each.partition, each.leader, each.replicas, each.in_sync_replicas)
            for each in topics['orders'].partitions] == [(0, 1, (1,), (1,)), (1, 1, (1,), (1,))]
    assert [name for name, topic in topics.items() if topic.is_internal] == list(topics)[:2]


@pytest.mark.parametrize('is_open', [False, True])
def test_offsets_and_producers_are_those_that_the_broker_tells(broker, client, view, is_open):
    run_transactions(client)
    if is_open:
        transact(client, {A: ['open'], B: ['open']})
        client.init_idempotent()
        client.produce({A: ['behind it']})
    for partition in (0, 1):
        assert view.partition_offsets('orders', partition) == answers_of(broker, 'orders', partition)
        assert producers_in(view, 'orders', partition) == producers_of(broker, 'orders', partition)
    assert len(PartitionReader(ReadOnlyFileSystem(), broker.logs.logs[A].directory).base_offsets()) > 1
    offsets = view.partition_offsets(*A)
    assert (offsets.last_stable_offset < offsets.high_watermark) == is_open


def test_deleted_records_move_the_log_start_once_its_checkpoint_is_written(broker, client, view):
    run_transactions(client)
    client.delete_records(A, 5)
    client.let_pass(120_000)
    assert view.partition_offsets(*A).log_start_offset == 5
    assert view.partition_offsets(*A) == answers_of(broker, *A)
    assert next(view.batches(*A))[0].last_offset >= 5


@pytest.mark.parametrize('ending', ['open', 'committed', 'aborted'])
def test_a_transaction_is_as_its_coordinator_describes_it(broker, client, view, ending):
    client.init_transactions()
    transact(client, {A: ['a'], B: ['b']})
    if ending != 'open':
        client.end(ending == 'committed')
        client.pass_time()
    answer = broker.ask(build('DescribeTransactionsRequest', transactional_ids=[TRANSACTIONAL_ID]))
    described = answer.transaction_states[0]
    listed = broker.ask(build('ListTransactionsRequest')).transaction_states[0]
    found = view.transaction(TRANSACTIONAL_ID)
    assert (found.state, found.producer_id, found.producer_epoch, found.timeout_ms, found.start_timestamp_ms) == (
        described.transaction_state, described.producer_id, described.producer_epoch, described.transaction_timeout_ms,
        described.transaction_start_time_ms)
    assert found.partitions == tuple(sorted(
        (topic.topic, partition) for topic in described.topics for partition in topic.partitions))
    assert [(each.transactional_id, each.producer_id, each.state, each.coordinator_id)
            for each in view.transactions()] == [
        (TRANSACTIONAL_ID, listed.producer_id, listed.transaction_state, 1)]
    assert view.transaction('no such id') is None


def test_offsets_in_a_transaction_count_when_its_marker_is_there(broker, client, view):
    client.commit_offsets({A: 3})
    client.init_transactions()
    transact(client, {B: ['b']})
    client.send_offsets({A: 7, B: 1})
    assert view.group_offsets(GROUP) == [GroupOffset('orders', 0, 3, -1, '')]
    client.end(True)
    assert view.group_offsets(GROUP) == [GroupOffset('orders', 0, 7, -1, ''), GroupOffset('orders', 1, 1, -1, '')]
    transact(client, {B: ['b']})
    client.send_offsets({A: 9})
    client.end(False)
    assert [each.offset for each in view.group_offsets(GROUP)] == [7, 1]
    assert view.groups() == [GROUP]
    group = view.group(GROUP)
    assert (group.state, group.members, group.coordinator_id) == ('Empty', (), 1)
    assert view.group('no such group') is None and view.group_offsets('no such group') == []


def test_batches_are_read_from_any_offset_to_any_other(client, view):
    run_transactions(client)
    everything = [(header.base_offset, header.last_offset, bytes(batch)) for header, batch in view.batches(*B)]
    end = everything[-1][1] + 1
    for start in range(end + 1):
        assert list(view.batches(*B, start, start)) == []
        for stop in (None, start + 1, start + 5, end + 3):
            found = [bytes(batch) for _, batch in view.batches(*B, start, stop)]
            assert found == [batch for base, last, batch in everything
                             if last >= start and base < (end if stop is None else stop)], (start, stop)


# ---- what kind of directory ----

def test_nothing_is_changed_and_nothing_locked(client, view, tmp_path):
    run_transactions(client)
    client.commit_offsets({A: 3})
    before = tree(tmp_path / 'data')
    look_at_everything(view)
    assert tree(tmp_path / 'data') == before


def tree(directory):
    """Return the content and the modification time of every file in a directory."""
    return {path: (path.read_bytes() if path.is_file() else None, path.lstat().st_mtime_ns)
            for path in [directory, *directory.rglob('*')]}


def look_at_everything(view):
    for name, topic in view.topics().items():
        for partition in topic.partitions:
            try:
                view.partition_offsets(name, partition.partition)
                view.producers(name, partition.partition)
                for _, batch in view.batches(name, partition.partition):
                    decode_records(batch)
            except KafkaError as error:
                assert error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for listed in view.transactions():
        assert view.transaction(listed.transactional_id).state == listed.state
    for group_id in view.groups():
        assert view.group(group_id).group_id == group_id
        view.group_offsets(group_id)


@pytest.mark.parametrize('archive', ARCHIVES, ids=lambda path: path.stem)
def test_directories_of_apache_kafka_are_read_whole(archive, tmp_path, caplog):
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter='data')
    for directory in sorted(path for path in tmp_path.iterdir() if path.is_dir()):
        look_at_everything(DirectoryView(directory))
    assert caplog.messages == []


def test_without_metadata_topics_are_named_by_their_directories(client, view, tmp_path):
    run_transactions(client, 3)
    expected = {name: topic.topic_id for name, topic in view.topics().items()}
    target = tmp_path / 'copy'
    shutil.copytree(tmp_path / 'data', target)
    shutil.rmtree(target / '__cluster_metadata-0')
    (target / 'notes-1').write_text('a file, no partition')
    (target / 'lost+found').mkdir()
    copied = DirectoryView(target)
    assert {name: topic.topic_id for name, topic in copied.topics().items()} == expected
    assert copied.partition_offsets(*A) == view.partition_offsets(*A)
    assert copied.transaction(TRANSACTIONAL_ID) == view.transaction(TRANSACTIONAL_ID)


def test_damaged_metadata_is_reported_and_the_rest_is_read(client, view, tmp_path, caplog):
    run_transactions(client, 3)
    expected = view.partition_offsets(*A)
    target = tmp_path / 'copy'
    shutil.copytree(tmp_path / 'data', target)
    (segment,) = (target / '__cluster_metadata-0').glob('*.log')
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 1
    segment.write_bytes(damaged)
    copied = DirectoryView(target)
    assert copied.partition_offsets(*A) == expected
    assert 'orders' in copied.topics()
    assert any('from the directory names' in message for message in caplog.messages)


@pytest.mark.parametrize('name', ['orders-1', 'what I found'])
def test_a_partition_directory_may_stand_alone(client, view, tmp_path, name):
    run_transactions(client)
    shutil.copytree(tmp_path / 'data' / 'orders-1', tmp_path / name)
    alone = DirectoryView(tmp_path / name)
    (topic,) = alone.topics().values()
    (partition,) = topic.partitions
    assert (topic.name, partition.partition) == (B if name == 'orders-1' else (name, 0))
    assert alone.partition_offsets(topic.name, partition.partition) == view.partition_offsets(*B)


def test_a_partition_directory_inside_its_log_directory_knows_its_checkpoints(client, tmp_path):
    run_transactions(client)
    client.delete_records(B, 4)
    client.let_pass(120_000)
    inside = DirectoryView(tmp_path / 'data' / 'orders-1')
    assert list(inside.topics()) == ['orders']
    assert inside.partition_offsets(*B).log_start_offset == 4


@pytest.mark.parametrize(('names', 'found'), [((), 'found nothing;'), (('a', 'b'), 'found a, b;'),
                                              (('1', '2', '3', '4'), 'found 1, 2, 3, ...;')])
def test_another_directory_is_refused_with_what_was_found_and_expected(tmp_path, names, found):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(LogDirectoryError) as refused:
        DirectoryView(tmp_path)
    assert found in str(refused.value) and 'expected a log directory' in str(refused.value)


def test_a_partition_that_is_not_there_is_named(client, view):
    with pytest.raises(KafkaError, match='found no partition orders-7') as missing:
        view.partition_offsets('orders', 7)
    assert missing.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# ---- damage ----

@pytest.fixture
def copied(client, tmp_path):
    """Return (a copy of a partition of a stopped broker, with several segments; the batches of the partition)."""
    run_transactions(client, 30)
    shutil.copytree(tmp_path / 'data' / 'orders-1', tmp_path / 'orders-1')
    reader = PartitionReader(ReadOnlyFileSystem(), str(tmp_path / 'orders-1'))
    return tmp_path / 'orders-1', reader, [bytes(batch) for _, batch in reader.batches()]


def test_a_torn_tail_is_the_end_of_the_log_wherever_it_is_torn(copied):
    directory, reader, batches = copied
    last = max(directory.glob('*.log'))
    whole, end = last.read_bytes(), reader.end_offset()
    kept_before = len(batches) - whole.count(batches[-1][:8])
    for size in (len(whole) - 1, len(whole) - 77, len(whole) - len(batches[-1]) + 61, len(whole) - len(batches[-1])):
        last.write_bytes(whole[:size])
        found = [bytes(batch) for _, batch in reader.batches()]
        assert found == batches[:-1] and kept_before <= len(found)
        assert reader.end_offset() < end
        assert reader.producer_state().end_offset == reader.end_offset()
    last.write_bytes(whole + bytes(500))
    assert (reader.end_offset(), [bytes(batch) for _, batch in reader.batches()]) == (end, batches)


def test_damage_in_front_of_another_segment_is_an_error(copied):
    directory, reader, _ = copied
    first = min(directory.glob('*.log'))
    first.write_bytes(first.read_bytes()[:-5])
    for snapshot in directory.glob('*.snapshot'):
        snapshot.unlink()
    with pytest.raises(CorruptLogError, match='found no batch at'):
        list(reader.batches())
    with pytest.raises(CorruptLogError, match='found no batch at'):
        reader.producer_state()


@pytest.mark.parametrize('damage', [
    lambda path: path.unlink(), lambda path: path.write_bytes(b''), lambda path: path.write_bytes(os.urandom(803)),
    lambda path: path.write_bytes(b'\xff' * 800), lambda path: path.write_bytes(b'\0\0\0\x03' * 200)])
def test_an_index_is_a_hint(copied, damage):
    directory, reader, batches = copied
    end = reader.end_offset()
    for path in directory.glob('*.index'):
        damage(path)
    for start in range(0, end, 7):
        assert [bytes(batch) for header, batch in reader.batches(start)] == [
            batch for batch in batches
            if int.from_bytes(batch[:8], 'big') + int.from_bytes(batch[23:27], 'big') >= start]
    assert reader.end_offset() == end


@pytest.mark.parametrize('damage', [
    lambda path: path.unlink(), lambda path: path.write_bytes(b''), lambda path: path.write_bytes(os.urandom(100)),
    lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_damaged_snapshot_is_not_used(copied, damage):
    directory, reader, _ = copied
    expected = reader.producer_state()
    for path in directory.glob('*.snapshot'):
        damage(path)
    found = reader.producer_state()
    assert (found.unstable.ongoing, found.end_offset) == (expected.unstable.ongoing, expected.end_offset)
    assert found.active_producers() == expected.active_producers()


def test_files_that_only_look_like_segments_are_skipped(copied):
    directory, reader, batches = copied
    for name in ('7.log', '99999999999999999999.log', '00000000000000000003.log.deleted', 'readme.log',
                 '99999999999999999999.snapshot', '00000000000000000000.log.cleaned'):
        (directory / name).write_bytes(b'junk')
    assert [bytes(batch) for _, batch in reader.batches()] == batches


def test_offsets_may_be_huge(tmp_path):
    directory = tmp_path / 'orders-0'
    directory.mkdir()
    base = (1 << 63) - 10
    batch = encode_batch([(0, None, b'v')] * 3, base_offset=base)
    (directory / f'{base:020d}.log').write_bytes(batch)
    assert DirectoryView(directory).partition_offsets('orders', 0) == PartitionOffsets(base, base + 3, base + 3)
    assert [header.base_offset for header, _ in DirectoryView(directory).batches('orders', 0)] == [base]


# ---- while a broker runs ----

def test_segments_that_retention_deletes_are_skipped(copied):
    directory, _, batches = copied
    doomed = sorted(directory.glob('*.log'))[:3]

    def delete(path):
        if path == str(doomed[2]) and doomed[2].exists():
            for log in doomed:
                log.rename(f'{log}.deleted')

    reader = PartitionReader(MeddlingFileSystem(delete), str(directory))
    found = [bytes(batch) for _, batch in reader.batches()]
    assert found != batches and set(found) < set(batches) and found[-1] == batches[-1]


def test_a_compacted_segment_takes_the_place_of_those_that_vanish(copied):
    directory, _, batches = copied
    first, second = sorted(directory.glob('*.log'))[:2]

    def swap(path):
        if path == str(second) and not second.with_suffix('.log.deleted').exists():
            merged = first.read_bytes() + second.read_bytes()
            second.rename(f'{second}.deleted')
            first.rename(f'{first}.deleted')
            pathlib.Path(f'{first}.swap').write_bytes(merged)

    reader = PartitionReader(MeddlingFileSystem(swap), str(directory))
    assert [bytes(batch) for _, batch in reader.batches()] == batches


class TornListing(ReadOnlyFileSystem):
    """A file system whose first listing and every third listing lack a file, as a listing during a rename may."""

    def __init__(self, missed):
        self.missed, self.listings = missed, 0

    def listdir(self, path):
        self.listings += 1
        names = super().listdir(path)
        return [name for name in names if name != self.missed] if self.listings % 3 == 1 else names


@pytest.mark.parametrize('number', [0, 1, -1])
def test_a_listing_that_misses_a_segment_is_not_believed(copied, number):
    """A broker once renamed a compacted segment while a reader listed the directory, and the reader skipped its
    batches."""
    directory, _, batches = copied
    logs = sorted(directory.glob('*.log'))
    reader = PartitionReader(TornListing(logs[number].name), str(directory))
    assert reader.base_offsets() == [int(path.stem) for path in logs]
    assert [bytes(batch) for _, batch in reader.batches()] == batches
    whole = PartitionReader(ReadOnlyFileSystem(), str(directory))
    assert reader.end_offset() == whole.end_offset()
    assert reader.producer_state().active_producers() == whole.producer_state().active_producers()


def test_what_is_appended_and_rolled_while_it_is_read_is_read_too(broker, client, view):
    run_transactions(client, 2)
    batches = view.batches(*A)
    seen = [next(batches)[0].last_offset]
    run_transactions(client, 40)
    seen += [header.last_offset for header, _ in batches]
    assert seen == list(range(broker.logs.logs[A].log_end_offset))


def test_a_partition_that_is_deleted_is_an_error_not_an_empty_log(client, tmp_path, view):
    run_transactions(client, 2)
    batches = view.batches(*A)
    next(batches)
    client.delete_topic('orders')
    with pytest.raises(FileNotFoundError):
        list(batches)


def test_a_partition_without_a_segment_is_empty(tmp_path):
    (tmp_path / 'orders-0').mkdir()
    view = DirectoryView(tmp_path)
    assert view.partition_offsets('orders', 0) == PartitionOffsets(0, 0, 0)
    assert list(view.batches('orders', 0)) == view.producers('orders', 0) == []


def test_a_thousand_partitions_are_listed_without_looking_into_them(tmp_path):
    for number in range(1000):
        (tmp_path / f'orders-{number}').mkdir()
    opened = []
    view = DirectoryView(tmp_path, MeddlingFileSystem(opened.append))
    assert len(view.topics()['orders'].partitions) == 1000
    assert len(opened) <= 2
