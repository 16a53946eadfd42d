"""The history of a transactional id: its events, the faults in it, and what it cannot know."""
import json
import pathlib
import tarfile

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.written_transactions import producer_of, transact, write_transactions
from support.runner.command_runner import run_command
from support.worlds.in_memory_view import START_MS, InMemoryView

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker_tools.base.render import Output
from kbroker_tools.cluster.directory_view import DirectoryView
from kbroker_tools.commands import history as command
from kbroker_tools.commands.history import read_history

A, B = ('orders', 0), ('orders', 1)
KAFKA_DIRECTORY = (pathlib.Path(__file__).parent.parent / 'data' / 'kafka-directories'
                   / 'kafka-4.4-stopped-three-times-one-kill.tgz')


class Coordinator:
    """A writer of the rows and markers of one transactional id. A test may omit a step, or do it wrongly."""

    def __init__(self, view, transactional_id='pay', producer_id=1000, version=2):
        self.view = view
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.version = version
        self.epoch = 0
        self.now_ms = 0
        self.start_ms = 0

    def row(self, state, **fields):
        self.now_ms += 10
        fields = {'version': self.version, **fields}
        return self.view.write_row(self.transactional_id, state, self.producer_id, self.epoch, at_ms=self.now_ms,
                                   **fields)

    def begin(self, *partitions):
        self.start_ms = self.now_ms + 10
        self.row('ONGOING', start_ms=self.start_ms, partitions=partitions)

    def add(self, *partitions):
        self.row('ONGOING', start_ms=self.start_ms, partitions=partitions)

    def write(self, topic_partition, records=1):
        self.now_ms += 1
        return self.view.log(*topic_partition).write(self.producer_id, self.epoch, self.now_ms, records)

    def prepare(self, *partitions, commit=True, **fields):
        self.epoch += self.version >= 2
        self.row('PREPARE_COMMIT' if commit else 'PREPARE_ABORT', start_ms=self.start_ms, partitions=partitions,
                 **fields)

    def mark(self, topic_partition, commit=True):
        self.now_ms += 1
        return self.view.log(*topic_partition).end(self.producer_id, self.epoch, commit, self.now_ms)

    def complete(self, commit=True, **fields):
        self.row('COMPLETE_COMMIT' if commit else 'COMPLETE_ABORT', start_ms=self.start_ms, **fields)

    def transact(self, *partitions, commit=True):
        self.begin(*partitions)
        for partition in partitions:
            self.write(partition)
        self.prepare(*partitions, commit=commit)
        for partition in partitions:
            self.mark(partition, commit)
        self.complete(commit)


@pytest.fixture
def view():
    view = InMemoryView()
    for partition in (A, B):
        view.log(*partition)
    return view


@pytest.fixture(params=[1, 2])
def coordinator(view, request):
    """Return a Coordinator for transaction.version 1, or for version 2, in which the end of a transaction raises the
    epoch."""
    return Coordinator(view, version=request.param)


def history_in(view, transactional_id='pay', all_partitions=False):
    return read_history(view, transactional_id, all_partitions, Output())


def kinds(history):
    return [event.kind for event in history.events]


# ---- events

def test_a_prepared_transaction_that_its_client_kept_is_an_event(view):
    coordinator = Coordinator(view)
    coordinator.begin(A)
    coordinator.write(A)
    coordinator.row('ONGOING', start_ms=coordinator.start_ms, partitions=[A], following=1000, next_epoch=1)
    coordinator.prepare(A, following=1000, next_epoch=2)
    coordinator.mark(A)
    coordinator.epoch = 2
    coordinator.complete()
    history = history_in(view)
    assert kinds(history) == ['begin', 'records', 'kept', 'prepare', 'marker', 'complete']
    assert [event.details for event in history.events if event.kind in ('kept', 'prepare')] == [
        'prepared for two-phase commit; its client goes on as producer 1000 epoch 1',
        'commit, epoch 1; its client goes on as producer 1000 epoch 2']
    assert history.faults == []


def test_events_are_listed_in_the_order_in_which_they_happened(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.write(A, 3)
    coordinator.add(A, B)
    coordinator.write(B)
    coordinator.prepare(A, B)
    coordinator.mark(A)
    coordinator.mark(B)
    coordinator.complete()
    history = history_in(view)
    assert kinds(history) == ['initialised', 'begin', 'records', 'partitions', 'records', 'prepare', 'marker', 'marker',
                              'complete']
    assert (history.faults, history.unknowns, history.transactions) == ([], [], 1)
    begin, records, partitions = history.events[1:4]
    assert (begin.details, begin.transaction, begin.since_begin_ms) == ('orders-0; producer 1000 epoch 0', 1, 0)
    assert (records.where, records.offset, records.details) == ('orders-0', 0, '3 to offset 2, producer 1000 epoch 0')
    assert (partitions.details, partitions.since_begin_ms) == ('orders-1', 11)
    assert history.events[-1].details == 'commit' and history.titles == ['committed, 34 ms in all']
    assert [event.where for event in history.events if event.kind == 'marker'] == ['orders-0', 'orders-1']


def test_transactions_are_distinguished_even_if_they_share_an_epoch(coordinator, view):
    coordinator.row('EMPTY')
    for number in range(6):
        coordinator.transact(*((A, B) if number % 2 else (A,)), commit=number % 3 != 0)
    history = history_in(view)
    assert (history.transactions, history.faults, history.unknowns) == (6, [], [])
    assert [event.transaction for event in history.events if event.kind == 'marker'] == [1, 2, 2, 3, 4, 4, 5, 6, 6]


TRANSACTIONS = st.lists(st.tuples(st.sampled_from([(A,), (B,), (A, B)]), st.booleans(), st.integers(0, 3000),
                                  st.booleans()), min_size=1, max_size=12)
"""Each transaction: its partitions, True for a commit, the pause after its end in ms, True if the producer is then
initialised again."""


@settings(deadline=None)
@given(st.sampled_from([1, 2]), TRANSACTIONS, st.data())
def test_a_sound_life_has_no_fault_and_one_without_a_marker_has_that_one(version, transactions, data):
    lost = data.draw(st.none() | st.integers(0, len(transactions) - 1))
    view = InMemoryView()
    for topic_partition in (A, B):
        view.log(*topic_partition).write(at_ms=0)
    coordinator = Coordinator(view, version=version)
    coordinator.row('EMPTY')
    for number, (partitions, commit, pause_ms, is_initialised) in enumerate(transactions):
        coordinator.begin(*partitions)
        coordinator.write(partitions[0])
        coordinator.prepare(*partitions, commit=commit)
        for partition in partitions[number == lost:]:
            coordinator.mark(partition, commit)
        coordinator.complete(commit)
        coordinator.now_ms += pause_ms
        if is_initialised or number == lost:
            coordinator.epoch += 1
            coordinator.row('EMPTY')
    for topic_partition in (A, B):
        view.log(*topic_partition).write(at_ms=coordinator.now_ms)
    view.clock_ms = START_MS + coordinator.now_ms
    history = history_in(view)
    assert history.transactions == len(transactions)
    if lost is None:
        assert history.faults == []
    else:
        assert [fault for fault in history.faults if f'transaction {lost + 1}, ' in fault and 'missing' in fault]


def test_markers_of_other_producers_do_not_matter(coordinator, view):
    coordinator.row('EMPTY')
    other = Coordinator(view, 'other', 2000)
    other.row('EMPTY')
    other.transact(A)
    coordinator.transact(A)
    assert [event.offset for event in history_in(view).events if event.kind == 'marker'] == [3]


def test_an_initialisation_that_raises_the_epoch_is_a_fence(view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    coordinator.epoch = 1
    coordinator.row('EMPTY')
    fence = history_in(view).events[1]
    assert fence.kind == 'fenced'
    assert fence.details == ('epoch 0 may not write any more: initialised again, producer 1000 epoch 1, '
                             'times out after 1 min')


def test_an_abort_after_the_timeout_says_so(view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.now_ms += 60_000
    coordinator.prepare(A, commit=False)
    coordinator.mark(A, commit=False)
    coordinator.complete(commit=False)
    assert [event.details for event in history_in(view).events if event.kind == 'prepare'] == [
        'abort, epoch 1; after its timeout of 1 min']


def test_an_abort_by_the_coordinator_fences_the_producer_of_an_older_version(view):
    coordinator = Coordinator(view, version=1)
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.epoch += 1
    coordinator.prepare(A, commit=False)
    assert [event.details for event in history_in(view).events if event.kind == 'prepare'] == [
        'abort, epoch 1; epoch 0 is fenced']


def test_a_used_up_epoch_changes_the_producer_id(view):
    coordinator = Coordinator(view)
    coordinator.epoch = 32766
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.write(A)
    coordinator.prepare(A, following=2000)
    coordinator.mark(A)
    coordinator.producer_id, coordinator.epoch = 2000, 0
    coordinator.complete(previous=1000)
    coordinator.transact(A)
    history = history_in(view)
    assert history.faults == []
    assert 'producer 2000 is to follow' in next(event.details for event in history.events if event.kind == 'prepare')
    assert [event.details for event in history.events if event.kind == 'producer id'] == [
        '1000 to 2000: the epochs of the old one were used up']


def test_an_abort_of_nothing_only_ends_the_epoch(view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    coordinator.start_ms = coordinator.now_ms + 10
    coordinator.prepare(commit=False)
    coordinator.complete(commit=False)
    history = history_in(view)
    assert kinds(history) == ['initialised', 'prepare', 'complete']
    assert 'of nothing' in history.events[1].details
    assert (history.faults, history.unknowns) == ([], [])


def test_an_id_that_expired_ends_with_its_tombstone(view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    view.forget('pay', at_ms=500)
    assert kinds(history_in(view)) == ['initialised', 'forgotten']


def test_a_transaction_in_which_a_partition_got_no_records_has_its_marker_there(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.begin(A, B)
    coordinator.write(A)
    coordinator.prepare(A, B)
    coordinator.mark(A)
    coordinator.mark(B)
    coordinator.complete()
    history = history_in(view)
    assert history.faults == []
    assert [event.details for event in history.events if event.where == 'orders-1'] == [
        f'commit, epoch {coordinator.epoch}, coordinator epoch 0; no records of it are here']


# ---- faults

def test_a_missing_marker_is_flagged_with_what_ends_the_transaction(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.begin(A, B)
    coordinator.write(A)
    coordinator.write(B)
    coordinator.prepare(A, B)
    coordinator.mark(A)
    coordinator.complete()
    [fault] = history_in(view).faults
    assert fault.startswith('transaction 1, orders-1: missing: the transaction is complete and there is no marker; '
                            'it is open from offset 0 on.')
    assert fault.endswith('kbroker-transactions why-stuck orders:1')


def test_a_late_marker_is_flagged(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.write(A)
    coordinator.prepare(A)
    coordinator.complete()
    coordinator.now_ms += 9999
    coordinator.mark(A)
    assert history_in(view).faults == [
        'transaction 1, orders-0 offset 1: late: 10.0 s after the transaction was complete']


def test_a_marker_that_says_the_opposite_is_torn(view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.write(A)
    coordinator.prepare(A)
    coordinator.mark(A, commit=False)
    coordinator.complete()
    assert history_in(view).faults == [
        'transaction 1, orders-0 offset 1: torn: the rows say commit, the marker says abort']


def test_a_decision_that_is_never_completed_is_torn(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.begin(A, B)
    coordinator.write(A)
    coordinator.write(B)
    coordinator.prepare(A, B)
    coordinator.mark(A)
    [fault] = history_in(view).faults
    assert 'torn: not completed for' in fault and 'no marker in orders-1' in fault
    coordinator.mark(B)
    [fault] = history_in(view).faults
    assert 'though every partition has its marker' in fault
    view.clock_ms = START_MS + coordinator.now_ms + 50
    assert history_in(view).faults == [], 'the coordinator may still be writing it'


def test_a_decision_that_the_next_transaction_follows_at_once_is_torn(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.write(A)
    coordinator.prepare(A)
    coordinator.mark(A)
    coordinator.transact(A)
    [fault] = history_in(view).faults
    assert fault.startswith('transaction 1, ') and fault.endswith('torn: no Complete row follows it')


def test_an_open_transaction_that_no_row_knows_of_hangs(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.transact(A)
    view.log(*B).write(1000, 0, coordinator.now_ms + 5000, records=7)
    [fault] = history_in(view).faults
    assert fault.startswith('orders-1 offset 0: hanging: open for 55.0 s')
    assert fault.endswith('kbroker-transactions why-stuck orders:1')


def test_an_open_transaction_that_its_row_knows_of_is_well(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.transact(A)
    coordinator.begin(A)
    coordinator.write(A, 2)
    history = history_in(view)
    assert history.faults == []
    assert [(event.transaction, event.kind) for event in history.events[-2:]] == [(2, 'begin'), (2, 'records')]


def test_a_marker_written_again_before_the_end_is_listed_and_is_no_fault(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.begin(A)
    coordinator.write(A)
    coordinator.prepare(A)
    coordinator.mark(A)
    coordinator.mark(A)
    coordinator.complete()
    history = history_in(view)
    assert 'repeated' in kinds(history) and history.faults == []


# ---- unknowns

def test_transactions_whose_rows_were_compacted_are_found_in_the_partitions(view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    coordinator.transact(A, B)
    coordinator.transact(A)
    view.logs['__transaction_state', 1].data.clear()
    view.logs['__transaction_state', 2].data.clear()
    view.logs['__transaction_state', 0].data.clear()
    coordinator.transact(A)
    history = history_in(view)
    assert (history.transactions, history.faults) == (3, [])
    assert len(history.unknowns) == 2
    assert history.unknowns[0].startswith('what happened before: compaction has left no row before offset')
    assert history.unknowns[1].startswith('transactions 1, 2: when it was prepared and completed')
    assert [event.transaction for event in history.events if event.kind == 'marker'] == [1, 1, 2, 3]


def test_a_lone_complete_row_names_no_partitions(view):
    coordinator = Coordinator(view)
    coordinator.begin(A)
    coordinator.write(A)
    coordinator.prepare(A)
    coordinator.mark(A)
    for partition in range(3):
        view.logs['__transaction_state', partition].data.clear()
    coordinator.complete()
    history = history_in(view)
    assert history.faults == []
    assert 'transaction 1: which partitions its rows named, so whether a marker is missing' in history.unknowns
    assert [event.transaction for event in history.events if event.kind == 'marker'] == [1]


def test_a_log_that_begins_later_cannot_tell_whether_it_had_the_marker(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.transact(A)
    log = view.log(*A)
    log.data.clear()
    log.start_offset = log.end_offset
    log.write(at_ms=50_000)
    history = history_in(view)
    assert history.faults == []
    assert history.unknowns == ['transaction 1, orders-0: whether it had its marker; its log begins later, at offset 2']


def test_a_compacted_log_cannot_tell_whether_it_had_the_marker(coordinator, view):
    coordinator.row('EMPTY')
    view.log(*A).write(at_ms=0)
    coordinator.begin(A)
    view.log(*A).end_offset += 2
    coordinator.prepare(A)
    coordinator.complete()
    view.log(*A).write(at_ms=50_000)
    history = history_in(view)
    assert (history.faults, history.unknowns) == (
        [], ['transaction 1, orders-0: whether it had its marker; its log was compacted'])


def test_a_partition_that_is_gone_is_named(coordinator, view):
    coordinator.row('EMPTY')
    coordinator.transact(A)
    del view.logs[A]
    history = history_in(view)
    assert history.faults == []
    assert history.unknowns == ['orders-0 does not exist (any more)',
                                'transaction 1, orders-0: whether it had its marker; that partition could not be read']


def test_a_partition_that_cannot_be_read_is_named(coordinator, view, monkeypatch):
    coordinator.row('EMPTY')
    coordinator.transact(A)
    answer = view.producers

    def producers(topic, partition):
        if (topic, partition) == B:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, 'found no leader')
        return answer(topic, partition)
    monkeypatch.setattr(view, 'producers', producers)
    history = history_in(view)
    assert history.faults == []
    assert any(unknown.startswith('orders-1: ') and 'found no leader' in unknown for unknown in history.unknowns)


def test_the_history_of_a_kafka_directory_is_complete(tmp_path):
    """The directory is of Apache Kafka 4.4, which was killed once. The timestamps of its Complete rows are below those
    of the markers."""
    with tarfile.open(KAFKA_DIRECTORY) as archive:
        archive.extractall(tmp_path, filter='data')
    [data_dir] = tmp_path.iterdir()
    history = history_in(DirectoryView(data_dir), 'tx-1')
    assert (history.transactions, history.faults, history.unknowns) == (6, [], [])
    for number in range(1, 7):
        order = [event.kind for event in history.events if event.transaction == number and event.kind != 'records']
        assert order[0] == 'begin' and order[-1] == 'complete' and order[-2] == 'marker'


# ---- the command

@pytest.fixture
def tool(monkeypatch, view):
    def run(*arguments):
        monkeypatch.setattr(command, 'open_view', lambda *_: view)
        return CliRunner().invoke(command.history, [*arguments, '--data-dir', '/'])
    return run


def test_a_sound_life_ends_with_0_and_a_torn_one_with_1(tool, view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    coordinator.transact(A)
    sound = tool('pay')
    assert sound.exit_code == 0
    assert sound.stdout.splitlines()[0] == 'pay  nowhere: 1 transaction, nothing is torn, missing or late'
    coordinator.begin(A)
    coordinator.prepare(A)
    coordinator.complete()
    torn = tool('pay')
    assert torn.exit_code == 1
    assert torn.stdout.splitlines()[0] == 'pay  nowhere: 2 transactions, 1 thing wrong'
    assert torn.stdout.splitlines()[-1].startswith('wrong: transaction 2, orders-0: missing')
    assert '!! missing' in torn.stdout


def test_json_tells_events_then_faults_then_what_is_not_known(tool, view):
    coordinator = Coordinator(view)
    coordinator.begin(A)
    coordinator.prepare(A)
    coordinator.complete()
    view.log(*A).write(at_ms=0)
    rows = [json.loads(line) for line in tool('pay', '--json').stdout.splitlines()]
    assert [row['kind'] for row in rows][-2:] == ['fault', 'unknown']
    assert rows[0] == {'kind': 'event', 'transactional_id': 'pay', 'timestamp_ms': START_MS + 10, 'transaction': 1,
                       'since_begin_ms': 0, 'event': 'begin', 'where': '__transaction_state-0', 'offset': 0,
                       'details': 'orders-0; producer 1000 epoch 0', 'fault': None}


def test_an_unknown_id_says_what_was_searched(tool, view):
    assert tool('pay').stderr.endswith(
        'found no __transaction_state in nowhere: no transactional id was ever used there\n')
    Coordinator(view).row('EMPTY')
    result = tool('pya')
    assert result.exit_code == 1
    assert "found no row of 'pya' in __transaction_state-" in result.stderr


def test_partitions_that_no_longer_know_the_producer_are_read_on_demand(view):
    coordinator = Coordinator(view)
    coordinator.row('EMPTY')
    view.log(*B).end(1000, 0, True, 5)
    assert history_in(view).transactions == 0
    assert history_in(view, all_partitions=True).transactions == 1


def test_live_and_offline_tell_the_same(broker):
    hold = write_transactions(broker.address)
    transact(producer_of(broker.address, 'pay'), (0,), 'commit')
    live = {name: run_command('transactions', 'history', name, '--json', '--bootstrap-server', broker.address)
            for name in ('pay', 'hold')}
    del hold
    broker.stop()
    for name, result in live.items():
        assert result.returncode == 0, result.stdout + result.stderr
        offline = run_command('transactions', 'history', name, '--json', '--data-dir', broker.directory)
        assert offline.stdout == result.stdout
    events = [json.loads(line) for line in live['pay'].stdout.splitlines()]
    assert [event['event'] for event in events].count('marker') == 6
    assert [event['event'] for event in events].count('complete') == 4
    assert 'fenced' in [event['event'] for event in events]
    plain = run_command('transactions', 'history', 'pay', '--data-dir', broker.directory)
    assert plain.returncode == 0 and plain.stdout.splitlines()[0].endswith('nothing is torn, missing or late')
