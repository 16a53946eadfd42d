"""After a clean stop of kbroker, Apache Kafka knows the same producers as kbroker, and recognises the same batches.

A clean stop writes the snapshot of the producers below the last batches of the log. Both brokers open copies of one
directory. Each case has a partition of its own, so that one start of Apache Kafka judges all cases.
"""
import random
import re
import shutil
import struct
import time
from contextlib import ExitStack

import pytest
from support.brokers.broker_process import BrokerProcess
from support.clients.librdkafka import values_of
from support.clients.tv1_producer import LIMIT_S, SocketPeer, sound
from support.kafka.apache_kafka import KafkaProcess, dump_log
from support.kafka.producer_histories import (
    BOUNDED,
    EXPIRATION_MS,
    PLAIN,
    SETTINGS,
    end_transaction,
    write_histories,
)

from kbroker.base.errors import ErrorCode
from kbroker.log.check import PartitionCheck
from kbroker.log.fs import FileSystem
from kbroker.log.producer_state import ActiveProducer

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

FENCED = ErrorCode.INVALID_PRODUCER_EPOCH.name
SOAK_DIRECTORIES = 10
RELEASES_OF_SOAK = ('4.4', '4.3')
HISTORIES_OF_DIRECTORY = 40
ENTRIES_AT = 6
"""The position of the number of entries in a snapshot, a big-endian int32."""


# ---- the cases ----

def write_five_batches(history):
    yield
    producer = history.add_producer()
    for _ in range(5):
        history.write(producer)


def write_seven_batches(history):
    yield
    producer = history.add_producer()
    for count in (1, 2, 3, 1, 2, 3, 2):
        history.write(producer, count)


def write_five_batches_before_the_last_two_stops(history):
    yield
    producer = history.add_producer()
    for _ in range(5):
        history.write(producer)
    yield


def write_on_both_sides_of_a_stop(history):
    yield
    producers = [history.add_producer() for _ in range(2)]
    for _ in range(3):
        for producer in producers:
            history.write(producer, 2)
    yield
    for _ in range(2):
        history.write(producers[1])


def write_interleaved(history):
    yield
    producers = [history.add_producer() for _ in range(3)]
    for number in range(8):
        for producer in producers[number % 2:]:
            history.write(producer, 1 + number % 3)


def leave_open(transaction_version, batches, *, on_both_sides=False):
    def work(history):
        yield
        producer = history.add_transactional(transaction_version)
        for _ in range(batches):
            history.write(producer)
        if on_both_sides:
            yield
            history.write(producer)
    return work


def leave_open_for_days(history):
    """The broker does not expire a producer with an open transaction."""
    producer = history.add_producer(1)
    history.write(producer)
    history.write(producer)
    yield
    other = history.add_producer()
    for _ in range(6):
        history.write(other)


def leave_open_below_the_snapshot(history):
    """The transaction begins below the snapshot, and goes on above it."""
    yield
    producer, other = history.add_transactional(2), history.add_producer()
    for _ in range(8):
        history.write(producer)
        history.write(other)


def end_among_the_last_batches(transaction_version, committed):
    """The marker is above the snapshot, the batches of the transaction are on both sides."""
    def work(history):
        yield
        producer, other = history.add_transactional(transaction_version), history.add_producer()
        history.write(producer)
        history.write(other)
        history.write(producer, 2)
        history.write(other)
        history.end(producer, committed=committed)
        for _ in range(3):
            history.write(other)
        history.write(producer)
        history.end(producer, committed=not committed)
    return work


def end_repeatedly(transaction_version):
    """Transactions of one batch. With transaction version 1, the window has batches of several transactions."""
    def work(history):
        yield
        producer, other = history.add_transactional(transaction_version), history.add_producer()
        history.write(other)
        for number in range(7):
            history.write(producer)
            history.end(producer, committed=number % 2 == 0)
        history.write(other)
        history.write(producer)
        history.end(producer)
    return work


def raise_the_epoch_between_batches(history):
    """A producer without transactions begins its next epoch between its third batch and its fourth."""
    yield
    producer, other = history.add_producer(), history.add_producer()
    history.write(other)
    for _ in range(3):
        history.write(producer)
    producer.begin_epoch(1)
    history.write(other)
    for _ in range(2):
        history.write(producer)


def expire_after_a_marker(committed):
    """A producer has expired since its marker, but its transaction was open at the offset of the snapshot. The
    timestamps of the other producer are two days ahead, so it does not expire.
    """
    def work(history):
        expired, live = history.add_producer(1), history.add_producer()
        now_ms = history.now_ms() + 48 * 3_600_000
        history.write(live, timestamp_ms=now_ms)
        history.write(expired)
        history.write(live, timestamp_ms=now_ms)
        history.write(expired)
        history.end(expired, committed=committed)
        yield
        history.write(live)
    return work


def expire_before_the_snapshot(history):
    expired, again = history.add_producer(1), history.add_producer()
    history.write(expired)
    history.end(expired)
    history.write(again)
    history.write(again)
    yield
    history.write(again)
    history.write(again)


def roll_between_batches(history):
    yield
    producer, other = history.add_producer(), history.add_transactional(1)
    for _ in range(3):
        history.write(producer)
        history.write(other)
    history.roll()
    for _ in range(2):
        history.write(other)
        history.write(producer)
    history.end(other, committed=False)


def roll_at_the_end(history):
    yield
    producer = history.add_producer()
    for _ in range(5):
        history.write(producer)
    history.roll()


def delete_records_past_the_snapshot(history):
    """The first stop writes a snapshot at offset 1. The second stop has to write another one."""
    yield
    producer, other = history.add_producer(), history.add_producer()
    history.write(other)
    for _ in range(5):
        history.write(producer)
    yield
    history.delete_records(4)


def delete_records_among_the_last_batches(history):
    yield
    producer, other = history.add_producer(1), history.add_producer()
    history.write(producer)
    for _ in range(5):
        history.write(other)
    history.write(producer)
    history.delete_records(3)


def delete_all_records(history):
    yield
    producer = history.add_producer()
    for _ in range(3):
        history.write(producer)
    history.delete_records(3)


def write_only_a_marker(history):
    yield
    history.end(history.add_producer(1), committed=False)


def fence_an_open_transaction(history):
    """The coordinator aborts the transaction of a fenced producer with the next epoch."""
    yield
    producer, other = history.add_producer(1), history.add_producer()
    history.write(other)
    history.write(producer)
    history.coordinator_epoch = 3
    history.end(producer, committed=False, raises_epoch=True)
    for _ in range(3):
        history.write(other)
    history.write(producer)


def keep_in_two_phase_commit(history):
    """Two clients keep a transaction that the first one has prepared."""
    yield
    producer = history.add_transactional(2, enable2_pc=True)
    for _ in range(3):
        history.write(producer)
    history.keep(producer)


def write_more_than_a_start_replays(history):
    """The batches of the idle producer are too far below the end of the log."""
    yield
    idle, busy = history.add_producer(), history.add_producer(1)
    for _ in range(5):
        history.write(idle)
    for _ in range(60):
        history.write(busy, 3)
    history.end(busy)
    for _ in range(60):
        history.write(busy, 3)


CASES = {
    PLAIN: {
        'five batches': write_five_batches, 'seven batches': write_seven_batches,
        'five batches before two stops': write_five_batches_before_the_last_two_stops,
        'batches on both sides of a stop': write_on_both_sides_of_a_stop, 'three producers': write_interleaved,
        **{f'{batches} batches in an open transaction, version {version}': leave_open(version, batches)
           for version in (1, 2) for batches in (1, 5, 7)},
        'an open transaction on both sides of a stop': leave_open(1, 3, on_both_sides=True),
        'open for days': leave_open_for_days, 'open below the snapshot': leave_open_below_the_snapshot,
        **{f'a marker among the last batches, version {version}, commit {committed}':
           end_among_the_last_batches(version, committed) for version in (1, 2) for committed in (True, False)},
        **{f'short transactions, version {version}': end_repeatedly(version) for version in (1, 2)},
        'another epoch': raise_the_epoch_between_batches,
        **{f'expired since a marker, commit {committed}': expire_after_a_marker(committed)
           for committed in (True, False)},
        'expired below the snapshot': expire_before_the_snapshot, 'roll between batches': roll_between_batches,
        'roll at the end': roll_at_the_end, 'deleted past the snapshot': delete_records_past_the_snapshot,
        'deleted among the last batches': delete_records_among_the_last_batches, 'all deleted': delete_all_records,
        'only a marker': write_only_a_marker, 'fenced': fence_an_open_transaction, 'kept': keep_in_two_phase_commit},
    BOUNDED: {'more than a start replays': write_more_than_a_start_replays},
}


# ---- random histories ----

STEPS = {'write': 12, 'commit': 3, 'abort': 3, 'fence': 1, 'repeat a marker': 1, 'begin an epoch': 1, 'roll': 1,
         'delete records': 1, 'elect a coordinator': 1}
"""The steps of a random history, and how often each one occurs."""


def random_parts(rng):
    """Return three lists of steps: (name of a step, number of a producer, number from 0 to 1)."""
    producers = rng.randint(1, 6)
    return [[(step, rng.randrange(producers), round(rng.random(), 3))
             for step in rng.choices(list(STEPS), list(STEPS.values()), k=rng.choice((0, 3, 10, 30)))]
            for _ in range(3)]


def play(parts):
    """Return the work that plays the steps. A step that is impossible in the current state is left out."""
    def work(history):
        producers = {}
        for part in parts:
            for step, number, share in part:
                if number not in producers:
                    producers[number] = history.add_producer(number % 3)
                play_step(history, producers[number], step, share)
            yield
    return work


def play_step(history, producer, step, share):
    is_forgotten = not producer.known and producer.sequence > 0
    if step == 'write':
        if is_forgotten and producer.transaction_version and not producer.is_open:
            producer.begin_epoch(producer.epoch + 1)    # the replay may have found its last marker, but no batch
        ahead_ms = 48 * 3_600_000 if share < 0.2 else 0
        history.write(producer, 1 + int(share * 3), timestamp_ms=history.now_ms() + ahead_ms)
    elif step in ('commit', 'abort') and producer.is_open:
        history.end(producer, committed=step == 'commit')
    elif step == 'fence' and producer.is_open:
        history.end(producer, committed=False, raises_epoch=True)
    elif step == 'repeat a marker' and producer.transaction_version and not (producer.is_open or is_forgotten):
        history.end(producer, committed=share < 0.5, raises_epoch=producer.transaction_version == 2 and share < 0.3)
    elif step == 'begin an epoch' and not producer.is_open:
        producer.begin_epoch(producer.epoch + 1)
    elif step == 'roll' and history.log_end_offset > history.rolled_at:
        history.roll()
    elif step == 'delete records':
        visible = history.log_end_offset - history.log_start_offset
        history.delete_records(history.log_start_offset + int(share * visible))
    elif step == 'elect a coordinator':
        history.coordinator_epoch += 1


# ---- the comparison ----

class Witness:
    """Asks one of the brokers about the partitions of all histories. Keys of its answers are (topic, partition)."""

    def __init__(self, address, histories):
        self.address, self._histories = address, histories
        self._peer = SocketPeer(address)
        self._topics = {}
        for history in histories:
            self._topics.setdefault(history.topic, []).append(history.partition)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._peer.__exit__()

    def producers(self):
        """Return the rows of DescribeProducers, sorted."""
        answer = sound(self._peer.ask('DescribeProducers', 0, topics=[
            dict(name=name, partition_indexes=partitions) for name, partitions in self._topics.items()]))
        return {(topic.name, found.partition_index): sorted(
            (row.producer_id, row.producer_epoch, row.last_sequence, row.last_timestamp, row.coordinator_epoch,
             row.current_txn_start_offset) for row in found.active_producers)
            for topic in answer.topics for found in topic.partitions}

    def offsets(self):
        """Return the log start offset, the last stable offset and the log end offset of each partition.

        If a transaction begins below the log start, the last stable offset is the log start. Kafka returns the first
        offset of the batch that contains the log start.
        """
        found = {}
        for timestamp, isolation in ((-2, 0), (-1, 1), (-1, 0)):
            answer = sound(self._peer.ask('ListOffsets', 9, replica_id=-1, isolation_level=isolation, topics=[
                dict(name=name, partitions=[dict(partition_index=index, timestamp=timestamp) for index in partitions])
                for name, partitions in self._topics.items()]))
            for topic in answer.topics:
                for each in topic.partitions:
                    found.setdefault((topic.name, each.partition_index), []).append(each.offset)
        return {place: [start, max(start, stable), end] for place, (start, stable, end) in found.items()}

    def repeat(self):
        """Send all batches again, in their order. Return the answers: the name of the error or the base offset."""
        found = {place_of(history): [] for history in self._histories}
        for number in range(max(len(history.sent) for history in self._histories)):
            chosen = [history for history in self._histories if number < len(history.sent)]
            plain = [history for history in chosen if not history.sent[number].is_transactional]
            alone = [[history] for history in chosen if history.sent[number].is_transactional]
            for histories in [plain, *alone] if plain else alone:   # Kafka refuses a request of two transactions
                self._repeat(number, histories, found)
        return found

    def _repeat(self, number, histories, found):
        answer = self._peer.ask(
            'Produce', 11, acks=-1, timeout_ms=30_000,
            transactional_id=histories[0].sent[number].producer.transactional_id or 'any', topic_data=[
                dict(name=topic, partition_data=[dict(index=history.partition, records=history.sent[number].records)
                                                 for history in histories if history.topic == topic])
                for topic in {history.topic: None for history in histories}])
        for topic in answer.responses:
            for each in topic.partition_responses:
                found[topic.name, each.index].append(
                    ErrorCode(each.error_code).name if each.error_code else each.base_offset)

    def commit_open_transactions(self):
        """Commit the open transactions that the coordinator knows. Wait until their records can be read."""
        for history in self._histories:
            for producer in history.producers:
                if producer.is_open and producer.transactional_id and not producer.is_kept:
                    before = self.offsets()[place_of(history)][1]
                    end_transaction(self._peer, producer, committed=True)
                    deadline = time.monotonic() + LIMIT_S
                    while self.offsets()[place_of(history)][1] == before:
                        assert time.monotonic() < deadline, place_of(history)

    def values(self):
        """Return the committed values of the partitions without deleted records. Each value begins with the number of
        its partition.

        librdkafka does not report the end of a partition to which Kafka gives a last stable offset below its start.
        """
        found = {}
        for topic in self._topics:
            whole = [history.partition for history in self._histories
                     if history.topic == topic and history.log_start_offset == 0]
            for value in values_of(self.address, topic, whole):
                found.setdefault((topic, int(value.split()[0])), []).append(value)
        return found


def place_of(history):
    return history.topic, history.partition


def differences(what, histories, kafka, ours):
    """Return a line for each history for which the brokers differ."""
    found = []
    for history in histories:
        theirs, own = (answers.get(place_of(history)) for answers in (kafka, ours))
        if theirs != own:
            found.append(f'{history.name}: {what}: Kafka {theirs}, kbroker {own}')
    return found


def unrecognised(answers, histories):
    """Return a line for each batch that a broker has to recognise and did not."""
    found = []
    for history in histories:
        for batch in history.recognised():
            answer = answers[place_of(history)][history.sent.index(batch)]
            if answer != batch.base_offset:
                found.append(f'{history.name}: the batch at {batch.base_offset}: {answer}')
    return found


def forgotten(rows, histories, now_ms):
    """Return a line for each producer whose state the stop has changed. `rows` are those after the start.

    The coordinator epoch is not compared. The replay adds a producer of which the snapshot has no batch, and finds the
    epoch only in the markers above the snapshot.
    """
    found = []
    for history in histories:
        known = {row._replace(coordinator_epoch=-1) for row in map(ActiveProducer._make, rows[place_of(history)])}
        found += [f'{history.name}: before the stop {row}' for row in history.rows_to_keep(now_ms)
                  if row._replace(coordinator_epoch=-1) not in known]
    return found


def findings_in(directory, histories):
    """Return the findings of kbroker-check about the partitions. The snapshots have to be the states of their offsets.
    """
    return [(history.name, finding) for history in histories for finding in PartitionCheck(
        FileSystem(), str(directory / f'{history.topic}-{history.partition}'),
        log_start_offset=history.log_start_offset).run().findings]


def check_snapshot_files(directory, release):
    """Check that Kafka's dump tool reads each producer in the snapshots of the topics."""
    files = sorted(path for topic in CASES for path in directory.glob(f'{topic}-*/*.snapshot'))
    assert files
    text = dump_log(*files, release=release)
    entries = sum(struct.unpack_from('>i', path.read_bytes(), ENTRIES_AT)[0] for path in files)
    assert text.count('producerId:') == entries, text
    assert not re.search('[Cc]orrupt|Exception', text), text


def check_both(directory, histories, release, now_ms):
    """Let both brokers open copies of a directory, and check that they know the same. There is one difference: kbroker
    refuses all batches of a producer whose prepared transaction another client has kept.
    """
    kept = [place_of(history) for history in histories
            if any(producer.is_kept for producer in history.producers)]
    assert findings_in(directory, histories) == []
    copy = directory.with_name('copy')
    shutil.copytree(directory, copy)
    check_snapshot_files(copy, release)
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaProcess(copy, SETTINGS, release))
        kbroker = stack.enter_context(BrokerProcess(directory, SETTINGS))
        theirs, ours = (stack.enter_context(Witness(broker.address, histories)) for broker in (kafka, kbroker))
        rows = theirs.producers(), ours.producers()
        found = forgotten(rows[1], histories, now_ms) + differences('producers', histories, *rows)
        found += differences('offsets', histories, theirs.offsets(), ours.offsets())
        assert kafka.errors() == []             # a batch that Kafka refuses is an error in its log
        answers = theirs.repeat(), ours.repeat()
        found += unrecognised(answers[0], histories)
        for place in kept:
            assert answers[1].pop(place) == [FENCED] * len(answers[0].pop(place))
        found += differences('repeated batches', histories, *answers)
        for witness in (theirs, ours):
            witness.commit_open_transactions()
        found += differences('committed values', histories, theirs.values(), ours.values())
        assert found == [], '\n'.join(found)
        rows, offsets = theirs.producers(), theirs.offsets()
        kafka.stop()
        kbroker.stop()
        assert [line for line in kafka.lines if 'napshot' in line and re.search(' (WARN|ERROR) ', line)] == []
    check_way_back(copy, histories, rows, offsets)


def check_way_back(directory, histories, rows, offsets):
    """Let kbroker open the directory that Kafka has stopped cleanly, and check that it knows what Kafka knew. Kafka
    expires a producer only after minutes, kbroker when it reads the snapshot.
    """
    now_ms = time.time_ns() // 1_000_000
    with BrokerProcess(directory, SETTINGS) as kbroker, Witness(kbroker.address, histories) as ours:
        known = {place: [row for row in map(ActiveProducer._make, found) if row.transaction_first_offset >= 0
                         or now_ms - row.last_timestamp_ms < EXPIRATION_MS] for place, found in rows.items()}
        found = differences('producers on the way back', histories, known, ours.producers())
        found += differences('offsets on the way back', histories, offsets, ours.offsets())
        assert found == [], '\n'.join(found)
        kbroker.stop()


def test_kafka_knows_the_producers_of_a_stopped_broker_and_recognises_what_they_repeat(tmp_path):
    now_ms = time.time_ns() // 1_000_000
    histories = write_histories(tmp_path / 'data', CASES, now_ms)
    check_both(tmp_path / 'data', histories, '4.4', now_ms)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_both_brokers_know_the_same_producers_after_any_history(tmp_path, soak_count, soak_seed, tally):
    """Apache Kafka 4.4 and 4.3 take turns as the judge."""
    count = soak_count(SOAK_DIRECTORIES, least=2)
    for number in range(count):
        rng = random.Random(f'{soak_seed} {number}')
        works = {PLAIN: {}, BOUNDED: {}}
        for index in range(HISTORIES_OF_DIRECTORY):
            parts = random_parts(rng)
            works[PLAIN if index % 4 else BOUNDED][f'history {index} of directory {number}: {parts}'] = play(parts)
        directory = tmp_path / f'{number}' / 'data'
        directory.mkdir(parents=True)
        now_ms = time.time_ns() // 1_000_000
        histories = write_histories(directory, works, now_ms)
        check_both(directory, histories, RELEASES_OF_SOAK[number % 2], now_ms)
        shutil.rmtree(directory.parent)
    tally('histories beside Apache Kafka', count * HISTORIES_OF_DIRECTORY)
