"""The protocol of the sink in memory: random schedules of drivers, tasks, deaths and zombies."""
import random
from collections import Counter

import pytest

from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker_tools.spark.sink.protocol import JOB, QUERY, Decision, Plan, SinkError, Staged, Unit, commit, plan

PAIR = ProducerIdAndEpoch(7, 0)
QUERY_1 = QUERY + '1'


class Death(Exception):
    """The driver dies."""


class MemoryStore:
    """A coordinator and a ledger in memory. `dies` is the moment of the next write at which the driver dies."""

    def __init__(self):
        self.pair = PAIR
        self.visible = Counter()
        self.ledger = {}
        self.dies = None

    def fence(self, prefix):
        self.pair = self.pair._replace(producer_epoch=self.pair.producer_epoch + 1)
        return 'cluster', self.pair

    def decisions(self, prefix):
        return [Decision.read(key, value) for key, value in self.ledger.items()]

    def write(self, staged, decision):
        dies, self.dies = self.dies, None
        if decision.pair != self.pair:
            raise SinkError('fenced')
        if dies == 'before':
            raise Death
        self.visible.update(message.chunks[0] for message in staged)
        self.ledger[decision.key()] = decision.value()
        self.pair = self.pair._replace(producer_epoch=self.pair.producer_epoch + 1)
        if dies == 'after':
            raise Death


class Driver:
    """A query that replays the batch that its checkpoint has not finished, with other rows at each attempt."""

    def __init__(self, store, rng, checkpoint):
        self.store, self.rng, self.checkpoint = store, rng, checkpoint
        self.staged = None
        self.is_dead = False

    def step(self):
        batch = self.checkpoint['batch']
        if self.staged is None:
            found = plan(self.store, 'p', QUERY)
            rows = (f'{batch}.{task}.{self.rng.random()}'.encode() for task in range(3))
            self.staged = [Staged(found, Unit(QUERY_1, batch), 1, (row,)) for row in rows]
            return
        staged, self.staged = self.staged, None
        self.store.dies = self.rng.choice([None, None, 'before', 'after'])
        try:
            commit(self.store, staged, 10**9)
            self.checkpoint['batch'] = max(self.checkpoint['batch'], staged[0].unit.batch + 1)
        except (Death, SinkError):
            self.is_dead = True


@pytest.mark.parametrize('seed', range(50))
def test_each_batch_is_visible_once_whoever_dies_and_whichever_zombie_goes_on(seed):
    rng = random.Random(seed)
    store, checkpoint = MemoryStore(), {'batch': 0}
    drivers = [Driver(store, rng, checkpoint)]
    while checkpoint['batch'] < 10:
        if drivers[-1].is_dead or rng.random() < 0.2:
            drivers.append(Driver(store, rng, checkpoint))
        driver = rng.choice(drivers[-3:])
        if not driver.is_dead:
            driver.step()
    tasks = Counter(row.rsplit(b'.', 2)[0] for row in store.visible)
    assert set(store.visible.values()) == {1}
    assert tasks == {f'{batch}.{task}'.encode(): 1 for batch in range(len(tasks) // 3) for task in range(3)}
    assert len(tasks) // 3 in (10, 11)


def test_a_unit_is_decided_for_its_owner_only():
    store = MemoryStore()
    for owner in (QUERY_1, QUERY + '2', JOB + 'a', JOB):
        found = plan(store, 'p', owner)
        assert commit(store, [Staged(found, Unit(owner, 3), 1, (owner.encode(),))], 100).rows == 1
    assert plan(store, 'p', QUERY).decided == {QUERY_1: 3, QUERY + '2': 3}
    found = plan(store, 'p', QUERY_1)
    assert [found.is_decided(Unit(QUERY_1, batch)) for batch in (2, 3, 4)] == [True, True, False]
    assert not plan(store, 'p', QUERY + '3').is_decided(Unit(QUERY + '3', 0))
    assert plan(store, 'p', JOB + 'a').is_decided(Unit(JOB + 'a'))


def test_a_job_without_a_key_is_never_a_repetition():
    store = MemoryStore()
    for count in (1, 2):
        found = plan(store, 'p', JOB)
        assert commit(store, [Staged(found, Unit(JOB), 1, (b'x',))], 100) is not None
        assert store.visible[b'x'] == count


def test_results_that_do_not_belong_together_are_refused():
    first, second = (Plan('p', 'c', ProducerIdAndEpoch(7, epoch), {}) for epoch in (1, 2))
    unit = Unit(QUERY_1, 4)
    for messages, text in (
            ([], '0 tasks with 0 results'),
            ([Staged(first, unit), None], '2 tasks with 1 results'),
            ([Staged(first, unit), Staged(second, unit)], 'expected those of one plan'),
            ([Staged(first, unit), Staged(first, Unit(QUERY_1, 5))], 'expected those of one plan'),
            ([Staged(first, unit, 1, (b'12345', b'678901'))], 'staged 11 bytes, maxDriverBytes is 10')):
        with pytest.raises(SinkError, match=text):
            commit(MemoryStore(), messages, 10)


def test_a_row_of_the_ledger_is_read_as_it_was_written():
    decision = Decision('p', Unit('job.a~b', 4), 17, PAIR)
    assert Decision.read(decision.key(), decision.value()) == decision
    for key, value in ((b'p~query.1', decision.value()), (b'p~job.a~b', b'{}'), (b'\xff', b'{}'), (b'p~x', b'[')):
        with pytest.raises(SinkError, match='a row that the sink did not write'):
            Decision.read(key, value)
