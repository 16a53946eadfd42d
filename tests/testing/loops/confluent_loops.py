"""Programs with confluent-kafka that read numbers and write the square of each. Two are correct; the others have a
mistake that people make.

    python confluent_loops.py HOST:PORT NAME COUNT

runs the loop with this name until it has committed the offsets of COUNT records. After an error, the program ends.
"""
import faulthandler
import itertools
import sys
from functools import partial

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition

INPUT, OUTPUT, GROUP = 'input', 'output', 'squares'
MOST_RECORDS = 2
"""The most records of a transaction."""
LIMIT_S = 20
START_S, HANG_S = 30, 3
"""If the start or a transaction takes longer, the program ends. If the connection breaks while librdkafka 2.x sends
offsets, it may wait for the answer for ever, whatever its time limit is."""
COMMON = {'reconnect.backoff.ms': 10, 'reconnect.backoff.max.ms': 50, 'retry.backoff.ms': 10,
          'retry.backoff.max.ms': 50, 'topic.metadata.refresh.fast.interval.ms': 20, 'log_level': 0}


def result_of(value):
    return b'%d' % int(value) ** 2


class Correct:
    """Writes the squares and the offsets of the numbers in one transaction. After an error that permits it, the
    program aborts and reads again from the committed offset. Any other error ends the program."""

    transactional_id = 'squares-0'

    def __init__(self, address):
        self._address = address
        self._consumer = Consumer(COMMON | {
            'bootstrap.servers': address, 'group.id': GROUP, 'isolation.level': 'read_committed',
            'auto.offset.reset': 'earliest', 'enable.auto.commit': False, 'fetch.wait.max.ms': 20,
            'fetch.error.backoff.ms': 10})
        self._consumer.list_topics(INPUT, LIMIT_S)     # librdkafka finds the leader of an unknown topic once a second
        self._committed = 0
        self.open_producer()

    def open_producer(self):
        self._producer = self.transactional_producer()

    def transactional_producer(self):
        producer = Producer(COMMON | {'bootstrap.servers': self._address, 'transactional.id': self.transactional_id,
                                      'linger.ms': 0})
        producer.init_transactions(LIMIT_S)
        return producer

    def close(self):
        self._consumer.close()

    def run(self, count):
        """Return when the offsets of `count` records are committed."""
        self.rewind()
        while self._committed < count:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            read = self._consumer.consume(MOST_RECORDS, 0.02)
            records = [record for record in read if record.error() is None]
            if records:
                self.write(records)

    def write(self, records):
        try:
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(OUTPUT, result_of(record.value()))
            self._producer.send_offsets_to_transaction(
                self.offsets_after(records), self._consumer.consumer_group_metadata(), LIMIT_S)
            self._producer.commit_transaction(LIMIT_S)
        except KafkaException as error:
            self.failed(error)
        else:
            self._committed = records[-1].offset() + 1

    def failed(self, error):
        if not error.args[0].txn_requires_abort():
            raise error
        self._producer.abort_transaction(LIMIT_S)
        self.rewind()

    @staticmethod
    def offsets_after(records):
        return [TopicPartition(INPUT, 0, records[-1].offset() + 1)]

    def commit(self, records):
        self._consumer.commit(offsets=self.offsets_after(records), asynchronous=False)
        self._committed = records[-1].offset() + 1

    def rewind(self):
        """Read again from the committed offset."""
        [found] = self._consumer.committed([TopicPartition(INPUT, 0)], LIMIT_S)
        if found.error is not None:
            raise KafkaException(found.error)
        self._committed = 0 if found.offset == OFFSET_INVALID else found.offset
        self._consumer.assign([TopicPartition(INPUT, 0, self._committed)])


class OffsetsOutside(Correct):
    """Commits the offsets after the transaction, not in it."""

    def write(self, records):
        self._producer.begin_transaction()
        for record in records:
            self._producer.produce(OUTPUT, result_of(record.value()))
        self._producer.commit_transaction(LIMIT_S)
        self.commit(records)


class NoAbort(Correct):
    """Reads again after an error, without aborting the transaction, and so writes twice in it."""

    is_open = False

    def write(self, records):
        try:
            if not self.is_open:
                self._producer.begin_transaction()
                self.is_open = True
            for record in records:
                self._producer.produce(OUTPUT, result_of(record.value()))
            self._producer.send_offsets_to_transaction(
                self.offsets_after(records), self._consumer.consumer_group_metadata(), LIMIT_S)
            self._producer.commit_transaction(LIMIT_S)
        except KafkaException:
            self.rewind()
        else:
            self.is_open = False
            self._committed = records[-1].offset() + 1


class ReusedId(Correct):
    """Has two producers with one transactional id, which take turns. A producer that is fenced ends, as if another
    instance had taken over its records."""

    def open_producer(self):
        self._turns = itertools.cycle(range(2))
        self._producers = {}

    def write(self, records):
        turn = next(self._turns)
        if turn not in self._producers:
            self._producers[turn] = self.transactional_producer()
        self._producer = self._producers[turn]
        super().write(records)

    def failed(self, error):
        if not error.args[0].fatal():
            super().failed(error)
        self._committed = sys.maxsize


class UncheckedFlush(Correct):
    """Commits the offsets after `flush`, without looking at the errors of the deliveries."""

    def open_producer(self):
        self._producer = Producer(COMMON | {'bootstrap.servers': self._address, 'enable.idempotence': True,
                                            'linger.ms': 0})

    def write(self, records):
        for record in records:
            self._producer.produce(OUTPUT, result_of(record.value()))
        self._producer.flush(LIMIT_S)
        self.commit(records)


class CheckedFlush(UncheckedFlush):
    """Is UncheckedFlush without the mistake: writes at least once."""

    def write(self, records):
        errors = []
        for record in records:
            self._producer.produce(OUTPUT, result_of(record.value()),
                                   on_delivery=lambda error, _: error and errors.append(error))
        if self._producer.flush(LIMIT_S) or errors:
            raise KafkaException(*errors[:1])
        self.commit(records)


class NewProducer(Correct):
    """Writes a batch whose delivery failed once more, with a new producer. The broker cannot recognize the batch."""

    def open_producer(self):
        self._producer = Producer(COMMON | {'bootstrap.servers': self._address, 'retries': 0, 'linger.ms': 0})

    def write(self, records):
        left = [result_of(record.value()) for record in records]
        while left:
            values, left = left, []
            for value in values:
                self._producer.produce(OUTPUT, value, on_delivery=partial(self._note_failed, left))
            self._producer.flush(LIMIT_S)
            if left:
                self.open_producer()
        self.commit(records)

    @staticmethod
    def _note_failed(failed, error, message):
        if error is not None:
            failed.append(message.value())


LOOPS = {each.__name__: each for each in (Correct, OffsetsOutside, NoAbort, ReusedId, UncheckedFlush, CheckedFlush,
                                          NewProducer)}


if __name__ == '__main__':
    faulthandler.dump_traceback_later(START_S, exit=True)
    loop = LOOPS[sys.argv[2]](sys.argv[1])
    loop.run(int(sys.argv[3]))
    loop.close()
