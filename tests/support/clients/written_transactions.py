"""Functions that write a few transactions with a real client, for tests of the commands that show transactions."""
import confluent_kafka
from support.clients.librdkafka import LIMIT_S, create_topics


def producer_of(address, transactional_id):
    producer = confluent_kafka.Producer({'bootstrap.servers': address, 'transactional.id': transactional_id,
                                         'linger.ms': 0})
    producer.init_transactions(LIMIT_S)
    return producer


def transact(producer, partitions, end):
    """Run a transaction that writes a record to each of these partitions of `orders`. `end` is 'commit', 'abort', or
    None to leave the transaction open.
    """
    producer.begin_transaction()
    for partition in partitions:
        producer.produce('orders', b'value', partition=partition)
    assert producer.flush(LIMIT_S) == 0
    if end is not None:
        getattr(producer, f'{end}_transaction')(LIMIT_S)


def write_transactions(address):
    """Create `orders` with two partitions. The transactional id `pay` commits, aborts and commits, and a transaction of
    `hold` remains open in partition 0.
    """
    create_topics(address, orders=2)
    pay = producer_of(address, 'pay')
    transact(pay, (0, 1), 'commit')
    transact(pay, (0, 1), 'abort')
    transact(pay, (0,), 'commit')
    hold = producer_of(address, 'hold')
    transact(hold, (0,), None)
    return hold
