"""A transaction of one record on one partition, from begin to end, in a complete broker without sockets and syncs.

The reference only writes the same bytes to disk: the batch, the marker and three rows of the transaction's state. The
time is CPU time of this process. Only the ratio between the two groups is comparable between machines.
"""
import os
import time
from itertools import count

import pytest
from support.brokers.in_process_broker import InProcessBroker

from kbroker.protocol.messages import EndTxnRequest, InitProducerIdRequest, ProduceRequest
from kbroker.record.batch import encode_batch

TRANSACTIONS = 50
WRITES_BYTES = (100, 78, 150, 150, 150)
"""The sizes in bytes of the writes of one transaction: the batch, the marker, and the ONGOING, PREPARE and COMPLETE
rows."""

pytestmark = pytest.mark.benchmark(group=f'{TRANSACTIONS} transactions of one record', timer=time.process_time)


class Producer:
    """A transactional producer at transaction version 2: it adds no partitions, and each EndTxn bumps its epoch."""

    def __init__(self, broker: InProcessBroker):
        self.broker = broker
        broker.topics.create('orders', 1, {})
        broker.topics.ensure_internal('__transaction_state')
        broker.turn()
        found = broker.ask(InitProducerIdRequest(transactional_id='bench', transaction_timeout_ms=60_000), 5)
        assert found.error_code == 0
        self.producer_id, self.producer_epoch = found.producer_id, found.producer_epoch

    def run_transactions(self, committed: bool) -> None:
        for _ in range(TRANSACTIONS):
            self.produce()
            ended = self.broker.ask(EndTxnRequest(transactional_id='bench', producer_id=self.producer_id,
                                                  producer_epoch=self.producer_epoch, committed=committed))
            assert ended.error_code == 0
            self.producer_id, self.producer_epoch = ended.producer_id, ended.producer_epoch

    def produce(self) -> None:
        batch = encode_batch([(self.broker.clock.wall_ms(), None, b'x' * 20)], producer_id=self.producer_id,
                             producer_epoch=self.producer_epoch, base_sequence=0, transactional=True)
        answer = self.broker.ask(ProduceRequest(
            transactional_id='bench', acks=-1, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(
                name='orders', partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)])]), 12)
        assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.fixture
def producer(tmp_path):
    with InProcessBroker(tmp_path, {'kbroker.durability': 'page-cache'}) as broker:
        yield Producer(broker)


@pytest.mark.parametrize('committed', [True, False], ids=['commit', 'abort'])
def test_transaction(benchmark, producer, committed):
    benchmark.pedantic(producer.run_transactions, (committed,), rounds=20, warmup_rounds=2)


def test_reference_pwrite(benchmark, tmp_path):
    pieces = [bytes(size) for size in WRITES_BYTES]
    descriptor = os.open(tmp_path / 'plain', os.O_RDWR | os.O_CREAT)
    positions = count(step=sum(WRITES_BYTES))

    def run():
        for _ in range(TRANSACTIONS):
            position = next(positions)
            for piece in pieces:
                os.pwrite(descriptor, piece, position)
                position += len(piece)

    benchmark.pedantic(run, rounds=20, warmup_rounds=2)
    os.close(descriptor)
