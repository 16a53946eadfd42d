"""After a clean stop of kbroker, Apache Kafka knows the same producers as kbroker, and recognises the same batches.

A clean stop writes the snapshot of the producers below the last batches of the log. Both brokers open copies of one
directory. Each case has a partition of its own, so that one start of Apache Kafka judges all cases.
"""
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
from support.kafka.producer_histories import BOUNDED, PLAIN, SETTINGS, end_transaction, write_histories

from kbroker.base.errors import ErrorCode
from kbroker.log.check import PartitionCheck
from kbroker.log.fs import FileSystem

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

FENCED = ErrorCode.INVALID_PRODUCER_EPOCH.name
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
        """Return the log start offset, the last stable offset and the log end offset of each partition."""
        found = {}
        for timestamp, isolation in ((-2, 0), (-1, 1), (-1, 0)):
            answer = sound(self._peer.ask('ListOffsets', 9, replica_id=-1, isolation_level=isolation, topics=[
                dict(name=name, partitions=[dict(partition_index=index, timestamp=timestamp) for index in partitions])
                for name, partitions in self._topics.items()]))
            for topic in answer.topics:
                for each in topic.partitions:
                    found.setdefault((topic.name, each.partition_index), []).append(each.offset)
        return found

    def repeat(self):
        """Send all batches again, in their order. Return the answers: the name of the error or the base offset."""
        found = {(history.topic, history.partition): [] for history in self._histories}
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
                    before = self.offsets()[history.topic, history.partition][1]
                    end_transaction(self._peer, producer, committed=True)
                    deadline = time.monotonic() + LIMIT_S
                    while self.offsets()[history.topic, history.partition][1] == before:
                        assert time.monotonic() < deadline, (history.topic, history.partition)

    def values(self):
        """Return the committed values. Each begins with the number of its partition."""
        found = {}
        for topic, partitions in self._topics.items():
            for value in values_of(self.address, topic, partitions):
                found.setdefault((topic, int(value.split()[0])), []).append(value)
        return found


def differences(what, histories, kafka, ours):
    """Return a line for each history for which the brokers differ."""
    found = []
    for history in histories:
        place = history.topic, history.partition
        if kafka.get(place) != ours.get(place):
            found.append(f'{history.name}: {what}: Kafka {kafka.get(place)}, kbroker {ours.get(place)}')
    return found


def unrecognised(answers, histories, now_ms):
    """Return a line for each batch that a broker has to recognise and did not."""
    found = []
    for history in histories:
        place = history.topic, history.partition
        for batch in history.recognised(now_ms):
            answer = answers[place][history.sent.index(batch)]
            if answer != batch.base_offset:
                found.append(f'{history.name}: the batch at {batch.base_offset}: {answer}')
    return found


def forgotten(rows, histories, now_ms):
    """Return a line for each producer whose state the stop has changed. `rows` are those after the start."""
    found = []
    for history in histories:
        kept = set(history.rows_to_keep(now_ms)) - set(rows[history.topic, history.partition])
        found += [f'{history.name}: before the stop {row}' for row in sorted(kept)]
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
    kept = [(history.topic, history.partition) for history in histories
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
        found += unrecognised(answers[0], histories, now_ms)
        for place in kept:
            assert answers[1].pop(place) == [FENCED] * len(answers[0].pop(place))
        found += differences('repeated batches', histories, *answers)
        for witness in (theirs, ours):
            witness.commit_open_transactions()
        found += differences('committed values', histories, theirs.values(), ours.values())
        assert found == [], '\n'.join(found)
        kafka.stop()
        kbroker.stop()
        assert [line for line in kafka.lines if 'napshot' in line and re.search(' (WARN|ERROR) ', line)] == []


def test_kafka_knows_the_producers_of_a_stopped_broker_and_recognises_what_they_repeat(tmp_path):
    now_ms = time.time_ns() // 1_000_000
    histories = write_histories(tmp_path / 'data', CASES, now_ms)
    check_both(tmp_path / 'data', histories, '4.4', now_ms)
