"""Listing the transactions of a partition of 20,000 batches, compared with a bare walk over the same headers."""
from collections import deque

import pytest
from support.worlds.in_memory_view import InMemoryLog

from kbroker.record.batch import iter_batches
from kbroker_tools.timeline.transactions_of_partition import replay

TRANSACTIONS = 2000
BATCHES = 9
PRODUCERS = 20


@pytest.fixture(scope='module')
def data():
    log = InMemoryLog()
    for number in range(TRANSACTIONS):
        for _ in range(BATCHES):
            log.write(number % PRODUCERS, 0, number)
        log.end(number % PRODUCERS, 0, number % 10 != 0, number)
    return memoryview(bytes(log.data))


@pytest.mark.parametrize('name', ['replay', 'headers alone'])
def test_timeline(benchmark, data, name):
    benchmark.group = 'a partition of 20,000 batches'
    if name == 'replay':
        assert len(benchmark(lambda: replay(iter_batches(data))).transactions) == TRANSACTIONS
    else:
        benchmark(lambda: deque(iter_batches(data), maxlen=0))
