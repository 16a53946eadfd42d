"""Each start restores the state of kept transactions (KIP-939) from compacted rows, in random histories."""
import random
from dataclasses import dataclass, field

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode
from kbroker.record.records import decode_records
from kbroker.transaction.state import TransactionState
from kbroker.transaction.state_log import decode_row

STATE = '__transaction_state', 0
BACKOFF_MS = 15_000
DAY_MS = 86_400_000
NEVER_MS = 2147483647
LAST_EPOCH = 32766
SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'transaction.two.phase.commit.enable': 'true', 'log.retention.ms': '-1',
            'log.cleaner.min.cleanable.ratio': '0'}
IDS = [f'tx-{number}' for number in range(5)]
STEPS = 60


@dataclass
class Known:
    """The expected state of a transactional id. `client` is the (producer id, epoch) of its client, `transaction` that
    of its open transaction."""

    client: tuple[int, int]
    transaction: tuple[int, int] | None = None
    partitions: set[tuple[str, int]] = field(default_factory=set)

    @property
    def is_kept(self):
        return self.transaction not in (None, self.client)


class History:
    def __init__(self, directory, seed):
        self.directory, self.random = directory, random.Random(seed)
        self.known: dict[str, Known] = {}
        self.sequences: dict[tuple[str, int], int] = {}
        self.compacted_kept_rows = 0
        self.broker = None

    def start(self):
        clock = None if self.broker is None else self.broker.clock
        self.broker = InProcessBroker(self.directory, SETTINGS, clock=clock).__enter__()

    def stop(self):
        self.broker.__exit__(None, None, None)

    def ask(self, name, version, **fields):
        return self.broker.ask(build(f'{name}Request', **fields), version)

    def prepare(self):
        self.ask('CreateTopics', 7, timeout_ms=1000, topics=[dict(name='orders', num_partitions=3,
                                                                  replication_factor=1)])
        self.ask('FindCoordinator', 4, key_type=1, coordinator_keys=IDS)

    # -- steps

    def run(self):
        steps = [self.init, self.write, self.write, self.keep, self.keep, self.end, self.compact, self.restart]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.check()

    def init(self):
        """Initialise a random transactional id unless it has an open transaction."""
        name = self.random.choice(IDS)
        if name not in self.known or self.known[name].transaction is None:
            self.known[name] = Known(self.initialise(name, keeps=False)[0])

    def initialise(self, name, keeps):
        answer = self.ask('InitProducerId', 6, transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1,
                          producer_epoch=-1, enable2_pc=True, keep_prepared_txn=keeps)
        assert answer.error_code == ErrorCode.NONE
        return ((answer.producer_id, answer.producer_epoch),
                (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch))

    def write(self):
        for name, known in self.some(lambda known: not known.is_kept):
            partition = self.random.randrange(3)
            producer_id, epoch = known.client
            sequence = 0 if ('orders', partition) not in known.partitions else self.sequences[name, partition]
            batch = batch_of(self.broker.clock.wall_ms(), name.encode(), producer_id=producer_id, producer_epoch=epoch,
                             base_sequence=sequence, transactional=True)
            answer = self.ask('Produce', 12, transactional_id=name, acks=-1, timeout_ms=1000, topic_data=[
                dict(name='orders', partition_data=[dict(index=partition, records=batch)])])
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            self.sequences[name, partition] = sequence + 1
            known.partitions.add(('orders', partition))
            known.transaction = known.client

    def keep(self):
        """Let a new client keep an open transaction. Sometimes, first set the present client's epoch to the last epoch,
        so that the new client gets a new producer id."""
        for name, known in self.some(lambda known: known.transaction is not None):
            if known.is_kept and self.random.random() < 0.3:
                metadata = self.broker.transactions.store.find(name)[1]
                metadata.current = metadata.current._replace(next_producer_epoch=LAST_EPOCH)
            known.client, found = self.initialise(name, keeps=True)
            assert found == known.transaction

    def end(self):
        for name, known in self.some(lambda known: known.transaction is not None):
            answer = self.ask('EndTxn', 5, transactional_id=name, producer_id=known.client[0],
                              producer_epoch=known.client[1], committed=self.random.random() < 0.5)
            assert answer.error_code == ErrorCode.NONE
            self.known[name] = Known((answer.producer_id, answer.producer_epoch))
            self.broker.turn()

    def some(self, fits):
        """Return a list with (id, Known) of one random id for which `fits` is true, or an empty list if there is
        none."""
        fitting = [(name, known) for name, known in self.known.items() if fits(known)]
        return self.random.sample(fitting, min(1, len(fitting)))

    def compact(self):
        log = self.broker.logs.logs[STATE]
        log.roll()
        end = log.log_end_offset
        for _ in range(2):      # the first turn may write a held row, and the cleaner waits until it is durable
            self.broker.clock.advance(BACKOFF_MS)
            self.broker.turn()
        found = [record for _, batch in log.batches() for record in decode_records(batch) if record.offset < end]
        assert len({record.key for record in found}) == len(found)
        rows = [decode_row(record.key, record.value)[1] for record in found]
        self.compacted_kept_rows += sum(row is not None and row.state is TransactionState.ONGOING and row.is_kept
                                        for row in rows)

    def restart(self):
        if self.random.random() < 0.5:
            self.broker.crash()
        self.stop()
        self.start()

    # -- checks

    def check(self):
        """Check the producer ids, epochs, state, partitions and timeout in the row of each transactional id."""
        for name, known in self.known.items():
            row = self.broker.transactions.describe(name)
            assert (row.client_producer_id, row.client_producer_epoch) == known.client
            assert (row.state is TransactionState.ONGOING) == (known.transaction is not None)
            assert (row.is_kept, row.timeout_ms, row.partitions) == (known.is_kept, NEVER_MS, known.partitions)
            if known.transaction is not None:
                assert (row.producer_id, row.producer_epoch) == known.transaction


@pytest.fixture
def history_of(tmp_path):
    """Return a function that starts a History with a given seed."""
    histories = []

    def begin(seed):
        history = History(tmp_path / str(seed), seed)
        histories.append(history)
        history.start()
        history.prepare()
        return history

    yield begin
    for history in histories:
        history.stop()


def check_history(history):
    """Run a history. Then let all idle transactional ids expire, remove their tombstones by compaction, and end the
    open transactions."""
    history.run()
    open_ids = {name for name, known in history.known.items() if known.transaction is not None}
    for _ in range(2):
        history.broker.clock.advance(8 * DAY_MS)
        history.broker.turn()
        history.compact()
    history.restart()
    assert {name for name, _ in history.broker.transactions.list_transactions()} == open_ids
    history.known = {name: history.known[name] for name in open_ids}
    history.check()
    while any(known.transaction is not None for known in history.known.values()):
        history.end()
        history.check()
    return history.compacted_kept_rows


def test_kept_transactions_outlive_compaction_expiry_and_restarts(history_of):
    assert sum(check_history(history_of(seed)) for seed in range(2)) > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_kept_transactions_outlive_compaction_expiry_and_restarts_in_hundreds_of_histories(history_of, soak_count):
    for seed in range(soak_count(300)):
        check_history(history_of(seed))
