"""Members of a group that read, process and write in transactions, and that die, stall and abort at random."""
import random
import threading
from contextlib import suppress

from kbroker.client import Consumer, KafkaError, Producer

PATIENT = {'request_timeout_ms': 5000, 'retry_backoff_ms': 20}
LIMIT_MS = 60_000


class Died(Exception):
    """Raised to end a member without closing its clients."""


class Refused(Exception):
    """Raised by the program to abort a transaction."""


class Fates:
    """Decides how each transaction of the members ends. The seed fixes which of the first `count` transactions fail.

    In a failing transaction, the member dies before or after the commit, aborts, or loses its place in the group before
    it commits its positions.
    """

    def __init__(self, seed, count, each):
        places = random.Random(seed).sample(range(count), 4 * each)
        self._bad = dict(zip(places, ['aborts', 'loses its place', 'dies before', 'dies after'] * each, strict=True))
        self._lock = threading.Lock()
        self._drawn = 0
        self.ended = []
        """How each transaction that is over has ended."""
        self.changed = threading.Event()

    def note(self, fate):
        self.ended.append(fate)
        self.changed.set()

    def draw(self):
        with self._lock:
            self._drawn += 1
            return self._bad.get(self._drawn - 1, 'commits')


class CopyingMember:
    """A program that copies `in` to `out`, a transaction for each batch, and starts again after each error.

    It follows the advice of docs/client.md.
    """

    def __init__(self, address, name, fates, protocol):
        self._address, self._name, self._fates = address, name, fates
        self._protocol = {**protocol, 'group_instance_id': name} if 'group_instance_id' in protocol else protocol
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error = None
        self._thread.start()

    def stop(self):
        self._is_done.set()
        self._thread.join(LIMIT_MS / 1000)
        assert not self._thread.is_alive()

    def _run(self):
        try:
            while not self._is_done.is_set():
                with suppress(KafkaError, OSError, Died, Refused):
                    self._copy()
        except BaseException as error:
            self.error = error

    def _copy(self):
        producer = Producer(self._address, transactional_id=self._name, linger_ms=0, max_block_ms=LIMIT_MS, **PATIENT)
        consumer = Consumer(self._address, group_id='copiers', topics=['in'], isolation_level='read_committed',
                            auto_offset_reset='earliest', enable_auto_commit=False, max_partition_fetch_bytes=1,
                            max_poll_records=1, **self._protocol, **PATIENT)
        try:
            producer.init_transactions()    # ends the transaction that a former start left, whose offsets all await
            while not self._is_done.is_set():
                for batch in consumer.poll(100):
                    self._copy_batch(producer, consumer, batch)
        except Died:
            self._die(producer, consumer)
            raise
        except BaseException as error:
            for client in (producer, consumer):
                client.__exit__(type(error), error, None)
            raise
        consumer.close()
        producer.close()

    def _copy_batch(self, producer, consumer, batch):
        fate = self._fates.draw()
        with producer.transaction() as transaction:
            for record in batch.records():
                producer.send('out', record.value, partition=batch.partition)
            if fate == 'loses its place':
                with consumer._session.using_member():
                    consumer._session.member.give_up()      # as after max.poll.interval.ms
            transaction.send_offsets(consumer)
            if fate == 'aborts':
                self._fates.note(fate)
                raise Refused
            if fate == 'dies before':
                self._fates.note(fate)
                self._die(producer, consumer)
                raise Died
        self._fates.note(fate)
        if fate == 'dies after':
            raise Died

    def _die(self, producer, consumer):
        """Close the connections without sending anything to the coordinators."""
        consumer._session.heartbeats.stop(LIMIT_MS)
        consumer._close_connections()
        producer._close_cluster()
        consumer._use.end()
        producer._use.end()
