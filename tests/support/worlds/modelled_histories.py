"""Histories of a modelled cluster that keeps every promise. Its clients act at random, and their steps have a random
order.
"""
from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

from kbroker_tools.verify.lines import NOT_ACKNOWLEDGED, READ_COMMITTED, READ_UNCOMMITTED, Outcome
from kbroker_tools.verify.recorder import Recorder

LISTS = (0, 1, 2)
INPUT = 3
OUTPUTS = (4, 5)
PARTITIONS = ('list-0', 'list-1', 'list-2', 'input-0', 'output-0', 'output-1')
GROUPS = ('transform', 'rebalance')
"""The groups whose members transform records. Both groups read the same input."""
SHARE_GROUP, DELIVERY_LIMIT = 'share', 10
STEP_NS = 1000_000


class Log:
    """A partition. A record is (offset, number, transaction). A marker uses up an offset as well."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int | None]] = []
        self.end = 0

    def append(self, number: int, transaction: int | None) -> int:
        self.records.append((self.end, number, transaction))
        self.end += 1
        return self.end - 1


class Cluster:
    """Partitions, and the outcomes of transactions. A transaction without an outcome is open."""

    def __init__(self) -> None:
        self.logs = [Log() for _ in PARTITIONS]
        self.ended: dict[int, bool] = {}
        self.committed_input = dict.fromkeys(GROUPS, 0)

    def end(self, transaction: int, partitions: set[int], is_committed: bool) -> None:
        self.ended[transaction] = is_committed
        for partition in partitions:
            self.logs[partition].end += 1

    def stable(self, partition: int) -> int:
        log = self.logs[partition]
        return next((offset for offset, _, transaction in log.records
                     if transaction is not None and transaction not in self.ended), log.end)

    def read(self, partition: int, isolation: str, offset: int, most: int) -> list[tuple[int, int]]:
        is_committed = isolation == READ_COMMITTED
        end = self.stable(partition) if is_committed else self.logs[partition].end
        return [(at, number) for at, number, transaction in self.logs[partition].records
                if offset <= at < end and (not is_committed or transaction is None or self.ended[transaction])][:most]


class ModelledRun:
    """A run of `steps` steps. The seed determines the whole run."""

    def __init__(self, seed: int, steps: int):
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.time_ns = 0
        self.out = io.StringIO()
        self.recorder = Recorder(self.out, PARTITIONS, {'seed': seed}, lambda: self.time_ns)
        self.is_stopping = False
        self.share_offsets = dict.fromkeys(LISTS, 0)
        self.released: list[tuple[int, int, int, int]] = []
        """The records that a member released, each as (partition, offset, number, delivery count)."""
        clients = [*(self.appender(f'list-{number}') for number in range(3)), self.fencer(), self.sender(),
                   *map(self.transformer, GROUPS), self.sharer(), self.sharer(), self.tail(READ_COMMITTED),
                   self.tail(READ_UNCOMMITTED)]
        for _ in range(steps):
            self.time_ns += STEP_NS
            next(self.random.choice(clients))
        self.is_stopping = True
        for client in clients:
            for _ in client:
                self.time_ns += STEP_NS
        self.finish()

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    # ---- clients: each yields between its steps

    def transact(self, producer: int, partitions: tuple[int, ...], reader: Reader | None = None) -> Iterator[None]:
        """Run one transaction. It appends records, and reads with `reader` between two appends."""
        begin, number, writes, touched = self.recorder.now(), self.recorder.new_transaction(), [], set()
        for _ in range(self.random.randint(1, 4)):
            writes += self.send(self.random.choice(partitions), number)
            touched.add(writes[-3])
            yield
            if reader is not None and self.random.random() < .3:
                reader.poll(self.random.choice(LISTS), number)
                yield
        outcome = self.random.choices(list(Outcome), (1, 6, 2))[0]
        is_committed = outcome is Outcome.COMMITTED or (outcome is Outcome.UNKNOWN and self.random.random() < .5)
        commit = None if outcome is Outcome.ABORTED else self.recorder.now()
        yield
        self.cluster.end(number, touched, is_committed)
        yield
        self.recorder.transaction(number, producer, begin, commit, outcome, writes)

    def send(self, partition: int, transaction: int | None) -> list[int]:
        number, sent = self.recorder.new_record(), self.recorder.now()
        return [number, partition, self.cluster.logs[partition].append(number, transaction), sent]

    def claim(self, transactional_id: str) -> int:
        producer, begin = self.recorder.new_producer(), self.recorder.now()
        self.time_ns += STEP_NS
        self.recorder.producer(producer, transactional_id, 'model', begin)
        return producer

    def appender(self, transactional_id: str) -> Iterator[None]:
        producer, reader = self.claim(transactional_id), Reader(self, READ_COMMITTED)
        yield
        while not self.is_stopping:
            yield from self.transact(producer, LISTS, reader)

    def fencer(self) -> Iterator[None]:
        """Run a client that initializes the same transactional id repeatedly. The model refuses the writes of the
        previous instance.
        """
        producer = self.claim('fenced')
        yield
        while not self.is_stopping:
            yield from self.transact(producer, LISTS)
            zombie, producer = producer, self.claim('fenced')
            begin, number = self.recorder.now(), self.recorder.new_transaction()
            yield
            refused = [self.recorder.new_record(), 0, NOT_ACKNOWLEDGED, self.recorder.now()]
            yield
            self.recorder.transaction(number, zombie, begin, self.recorder.now(), Outcome.UNKNOWN, refused)

    def sender(self) -> Iterator[None]:
        producer = self.recorder.new_producer()
        self.recorder.producer(producer, None, 'model', self.recorder.now())
        yield
        while not self.is_stopping:
            writes = []
            for _ in range(3):
                writes += self.send(INPUT, None)
                if self.random.random() < .1:
                    writes[-2] = NOT_ACKNOWLEDGED
            self.recorder.sends(producer, writes)
            yield

    def transformer(self, group: str) -> Iterator[None]:
        producer, reader = self.claim(group), Reader(self, READ_COMMITTED)
        yield
        while not self.is_stopping:
            begin, number = self.recorder.now(), self.recorder.new_transaction()
            first = self.cluster.committed_input[group]
            reader.seek(INPUT, first)
            found = reader.poll(INPUT, number)
            writes, sources, touched = [], [], set()
            for offset, _ in found:
                writes += self.send(self.random.choice(OUTPUTS), number)
                sources += [writes[-4], INPUT, offset]
                touched.add(writes[-3])
                yield
            after = found[-1][0] + 1 if found else first
            is_committed = self.random.random() < .7
            commit = self.recorder.now() if is_committed else None
            yield
            self.cluster.end(number, touched, is_committed)
            if is_committed:
                self.cluster.committed_input[group] = after
            yield
            self.recorder.transaction(number, producer, begin, commit,
                                      Outcome.COMMITTED if is_committed else Outcome.ABORTED, writes, group=group,
                                      consumed=[INPUT, first, after], sources=sources)

    def sharer(self) -> Iterator[None]:
        """Run a member of the share group. It acknowledges most of its records and releases the others."""
        sharer = self.recorder.sharer(SHARE_GROUP, 'model')
        yield
        while not self.is_stopping:
            yield from self.share(sharer, self.random.choice(LISTS), .8)

    def share(self, sharer: int, partition: int, settled_share: float) -> Iterator[None]:
        """Deliver released records, or new records of a partition, to a member."""
        since = self.recorder.now()
        got, self.released = self.released[:3], self.released[3:]
        if not got:
            found = self.cluster.read(partition, READ_COMMITTED, self.share_offsets[partition], 3)
            got = [(partition, offset, number, 0) for offset, number in found]
            if found:
                self.share_offsets[partition] = found[-1][0] + 1
        yield
        if not got:
            return
        self.recorder.deliveries(sharer, since, [(partition, [offset], [number], count + 1)
                                                 for partition, offset, number, count in got])
        begin, settled = self.recorder.now(), []
        for partition, offset, number, count in got:
            if self.random.random() < settled_share or count + 2 >= DELIVERY_LIMIT:
                settled += [partition, offset]
            else:
                self.released.append((partition, offset, number, count + 1))
        yield
        if settled:
            self.recorder.outcomes(sharer, begin, settled, is_confirmed=self.random.random() < .9)

    def tail(self, isolation: str) -> Iterator[None]:
        reader = Reader(self, isolation)
        while not self.is_stopping:
            reader.poll(self.random.randrange(len(PARTITIONS)))
            yield

    def finish(self) -> None:
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            reader = Reader(self, isolation, is_final=True)
            ends = []
            for partition, log in enumerate(self.cluster.logs):
                while reader.poll(partition):
                    self.time_ns += STEP_NS
                ends += [partition, log.end, log.end]
            self.recorder.end(reader.number, ends)
        for partition, log in enumerate(self.cluster.logs):
            self.recorder.stable(partition, log.end, log.end)
        for group, offset in self.cluster.committed_input.items():
            self.recorder.committed(group, {INPUT: offset})
        sharer = self.recorder.sharer(SHARE_GROUP, 'model')
        for partition, log in ((partition, self.cluster.logs[partition]) for partition in LISTS):
            while self.released or self.cluster.read(partition, READ_COMMITTED, self.share_offsets[partition], 1):
                for _ in self.share(sharer, partition, 1):
                    self.time_ns += STEP_NS
            self.share_offsets[partition] = log.end
        self.recorder.shared(SHARE_GROUP, DELIVERY_LIMIT, self.share_offsets)
        self.recorder.finish()


class Reader:
    """A reader of the model, with a position in each partition."""

    def __init__(self, run: ModelledRun, isolation: str, *, is_final: bool = False):
        self.run = run
        self.isolation = isolation
        self.number = run.recorder.reader(isolation, 'model', is_final=is_final)
        self.positions = dict.fromkeys(range(len(PARTITIONS)), 0)
        self.sought = [number for partition in self.positions for number in (partition, 0)]

    def seek(self, partition: int, offset: int) -> None:
        self.positions[partition] = offset
        self.sought += [partition, offset]

    def poll(self, partition: int, transaction: int | None = None) -> list[tuple[int, int]]:
        begin = self.run.recorder.now()
        found = self.run.cluster.read(partition, self.isolation, self.positions[partition],
                                      self.run.random.randint(1, 6))
        reads = [(partition, [offset for offset, _ in found], [number for _, number in found])] if found else []
        self.run.recorder.poll(self.number, begin, reads, seek=self.sought, transaction=transaction)
        self.sought = []
        if found:
            self.positions[partition] = found[-1][0] + 1
        return found
