"""Programs with kbroker.client that read numbers and write the square of each. Two are correct; the others have a
mistake that people make.

    python kbroker_loops.py HOST:PORT NAME COUNT

runs the loop with this name until it has committed the offsets of COUNT records. After an error, the program ends.
"""
import contextlib
import itertools
import sys

from kbroker.client import Consumer, FatalProducerError, KafkaError, Producer, TransactionError

INPUT, OUTPUT, GROUP = 'input', 'output', 'squares'
SOURCE = INPUT, 0
MOST_RECORDS = 2
"""The most records of a transaction."""
LIMIT_S = 20
COMMON = {'retry_backoff_ms': 10, 'retry_backoff_max_ms': 50}


def result_of(value):
    return b'%d' % int(value) ** 2


class Correct:
    """Writes the squares and the offsets of the numbers in one transaction. After an error that permits it, the program
    reads again from the committed offset. Any other error ends the program."""

    transactional_id = 'squares-0'

    def __init__(self, address):
        self._address = address
        self._consumer = Consumer(address, group_id=GROUP, isolation_level='read_committed', enable_auto_commit=False,
                                  auto_offset_reset='earliest', fetch_max_wait_ms=20, max_poll_records=MOST_RECORDS,
                                  **COMMON)
        self._consumer.assign([SOURCE])
        self._committed = 0
        self._producers = []
        self.open_producer()

    def open_producer(self):
        self._producer = self.transactional_producer()

    def transactional_producer(self):
        producer = self.producer(transactional_id=self.transactional_id)
        producer.init_transactions()
        return producer

    def producer(self, **options):
        self._producers.append(Producer(self._address, **COMMON, **options))
        return self._producers[-1]

    def close(self):
        for each in (*self._producers, self._consumer):
            with contextlib.suppress(KafkaError, OSError):     # an error has ended the program already
                each.close()

    def run(self, count):
        """Return when the offsets of `count` records are committed."""
        self.rewind()
        while self._committed < count:
            for batch in self._consumer.poll(20):
                first = batch.offsets[0]
                if first == self._committed:    # after a rewind, the other batches are read again
                    self.write([bytes(value) for value in batch.values], first + len(batch))

    def write(self, values, next_offset):
        try:
            with self._producer.transaction() as transaction:
                for value in values:
                    self._producer.send(OUTPUT, result_of(value))
                transaction.send_offsets({SOURCE: next_offset}, self._consumer.group_metadata)
        except TransactionError:
            self.rewind()
        else:
            self._committed = next_offset

    def rewind(self):
        """Read again from the committed offset."""
        found = self._consumer.committed([SOURCE])
        self._committed = found[SOURCE].offset if SOURCE in found else 0
        self._consumer.seek(*SOURCE, self._committed)


class OffsetsOutside(Correct):
    """Commits the offsets after the transaction, not in it."""

    def write(self, values, next_offset):
        with self._producer.transaction():
            for value in values:
                self._producer.send(OUTPUT, result_of(value))
        self._consumer.commit({SOURCE: next_offset})
        self._committed = next_offset


class NoAbort(Correct):
    """Reads again after an error, without aborting the transaction, and so writes twice in it."""

    is_open = False

    def write(self, values, next_offset):
        try:
            if not self.is_open:
                self._producer.begin_transaction()
                self.is_open = True
            for value in values:
                self._producer.send(OUTPUT, result_of(value))
            self._producer.send_offsets_to_transaction({SOURCE: next_offset}, self._consumer.group_metadata)
            self._producer.commit_transaction()
        except KafkaError:
            self.rewind()
        else:
            self.is_open = False
            self._committed = next_offset


class ReusedId(Correct):
    """Has two producers with one transactional id, which take turns. A producer that is fenced ends, as if another
    instance had taken over its records."""

    def open_producer(self):
        self._turns = itertools.cycle(range(2))
        self._by_turn = {}

    def write(self, values, next_offset):
        turn = next(self._turns)
        if turn not in self._by_turn:
            self._by_turn[turn] = self.transactional_producer()
        self._producer = self._by_turn[turn]
        try:
            super().write(values, next_offset)
        except FatalProducerError:
            self._committed = sys.maxsize


class CheckedFlush(Correct):
    """Writes at least once, without transactions: commits the offsets when all records are written."""

    def open_producer(self):
        self._producer = self.producer()

    def write(self, values, next_offset):
        for value in values:
            self._producer.send(OUTPUT, result_of(value))
        self._producer.flush()
        self._consumer.commit({SOURCE: next_offset})
        self._committed = next_offset


class UncheckedFlush(CheckedFlush):
    """Commits the offsets after `flush`, without looking at the errors of the deliveries."""

    def open_producer(self):
        self._producer = self.producer(on_delivery=lambda delivery: None)


class NewProducer(CheckedFlush):
    """Writes a batch whose delivery failed once more, with a new producer. The broker cannot recognize the batch."""

    def open_producer(self):
        self._producer = self.producer(enable_idempotence=False, retries=0)

    def write(self, values, next_offset):
        while True:
            try:
                super().write(values, next_offset)
                return
            except (KafkaError, OSError):
                self.open_producer()


LOOPS = {each.__name__: each for each in (Correct, OffsetsOutside, NoAbort, ReusedId, UncheckedFlush, CheckedFlush,
                                          NewProducer)}


if __name__ == '__main__':
    loop = LOOPS[sys.argv[2]](sys.argv[1])
    loop.run(int(sys.argv[3]))
    loop.close()
