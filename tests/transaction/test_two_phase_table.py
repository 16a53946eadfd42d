"""A table with the answer to each request in each state of a transactional.id, including kept transactions
(KIP-939)."""
import pytest
from support.worlds.transaction_coordinator import STATE_TOPIC, World, code_to

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.transaction.initialisations import Claim, Place, Step, decide, place_of
from kbroker.transaction.state import ENTERED_FROM, TransactionState
from kbroker.transaction.verification import Mode, error_for_produce

S = TransactionState
NEVER_MS = 2147483647
EXHAUSTED = 32766
ORDERS = [('orders', 0)]

# The columns of TABLE are states of a transactional.id:
# - empty: no transaction has begun yet.
# - complete: the last transaction is complete.
# - open: a transaction is open.
# - kept: an open transaction was kept once.
# - rotated: an open transaction was kept so often that the client has a new producer id.
# - pending: an open transaction was kept, but its row is not durable yet.
# - decided: a kept transaction was decided, but its markers are not written yet.
PLACES = ['empty', 'complete', 'open', 'kept', 'rotated', 'pending', 'decided']
# The answers in TABLE, besides error codes:
# - next: NONE, and the client's epoch is bumped.
# - keep: NONE, the client's epoch is bumped, and the transaction stays open.
# - bump: NONE, the client's epoch is bumped, and the transaction ends.
# - fence: CONCURRENT_TRANSACTIONS, and the transaction is aborted.
# - same: NONE, and the client's epoch is unchanged.
# - ok: NONE, in an answer without an epoch.
# - "-": no client can send this request in this state.
BUSY, FENCED, MAPPING = 'CONCURRENT_TRANSACTIONS', 'PRODUCER_FENCED', 'INVALID_PRODUCER_ID_MAPPING'
STATE, ABORTABLE, OLD = 'INVALID_TXN_STATE', 'TRANSACTION_ABORTABLE', 'INVALID_PRODUCER_EPOCH'
TABLE = {
    #                       empty    complete open       kept     rotated  pending  decided
    'init':                 ['next', 'next',  'fence',   'fence', 'fence', BUSY,    BUSY],
    'init keep':            ['next', 'next',  'keep',    'keep',  'keep',  BUSY,    BUSY],
    'init C':               ['next', 'next',  'fence',   'fence', 'fence', BUSY,    BUSY],
    'init C keep':          ['next', 'next',  'keep',    'keep',  'keep',  BUSY,    BUSY],
    'init other':           [FENCED, FENCED,  'fence',   FENCED,  FENCED,  BUSY,    BUSY],
    'init other keep':      [FENCED, FENCED,  FENCED,    FENCED,  FENCED,  BUSY,    BUSY],
    'init other id':        [FENCED, FENCED,  FENCED,    FENCED,  FENCED,  BUSY,    BUSY],
    'add C':                ['ok',   'ok',    'ok',      STATE,   STATE,   BUSY,    BUSY],
    'add T':                ['-',    '-',     '-',       FENCED,  MAPPING, BUSY,    BUSY],
    'verify C':             ['-',    '-',     'ok',      STATE,   STATE,   '-',     BUSY],
    'verify T':             ['-',    '-',     '-',       FENCED,  MAPPING, 'ok',    FENCED],
    'produce T':            ['-',    '-',     'ok',      OLD,     OLD,     'ok',    OLD],
    'commit 5 C':           [STATE,  STATE,   'bump',    'bump',  'bump',  BUSY,    BUSY],
    'abort 5 C':            ['bump', 'bump',  'bump',    'bump',  'bump',  BUSY,    BUSY],
    'commit 4 C':           [STATE,  'same',  'same',    'same',  'same',  BUSY,    BUSY],
    'abort 4 C':            [STATE,  STATE,   'same',    'same',  'same',  BUSY,    BUSY],
    'commit 5 T':           ['-',    '-',     '-',       FENCED,  MAPPING, BUSY,    BUSY],
    'commit 4 T':           ['-',    '-',     '-',       FENCED,  MAPPING, BUSY,    FENCED],
    'commit 5 retry':       [FENCED, 'same',  '-',       FENCED,  MAPPING, BUSY,    BUSY],
    'timeout':              ['-',    '-',     '-',       'open',  'open',  'open',  '-'],
    'expiry':               ['dead', 'dead',  'open',    'open',  'open',  'open',  '-'],
    'describe':             ['C',    'C',     'T',       'T',     'T',     'T',     'row'],
    'list':                 ['Empty', 'CompleteCommit', 'Ongoing', 'Ongoing', 'Ongoing', 'Ongoing', 'PrepareCommit'],
}


class Staged:
    """A coordinator with a transactional.id in one of the PLACES. `client` is the (producer id, epoch) of the client,
    and `transaction` is that of the transaction's batches."""

    def __init__(self, place):
        self.place = place
        self.world = world = World(immediate=place not in ('pending', 'decided'))
        self.client = self.transaction = self.pair(lambda: world.init(is_two_phase=True))
        if place == 'empty':
            self.client = self.transaction = self.pair(lambda: world.init(is_two_phase=True))
            return
        self.pair(lambda: world.add(self.client, *ORDERS, version=2))
        world.write(self.client)
        world.flush()
        if place == 'complete':
            self.client = self.pair(lambda: world.end(self.client, True, version=2))
        elif place == 'pending':
            assert self.keep() is None
        elif place != 'open':
            self.client = self.pair(self.keep)
        if place == 'rotated':
            metadata = world.coordinator.store.find('tx-1')[1]
            metadata.current = metadata.current._replace(next_producer_epoch=EXHAUSTED)
            self.client = self.pair(self.keep)
            assert self.client == (1001, 0)
        if place == 'decided':
            assert world.end(self.client, True, version=2) is None
            world.flush(STATE_TOPIC)
            self.client = self.row.client_producer_id, self.row.client_producer_epoch

    def keep(self):
        return self.world.init(is_two_phase=True, keeps=True)

    def pair(self, operation):
        """Run an operation, and make its row durable. Return the (producer id, epoch) in its answer."""
        answer = operation()
        if answer is None:
            self.world.flush()
            return self.row.client_producer_id, self.row.client_producer_epoch
        return answer if isinstance(answer, ErrorCode) else tuple(answer[1:])

    @property
    def row(self):
        return self.world.coordinator.store.find('tx-1')[1].current

    # -- requests

    def init(self, producer, keeps):
        state, before = self.row.state, self.client
        answer = self.world.init('tx-1', *producer, is_two_phase=True, keeps=keeps)
        if answer.error is not ErrorCode.NONE:
            if self.row.state is not state and answer.error is ErrorCode.CONCURRENT_TRANSACTIONS:
                assert self.row.state is S.COMPLETE_ABORT
                assert self.world.markers() == [('ABORT', 1000, 1, 0)]
                assert (self.row.producer_id, self.row.producer_epoch) == bumped(before)
                return 'fence'
            return answer.error.name
        assert tuple(answer[1:]) == bumped(before)
        if self.row.state is S.EMPTY:
            return 'next'
        assert (self.row.state, self.row.producer_id, self.row.producer_epoch) == (S.ONGOING, *self.transaction)
        assert self.row.timeout_ms == NEVER_MS
        return 'keep'

    def add(self, producer):
        code = self.world.add(producer, ('orders', 1), version=2)
        return 'ok' if code is ErrorCode.NONE else code.name

    def verify(self, producer):
        code, = self.world.coordinator.verify_partitions('tx-1', *producer, ORDERS).values()
        return 'ok' if code is ErrorCode.NONE else code.name

    def produce(self, producer):
        try:
            self.world.coordinator.store.check_not_sealed(*producer)
        except KafkaError as error:
            return error.code.name
        return 'ok'

    def end(self, producer, committed, version):
        before, state = self.client, self.row.state
        answer = self.world.end(producer, committed, version)
        if answer.error is not ErrorCode.NONE:
            return answer.error.name
        assert self.row.state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
        assert (self.row.producer_id, self.row.producer_epoch) == tuple(answer[1:])
        if state is S.ONGOING:
            kind, epoch = 'COMMIT' if committed else 'ABORT', self.transaction[1] + (version == 2)
            assert self.world.markers() == [(kind, self.transaction[0], epoch, 0)]
        return 'same' if tuple(answer[1:]) == before else 'bump' if tuple(answer[1:]) == bumped(before) else answer

    def run(self, request):
        name, *rest = request.split()
        pairs = {'C': self.client, 'T': self.transaction, 'other': (self.client[0], 77), 'retry': self.before}
        if name == 'init':
            producer = (77, 0) if rest[-1:] == ['id'] else pairs.get(rest[0] if rest else '', (-1, -1))
            return self.init(producer, 'keep' in rest)
        if name in ('commit', 'abort'):
            return self.end(pairs[rest[1]], name == 'commit', 2 if rest[0] == '5' else 0)
        if name in ('add', 'verify', 'produce'):
            return getattr(self, name)(pairs[rest[0]])
        return getattr(self, name)()

    @property
    def before(self):
        """Return the (producer id, epoch) that the client had before the last bump."""
        return (1000, EXHAUSTED) if self.client == (1001, 0) else (self.client[0], max(0, self.client[1] - 1))

    def timeout(self):
        self.world.pass_time(NEVER_MS + 10**6)
        return 'open' if self.row.state is S.ONGOING else self.row.state.title

    def expiry(self):
        self.world.pass_time(10**12)
        try:
            return 'open' if self.world.row().state is S.ONGOING else self.row.state.title
        except KafkaError:
            return 'dead'

    def describe(self):
        row = self.world.row()
        found = row.producer_id, row.producer_epoch
        if row.state is S.PREPARE_COMMIT:
            assert found == (self.transaction[0], self.transaction[1] + 1)
            return 'row'
        return 'T' if row.state is S.ONGOING and found == self.transaction else 'C' if found == self.client else found

    def list(self):
        (_, row), = self.world.coordinator.list_transactions()
        return row.state.title


def bumped(pair):
    return (pair[0] + 1, 0) if pair[1] >= EXHAUSTED else (pair[0], pair[1] + 1)


CELLS = [(request, place, answer) for request, answers in TABLE.items()
         for place, answer in zip(PLACES, answers, strict=True) if answer != '-']


@pytest.mark.parametrize(('request_', 'place', 'answer'), CELLS)
def test_a_request_is_answered_by_the_state_and_the_pair_that_it_names(request_, place, answer):
    assert Staged(place).run(request_) == answer


def test_the_producer_of_a_kept_transaction_is_fenced_by_the_code_that_its_version_knows():
    assert error_for_produce(Mode.VERIFY_LEGACY, ErrorCode.PRODUCER_FENCED) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_table_of_initialisations_has_each_state_that_a_row_may_be_in():
    row = Staged('empty').row
    for state in ENTERED_FROM:
        if state in (S.DEAD, S.PREPARE_EPOCH_FENCE):
            with pytest.raises(KeyError):
                place_of(row._replace(state=state))
        else:
            assert place_of(row._replace(state=state)) is not Place.KEPT
    assert place_of(Staged('kept').row) is Place.KEPT
    assert place_of(Staged('decided').row) is Place.DECIDED
    assert {decide(place, claim, keeps) for place in Place for claim in Claim for keeps in (False, True)} == {
        *Step, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS}


def test_a_fence_of_a_kept_transaction_bumps_and_the_repetition_bumps_again():
    staged = Staged('kept')
    assert staged.run('init') == 'fence'
    assert staged.world.init() == (ErrorCode.NONE, 1000, 3)


def test_a_kept_transaction_is_complete_before_the_first_write_of_the_next_one():
    staged = Staged('kept')
    staged.client = staged.pair(lambda: staged.world.end(staged.client, True, version=2))
    staged.world.transaction(staged.client, *ORDERS, version=2)
    assert staged.world.end(staged.client, True, version=2) == (ErrorCode.NONE, 1000, 3)
    assert staged.world.markers() == [('COMMIT', 1000, 1, 0), ('COMMIT', 1000, 3, 0)]


@pytest.mark.parametrize('committed', [True, False])
def test_the_lost_answer_to_the_end_of_a_kept_transaction_is_repeated_also_after_a_restart(committed):
    staged = Staged('kept')
    answer = staged.world.end(staged.client, committed, version=2)
    assert staged.world.end(staged.client, committed, version=2) == answer
    staged.world.write_held()
    staged.world.crash()
    assert staged.world.end(staged.client, committed, version=2) == answer
    assert staged.world.end(staged.client, not committed, version=2).error is not ErrorCode.NONE


@pytest.mark.parametrize('restarts', [False, True])
def test_the_end_of_a_kept_transaction_goes_over_to_a_new_producer_id_and_may_be_repeated(restarts):
    staged = Staged('kept')
    metadata = staged.world.coordinator.store.find('tx-1')[1]
    metadata.current = metadata.current._replace(next_producer_epoch=EXHAUSTED)
    answer = staged.world.end((1000, EXHAUSTED), True, version=2)
    assert answer == (ErrorCode.NONE, 1001, 0)
    assert staged.world.markers() == [('COMMIT', 1000, 1, 0)]
    if restarts:
        staged.world.write_held()
        staged.world.crash()
    assert staged.world.end((1000, EXHAUSTED), True, version=2) == answer
    assert staged.world.end((1000, EXHAUSTED), False, version=2).error is ErrorCode.INVALID_TXN_STATE
    assert staged.world.end((1000, 0), True, version=2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_after_a_rotation_the_last_pair_of_the_former_producer_id_maps_to_nothing():
    staged = Staged('rotated')
    assert staged.world.end((1000, EXHAUSTED), True, version=2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert staged.world.end((1001, 0), True, version=2) == (ErrorCode.NONE, 1001, 1)
    assert staged.world.end((1001, 0), True, version=2) == (ErrorCode.NONE, 1001, 1)


# -- timeouts


@pytest.mark.parametrize('timeout_ms', [3_600_000, -5])
def test_in_two_phase_commit_the_timeout_that_a_client_asks_for_is_not_used(timeout_ms):
    world = World()
    assert world.init(timeout_ms=timeout_ms, is_two_phase=True) == (ErrorCode.NONE, 1000, 0)
    assert world.row().timeout_ms == NEVER_MS


def test_the_timeout_of_two_phase_commit_cannot_be_asked_for():
    assert World().init(timeout_ms=NEVER_MS).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(('is_two_phase', 'state'), [(False, S.COMPLETE_ABORT), (True, S.ONGOING)])
def test_a_keep_outside_of_two_phase_commit_leaves_the_timeout_in_force(is_two_phase, state):
    world = World()
    world.init(timeout_ms=30_000)
    world.transaction((1000, 0), *ORDERS, version=2)
    assert world.init(keeps=True, is_two_phase=is_two_phase, timeout_ms=600_000) == (ErrorCode.NONE, 1000, 1)
    world.pass_time(40_001)
    assert world.row().state is state


def test_a_keep_never_lowers_the_timeout():
    staged = Staged('kept')
    assert staged.world.init(keeps=True).error is ErrorCode.NONE
    assert staged.row.timeout_ms == NEVER_MS


def test_a_forced_end_takes_the_id_out_of_two_phase_commit():
    staged = Staged('kept')
    staged.world.init(timeout_ms=30_000)
    staged.world.init(timeout_ms=30_000)
    assert (staged.row.state, staged.row.timeout_ms) == (S.EMPTY, 30_000)


# -- below transaction version 2


@pytest.mark.parametrize('version', [0, 1])
def test_below_transaction_version_2_nothing_is_kept(version):
    world = World(transaction_version=version)
    assert world.init(keeps=True).error is ErrorCode.UNSUPPORTED_VERSION
    assert world.init(is_two_phase=True) == (ErrorCode.NONE, 1000, 0)


@pytest.mark.parametrize('version', [0, 1])
def test_a_kept_transaction_outlives_a_downgrade_and_a_fence_keeps_the_clients_pair_ahead(version):
    staged = Staged('kept')
    staged.world.version = version
    staged.world.coordinator.use_version(version)
    staged.world.crash()
    assert staged.world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert [marker[:3] for marker in staged.world.markers()] == [('ABORT', 1000, 1)]
    staged.world.write_held()
    staged.world.crash()
    assert staged.world.init() == (ErrorCode.NONE, 1000, 3)


def test_below_transaction_version_2_a_fence_of_a_kept_transaction_whose_append_fails_fences_all_the_same():
    staged = Staged('kept')
    staged.world.coordinator.use_version(1)
    staged.world.state_partition().refuse(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
    assert staged.world.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    staged.world.state_partition().refuse(None)
    assert staged.world.end((1000, 1), True).error is ErrorCode.PRODUCER_FENCED
    assert staged.world.end((1000, 2), True) == (ErrorCode.NONE, 1000, 2)


# -- sealing


def test_a_late_batch_is_refused_from_the_keep_until_the_transaction_is_complete_also_after_a_restart():
    staged = Staged('kept')
    assert staged.produce(staged.transaction) == OLD
    staged.world.crash()
    assert staged.produce(staged.transaction) == OLD
    assert staged.world.coordinator.store.kept_count == 1
    staged.world.end(staged.client, True, version=2)
    assert staged.world.coordinator.store.kept_count == 0


def test_a_keep_that_never_became_durable_seals_nothing():
    staged = Staged('pending')
    staged.world.state_partition().fail(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
    assert staged.produce(staged.transaction) == 'ok'
    assert staged.world.coordinator.store.kept_count == 0
    assert not staged.row.is_kept


def test_the_implicit_add_of_a_client_that_kept_a_transaction_is_refused():
    staged, answers = Staged('kept'), []
    staged.world.coordinator.add_or_verify_partitions(
        'tx-1', *staged.client, [staged.world.topics.get('orders', 0)], 12, code_to(answers), 0)
    staged.world.coordinator.add_or_verify_offsets_partition('tx-1', *staged.client, 0, 5, code_to(answers), 0)
    staged.world.coordinator.add_offsets('tx-1', *staged.client, 0, None, Callback(
        lambda error, _: answers.append(error.code)))
    assert answers == [ErrorCode.INVALID_TXN_STATE] * 3
