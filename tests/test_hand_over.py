"""`kbroker hand-over` brings the directory of a stopped broker to rest, and reports what Apache Kafka will find."""
import errno
import json
import pathlib
import tarfile

import pytest
from click.testing import CliRunner
from support.brokers.in_process_broker import InProcessBroker, frame_of
from support.disk.faulty_file_systems import FailingFileSystem
from support.messages.message_builder import batch_of, build

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode, LogDirectoryError
from kbroker.daemon.hand_over import (
    MOST_NAMED,
    WITHOUT_DELETIONS,
    complete_transactions,
    hand_over,
    lines_of,
    report_on,
)
from kbroker.daemon.main import main
from kbroker.daemon.node import Node
from kbroker.settings.config import Config
from kbroker.settings.listeners import Listener

DIRECTORIES = pathlib.Path(__file__).parent / 'data' / 'kafka-directories'
SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'transaction.two.phase.commit.enable': 'true'}
CLEAN_MARK = '.kafka_cleanshutdown'


class Application:
    """A transactional producer of a broker in the test's process."""

    def __init__(self, broker, name, enable2_pc=False, keep_prepared_txn=False):
        self.broker, self.name = broker, name
        answer = broker.ask(build('InitProducerIdRequest', transactional_id=name, transaction_timeout_ms=60_000,
                                  enable2_pc=enable2_pc, keep_prepared_txn=keep_prepared_txn), 6)
        assert answer.error_code == ErrorCode.NONE
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def write(self, *partitions):
        records = batch_of(self.broker.clock.wall_ms(), b'value', producer_id=self.id, producer_epoch=self.epoch,
                           base_sequence=0, transactional=True)
        answer = self.broker.ask(build('ProduceRequest', transactional_id=self.name, acks=-1, timeout_ms=1000,
                                       topic_data=[dict(name='orders', partition_data=[
                                           dict(index=partition, records=records) for partition in partitions])]), 12)
        assert {each.error_code for each in answer.responses[0].partition_responses} == {ErrorCode.NONE}
        return self

    def decide(self):
        """Send EndTxn to a broker that then fails before it writes a marker."""
        request = build('EndTxnRequest', transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch,
                        committed=True)
        self.broker.serve(self.broker.connect(), frame_of(request, 5))


def started(directory, clock=None):
    broker = InProcessBroker(directory, SETTINGS, clock=clock)
    broker.__enter__()
    broker.topics.ensure_internal('__transaction_state')
    broker.topics.create('orders', 2, {'retention.ms': '1000'})
    broker.turn()
    return broker


@pytest.fixture
def decided(tmp_path):
    """A directory that a broker left when it failed between the Prepare row and the markers of the transaction `pay`.
    """
    broker = started(tmp_path / 'data')
    Application(broker, 'pay').write(0, 1).decide()
    broker.crash()
    return tmp_path / 'data'


def failing_markers(code):
    """Return a file system on which no marker can be written to orders-1. The first write there is the recovery's."""
    writes = []

    def fail(change, path):
        if change != 'write' or '/orders-1/' not in path or not path.endswith('.log'):
            return None
        writes.append(path)
        return code if len(writes) > 1 else None

    return FailingFileSystem(fail)


def opened(directory, fs):
    """Return an open node on a directory. Its clock is a manual one."""
    clock = ManualClock()
    node = Node(Config({'log.dirs': str(directory), **SETTINGS, **WITHOUT_DELETIONS}), clock, Timers(clock), fs)
    node.take_directory()
    node.open([Listener('PLAINTEXT', 'localhost', 9092)])
    return node


def unpack(archive, tmp_path):
    with tarfile.open(DIRECTORIES / f'{archive}.tgz') as files:
        files.extractall(tmp_path, filter='data')
        return tmp_path / files.getnames()[0].split('/')[0]


def run(*arguments):
    return CliRunner().invoke(main, ['hand-over', *map(str, arguments)])


def data_of(directory):
    """Return the content of every file of the partitions of topics."""
    return {path.relative_to(directory): path.read_bytes() for path in directory.glob('*-[0-9]*/*')
            if path.parent.name != '__cluster_metadata-0'}


def state_of(directory, transactional_id):
    with InProcessBroker(directory, SETTINGS) as broker:
        return broker.transactions.describe(transactional_id).state.title


def test_a_decided_transaction_is_complete_afterwards_and_a_second_hand_over_changes_no_partition(decided):
    assert not (decided / CLEAN_MARK).exists()
    result = run('--data-dir', decided)
    assert result.exit_code == 0, result.stderr
    assert (decided / CLEAN_MARK).exists()
    left = data_of(decided)
    assert run('--data-dir', decided).exit_code == 0
    assert data_of(decided) == left
    assert state_of(decided, 'pay') == 'CompleteCommit'


def test_the_report_says_who_may_open_the_directory_and_what_stays_open(tmp_path):
    broker = started(tmp_path / 'data')
    Application(broker, 'timed').write(0)
    Application(broker, 'waiting', enable2_pc=True).write(0)
    Application(broker, 'kept', enable2_pc=True).write(1)
    Application(broker, 'kept', enable2_pc=True, keep_prepared_txn=True)
    broker.crash()
    result = run('--data-dir', tmp_path / 'data', '--json')
    report = json.loads(result.stdout)
    assert report['directory'] == str(tmp_path / 'data') and report['node_id'] == 1
    assert (report['features']['metadata.version'], report['releases']) == (30, ['4.3', '4.4'])
    assert (report['kraft_version'], report['quorum_setting']) == (1, 'controller.quorum.bootstrap.servers')
    assert {each['transactional_id']: (each['timeout_ms'], each['is_two_phase'], each['is_kept'])
            for each in report['open_transactions']} == {
        'timed': (60_000, False, False), 'waiting': (None, True, False), 'kept': (None, True, True)}
    text = run('--data-dir', tmp_path / 'data').stdout
    assert 'is at rest: Apache Kafka can open it\n' in text
    assert 'metadata.version 30, for Kafka 4.3 or newer\n' in text
    assert 'set controller.quorum.bootstrap.servers=HOST:PORT\n' in text
    assert 'transactions with a timeout: 1. The oldest is timed: open for ' in text
    assert ', with a timeout of 1 min\n' in text
    assert 'that wait for another system: 2. Let their producers complete them on kbroker first\n' in text
    assert 'kafka-transactions.sh forceTerminateTransaction --transactionalId ID\n' in text
    assert 'waiting: producer ' in text and ', kept\n' in text


def test_a_directory_of_a_static_quorum_needs_the_setting_that_names_its_voters(tmp_path):
    directory = unpack('kafka-4.3-static-voter', tmp_path)
    result = run('--data-dir', directory)
    assert result.exit_code == 0, result.stderr
    assert 'kraft.version 0: set controller.quorum.voters=1@HOST:PORT\n' in result.stdout


def test_a_directory_that_a_killed_kafka_left_is_brought_to_rest(tmp_path):
    directory = unpack('kafka-4.4-stopped-three-times-one-kill', tmp_path)
    (directory / CLEAN_MARK).unlink(missing_ok=True)
    assert run('--data-dir', directory).exit_code == 0
    assert (directory / CLEAN_MARK).exists()


@pytest.mark.parametrize(('levels', 'release'), [
    ({'metadata.version': 29}, '4.3'), ({'metadata.version': 30}, '4.3'), ({'metadata.version': 31}, '4.4'),
    ({'metadata.version': 33}, '4.4'), ({'metadata.version': 30, 'share.version': 2}, '4.4')])
def test_the_oldest_release_that_opens_the_directory_follows_from_its_levels(tmp_path, levels, release):
    broker = started(tmp_path / 'data')
    broker.metadata.image.features.update(levels)
    report = report_on(broker)
    broker.crash()
    assert report['releases'][0] == release
    assert any(line.endswith(f'for Kafka {release} or newer') for line in lines_of(report))


def test_only_some_of_many_waiting_transactions_are_named(tmp_path):
    broker = started(tmp_path / 'data')
    for number in range(MOST_NAMED + 3):
        Application(broker, f'tx-{number:02}\n', enable2_pc=True).write(0)
    lines = list(lines_of(report_on(broker)))
    broker.crash()
    assert sum('tx-' in line for line in lines) == MOST_NAMED and '\n' not in ''.join(lines)
    assert lines[-1].strip() == 'and 3 more, which --json lists'


def test_a_directory_in_use_is_refused_and_its_broker_serves_on(broker):
    before = data_of(broker.directory)
    result = run('--data-dir', broker.directory)
    assert (result.exit_code, result.stdout) == (1, '')
    assert result.stderr.endswith(
        f'kbroker: a broker runs on {broker.directory} (process {broker.pid}): stop it first\n')
    assert data_of(broker.directory) == before
    assert broker.end_by(15) == 0


def test_a_directory_that_no_broker_has_formatted_is_not_made_one(tmp_path):
    for directory in (tmp_path / 'none', tmp_path):
        result = run('--data-dir', directory)
        assert result.exit_code == 1
        assert f'kbroker: {directory}: found no meta.properties, expected the log directory of a broker\n' in (
            result.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_marker_that_cannot_be_written_ends_the_hand_over_as_a_kill_would(decided):
    """The broker repeats such a marker ten times a second. In an hour of failures, no segment expires: the settings of
    a hand-over delete nothing.
    """
    node = opened(decided, failing_markers(errno.EMFILE))
    waited = []

    def wait(ms):
        waited.append(ms)
        node.clock.advance(max(ms, 1))

    before = {name for name in data_of(decided) if name.suffix == '.log'}
    with pytest.raises(LogDirectoryError, match=r'1 of the decided transactions cannot be completed: they lack the '
                       r'markers of pay on orders-1: no progress for 3600 s.* left as after a kill'):
        complete_transactions(node, wait, stall_limit_ms=3_600_000)
    node.abandon()
    assert 3_600_000 <= sum(waited) <= 3_700_000
    assert before <= {name for name in data_of(decided) if name.suffix == '.log'}
    assert not (decided / CLEAN_MARK).exists()
    assert hand_over(Config({'log.dirs': str(decided), **SETTINGS}))['open_transactions'] == []


def test_a_disk_that_fails_ends_the_hand_over_as_a_kill_would(decided):
    with pytest.raises(LogDirectoryError, match='the log directory is offline'):
        hand_over(Config({'log.dirs': str(decided), **SETTINGS}), fs=failing_markers(errno.EIO))
    assert not (decided / CLEAN_MARK).exists()
    hand_over(Config({'log.dirs': str(decided), **SETTINGS}))
    assert state_of(decided, 'pay') == 'CompleteCommit'


def test_a_disk_that_fails_at_the_stop_is_reported(decided):
    fs = FailingFileSystem(lambda change, path: errno.EIO if 'cleanshutdown' in path else None)
    with pytest.raises((LogDirectoryError, OSError)):
        hand_over(Config({'log.dirs': str(decided), **SETTINGS}), fs=fs)
    assert not (decided / CLEAN_MARK).exists()


def test_a_partition_out_of_service_is_named_and_kafka_shall_not_open_the_directory(tmp_path):
    broker = started(tmp_path / 'data')
    Application(broker, 'open').write(0, 1)
    broker.close()
    log, = (tmp_path / 'data' / 'orders-1').glob('*.log')
    log.write_bytes(log.read_bytes()[:-1])
    result = run('--data-dir', tmp_path / 'data')
    assert (result.exit_code, result.stdout) == (1, '')
    assert (f'kbroker: {tmp_path / "data"}: found damage that keeps orders-1 out of service. Run kbroker-check '
            f'{tmp_path / "data"} before Apache Kafka opens the directory\n') in result.stderr
