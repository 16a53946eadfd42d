"""A few transactions written by a real client, for tests of commands that show them."""
import confluent_kafka
from support.clients.librdkafka import LIMIT_S, create_topics


def producer_of(address, transactional_id):
    producer = confluent_kafka.Producer({'bootstrap.servers': address, 'transactional.id': transactional_id,
                                         'linger.ms': 0})
    producer.init_transactions(LIMIT_S)
    return producer


def transact(producer, partitions, end):
    """Write a record to each partition of `orders`; `end` is 'commit', 'abort', or None to leave it open."""
    producer.begin_transaction()
    for partition in partitions:
        producer.produce('orders', b'value', partition=partition)
    assert producer.flush(LIMIT_S) == 0
    if end is not None:
        getattr(producer, f'{end}_transaction')(LIMIT_S)


def write_transactions(address):
    """Write `orders` with two partitions: commit, abort, commit of `pay`; `hold` stays open in partition 0."""
    create_topics(address, orders=2)
    pay = producer_of(address, 'pay')
    transact(pay, (0, 1), 'commit')
    transact(pay, (0, 1), 'abort')
    transact(pay, (0,), 'commit')
    hold = producer_of(address, 'hold')
    transact(hold, (0,), None)
    return hold
