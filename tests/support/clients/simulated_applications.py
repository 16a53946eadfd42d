"""Applications with transactions, the network, and the broker's disk, all controlled by one random generator.

A `World` makes one small step at a time: an application sends, a frame arrives, a sync ends, a connection breaks, a
second instance takes over, records are deleted, a topic is deleted or created again, the clock moves. The power fails,
or the broker is killed, in the middle of a step. Requests of several applications and syncs of several partitions can
therefore interleave in any order. A seed always produces the same order.

The applications know only the answers that they received. `World.check` compares the broker with them.
"""
from __future__ import annotations

import collections
import copy
import pathlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from support.brokers.in_process_broker import InProcessBroker, NotingConnection
from support.clients import promises
from support.clients.promises import (
    GROUP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TOPIC,
    TURN_MS,
    Client,
    Producer,
    Promises,
    TopicPartition,
    check_values,
    check_visibility,
    committed_topics,
    greatest_code,
)
from support.disk.faulty_file_systems import FreezingFileSystem
from support.disk.held_disk import HeldDisk
from support.messages.message_builder import build

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode
from kbroker.log.fs import sync_inline
from kbroker.record.batch import encode_batch

SOURCE = 'source'
PARTITIONS = 3
BRIEF = 'brief', 0
"""The partition of a topic that is deleted and created again. Records of a transaction in it may disappear at any time.
"""
OLD_ID, TWO_PHASE_ID = 'old', 'two-phase'
IDS = ('first', 'second', OLD_ID, TWO_PHASE_ID)
"""The transactional ids. The applications of OLD_ID use the protocol from before KIP-890. Those of TWO_PHASE_ID use
two-phase commit (KIP-939): an instance continues the transaction of the previous instance.
"""
PLAIN = 'plain'
"""The name of the idempotent producer that uses no transactions."""
TIMEOUT_MS = 60_000
LONGEST_WAIT_TURNS = 500
WEIGHTS = {'work': 12, 'arrive': 12, 'sync': 12, 'time': 4, 'break': 1, 'take_over': 0.2, 'read': 0.5, 'late': 0.02,
           'delete_records': 0.1, 'replace_topic': 0.3}
"""The kinds of steps, which are methods of `World`, and their relative frequencies."""
RETRIABLE = promises.RETRIABLE | {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}

NO_PRODUCER = -1, -1


@dataclass
class Transaction(promises.Transaction):
    """A transaction of one of several applications. It commits at most one offset."""

    transactional_id: str = ''
    producer: Producer = NO_PRODUCER
    offset: int | None = None
    is_known: bool = False
    """True if the broker has acknowledged a part of the transaction, and therefore has the transaction."""
    decision: bool | None = None
    """The stored decision in two-phase commit: True to commit, False to abort. None until the broker has acknowledged
    all parts of the transaction.
    """
    may_be_aborted: bool = False
    """True if an instance may have been initialized that does not keep the transaction."""


@dataclass
class Call:
    """A request that an application repeats until the broker answers it."""

    api: str
    version: int
    fields: dict[str, Any]
    values: dict[TopicPartition, list[str]] = field(default_factory=dict)


@dataclass
class Instance:
    """An instance of an application. It has at most one call in flight."""

    name: str
    producer: Producer | None = None
    sequences: dict[tuple[Producer, TopicPartition], int] = field(default_factory=dict)
    transaction: int | None = None
    """The index of the instance's transaction in `Knowledge.transactions`."""
    todo: list[tuple[str, Any]] = field(default_factory=list)
    """The remaining steps of the transaction, each with an argument: `add`, `produce`, `add_offsets`, `send_offsets`,
    `prepare`, `end`.
    """
    call: Call | None = None
    is_dead: bool = False

    @property
    def is_old(self) -> bool:
        return self.name == OLD_ID


@dataclass
class Knowledge:
    """Everything that the broker has answered to the applications and readers."""

    instances: list[Instance] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    records: dict[TopicPartition, dict[int, str]] = field(
        default_factory=lambda: collections.defaultdict(dict))
    """The values of each partition that were acknowledged or read, by offset."""
    sent: dict[TopicPartition, set[str]] = field(default_factory=lambda: collections.defaultdict(set))
    """The values of each partition that arrived at the broker."""
    deleted: dict[TopicPartition, int] = field(default_factory=lambda: collections.defaultdict(int))
    """Maps each partition to the offset below which DeleteRecords deleted records. A power cut may undo the deletion.
    """
    brief: str = 'absent'
    """The state of the topic BRIEF: `absent` or `present`, or until the broker answers the request, `creating` or
    `deleting`.
    """
    deletions: int = 0
    """The number of deletions of BRIEF."""
    forbidden: set[str] = field(default_factory=set)
    """Values that arrived first from a fenced instance. No reader may see them."""
    newest: dict[str, Producer] = field(default_factory=dict)
    """The highest producer id and epoch of each transactional id."""
    producer_ids: set[int] = field(default_factory=set)
    count: int = 0
    """The last number that was used for a value or an offset."""

    @property
    def brief_number(self) -> int | None:
        """Return the number of the present topic BRIEF. A topic BRIEF that is created after a deletion has a new
        number.
        """
        return self.deletions if self.brief == 'present' else None

    def is_fenced(self, instance: Instance) -> bool:
        newest = self.newest.get(instance.name)
        return instance.producer is not None and newest is not None and instance.producer < newest


class RandomDisk(HeldDisk):
    """A disk whose syncs end in random order. Until a sync ends, its data may or may not have reached the disk."""

    def __init__(self, rng: random.Random):
        super().__init__(is_held=False)
        self._rng = rng

    def sync(self, files: Any, done: Callable[[OSError | None], None]) -> None:
        if self.is_held and self._rng.random() < 0.5:
            results: list[OSError | None] = []
            sync_inline(files, results.append)
            files, done = (), partial(self._report, done, results[0])
        super().sync(files, done)

    @staticmethod
    def _report(done: Callable[[OSError | None], None], result: OSError | None, _: OSError | None) -> None:
        done(result)

    def finish_one(self) -> None:
        """End a randomly chosen sync."""
        self.jobs.insert(0, self.jobs.pop(self._rng.randrange(len(self.jobs))))
        self.finish()


class Connection:
    """A connection of an instance: the frames in flight, and the broker's end of the connection."""

    def __init__(self, instance: Instance, connection_id: int):
        self.instance = instance
        self.under_way: collections.deque[Call] = collections.deque()
        self.sink = NotingConnection(connection_id)
        self.is_given_up = False


class PowerCut(Exception):
    """Raised when the power fails. The world continues with another directory."""


class Kill(BaseException):
    """Raised to kill the broker. No later change of the disk takes effect, and the next broker finds all changes made
    before.
    """


class World:
    """One broker, its directory and its clients. `directory` changes with each power cut."""

    def __init__(self, base: pathlib.Path, rng: random.Random, settings: dict[str, str]):
        self.rng = rng
        self.base = base
        self.settings = settings
        self.clock = ManualClock()
        self.knowledge = Knowledge()
        self.directory = base / 'start'
        self.directory.mkdir()
        self.lives = 0
        self.steps: collections.Counter[str] = collections.Counter()
        """How often each kind of step was made."""
        self._connections: list[Connection] = []
        self._changes_left = -1
        self._on_change: Callable[[], None] = lambda: None
        """Called once `_changes_left` changes of the disk have taken effect, and again for each later change."""
        self._cut: tuple[pathlib.Path, Knowledge] | None = None
        self._connection_ids = 0
        self._is_replacing = False
        """True while a request that deletes or creates BRIEF is in flight."""

    # ---- starts, stops and kills of the broker

    def prepare(self) -> None:
        """Create the topics."""
        with InProcessBroker(self.directory, self.settings, clock=self.clock) as broker:
            client = Client(broker, Promises())
            client.create_topic(TOPIC, PARTITIONS)
            client.create_topic(SOURCE, len(IDS))
            client.find_coordinators()
        self._fs = FreezingFileSystem(self.directory, self._before_change)

    def live(self, steps: int) -> None:
        """Start the broker and run this many steps. Then stop the broker, kill it, or cut the power."""
        self.lives += 1
        end = self.rng.choice(['stop', 'kill', 'cut_power', 'cut_power'])
        self.steps[end] += 1
        self._disk = disk = RandomDisk(self.rng)
        self.broker = InProcessBroker(self.directory, self.settings, clock=self.clock, fs=self._fs, sync=disk.sync)
        try:
            with self.broker:
                disk.kick = self.broker.flusher.kick
                self._begin_life()
                disk.is_held = True
                for _ in range(steps):
                    self._step()
                if end == 'stop':
                    disk.release()
                else:
                    self._end_within_steps(self._kill if end == 'kill' else self._cut_power)
        except (PowerCut, Kill):
            pass
        finally:
            self._on_change = lambda: None
            self._connections.clear()
            self._is_replacing = False
        if self._cut is not None:
            (self.directory, self.knowledge), self._cut = self._cut, None
            self._fs = FreezingFileSystem(self.directory, self._before_change)

    def _end_within_steps(self, end: Callable[[], None]) -> None:
        """Call `end` before one of the next changes of the disk."""
        try:
            self._changes_left, self._on_change = self.rng.randrange(12), end
            for _ in range(200):
                self._step()
            end()
            self._turn()
        finally:
            self.broker.crash()

    def _before_change(self, change: str, path: str) -> None:
        if self._changes_left <= 0:
            self._on_change()
        self._changes_left -= 1

    def _kill(self) -> None:
        raise Kill

    def _cut_power(self) -> None:
        """Write the directory that a power cut leaves now. The applications ignore all later answers."""
        if self._cut is None:
            directory = self.base / f'life{self.lives}'
            self._fs.crash(directory, self.rng)
            self._cut = directory, copy.deepcopy(self.knowledge)

    def _turn(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.broker.turn()
        if self._cut is not None:
            raise PowerCut

    def _begin_life(self) -> None:
        """Let each instance repeat its call on a new connection, or die as if its machine had failed."""
        for instance in self.knowledge.instances:
            if self.rng.random() < 0.3:
                instance.is_dead = True
            if instance.call is not None and not instance.is_dead:
                self._send(instance, instance.call)

    # ---- steps

    def _step(self) -> None:
        kind, = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        self.steps[kind] += 1
        getattr(self, f'_{kind}')()
        self._turn()

    def _work(self) -> None:
        """Make one instance send its next call."""
        idle = [instance for instance in self.knowledge.instances if not instance.is_dead and instance.call is None]
        if idle:
            self._send_next(self.rng.choice(idle))

    def _arrive(self) -> None:
        """Deliver one frame to the broker. The frames of a connection arrive in their order. Sometimes the frame is
        from a connection that its client has given up.
        """
        is_late = self.rng.random() < 0.05
        waiting = [found for found in self._connections if found.under_way and found.is_given_up == is_late]
        if waiting:
            self._deliver(self.rng.choice(waiting))

    def _sync(self) -> None:
        """End a sync. The flusher may then begin further syncs."""
        if self._disk.jobs:
            self._disk.finish_one()

    def _time(self) -> None:
        self._turn(self.rng.choice([1, TURN_MS, 200]))

    def _late(self) -> None:
        """Advance the clock until transactions time out."""
        self._turn(TIMEOUT_MS)
        for _ in range(50):
            self._turn(TURN_MS)

    def _break(self) -> None:
        """Make a client give up its connection and repeat its call on a new connection. The frames in flight on the old
        connection may still arrive.
        """
        alive = [connection for connection in self._connections if not connection.is_given_up]
        if not alive:
            return
        slow = [connection for connection in alive if connection.under_way]
        connection = self.rng.choice(slow or alive)
        connection.is_given_up = True
        if self.rng.random() < 0.3:
            connection.under_way.clear()
        if connection.instance.call is not None and not connection.instance.is_dead:
            self._send(connection.instance, connection.instance.call)

    def _take_over(self) -> None:
        """Start an instance whose name running instances may have. These do not notice the new instance."""
        name = self.rng.choice([*IDS, PLAIN])
        if name == PLAIN and any(found.name == PLAIN and not found.is_dead for found in self.knowledge.instances):
            return
        self.knowledge.instances.append(Instance(name))

    def _read(self) -> None:
        place = TOPIC, self.rng.randrange(PARTITIONS)
        self._check_records(place)
        self._check_visible(place)
        if self.knowledge.brief == 'present':
            self._check_records(BRIEF)

    def _delete_records(self) -> None:
        """Delete the first few records of a partition. Most records must stay, because they show the outcomes of their
        transactions.

        Sometimes delete all records, also those of open transactions.
        """
        place = TOPIC, self.rng.randrange(PARTITIONS)
        self._check_records(place)
        offsets = sorted(offset for offset in self.knowledge.records[place] if offset >= self.knowledge.deleted[place])
        if not offsets:
            return
        self.knowledge.deleted[place] = offset = self.rng.choice(offsets[:5] if self.rng.random() < 0.9 else offsets)
        self.broker.begin(build('DeleteRecordsRequest', topics=[dict(name=place[0], partitions=[
            dict(partition_index=place[1], offset=offset)])]), 2)

    def _replace_topic(self) -> None:
        """Delete the topic BRIEF, or create it. Repeat a request that an earlier broker did not answer."""
        knowledge, (name, _) = self.knowledge, BRIEF
        if self._is_replacing:
            return
        self._is_replacing = True
        if knowledge.brief in ('absent', 'creating'):
            knowledge.brief, then = 'creating', 'present'
            request, version = build('CreateTopicsRequest', topics=[dict(
                name=name, num_partitions=1, replication_factor=1)], timeout_ms=TIMEOUT_MS), 7
        else:
            knowledge.brief, then = 'deleting', 'absent'
            knowledge.deletions += 1
            knowledge.records[BRIEF].clear()
            request, version = build('DeleteTopicsRequest', topics=[dict(name=name)], timeout_ms=TIMEOUT_MS), 6

        def on_answer(answer: Any) -> None:
            assert greatest_code(answer) in (
                ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if self._cut is None:
                knowledge.brief, self._is_replacing = then, False

        self.broker.begin_noted(request, version, on_answer)

    # ---- an instance

    def _send_next(self, instance: Instance) -> None:
        if instance.producer is None:
            self._initialize(instance)
        elif instance.name == PLAIN:
            self._produce(instance, {place: [self._new_value()] for place in self._some_partitions()})
        else:
            if instance.transaction is None:
                self._begin_transaction(instance)
            kind, argument = instance.todo[0]
            getattr(self, f'_{kind}')(instance, argument)

    def _initialize(self, instance: Instance) -> None:
        fields: dict[str, Any] = dict(transactional_id=None if instance.name == PLAIN else instance.name,
                                      transaction_timeout_ms=TIMEOUT_MS)
        if instance.name == TWO_PHASE_ID:
            fields |= dict(enable2_pc=True, keep_prepared_txn=self.rng.random() < 0.9)
        version = {OLD_ID: 4, TWO_PHASE_ID: 6}.get(instance.name, 5)
        self._send(instance, Call('InitProducerId', version, fields))

    def _some_partitions(self) -> list[TopicPartition]:
        some = [(TOPIC, partition) for partition in sorted(
            self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS)))]
        return some + [BRIEF] * (self.knowledge.brief == 'present' and self.rng.random() < 0.3)

    def _new_value(self) -> str:
        self.knowledge.count += 1
        return f'value {self.knowledge.count}'

    def _begin_transaction(self, instance: Instance) -> None:
        instance.transaction = len(self.knowledge.transactions)
        assert instance.producer is not None
        self.knowledge.transactions.append(Transaction(transactional_id=instance.name, producer=instance.producer))
        for _ in range(self.rng.randint(1, 3)):
            if self.rng.random() < 0.3:
                self.knowledge.count += 1
                instance.todo += [('add_offsets', None)] * instance.is_old
                instance.todo.append(('send_offsets', self.knowledge.count))
            else:
                values = {place: [self._new_value()] for place in self._some_partitions()}
                instance.todo += [('add', list(values))] * instance.is_old
                instance.todo.append(('produce', values))
        is_commit = self.rng.random() < 0.7
        if instance.name == TWO_PHASE_ID:
            instance.todo.append(('prepare', is_commit))
        instance.todo.append(('end', is_commit))

    def _transaction_of(self, instance: Instance) -> Transaction:
        assert instance.transaction is not None
        return self.knowledge.transactions[instance.transaction]

    @staticmethod
    def _identity(instance: Instance) -> dict[str, Any]:
        assert instance.producer is not None
        return dict(producer_id=instance.producer[0], producer_epoch=instance.producer[1])

    def _add(self, instance: Instance, places: list[TopicPartition]) -> None:
        identity = {f'v3_and_below_{name}': value for name, value in self._identity(instance).items()}
        self._send(instance, Call('AddPartitionsToTxn', 3, dict(
            v3_and_below_transactional_id=instance.name, **identity,
            v3_and_below_topics=[dict(name=topic, partitions=[partition]) for topic, partition in places])))

    def _produce(self, instance: Instance, values: dict[TopicPartition, list[str]]) -> None:
        assert instance.producer is not None
        producer, is_plain = instance.producer, instance.name == PLAIN
        topic_data = [dict(name=topic, partition_data=[dict(index=partition, records=bytes(encode_batch(
            [(self.clock.wall_ms(), None, value.encode()) for value in added], producer_id=producer[0],
            producer_epoch=producer[1], transactional=not is_plain,
            base_sequence=instance.sequences.get((producer, (topic, partition)), 0))))])
            for (topic, partition), added in values.items()]
        self._send(instance, Call('Produce', 11 if instance.is_old else 12, dict(
            transactional_id=None if is_plain else instance.name, acks=-1, timeout_ms=10 * TIMEOUT_MS,
            topic_data=topic_data), values))

    def _add_offsets(self, instance: Instance, _: None) -> None:
        self._send(instance, Call('AddOffsetsToTxn', 3, dict(
            transactional_id=instance.name, group_id=GROUP, **self._identity(instance))))

    def _send_offsets(self, instance: Instance, offset: int) -> None:
        self._send(instance, Call('TxnOffsetCommit', 4 if instance.is_old else 5, dict(
            transactional_id=instance.name, group_id=GROUP, **self._identity(instance),
            topics=committed_topics({(SOURCE, IDS.index(instance.name)): offset}))))

    def _prepare(self, instance: Instance, is_commit: bool) -> None:
        """Store the decision, without a request to the broker. Sometimes the instance then dies, and a new instance
        must end the transaction.
        """
        self._transaction_of(instance).decision = is_commit
        instance.todo.pop(0)
        if self.rng.random() < 0.3:
            instance.is_dead = True
            self.knowledge.instances.append(Instance(instance.name))

    def _end(self, instance: Instance, is_commit: bool) -> None:
        self._send(instance, Call('EndTxn', 4 if instance.is_old else 5, dict(
            transactional_id=instance.name, committed=is_commit, **self._identity(instance))))

    # ---- the network

    def _send(self, instance: Instance, call: Call) -> None:
        instance.call = call
        connection = next((found for found in self._connections
                           if found.instance is instance and not found.is_given_up), None)
        if connection is None:
            self._connection_ids += 1
            connection = Connection(instance, self._connection_ids)
            self._connections.append(connection)
        connection.under_way.append(call)
        if self.rng.random() < 0.7:
            self._deliver(connection)

    def _deliver(self, connection: Connection) -> None:
        call, instance = connection.under_way.popleft(), connection.instance
        request = build(f'{call.api}Request', **call.fields)
        self._note_arrival(instance, call)
        brief_number = self.knowledge.brief_number

        def on_answer(answer: Any) -> None:
            if not connection.is_given_up and not instance.is_dead and instance.call is call and self._cut is None:
                instance.call = None
                self._answered(instance, call, answer, brief_number)

        self.broker.begin_noted(request, call.version, on_answer, connection.sink)
        assert connection.sink.closed is None, connection.sink.closed

    def _note_arrival(self, instance: Instance, call: Call) -> None:
        """Note the effects that a call may have once it has arrived. Values that first arrive from a fenced instance
        are `forbidden`.
        """
        knowledge = self.knowledge
        is_fenced = instance.name != PLAIN and knowledge.is_fenced(instance)
        for place, added in call.values.items():
            if is_fenced:
                knowledge.forbidden.update(set(added) - knowledge.sent[place])
            else:
                knowledge.sent[place].update(added)
        if call.api == 'EndTxn' and not is_fenced and instance.call is call:
            transaction = self._transaction_of(instance)
            if transaction.outcome == 'open':
                transaction.outcome = 'committing' if call.fields['committed'] else 'aborting'
        if call.api == 'InitProducerId' and not call.fields.get('keep_prepared_txn'):
            for transaction in knowledge.transactions:
                transaction.may_be_aborted |= transaction.transactional_id == instance.name

    # ---- answers

    def _answered(self, instance: Instance, call: Call, answer: Any, brief_number: int | None) -> None:
        """Note the effects of an answer. `brief_number` is the number of BRIEF when the call arrived."""
        if call.api == 'Produce':
            self._produced(instance, call, answer, brief_number)
            return
        code = greatest_code(answer)
        if code in RETRIABLE:
            return
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED):
            self._leave_out_brief(instance)
        elif code != ErrorCode.NONE:
            instance.is_dead = True
        elif call.api == 'InitProducerId':
            self._initialized(instance, answer)
        else:
            if call.api == 'TxnOffsetCommit':
                self._transaction_of(instance).offset = instance.todo[0][1]
                self._transaction_of(instance).is_known = True
            elif call.api == 'EndTxn':
                self._ended(instance, call, answer)
            instance.todo.pop(0)

    @staticmethod
    def _leave_out_brief(instance: Instance) -> None:
        """Remove BRIEF, which was deleted, from the partitions to add and to produce to."""
        (_, added), (_, values) = instance.todo[:2]
        assert BRIEF in added, f'{added} cannot be added'
        added.remove(BRIEF)
        del values[BRIEF]

    def _initialized(self, instance: Instance, answer: Any) -> None:
        knowledge, found = self.knowledge, (answer.producer_id, answer.producer_epoch)
        newest = knowledge.newest.get(instance.name)
        if newest is None or newest[0] != found[0] or instance.name == PLAIN:
            assert found[0] not in knowledge.producer_ids, f'producer id {found[0]} was returned twice'
            knowledge.producer_ids.add(found[0])
        else:
            # An older instance, which is fenced, may get its answer after a newer instance.
            assert found != newest, f'{instance.name}: epoch {found[1]} was returned twice'
        instance.producer = found
        if instance.name != PLAIN:
            knowledge.newest[instance.name] = max(found, newest or found)
        if instance.name == TWO_PHASE_ID:
            self._keep(instance, (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch))

    def _keep(self, instance: Instance, ongoing: Producer) -> None:
        """Continue the transaction that the answer names. If it has a decision, end it accordingly. Otherwise abort it.
        """
        for place, transaction in enumerate(self.knowledge.transactions):
            if transaction.transactional_id == instance.name and transaction.producer == ongoing:
                instance.transaction = place
                instance.todo = [('end', bool(transaction.decision))]
            elif transaction.transactional_id == instance.name:
                assert transaction.outcome != 'open' or not transaction.is_known or transaction.may_be_aborted, (
                    f'{transaction} was to be kept, found {ongoing}')
        assert ongoing == NO_PRODUCER or instance.transaction is not None, f'{ongoing} is of no transaction'

    def _produced(self, instance: Instance, call: Call, answer: Any, brief_number: int | None) -> None:
        """Note the acknowledged values. Send the values that were not acknowledged again with the next call."""
        assert instance.producer is not None
        rows = {(topic.name, row.index): row for topic in answer.responses for row in topic.partition_responses}
        left = {}
        for place, added in call.values.items():
            row = rows[place]
            if row.error_code == ErrorCode.NONE:
                if place != BRIEF or (brief_number is not None and brief_number == self.knowledge.brief_number):
                    self.knowledge.records[place].update(enumerate(added, row.base_offset))
                key = instance.producer, place
                instance.sequences[key] = instance.sequences.get(key, 0) + len(added)
                if instance.transaction is not None and place != BRIEF:
                    self._transaction_of(instance).values[place] += added
                    self._transaction_of(instance).is_known = True
            elif row.error_code in RETRIABLE:
                left[place] = added
            elif place != BRIEF or row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                instance.is_dead = True
        if instance.name != PLAIN:
            if left:
                instance.todo[0] = 'produce', left
            else:
                instance.todo.pop(0)
        elif left and not instance.is_dead:
            self._produce(instance, left)

    def _ended(self, instance: Instance, call: Call, answer: Any) -> None:
        transaction = self._transaction_of(instance)
        transaction.outcome = 'committed' if call.fields['committed'] else 'aborted'
        instance.transaction = None
        if not instance.is_old:
            instance.producer = answer.producer_id, answer.producer_epoch
            self.knowledge.producer_ids.add(answer.producer_id)
            self.knowledge.newest[instance.name] = max(self.knowledge.newest[instance.name], instance.producer)

    # ---- checks

    def settle(self) -> None:
        """Start a broker on the directory, end all transactions, and check everything."""
        with InProcessBroker(self.directory, self.settings, clock=self.clock, fs=self._fs) as self.broker:
            client = Client(self.broker, Promises())
            for name in IDS:
                last = Instance(name)
                self.knowledge.instances.append(last)
                for _ in range(LONGEST_WAIT_TURNS):
                    if last.call is None:
                        self._send_next(last)
                    while waiting := [found for found in self._connections if found.under_way]:
                        self._deliver(waiting[0])
                    self._turn(TURN_MS)
                    if last.producer is not None and last.transaction is None:
                        break
                    assert not last.is_dead, f'{name} is fenced'
                assert last.producer is not None and last.transaction is None, f'{name} is never initialized'
            for instance in self.knowledge.instances:
                instance.is_dead = True
            for _ in range(10):
                self._turn(TURN_MS)
            for _ in range(LONGEST_WAIT_TURNS):
                if self.knowledge.brief == 'present':
                    break
                self._replace_topic()
                self._turn(TURN_MS)
            assert self.knowledge.brief == 'present', f'a topic stays {self.knowledge.brief}'
            client.check_stable_offsets()
            self.check()
            self._connections.clear()

    def check(self) -> None:
        """Check all records. Check that each transaction is visible as a whole or not at all, in accordance with the
        answers.
        """
        views = {}
        for partition in range(PARTITIONS):
            place = TOPIC, partition
            self._check_records(place)
            views[place] = self._check_visible(place)
        self._check_records(BRIEF)
        deleted = {value for place, offset in self.knowledge.deleted.items()
                   for found, value in self.knowledge.records[place].items() if found < offset}
        offsets = {}
        for transaction in self.knowledge.transactions:
            shows = {value in views[place] for place, added in transaction.values.items()
                     for value in added if value not in deleted}
            check_visibility(transaction, shows)
            self._note_offset(transaction, shows, offsets)
        found = Client(self.broker, Promises()).fetch_offsets(
            {(SOURCE, number) for number in range(len(IDS))}, GROUP)
        for number, name in enumerate(IDS):
            allowed = offsets.get(name, {None})
            assert found.get((SOURCE, number)) in allowed, f'{name}: offset {found}, expected one of {allowed}'

    @staticmethod
    def _note_offset(transaction: Transaction, shows: set[bool], offsets: dict[str, set[int | None]]) -> None:
        """Update `offsets`: the offsets that the group may have committed after this transaction."""
        if transaction.offset is None:
            return
        allowed = offsets.setdefault(transaction.transactional_id, {None})
        if transaction.outcome == 'committed' or shows == {True}:
            allowed.clear()
            allowed.add(transaction.offset)
        elif transaction.outcome == 'committing' and not shows:
            allowed.add(transaction.offset)

    def _check_records(self, place: TopicPartition) -> None:
        knowledge = self.knowledge
        found = self._values(place, READ_UNCOMMITTED)
        zombies = knowledge.forbidden & set(found.values())
        assert not zombies, f'{place}: values of a zombie, {zombies}'
        check_values(place, found, knowledge.records[place], knowledge.sent[place], knowledge.deleted[place])
        knowledge.records[place].update(found)

    def _check_visible(self, place: TopicPartition) -> set[str]:
        """Return the values of a partition that a read_committed consumer gets. Check that none is from an uncommitted
        transaction.
        """
        view = set(self._values(place, READ_COMMITTED).values())
        for transaction in self.knowledge.transactions:
            if transaction.outcome not in ('committed', 'committing'):
                early = view & set(transaction.values.get(place, ()))
                assert not early, f'{early} of {transaction} are visible'
        return view

    def _values(self, place: TopicPartition, isolation: int) -> dict[int, str]:
        return Client(self.broker, Promises()).read(place, isolation)
