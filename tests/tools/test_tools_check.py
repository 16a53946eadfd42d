"""kbroker-check finds damage in a log directory, names the repair, and repairs nothing else."""
from __future__ import annotations

import errno
import io
import json
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tarfile

import pytest
from click.testing import CliRunner
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import Client, Promises
from support.disk.faulty_file_systems import FailingFileSystem, FreezingFileSystem, MeddlingFileSystem, fail_nth
from support.runner.command_runner import ROOT, command_line, run_command

from kbroker.base.clock import ManualClock
from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.log.append import Origin
from kbroker.log.check import OpenTransaction, Severity
from kbroker.log.fs import FileSystem, ReadOnlyFileSystem
from kbroker.log.inventory import INVENTORY_FILE
from kbroker.log.log import Log
from kbroker.log.producer_state import ProducerStateTable
from kbroker.record.batch import encode_batch, iter_batches
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig
from kbroker.transaction.state import TransactionRow, TransactionState
from kbroker.transaction.state_log import encode_row
from kbroker_tools.base.render import Output
from kbroker_tools.check.directory_check import DirectoryCheck
from kbroker_tools.check.transaction_check import TransactionCheck
from kbroker_tools.commands import check as command
from kbroker_tools.commands.check import Session, main

ARCHIVES = sorted((pathlib.Path(__file__).parent.parent / 'data' / 'kafka-directories').glob('*.tgz'))
SETTINGS = {'log.index.interval.bytes': '200', 'log.index.size.max.bytes': '48',
            'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2'}
A, B = ('orders', 0), ('orders', 1)
S = TransactionState


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """Return a directory that a broker closed cleanly, with several segments, commits, aborts and offsets."""
    directory = tmp_path_factory.mktemp('model') / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 2)
        client.find_coordinators()
        client.init_idempotent()
        client.init_transactions()
        for number in range(25):
            client.produce({A: [f'plain {number}']})
            client.begin()
            client.produce_in_transaction({A: [f'{number}-a'], B: [f'{number}-b1', f'{number}-b2']})
            client.end(number % 3 != 0)
    return directory


@pytest.fixture
def directory(model, tmp_path):
    return pathlib.Path(shutil.copytree(model, tmp_path / 'data'))


@pytest.fixture
def partition(directory):
    return directory / 'orders-0'


def findings_in(directory, fs=None):
    check = DirectoryCheck(fs or ReadOnlyFileSystem(), str(directory))
    check.list_tasks()
    for task in check.tasks:
        check.add(*command._check(check.fs, task))
    return check.conclude()


def errors_in(directory, fs=None):
    return [finding for finding in findings_in(directory, fs) if finding.severity is Severity.ERROR]


def messages(findings):
    return [f'{pathlib.Path(finding.file).name}: {finding.message}' for finding in findings]


def tree(directory, suffixes=('',)):
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in directory.rglob('*') if path.is_file() and path.name.endswith(suffixes)}


def first(partition, suffix):
    return min(partition.glob(f'*{suffix}'))


def last(partition, suffix):
    return max(partition.glob(f'*{suffix}'))


def middle(partition, suffix):
    return sorted(partition.glob(f'*{suffix}'))[1]


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


# ---- nothing is wrong ----

@pytest.mark.parametrize('archive', ARCHIVES, ids=lambda path: path.stem)
def test_directories_of_apache_kafka_have_no_errors(archive, tmp_path):
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter='data')
    for directory in sorted(path for path in tmp_path.iterdir() if path.is_dir()):
        assert messages(errors_in(directory)) == []


def test_a_directory_that_was_stopped_cleanly_has_no_findings(directory):
    before = tree(directory)
    assert findings_in(directory) == []
    assert tree(directory) == before
    assert len(list((directory / 'orders-0').glob('*.log'))) == 4


@pytest.mark.parametrize('is_open', [False, True])
def test_a_directory_of_a_killed_broker_has_no_errors(tmp_path, is_open):
    with InProcessBroker(tmp_path / 'data', SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 2)
        client.find_coordinators()
        client.init_transactions()
        for number in range(20):
            client.begin()
            client.produce_in_transaction({A: [f'{number}'], B: [f'{number}']})
            if number < 19 or not is_open:
                client.end(number % 2 == 0)
        client.send_offsets({A: 1}) if is_open else None
        broker.crash()
    assert messages(errors_in(tmp_path / 'data')) == []


def test_a_partition_directory_alone_is_checked_as_one(partition, tmp_path):
    assert findings_in(partition) == []
    flip(middle(partition, '.index'), 0)
    shutil.copytree(partition, tmp_path / 'orders-0')
    for place in (partition, tmp_path / 'orders-0'):
        assert [finding.file for finding in findings_in(place)] == [str(middle(place, '.index'))]


@pytest.mark.parametrize('seed', range(2))
def test_what_a_power_cut_leaves_is_no_error(tmp_path, seed):
    rng = random.Random(seed)
    root = tmp_path / 'data'
    root.mkdir()
    left = []

    def lose_power(change, path):
        if change == 'sync' and rng.random() < 0.05:
            left.append(tmp_path / f'left{len(left)}')
            left[-1].mkdir()
            fs.crash(left[-1], rng)

    fs = FreezingFileSystem(root, lose_power)
    with InProcessBroker(root, SETTINGS, fs=fs) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 2)
        client.find_coordinators()
        client.init_transactions()
        client.init_idempotent()
        for number in range(20):
            client.produce({A: [f'p{number}']})
            client.begin()
            client.produce_in_transaction({A: [f'{number}-a'], B: [f'{number}-b']})
            client.send_offsets({A: number})
            client.end(number % 3 != 0)
            client.let_pass(500)
    assert len(left) > 10
    for directory in left:
        if (directory / 'meta.properties').exists():
            assert messages(errors_in(directory)) == []


# ---- each kind of damage is found where it is ----

DAMAGE = {
    'a batch whose bytes changed': (
        lambda partition: flip(first(partition, '.log'), 70), '.log', 0, 'the disk lost data', False),
    'a segment that lost its end': (
        lambda partition: first(partition, '.log').write_bytes(first(partition, '.log').read_bytes()[:-3]), '.log',
        None, 'found no batch at', False),
    'a torn tail': (
        lambda partition: last(partition, '.log').write_bytes(last(partition, '.log').read_bytes() + b'torn'), '.log',
        None, 'a torn tail', False),
    'an offset index that leads nowhere': (
        lambda partition: flip(middle(partition, '.index'), 7), '.index', 0, 'where no batch begins', True),
    'an offset index that is missing': (
        lambda partition: middle(partition, '.index').unlink(), '.index', None, 'found no such file', True),
    'an offset index of the wrong size': (
        lambda partition: middle(partition, '.index').write_bytes(b'123'), '.index', None, 'multiple of 8', True),
    'a time index that goes back': (
        lambda partition: flip(middle(partition, '.timeindex'), 1), '.timeindex', 0, 'found timestamp', True),
    'a time index that ends too early': (
        lambda partition: middle(partition, '.timeindex').write_bytes(b''), '.timeindex', 0, 'the segment reaches',
        True),
    'a transaction index that lacks rows': (
        lambda partition: first(partition, '.txnindex').unlink(), '.txnindex', None, 'the markers say', True),
    'a transaction index of garbage': (
        lambda partition: first(partition, '.txnindex').write_bytes(b'\xff' * 34), '.txnindex', None, 'found version',
        True),
    'a snapshot that is torn': (
        lambda partition: last(partition, '.snapshot').write_bytes(b'\0\1'), '.snapshot', None, 'producer snapshot',
        True),
    'a snapshot of another log': (
        lambda partition: shutil.copy(last(partition.parent / 'orders-1', '.snapshot'), middle(partition, '.snapshot')),
        '.snapshot', None, 'the log says', True),
    'a snapshot from the future': (
        lambda partition: shutil.copy(last(partition, '.snapshot'), partition / f'{10**6:020d}.snapshot'), '.snapshot',
        None, 'expected a batch boundary', True),
    'an index without its log': (
        lambda partition: (partition / f'{10**6:020d}.index').write_bytes(b''), '.index', None, 'without its log',
        True),
}


@pytest.mark.parametrize('name', DAMAGE)
def test_damage_is_found_and_its_place_is_reported(partition, name):
    damage, suffix, position, text, _ = DAMAGE[name]
    damage(partition)
    found = findings_in(partition.parent)
    assert found and all(pathlib.Path(finding.file).parent == partition for finding in found)
    wanted = [finding for finding in found if finding.file.endswith(suffix) and text in finding.message]
    assert wanted, messages(found)
    assert position is None or wanted[0].position == position
    is_harmless = name in ('a snapshot that is torn', 'an index without its log')
    assert (wanted[0].severity is Severity.WARNING) == is_harmless


@pytest.mark.parametrize('name', [name for name, damage in DAMAGE.items() if damage[-1]])
def test_what_is_derived_from_the_log_is_made_again(partition, name):
    before = tree(partition.parent, '.log')
    DAMAGE[name][0](partition)
    damaged = tree(partition.parent)
    planned = run(partition.parent, '--repair')
    assert planned.exit_code == bool(errors_in(partition.parent)) and 'would ' in planned.stdout
    assert tree(partition.parent) == damaged
    done = run(partition.parent, '--repair', '--no-dry-run')
    assert done.exit_code == 0, done.output
    assert [line.replace('done: ', 'would ') for line in done.stdout.splitlines() if line.startswith('done: ')] == [
        line for line in planned.stdout.splitlines() if line.startswith('would ')]
    assert findings_in(partition.parent) == []
    assert tree(partition.parent, '.log') == before
    assert not list(partition.glob('*.tmp'))


def test_what_was_made_again_is_what_was_there(model, partition):
    for path in (*partition.glob('*index'), *partition.glob('*.snapshot')):
        path.write_bytes(b'?')
    assert run(partition.parent, '--repair', '--no-dry-run').exit_code == 0
    for path in (model / 'orders-0').iterdir():
        if path.suffix == '.txnindex':
            assert (partition / path.name).read_bytes() == path.read_bytes(), path.name
        elif path.suffix == '.snapshot':    # a clean stop leaves out producers that it knows too little of
            assert producers_in(path) <= producers_in(partition / path.name), path.name


def producers_in(snapshot):
    table = ProducerStateTable()
    table.load_snapshot(snapshot.read_bytes(), 0, 0)
    return set(table.active_producers())


def test_a_log_is_cut_only_when_asked(partition):
    path = last(partition, '.log')
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    untouched = run(partition.parent, '--repair', '--no-dry-run')
    assert untouched.exit_code == 1 and path.read_bytes() == whole + whole[:30]
    planned = run(partition.parent, '--repair', '--truncate-torn-tail')
    assert f'would cut the torn tail: {path} at {len(whole)}' in planned.stdout
    assert path.read_bytes() == whole + whole[:30]
    assert run(partition.parent, '--repair', '--no-dry-run', '--truncate-torn-tail').exit_code == 0
    assert path.read_bytes() == whole and findings_in(partition.parent) == []


def test_bytes_before_a_sound_batch_are_never_cut(partition):
    flip(first(partition, '.log'), 70)
    flip(last(partition, '.log'), 70)
    first(partition, '.index').unlink()
    before = tree(partition)
    done = run(partition.parent, '--repair', '--no-dry-run', '--truncate-torn-tail')
    assert done.exit_code == 1 and 'nothing to repair' in done.stderr
    assert tree(partition) == before


def test_new_files_belong_to_the_owner_of_the_log(partition):
    for path in partition.iterdir():
        os.chown(path, 1234, 1235)
        path.chmod(0o640)
    middle(partition, '.index').unlink()
    last(partition, '.snapshot').write_bytes(b'?')
    assert run(partition.parent, '--repair', '--no-dry-run').exit_code == 0
    assert {(path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o777)
            for path in partition.iterdir()} == {(1234, 1235, 0o640)}


# ---- writes that fail, and power that goes ----

def damage_everything(partition):
    for path in (*partition.glob('*index'), *partition.glob('*.snapshot')):
        path.write_bytes(b'?')
    path = last(partition, '.log')
    path.write_bytes(path.read_bytes() + b'torn')


def repair(directory, fs):
    return Session(Output(stream=io.StringIO()), 1, writing=fs).repair(str(directory), is_real=True, cut_torn_tail=True)


def test_a_repair_of_which_any_write_fails_can_be_done_again(partition):
    logs = {path.name: path.read_bytes() for path in partition.glob('*.log')}
    for number in range(1000):
        damage_everything(partition)
        try:
            repair(partition, FailingFileSystem(fail_nth(number, errno.ENOSPC), partial_bytes=5))
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert all((partition / name).read_bytes().startswith(data) for name, data in logs.items())
            assert repair(partition, FileSystem()) == 0
        else:
            break
        assert findings_in(partition) == []
    assert 50 < number < 999


def test_a_power_cut_in_a_repair_leaves_files_old_or_new(partition, tmp_path):
    """After a clean stop, a start trusts the files. It would use an index in which a repair has left out entries."""
    damage_everything(partition)
    old = {path.name: path.read_bytes() for path in partition.iterdir()}
    rng = random.Random(7)
    crashed = []

    def crash(change, path):
        target = tmp_path / f'crash{len(crashed)}' / 'orders-0'
        target.mkdir(parents=True)
        fs.crash(target, rng)
        crashed.append(target)

    fs = FreezingFileSystem(partition, crash)
    assert repair(partition, fs) == 0
    crash('', '')
    new = {path.name: path.read_bytes() for path in partition.iterdir()}
    assert len(crashed) > 20
    for directory in crashed:
        for path in directory.iterdir():
            if not path.name.endswith('.tmp'):
                assert path.read_bytes() in (old.get(path.name), new.get(path.name)), path
        if any('snapshot' in name for name in old):
            assert list(directory.glob('*.snapshot')), 'to Kafka, a log without a snapshot has no producers'
        assert repair(directory, FileSystem()) == 0
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == new


# ---- contradictions between files ----

def rewrite(partition, batches, clock=None):
    """Replace the content of a partition by these batches. They keep their offsets, as when a follower appends them."""
    topic, _, number = partition.name.rpartition('-')
    for path in partition.iterdir():
        if path.name not in ('partition.metadata', 'leader-epoch-checkpoint'):
            path.unlink()
    (partition.parent / INVENTORY_FILE).unlink(missing_ok=True)     # as if another broker had written the partition
    log = Log(FileSystem(), str(partition), topic, int(number), LogConfig(Config({}), {}), clock or ManualClock())
    for batch in batches:
        log.append_batch(bytearray(batch), Origin.REPLICATION, 0)
    log.close()


def batches_of(partition):
    return [bytes(batch) for path in sorted(partition.glob('*.log')) for _, batch in iter_batches(path.read_bytes())]


def forget_checkpoints(directory):
    """Empty the checkpoints, which would contradict shortened logs. These tests do not check that contradiction."""
    for path in directory.glob('*-checkpoint'):
        path.write_text('0\n0\n')


def test_an_open_transaction_that_no_transactional_id_explains_hangs(directory):
    partition = directory / 'orders-1'
    batches = batches_of(partition)
    stray = encode_batch([(0, None, b'v')], producer_id=777, producer_epoch=3, base_sequence=0, transactional=True)
    rewrite(partition, [*batches, stray])
    (found,) = errors_in(directory)
    assert 'producer 777, epoch 3' in found.message and 'hangs' in found.message
    path = last(partition, '.log')
    assert (found.file, found.position) == (str(path), path.read_bytes().rindex(stray[61:]) - 61)


def test_a_completed_transaction_without_a_marker_here_is_reported(directory):
    partition = directory / 'orders-1'
    rewrite(partition, batches_of(partition)[:-1])
    forget_checkpoints(directory)
    (found,) = errors_in(directory)
    assert "whose ABORT marker is missing: 'tx' is CompleteAbort" in found.message


def test_without_all_of_the_transaction_state_no_missing_marker_is_reported(directory):
    partition = directory / 'orders-1'
    rewrite(partition, batches_of(partition)[:-1])
    forget_checkpoints(directory)
    shutil.rmtree(directory / f'{TRANSACTION_STATE}-0')
    shutil.rmtree(directory / f'{TRANSACTION_STATE}-1')
    assert errors_in(directory) == []
    assert any('not all of __transaction_state' in finding.message for finding in findings_in(directory))


def rows(*states, decided=frozenset({A, B}), producer_id=5, version=2):
    """Return the batches of a `__transaction_state` partition: one batch with a row of `tx` for each of `states`."""
    batches = []
    for offset, (state, epoch) in enumerate(states):
        row = TransactionRow(state, producer_id, epoch, 60_000, 0, 0, frozenset() if state in (
            S.COMPLETE_COMMIT, S.COMPLETE_ABORT, S.EMPTY) else decided, client_transaction_version=version)
        key, value = encode_row('tx', row, 1)
        batches += list(iter_batches(bytes(encode_batch([(0, key, value)], base_offset=offset))))
    return batches


def remarks(states, opened, known=frozenset({A, B}), **options):
    check = TransactionCheck({0: rows(*states, **options)})
    found = {A: [], B: []} | {key: [OpenTransaction(producer_id, epoch, 7, 0)]
                              for key, (producer_id, epoch) in opened.items()}
    return [(remark.is_error, remark.topic_partition, remark.message) for remark in check.run(found, set(known))]


def test_an_ongoing_transaction_is_open_where_it_says():
    assert remarks([(S.ONGOING, 1)], {A: (5, 1), B: (5, 1)}) == []
    ((is_error, place, message),) = remarks([(S.ONGOING, 1)], {A: (5, 1)})
    assert (is_error, place) == (False, (TRANSACTION_STATE, 0))
    assert 'names orders-1, where it has written nothing' in message


def test_a_decision_that_is_not_carried_out_yet_is_a_warning():
    ((is_error, _, message),) = remarks([(S.ONGOING, 1), (S.PREPARE_COMMIT, 2)], {A: (5, 1)})
    assert not is_error and 'its markers are in 1 of 2 partitions; the next start completes it' in message


@pytest.mark.parametrize(('states', 'epoch', 'version', 'text'), [
    ([(S.ONGOING, 1), (S.PREPARE_COMMIT, 2), (S.COMPLETE_COMMIT, 2)], 1, 2, 'whose COMMIT marker is missing'),
    ([(S.ONGOING, 1), (S.PREPARE_ABORT, 1), (S.COMPLETE_ABORT, 1)], 1, 0, 'whose ABORT marker is missing'),
    ([(S.ONGOING, 1), (S.PREPARE_COMMIT, 2), (S.COMPLETE_COMMIT, 2)], 2, 2, 'coordinator does not know:'),
    ([(S.EMPTY, 1)], 1, 2, 'coordinator does not know:'), ([], 1, 2, 'no transactional.id with this producer id')])
def test_an_open_transaction_that_its_coordinator_holds_for_ended_is_an_error(states, epoch, version, text):
    ((is_error, place, message),) = remarks(states, {B: (5, epoch)}, version=version)
    assert is_error and place == B and text in message


def test_a_row_may_name_partitions_of_a_deleted_topic():
    found = remarks([(S.ONGOING, 1)], {A: (5, 1), B: (5, 1)}, known={A})
    assert [(is_error, message) for is_error, _, message in found] == [
        (False, "'tx' is Ongoing in epoch 1 and names orders-1, which do not exist")]


def checkpoint(directory, name, *rows):
    (directory / name).write_text('\n'.join(['0', str(len(rows)), *rows]) + '\n')


LOG_DIRECTORY_DAMAGE = {
    'checkpoint of garbage': (
        lambda directory: (directory / 'recovery-point-offset-checkpoint').write_bytes(b'\xff\xfe\n\n'),
        'found version'),
    'high watermark above the end': (
        lambda directory: checkpoint(directory, 'replication-offset-checkpoint', 'orders 0 1000'),
        'records that consumers may have seen are gone'),
    'log start above the end': (
        lambda directory: checkpoint(directory, 'log-start-offset-checkpoint', 'orders 0 1000'),
        'nothing of the log can be read'),
    'recovery point above the end': (
        lambda directory: checkpoint(directory, 'recovery-point-offset-checkpoint', 'orders 0 1000'),
        'what was on the disk is gone'),
    'torn meta.properties': (
        lambda directory: (directory / 'meta.properties').write_bytes(b'version=1\nno'), 'found no cluster.id'),
    'topic id of another topic': (
        lambda directory: (directory / 'orders-0' / 'partition.metadata').write_text(
            'version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ'), 'the metadata log says'),
    'lost partition': (
        lambda directory: shutil.rmtree(directory / 'orders-0'), 'checkpoints list its log: it is lost'),
    'foreign directory': (lambda directory: (directory / 'lost+found').mkdir(), 'neither Kafka nor kbroker starts'),
    'damaged metadata log': (
        lambda directory: flip(first(directory / '__cluster_metadata-0', '.log'), 100), 'position'),
    'damaged format snapshot': (
        lambda directory: flip(first(directory / '__cluster_metadata-0', '.checkpoint'), 100), 'found a snapshot'),
}


@pytest.mark.parametrize('name', LOG_DIRECTORY_DAMAGE)
def test_what_the_files_of_a_log_directory_say_of_each_other_is_checked(directory, name):
    damage, text = LOG_DIRECTORY_DAMAGE[name]
    damage(directory)
    assert any(text in message for message in messages(errors_in(directory))), messages(findings_in(directory))


@pytest.fixture
def recreated(tmp_path):
    """Return the directory of a broker that was killed after it had deleted a topic with a record and created the topic
    again."""
    directory = tmp_path / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 1)
        client.init_idempotent()
        client.produce({A: ['old']})
        client.delete_topic('orders')
        client.create_topic('orders', 1)
        broker.crash()
    return directory


def test_a_topic_that_was_created_again_has_lost_nothing(recreated):
    """A crash may remove the new directory of the topic, while checkpoints still list the log of the deleted one."""
    shutil.rmtree(recreated / 'orders-0')
    checkpoint(recreated, 'recovery-point-offset-checkpoint', 'orders 0 1')
    assert messages(errors_in(recreated)) == []
    deleted, = recreated.glob('*-delete')
    shutil.rmtree(deleted)
    assert any('it is lost' in message for message in messages(errors_in(recreated)))


def test_a_kill_between_two_topics_of_a_name_is_no_error(recreated):
    """Apache Kafka writes the topic id late into a partition's directory. It removes the directory of a deleted topic
    later than the topic's metadata."""
    checkpoint(recreated, 'replication-offset-checkpoint', 'orders 0 52')
    deleted, = recreated.glob('*-delete')
    metadata = recreated / 'orders-0' / 'partition.metadata'
    metadata.unlink()
    assert messages(errors_in(recreated)) == []
    shutil.rmtree(recreated / 'orders-0')
    deleted.rename(recreated / 'orders-0')
    checkpoint(recreated, 'replication-offset-checkpoint', 'orders 0 1')
    assert messages(errors_in(recreated)) == []
    assert any('the metadata log says' in message for message in messages(findings_in(recreated)))


def test_a_high_watermark_from_before_a_partition_is_of_an_earlier_topic(tmp_path):
    """Kafka writes the checkpoint only every few seconds, so the checkpoint may have an offset of a deleted topic whose
    log is already removed."""
    directory = tmp_path / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        Client(broker, Promises()).create_topic('orders', 1)
        broker.crash()
    checkpoint(directory, 'replication-offset-checkpoint', 'orders 0 52')
    created_s = os.stat(directory / 'orders-0' / 'partition.metadata').st_mtime
    for written_s, text in ((created_s - 5, []), (created_s + 5, ['consumers may have seen are gone'])):
        os.utime(directory / 'replication-offset-checkpoint', (written_s, written_s))
        found = messages(errors_in(directory))
        assert len(found) == len(text)
        assert all(expected in message for expected, message in zip(text, found, strict=True))


def test_unusual_things_are_warnings_and_the_exit_code_is_0(directory):
    (directory / 'orders-7').mkdir()
    (directory / 'notes-1').write_text('a file')
    (directory / f'gone-0.{"a" * 32}-delete').mkdir()
    (directory / 'orders-0' / 'core').write_text('dumped')
    done = run(directory)
    assert done.exit_code == 0 and done.stdout.count('warning ') == 4, done.output
    for text in ('partition of no topic', 'a file with the name of a partition', 'out of use (-delete)',
                 'does not belong to a partition'):
        assert text in done.stdout


def test_what_the_next_start_mends_after_a_crash_is_a_warning(directory):
    (directory / '.kafka_cleanshutdown').unlink()
    path = last(directory / 'orders-0', '.log')
    path.write_bytes(path.read_bytes() + b'torn')
    last(directory / 'orders-0', '.index').write_bytes(b'12345')
    found = findings_in(directory)
    assert len(found) == 2 and all(finding.severity is Severity.WARNING for finding in found)
    assert all(finding.message.endswith('; the next start repairs it') for finding in found)
    with InProcessBroker(directory, SETTINGS):
        pass
    assert findings_in(directory) == []


# ---- bad input ----

@pytest.mark.parametrize('names', [(), ('a', 'b'), ('install.log',)])
def test_a_directory_that_is_no_log_directory_gets_one_line(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    done = run_command('check', tmp_path)
    assert done.returncode == 1 and done.stdout == ''
    assert len(done.stderr.splitlines()) == 1 and 'expected a log directory' in done.stderr


def test_a_pipe_in_a_directory_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / f'{0:020d}.log')
    os.mkfifo(tmp_path / f'{0:020d}.index')
    done = run_command('check', tmp_path)
    assert done.returncode == 1 and done.stdout.count('found no regular file') == 1


def test_closed_streams_are_no_traceback(directory):
    done = subprocess.run(['sh', '-c', f'{shlex.join(command_line("check", directory))} >&-'], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, 'kbroker-check: the output is closed\n')
    done = subprocess.run(['sh', '-c', f'{shlex.join(command_line("check", directory))} 2>&-'], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count('0 errors')) == (0, 1)


@pytest.mark.parametrize('arguments', [(), ('/no/such/place',), ('.', '--no-dry-run'), ('.', '--truncate-torn-tail'),
                                       ('.', '--jobs', '0')])
def test_wrong_usage_ends_with_2(arguments):
    assert run(*arguments).exit_code == 2


class UnreadableFileSystem(ReadOnlyFileSystem):
    """A file system that refuses to open or list the paths that the test names."""

    def __init__(self, refused):
        self.refused = refused

    def open(self, path, create=False):
        if self.refused in path:
            raise PermissionError(errno.EACCES, 'Permission denied', path)
        return super().open(path, create)

    def listdir(self, path):
        if path.endswith(self.refused):
            raise PermissionError(errno.EACCES, 'Permission denied', path)
        return super().listdir(path)


@pytest.mark.parametrize('refused', [
    '.log', '.index', '.timeindex', '.txnindex', '.snapshot', 'leader-epoch-checkpoint', 'partition.metadata',
    'meta.properties', '-offset-checkpoint', 'orders-0'])
def test_a_file_that_cannot_be_read_is_an_error_and_the_rest_is_checked(directory, refused):
    found = errors_in(directory, UnreadableFileSystem(refused))
    assert found
    if refused not in ('.log', 'orders-0'):
        assert all('cannot be read: Permission denied' in finding.message for finding in found), messages(found)
    assert not [finding for finding in found if refused not in finding.file and '__cluster' not in finding.file]


@pytest.mark.parametrize('seed', range(4))
def test_garbage_in_any_file_is_found_and_nothing_else_happens(directory, seed):
    rng = random.Random(seed)
    for path in sorted(path for path in directory.rglob('*') if path.is_file() and path.name != '.lock'):
        if path.parent.name.startswith('orders') or rng.random() < 0.3:
            path.write_bytes(rng.randbytes(rng.choice((0, 1, 7, 61, 100, 1000))))
    done = run(directory)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    done = run(directory, '--repair', '--no-dry-run', '--truncate-torn-tail')
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output


@pytest.mark.parametrize('size', [0, 1, 11, 12, 60, 61, 62, 100])
def test_everything_truncated_is_found(partition, size):
    for path in partition.iterdir():
        path.write_bytes(path.read_bytes()[:size])
    assert errors_in(partition.parent)
    done = run(partition.parent, '--repair', '--no-dry-run', '--truncate-torn-tail')
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output


def test_offsets_may_be_huge(tmp_path):
    directory = tmp_path / 'orders-0'
    directory.mkdir()
    base = (1 << 63) - 1
    (directory / f'{base:020d}.log').write_bytes(encode_batch([(0, None, b'v')], base_offset=base))
    for name in ('99999999999999999999.log', '7.index', '00000000000000000000.log.swap'):
        (directory / name).write_bytes(b'?')
    found = messages(findings_in(directory))
    assert any('the highest possible' in text for text in found) and any('20 digits' in text for text in found)
    assert run(directory, '--repair', '--no-dry-run').exit_code == 1


def test_a_partition_that_is_deleted_while_it_is_checked_is_no_error(directory):
    def delete(path):
        if path.endswith('.log') and '/orders-0/' in path:
            shutil.rmtree(directory / 'orders-0')

    check = DirectoryCheck(MeddlingFileSystem(delete), str(directory))
    check.list_tasks()
    for task in check.tasks:
        check.add(*command._check(check.fs, task))
    assert messages(check.findings) == ['orders-0: was deleted while it was checked']


# ---- while a broker runs ----

HOLD = ('import sys; from kbroker.log.fs import FileSystem; lock = FileSystem().lock(sys.argv[1]); '
        'print(1, flush=True); input()')


@pytest.fixture
def holder(directory):
    process = subprocess.Popen([sys.executable, '-c', HOLD, directory / '.lock'], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.communicate(b'\n')


def test_a_repair_refuses_while_a_broker_holds_the_lock_and_names_it(directory, holder):
    middle(directory / 'orders-0', '.index').unlink()
    before = tree(directory)
    done = run_command('check', directory, '--repair', '--no-dry-run')
    assert done.returncode == 1 and tree(directory) == before
    assert done.stderr == (f'kbroker-check: {directory}: a broker (process {holder.pid}) uses it: stop it first\n')
    done = run_command('check', directory / 'orders-0', '--repair', '--no-dry-run')
    assert done.returncode == 1 and f'process {holder.pid}' in done.stderr


def test_a_check_goes_on_beside_a_broker_and_says_so(directory, holder):
    done = run_command('check', directory)
    assert done.returncode == 0 and f'process {holder.pid}' in done.stderr


def test_a_directory_is_locked_while_it_is_repaired(directory):
    middle(directory / 'orders-0', '.index').unlink()
    seen = []

    class Watching(FileSystem):
        def rename(self, old, new):
            probe = ('import sys; from kbroker.log.fs import ReadOnlyFileSystem as R; '
                     'print(R().lock_holder(sys.argv[1]))')
            seen.append(subprocess.run([sys.executable, '-c', probe, directory / '.lock'], capture_output=True,
                                       text=True, check=True).stdout.strip())
            super().rename(old, new)

    (directory / '.lock').unlink()
    assert repair(directory, Watching()) == 0
    assert set(seen) == {str(os.getpid())}
    assert ReadOnlyFileSystem().lock_holder(str(directory / '.lock')) is None


# ---- output ----

def test_rows_of_json_say_what_the_table_says(directory):
    middle(directory / 'orders-0', '.index').unlink()
    done = run(directory, '--json')
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert row == {'severity': 'error', 'file': str(middle(directory / 'orders-0', '.timeindex').with_suffix('.index')),
                   'position': None, 'message': 'found no such file',
                   'do': f'kbroker-check --repair --no-dry-run {directory}/orders-0'}
    done = run(directory, '--json', '--repair')
    assert [json.loads(line).get('step') for line in done.stdout.splitlines()] == [
        None, 'build the indexes of the segment again']


def test_several_directories_are_checked_in_one_run(directory, model):
    middle(directory / 'orders-0', '.index').unlink()
    done = run(model, directory)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0].startswith(f'{model}: ') and '0 errors' in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1].endswith('1 error, 0 warnings')


def die(fs, task):
    os._exit(1)


def test_a_process_that_is_killed_is_reported_in_one_line(directory, monkeypatch):
    monkeypatch.setattr(command, 'ALONE_BYTES', 0)
    monkeypatch.setattr(command, '_check', die)
    done = run(directory, '--jobs', '2')
    assert done.exit_code == 1 and 'a process that checked a partition was killed' in done.stderr


def test_the_number_of_listed_findings_of_a_file_is_limited(tmp_path):
    directory = tmp_path / 'orders-0'
    directory.mkdir()
    batch = encode_batch([(0, None, b'v')], partition_leader_epoch=3)
    (directory / f'{0:020d}.log').write_bytes(bytes(batch) * 100)
    found = findings_in(directory)
    assert len([finding for finding in found if finding.file.endswith('.log')]) == 20
    assert 'not listed' in ''.join(messages(found))


def test_processes_find_what_one_process_finds(directory, monkeypatch):
    for name in ('orders-0', 'orders-1'):
        middle(directory / name, '.index').unlink()
    alone = run(directory, '--jobs', '1')
    monkeypatch.setattr(command, 'ALONE_BYTES', 0)
    assert run(directory, '--jobs', '2').output == alone.output
