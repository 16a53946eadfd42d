"""Random histories of clients in two-phase commit. The coordinator's answers are compared with a reference that models
producer ids, epochs and states, but no bytes."""
from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.worlds.transaction_coordinator import World

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.transaction.state import TransactionState

S = TransactionState
NEVER_MS, TIMEOUT_MS = 2147483647, 60_000
EXHAUSTED = 32766
PARTITIONS = (('orders', 0), ('orders', 1), ('audit', 0))
PASSED = ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE
"""The possible answers to a verification with a (producer id, epoch) that is not fenced."""
Pair = tuple[int, int]


@dataclass
class Reference:
    """The reference state of one transactional.id: the (producer id, epoch) of its client, and that of its open
    transaction."""

    client: Pair
    transaction: Pair | None = None
    timeout_ms: int = TIMEOUT_MS
    expires_at_ms: int = 0

    @property
    def is_kept(self) -> bool:
        return self.transaction is not None and self.transaction != self.client


class TwoPhaseHistories(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.world = World(settings={'transactional.id.expiration.ms': str(NEVER_MS)})
        self.reference: Reference | None = None
        self.given: list[Pair] = []
        self.ended: dict[Pair, list[bool]] = {}
        """Maps each (producer id, epoch) to the decisions about its ended transactions: True for a commit."""

    # -- the reference

    def bump(self) -> None:
        producer_id, epoch = self.reference.client
        if epoch >= EXHAUSTED:
            # The reference cannot predict the new producer id, because each start allocates a new block of ids. So it
            # reads the id from the coordinator.
            producer_id, epoch = self.world.coordinator.store.find('tx-1')[1].current.client_producer_id, 0
            assert producer_id > max(found for found, _ in self.given)
        else:
            epoch += 1
        self.give((producer_id, epoch))

    def give(self, pair: Pair) -> None:
        assert pair not in self.given, 'a client has a pair that another one had'
        self.given.append(pair)
        self.reference.client = pair

    def finish(self, committed: bool, bumps: bool = True) -> None:
        self.ended.setdefault(self.reference.transaction, []).append(committed)
        self.reference.transaction = None
        if bumps:
            self.bump()

    def stale(self, data) -> Pair:
        """Return a (producer id, epoch) that a client got in the past. Exclude the last two, which can still be
        valid."""
        return data.draw(st.sampled_from(self.given[:-2]))

    # -- requests

    @rule(data=st.data(), names=st.sampled_from(['none', 'none', 'client', 'stale']), is_two_phase=st.booleans(),
          keeps=st.booleans())
    def init(self, data, names, is_two_phase, keeps):
        reference = self.reference
        if reference is None or (names == 'stale' and len(self.given) < 3):
            names = 'none'
        pair = self.stale(data) if names == 'stale' else reference.client if names == 'client' else (-1, -1)
        answer = self.world.init('tx-1', *pair, timeout_ms=TIMEOUT_MS, is_two_phase=is_two_phase, keeps=keeps)
        timeout_ms = NEVER_MS if is_two_phase else TIMEOUT_MS
        if reference is None:
            self.reference = Reference((1000, -1), timeout_ms=timeout_ms)
            self.give((1000, 0))
        elif names == 'stale' and (reference.transaction is None or reference.is_kept or keeps
                                   or pair[0] != reference.client[0]):
            assert answer.error is ErrorCode.PRODUCER_FENCED
            return
        elif reference.transaction is None:
            reference.timeout_ms = timeout_ms
            self.bump()
        elif keeps:
            if is_two_phase:
                reference.timeout_ms, reference.expires_at_ms = NEVER_MS, 0
            self.bump()
        else:
            assert answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
            self.finish(committed=False)
            return
        assert answer == (ErrorCode.NONE, *self.reference.client)

    @rule(partition=st.sampled_from(PARTITIONS), version=st.sampled_from([2, 2, 0]))
    def write(self, partition, version):
        reference = self.reference
        if reference is None:
            return
        code = self.world.add(reference.client, partition, version=version)
        if reference.is_kept:
            assert code is ErrorCode.INVALID_TXN_STATE
            return
        assert code is ErrorCode.NONE
        if reference.transaction is None:
            reference.transaction = reference.client
            reference.expires_at_ms = self.world.clock.wall_ms() + reference.timeout_ms
        self.world.write(reference.client, *partition)

    @rule(data=st.data(), committed=st.booleans(), version=st.sampled_from([2, 2, 0]))
    def end(self, data, committed, version):
        reference = self.reference
        if reference is None or reference.transaction is None:
            return
        answer = self.world.end(reference.client, committed, version)
        self.finish(committed, bumps=version == 2)
        assert answer == (ErrorCode.NONE, *reference.client)
        if version == 2:
            assert self.world.end(self.given[-2], committed, version) == answer

    @rule(data=st.data(), committed=st.booleans(), version=st.sampled_from([2, 0]))
    def end_late(self, data, committed, version):
        """Send a delayed EndTxn of a former client or transaction. It must be refused."""
        if len(self.given) >= 3:
            answer = self.world.end(self.stale(data), committed, version)
            assert answer.error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)

    @rule(ms=st.sampled_from([1000, 20_000, 70_000, 20_000_000]))
    def wait(self, ms):
        reference = self.reference
        self.world.pass_time(ms)
        if (reference is not None and reference.transaction is not None and reference.timeout_ms != NEVER_MS
                and self.world.row().state is not S.ONGOING):
            assert self.world.clock.wall_ms() > reference.expires_at_ms
            self.finish(committed=False)

    @rule(is_clean=st.booleans())
    def restart(self, is_clean):
        if is_clean:
            self.world.coordinator.close()
        self.world.crash()

    @rule(epoch=st.sampled_from([EXHAUSTED - 1, EXHAUSTED]))
    def age(self, epoch):
        """Set the client's epoch directly, as if many initialisations had raised it."""
        reference = self.reference
        if reference is None or not 0 <= reference.client[1] < epoch:
            return
        metadata = self.world.coordinator.store.find('tx-1')[1]
        if reference.transaction is None:
            metadata.current = metadata.current._replace(producer_epoch=epoch, last_producer_epoch=-1)
        elif reference.is_kept:
            metadata.current = metadata.current._replace(next_producer_epoch=epoch)
        else:
            return
        self.give((reference.client[0], epoch))
        keeps = reference.is_kept
        answer = self.world.init(timeout_ms=TIMEOUT_MS, keeps=keeps)        # its row makes the age durable
        reference.timeout_ms = reference.timeout_ms if keeps else TIMEOUT_MS
        self.bump()
        assert answer == (ErrorCode.NONE, *reference.client)

    # -- invariants

    @invariant()
    def the_row_has_both_pairs_of_the_reference(self):
        reference = getattr(self, 'reference', None)
        if reference is None:
            return
        row = self.world.coordinator.store.find('tx-1')[1].current
        assert (row.client_producer_id, row.client_producer_epoch) == reference.client
        assert (row.state is S.ONGOING) == (reference.transaction is not None)
        assert row.is_kept == reference.is_kept
        if reference.transaction is not None:
            assert (row.producer_id, row.producer_epoch) == reference.transaction

    @invariant()
    def at_most_one_pair_passes(self):
        if getattr(self, 'reference', None) is None:
            return
        passing = [pair for pair in self.given[-8:] if self.passes(pair)]
        assert passing == [self.reference.client]

    def passes(self, pair: Pair) -> bool:
        code, = self.world.coordinator.verify_partitions('tx-1', *pair, PARTITIONS[:1]).values()
        return code in PASSED

    @invariant()
    def a_kept_transaction_takes_no_further_batch(self):
        reference = getattr(self, 'reference', None)
        if reference is None or reference.transaction is None:
            return
        try:
            self.world.coordinator.store.check_not_sealed(*reference.transaction)
        except KafkaError as error:
            assert error.code is ErrorCode.INVALID_PRODUCER_EPOCH
            assert reference.is_kept
        else:
            assert not reference.is_kept

    @invariant()
    def markers_have_the_producer_id_of_the_transaction_and_an_epoch_of_at_most_one_more(self):
        for partition in PARTITIONS if hasattr(self, 'world') else ():
            for kind, producer_id, epoch, _ in self.world.markers(*partition):
                outcomes = [outcome for transaction in ((producer_id, epoch), (producer_id, epoch - 1))
                            for outcome in self.ended.get(transaction, ())]
                assert (kind == 'COMMIT') in outcomes


TwoPhaseHistories.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None,
                                               suppress_health_check=list(HealthCheck))
TestTwoPhaseHistories = TwoPhaseHistories.TestCase
