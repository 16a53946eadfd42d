"""A broker is killed while a share group works. No acknowledged record is delivered again, and no acquired record is
lost. With a dead-letter queue, each rejected record has one dead letter.

Two members fetch records, and accept, release, reject or keep them. If the broker confirmed a release, the next
delivery of the record has a higher delivery count. After the last kill, a third member accepts all remaining records.

Covers KIP-932 and KIP-1191.
"""
from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import findings_in
from support.clients.raw_client import RawClient
from support.messages.message_builder import batch_of, build

from kbroker.group.share.dead_letter import place_of
from kbroker.group.share.rows import ShareKey
from kbroker.record.records import decode_records

GROUP, TOPIC = 'workers', 'jobs'
PARTITIONS = 2
RECORDS = 400
DELIVERY_LIMIT = 10
DEFAULT_ROUNDS = 12
SOAK_ROUNDS = 300
WAIT_MS = 200
MOST_TURNS = 200
ACCEPT, RELEASE, REJECT = 1, 2, 3
GROUP_RESOURCE = 32
QUEUE, QUEUE_PARTITIONS = 'dlq.jobs', 3

Place = tuple[int, int]
"""Partition and offset."""


@dataclass
class Ledger:
    """The outcomes of the records, as far as the members know them. `floor` maps a record to the lowest delivery count
    that its next delivery may have.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    confirmed: set[Place] = field(default_factory=set)
    rejected: set[Place] = field(default_factory=set)
    """The confirmed records that a member has rejected."""
    doubtful: set[Place] = field(default_factory=set)
    floor: dict[Place, int] = field(default_factory=dict)
    exhausted: set[Place] = field(default_factory=set)
    """Records that were delivered as often as the limit allows. The broker archives them unless a member accepts them.
    """
    problems: list[str] = field(default_factory=list)
    progress: threading.Event = field(default_factory=threading.Event)

    def delivered(self, place: Place, count: int) -> None:
        with self.lock:
            if place in self.confirmed:
                self.problems.append(f'{place} came again after its acknowledgement')
            if count < self.floor.get(place, 1):
                self.problems.append(f'{place} came with count {count}, expected {self.floor[place]} at least')
            if count >= DELIVERY_LIMIT:
                self.exhausted.add(place)

    def trying(self, places: dict[Place, tuple[int, int]]) -> None:
        """Note acknowledgements before they are sent. `places` maps each record to its type and its delivery count."""
        with self.lock:
            self.doubtful.update(place for place, (kind, _) in places.items() if kind != RELEASE)

    def acknowledged(self, places: dict[Place, tuple[int, int]]) -> None:
        with self.lock:
            for place, (kind, count) in places.items():
                if kind == REJECT:
                    self.rejected.add(place)
                if kind != RELEASE:
                    self.confirmed.add(place)
                else:
                    self.floor[place] = max(self.floor.get(place, 1), count + 1)
        self.progress.set()

    def is_done(self) -> bool:
        return len(self.confirmed | self.doubtful | self.exhausted) >= RECORDS


class Member:
    """A member of the share group. It works until `stop` is set, and connects again after each kill of the broker."""

    def __init__(self, name: str, address: str, topic_id: bytes, ledger: Ledger, accepts: float, seed: int = 7, *,
                 rejects: bool = False):
        self.name, self.topic_id, self.ledger, self.accepts = name, topic_id, ledger, accepts
        self.rejects = rejects
        self.address = address
        self.stop = threading.Event()
        self.rng = random.Random(f'{name} {seed}')
        self.error: BaseException | None = None
        self.rounds_without_records = 0

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    with RawClient.at(self.address, 10) as client:
                        self._work(client)
                except OSError:
                    self.stop.wait(0.02)
        except BaseException as error:
            self.error = error

    def _work(self, client: RawClient) -> None:
        epoch = 0
        while not self.stop.is_set():
            topics = [{'topic_id': self.topic_id, 'partitions': [
                {'partition_index': index} for index in range(PARTITIONS)]}] if epoch == 0 else []
            answer = client.ask(build(
                'ShareFetchRequest', group_id=GROUP, member_id=self.name, share_session_epoch=epoch,
                max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=1 << 20, max_records=20, batch_size=20,
                share_acquire_mode=1, topics=topics), 2)
            assert answer.error_code == 0, answer
            epoch += 1
            acquired = dict(self._acquired(answer))
            self.rounds_without_records = 0 if acquired else self.rounds_without_records + 1
            chosen = {place: (self._choose(), count)
                      for place, count in acquired.items() if self.rng.random() < max(0.9, self.accepts)}
            if chosen:
                self._acknowledge(client, epoch, chosen)
                epoch += 1
            if len(chosen) < len(acquired):
                return      # closing the connection gives the rest back

    def _choose(self) -> int:
        if self.rejects and self.rng.random() < self.accepts:
            return REJECT
        return ACCEPT if self.rng.random() < self.accepts else RELEASE

    def _acquired(self, answer: Any) -> Iterator[tuple[Place, int]]:
        for topic in answer.responses:
            for partition in topic.partitions:
                assert partition.error_code == 0, partition
                for acquired in partition.acquired_records:
                    for offset in range(acquired.first_offset, acquired.last_offset + 1):
                        place = partition.partition_index, offset
                        self.ledger.delivered(place, acquired.delivery_count)
                        yield place, acquired.delivery_count

    def _acknowledge(self, client: RawClient, epoch: int, chosen: dict[Place, tuple[int, int]]) -> None:
        self.ledger.trying(chosen)
        partitions = [{'partition_index': index, 'acknowledgement_batches': [
            {'first_offset': offset, 'last_offset': offset, 'acknowledge_types': [kind]}
            for (found, offset), (kind, _) in sorted(chosen.items()) if found == index]} for index in range(PARTITIONS)]
        answer = client.ask(build(
            'ShareAcknowledgeRequest', group_id=GROUP, member_id=self.name, share_session_epoch=epoch,
            topics=[{'topic_id': self.topic_id, 'partitions': [each for each in partitions
                                                               if each['acknowledgement_batches']]}]), 2)
        assert answer.error_code == 0, answer
        failed = {(topic.topic_id, partition.partition_index): partition.error_code
                  for topic in answer.responses for partition in topic.partitions if partition.error_code}
        assert not failed, failed
        self.ledger.acknowledged(chosen)


def prepare(directory: Any, *, has_queue: bool) -> bytes:
    """Create the topic and its records, and configure the group to read from the beginning of the topic."""
    configs = {'share.delivery.count.limit': str(DELIVERY_LIMIT)}
    with InProcessBroker(directory) as broker:
        created = broker.ask(build('CreateTopicsRequest', topics=[
            {'name': TOPIC, 'num_partitions': PARTITIONS, 'replication_factor': 1}]))
        topic_id: bytes = created.topics[0].topic_id
        if has_queue:
            configs['errors.deadletterqueue.topic.name'] = QUEUE
            raised = broker.ask(build('UpdateFeaturesRequest', feature_updates=[
                {'feature': 'share.version', 'max_version_level': 2, 'upgrade_type': 1}]), 1)
            assert raised.error_code == 0, raised
            broker.ask(build('CreateTopicsRequest', topics=[
                {'name': QUEUE, 'num_partitions': QUEUE_PARTITIONS, 'replication_factor': 1, 'configs': [
                    {'name': 'errors.deadletterqueue.group.enable', 'value': 'true'}]}]))
        altered = broker.ask(build('IncrementalAlterConfigsRequest', resources=[
            {'resource_type': GROUP_RESOURCE, 'resource_name': GROUP, 'configs': [
                {'name': name, 'config_operation': 0, 'value': value} for name, value in configs.items()]}]))
        assert altered.responses[0].error_code == 0, altered
        for number in range(RECORDS // 10 // PARTITIONS):
            for partition in range(PARTITIONS):
                produced = broker.ask(build('ProduceRequest', acks=-1, timeout_ms=1000, topic_data=[
                    {'name': TOPIC, 'partition_data': [{'index': partition, 'records': batch_of(
                        broker.clock.wall_ms(), *(b'%d' % (10 * number + i) for i in range(10)))}]}]), 12)
                assert produced.responses[0].partition_responses[0].error_code == 0
        failed: list[Any] = []
        broker.share_states.initialize({ShareKey(GROUP, topic_id, index): 0 for index in range(PARTITIONS)}, 1,
                                       failed.append)
        broker.turn()
        broker.turn()
        broker.long_work.finish()
        assert failed == [{}]
    return topic_id


def run_rounds(directory: Any, rounds: int, settings: dict[str, str], seed: int = 7, *, has_queue: bool = False) -> int:
    """Kill the broker `rounds` times, or until no record is left. Return the number of kills."""
    rng = random.Random(seed)
    kills = 0
    topic_id = prepare(directory, has_queue=has_queue)
    broker = BrokerProcess(directory, settings)
    broker.start()
    ledger = Ledger()
    members = [Member(f'member-{number}', broker.address, topic_id, ledger, 0.08, seed, rejects=has_queue)
               for number in range(2)]
    threads = [threading.Thread(target=member.run) for member in members]
    try:
        for thread in threads:
            thread.start()
        for _ in range(rounds):
            if ledger.is_done():
                break
            ledger.progress.clear()
            assert ledger.progress.wait(120) or ledger.is_done(), [member.error for member in members]
            threading.Event().wait(rng.random() * 0.2)
            broker.kill9()
            kills += 1
            broker.start()
        finish(members, threads)
        last = Member('last', broker.address, topic_id, ledger, 1.0)
        members.append(last)
        threads.append(threading.Thread(target=last.run))
        threads[-1].start()
        for _ in range(1200):
            if last.error is not None or last.rounds_without_records > 5:
                break
            threading.Event().wait(0.1)
        finish(members, threads)
        broker.stop()
    finally:
        broker.kill9()
        finish(members, threads, quiet=True)
    assert ledger.problems == []
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)}
    assert everything - ledger.confirmed - ledger.doubtful - ledger.exhausted == set(), 'records were lost'
    assert broker.tracebacks() == []
    assert findings_in(str(directory)) == []
    if has_queue:
        check_dead_letters(directory, ledger)
    return kills


def check_dead_letters(directory: Any, ledger: Ledger) -> None:
    """Check that each rejected record, and each record at the limit of deliveries, has one dead letter."""
    found: Counter[Place] = Counter()
    with InProcessBroker(directory) as broker:
        for _ in range(MOST_TURNS):
            broker.turn()
        for partition in broker.topics.topic(QUEUE).partitions:
            for _, batch in partition.batches():
                for record in decode_records(batch):
                    source, offset = place_of(record.headers)
                    found[source.partition, offset] += 1
    assert set(found.values()) == {1}, 'dead letters were written twice'
    assert ledger.rejected - set(found) == set(), 'dead letters were lost'
    assert ledger.exhausted - ledger.confirmed - ledger.doubtful - set(found) == set(), 'dead letters were lost'
    assert set(found) & (ledger.confirmed - ledger.rejected) == set(), 'accepted records have dead letters'
    assert ledger.rejected != set()


def finish(members: list[Member], threads: list[threading.Thread], *, quiet: bool = False) -> None:
    for member in members:
        member.stop.set()
    for thread in threads:
        thread.join(60)
    for member in members:
        if member.error is not None and not quiet:
            raise member.error


@pytest.mark.parametrize('durability', ['disk', 'page-cache'])
def test_a_share_group_loses_nothing_and_repeats_nothing_when_its_broker_is_killed(tmp_path, durability):
    run_rounds(tmp_path / 'data', DEFAULT_ROUNDS, {'kbroker.durability': durability})


@pytest.mark.parametrize('durability', ['disk', 'page-cache'])
def test_each_rejected_record_has_one_dead_letter_when_the_broker_is_killed(tmp_path, durability):
    run_rounds(tmp_path / 'data', DEFAULT_ROUNDS, {'kbroker.durability': durability}, has_queue=True)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize('has_queue', [False, True])
def test_a_share_group_loses_nothing_when_its_broker_is_killed_hundreds_of_times(tmp_path, soak_count, tally,
                                                                                 has_queue):
    rounds = soak_count(SOAK_ROUNDS, DEFAULT_ROUNDS)
    kills, seed = 0, 7
    while kills < rounds:
        seed += 1
        kills += run_rounds(tmp_path / str(seed), rounds - kills, {'kbroker.durability': 'disk'}, seed,
                            has_queue=has_queue)
        print(f'{kills} kills')
    tally('kills of a broker, a client or an application', kills)
