"""A few transactions written by a real client, for tests of commands that show them."""
import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

LIMIT_S = 120


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
    admin = AdminClient({'bootstrap.servers': address})
    admin.create_topics([NewTopic('orders', 2, 1)])['orders'].result(LIMIT_S)
    pay = producer_of(address, 'pay')
    transact(pay, (0, 1), 'commit')
    transact(pay, (0, 1), 'abort')
    transact(pay, (0,), 'commit')
    hold = producer_of(address, 'hold')
    transact(hold, (0,), None)
    return hold
