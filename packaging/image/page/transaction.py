"""Writes a transaction to the broker of the page's class, and reads it."""
from confluent_kafka import Consumer, Producer
from kbroker_container import KbrokerContainer

with KbrokerContainer() as container:
    broker = {'bootstrap.servers': container.bootstrap_servers}
    producer = Producer(broker | {'transactional.id': 'writer'})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce('orders', 'kept')
    producer.commit_transaction()
    reader = Consumer(broker | {'group.id': 'reader', 'auto.offset.reset': 'earliest'})
    reader.subscribe(['orders'])
    print('read', reader.consume(1, timeout=60)[0].value().decode())
    reader.close()
