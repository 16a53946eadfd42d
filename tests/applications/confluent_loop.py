"""A program with confluent-kafka that reads numbers in a group, and writes the square of each exactly once.

    python confluent_loop.py HOST:PORT NAME

Each instance has its own name, which is its transactional.id. It commits the offsets of the input in the transaction of
the output. After an error that permits it, an instance aborts its transaction and continues. After any other error it
ends, and its next start settles the transaction.
"""
import faulthandler
import sys

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition

INPUT, OUTPUT, GROUP = 'input', 'output', 'squares'
START_S = 60
LIMIT_S = 10
HANG_S = 3
"""If a transaction takes longer, the program ends, and its next start aborts the transaction. If the connection breaks
while librdkafka 2.x sends offsets, it may wait for the answer for ever, whatever its time limit is."""
TRANSACTION_TIMEOUT_MS = 10_000
"""After this time the broker aborts the transaction of an instance that did not start again: an open transaction hides
later output."""
MOST_RECORDS = 5
POLL_S = 0.1


def result_of(value):
    return b'%d' % int(value) ** 2


class Loop:
    def __init__(self, address, name):
        common = {'bootstrap.servers': address, 'reconnect.backoff.max.ms': 500}
        self._producer = Producer(common | {
            'transactional.id': name, 'linger.ms': 0, 'transaction.timeout.ms': TRANSACTION_TIMEOUT_MS})
        self._consumer = Consumer(common | {
            'group.id': GROUP, 'isolation.level': 'read_committed', 'auto.offset.reset': 'earliest',
            'enable.auto.commit': False, 'session.timeout.ms': 2000, 'heartbeat.interval.ms': 200})
        self._read = []
        self._place = None
        """The member's generation when it got its partitions. A group in a later generation refuses the offsets."""

    def run(self):
        faulthandler.dump_traceback_later(START_S, exit=True)
        self._producer.init_transactions(START_S)
        self._consumer.subscribe([INPUT], on_assign=self._on_assign, on_revoke=self._on_revoke)
        while True:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            self._fill()
            if self._read:
                self._write()

    def _on_assign(self, consumer, partitions):
        self._place = consumer.consumer_group_metadata()

    def _on_revoke(self, consumer, partitions):
        """Discard the records that were read. The next owner, even if it is this instance, begins at the committed
        offsets."""
        self._read.clear()

    def _fill(self):
        """Wait for a record, and read up to MOST_RECORDS that are available."""
        self._poll(POLL_S)
        while self._read and len(self._read) < MOST_RECORDS and self._poll(0):
            pass

    def _poll(self, timeout_s):
        """Poll, and return whether a record or an error arrived. A fatal error of the consumer ends the program."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        if message.error() is None:
            self._read.append(message)
        elif message.error().fatal():
            raise KafkaException(message.error())
        return True

    def _write(self):
        """Write the squares and the offsets of the read records in one transaction."""
        read, self._read = self._read, []
        ends = {(message.topic(), message.partition()): message.offset() + 1 for message in read}
        try:
            self._producer.begin_transaction()
            for message in read:
                self._producer.produce(OUTPUT, result_of(message.value()), partition=message.partition())
            self._producer.send_offsets_to_transaction(
                [TopicPartition(*at, offset) for at, offset in ends.items()], self._place, LIMIT_S)
            self._producer.commit_transaction(LIMIT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            print('aborts', error, flush=True)
            self._producer.abort_transaction(LIMIT_S)
            self._rewind()

    def _rewind(self):
        """Discard the read records, and read again from the committed offsets."""
        self._read.clear()
        for committed in self._consumer.committed(self._consumer.assignment(), LIMIT_S):
            if committed.offset == OFFSET_INVALID:
                committed.offset = 0
            self._consumer.seek(committed)


if __name__ == '__main__':
    Loop(*sys.argv[1:]).run()
