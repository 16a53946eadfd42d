"""One client that works at full speed for short times. `bench/clients.py` starts it and sends it commands.

    python bench/client_loads.py CLIENT BATCH_BYTES HOST:PORT

Each line of the input is `produce TOPIC BYTES SECONDS` or `consume TOPIC RECORDS`. The answer to each line is a line
with the number of records, the seconds, and the CPU seconds of this process with all its threads. The clients have the
same settings: acks=all, an idempotent producer, linger.ms=5, checksums verified, no compression.
"""
from __future__ import annotations

import asyncio
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

LINGER_MS = 5
CHUNK = 1000
"""The number of records between two readings of the clock. It is also the number in a call of `send_batch` or
`produce_batch`."""
POLL_RECORDS = 500
LIMIT_S = 60


class Work(NamedTuple):
    records: int
    seconds: float
    cpu_s: float


class Client(Protocol):
    def produce(self, topic: str, value: bytes, seconds: float) -> int: ...

    def consume(self, topic: str, records: int) -> int: ...


def chunks(seconds: float) -> Iterator[int]:
    """Yield 0, 1, 2 and so on, until `seconds` have passed."""
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        yield number
        number += 1


def send_one_by_one(producer: Any, topic: str, value: bytes, seconds: float) -> int:
    """Call `send` for each record until `seconds` have passed. Return the number of records. kbroker's client and
    kafka-python both have `send`."""
    send, count = producer.send, 0
    for _ in chunks(seconds):
        for _ in range(CHUNK):
            send(topic, value, partition=0)
        count += CHUNK
    producer.flush()
    return count


class Kbroker:
    """kbroker.client: produces with `send`, and consumes columns without reading their values."""

    def __init__(self, address: str, batch_bytes: int):
        from kbroker.client import Consumer, Producer
        self.producer = Producer(address, batch_size=batch_bytes, linger_ms=LINGER_MS)
        self.consumer = Consumer(address, max_poll_records=POLL_RECORDS, enable_auto_commit=False)

    def produce(self, topic: str, value: bytes, seconds: float) -> int:
        return send_one_by_one(self.producer, topic, value, seconds)

    def consume(self, topic: str, records: int) -> int:
        self.consumer.assign([(topic, 0)])
        self.consumer.seek(topic, 0, 0)
        count = 0
        for batch in self.consumer:
            count += self.read(batch)
            if count >= records:
                break
        self.consumer.assign([])
        return count

    def read(self, batch: object) -> int:
        return len(batch.values)  # type: ignore[attr-defined]


class KbrokerBatches(Kbroker):
    """kbroker.client: produces with `send_batch`, and consumes columns and reads each value as an object."""

    def produce(self, topic: str, value: bytes, seconds: float) -> int:
        values, count = [value] * CHUNK, 0
        for _ in chunks(seconds):
            self.producer.send_batch(topic, values, partition=0)
            count += CHUNK
        self.producer.flush()
        return count

    def read(self, batch: object) -> int:
        return sum(1 for _ in batch.values)  # type: ignore[attr-defined]


class KbrokerRecords(Kbroker):
    """kbroker.client: consumes with `records()`, which returns an object for each record."""

    def read(self, batch: object) -> int:
        return sum(1 for record in batch.records() if record.value is not None)  # type: ignore[attr-defined]


class Confluent:
    """confluent-kafka: produces with `produce`, and consumes with `consume` and reads the value of each message."""

    def __init__(self, address: str, batch_bytes: int):
        from confluent_kafka import Consumer, Producer
        self.producer = Producer({
            'bootstrap.servers': address, 'enable.idempotence': True, 'linger.ms': LINGER_MS,
            'batch.size': batch_bytes})
        self.consumer = Consumer({
            'bootstrap.servers': address, 'group.id': 'bench', 'enable.auto.commit': False, 'check.crcs': True})

    def produce(self, topic: str, value: bytes, seconds: float) -> int:
        produce, poll, count = self.producer.produce, self.producer.poll, 0
        for _ in chunks(seconds):
            for _ in range(CHUNK):
                while True:
                    try:
                        produce(topic, value, partition=0)
                        break
                    except BufferError:
                        poll(0.01)
            poll(0)
            count += CHUNK
        self.producer.flush()
        return count

    def consume(self, topic: str, records: int) -> int:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition
        self.consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        count, consume = 0, self.consumer.consume
        while count < records:
            found = consume(min(POLL_RECORDS, records - count), LIMIT_S)
            count += sum(1 for message in found if message.value() is not None)
        self.consumer.unassign()
        return count


class ConfluentBatches(Confluent):
    """confluent-kafka: produces with `produce_batch`, whose messages are dicts. It marks each message for which its
    queue has no room."""

    def produce(self, topic: str, value: bytes, seconds: float) -> int:
        count = 0
        for _ in chunks(seconds):
            messages = [{'value': value} for _ in range(CHUNK)]
            while messages:
                self.producer.produce_batch(topic, messages, partition=0)
                self.producer.poll(0)
                messages = [{'value': value} for message in messages if '_error' in message]
                if messages:
                    self.producer.poll(0.01)
            count += CHUNK
        self.producer.flush()
        return count


class KafkaPython:
    def __init__(self, address: str, batch_bytes: int):
        from kafka import KafkaConsumer, KafkaProducer
        self.producer = KafkaProducer(bootstrap_servers=address, acks='all', enable_idempotence=True,
                                      batch_size=batch_bytes, linger_ms=LINGER_MS)
        self.consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False,
                                      max_poll_records=POLL_RECORDS)

    def produce(self, topic: str, value: bytes, seconds: float) -> int:
        return send_one_by_one(self.producer, topic, value, seconds)

    def consume(self, topic: str, records: int) -> int:
        from kafka import TopicPartition
        place = TopicPartition(topic, 0)
        self.consumer.assign([place])
        self.consumer.seek_to_beginning(place)
        count = 0
        while count < records:
            count += sum(1 for found in self.consumer.poll(1000 * LIMIT_S).values()
                         for record in found if record.value is not None)
        return count


class Aiokafka:
    def __init__(self, address: str, batch_bytes: int):
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
        self._loop = asyncio.new_event_loop()

        async def start() -> None:
            self.producer = AIOKafkaProducer(bootstrap_servers=address, acks='all', enable_idempotence=True,
                                             max_batch_size=batch_bytes, linger_ms=LINGER_MS)
            self.consumer = AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False,
                                             max_poll_records=POLL_RECORDS)
            await self.producer.start()
            await self.consumer.start()

        self._loop.run_until_complete(start())

    def produce(self, topic: str, value: bytes, seconds: float) -> int:
        async def work() -> int:
            send, count = self.producer.send, 0
            for _ in chunks(seconds):
                for _ in range(CHUNK):
                    await send(topic, value, partition=0)
                count += CHUNK
            await self.producer.flush()
            return count

        return self._loop.run_until_complete(work())

    def consume(self, topic: str, records: int) -> int:
        from aiokafka import TopicPartition

        async def work() -> int:
            place = TopicPartition(topic, 0)
            self.consumer.assign([place])
            self.consumer.seek(place, 0)
            count = 0
            while count < records:
                found = await self.consumer.getmany(timeout_ms=1000 * LIMIT_S)
                count += sum(1 for batch in found.values() for record in batch if record.value is not None)
            return count

        return self._loop.run_until_complete(work())


CLIENTS: dict[str, Callable[[str, int], Client]] = {
    'kbroker': Kbroker, 'kbroker-batches': KbrokerBatches, 'kbroker-records': KbrokerRecords, 'confluent': Confluent,
    'confluent-batches': ConfluentBatches, 'kafka-python': KafkaPython, 'aiokafka': Aiokafka}


def measured(work: Callable[[], int]) -> Work:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    records = work()
    return Work(records, time.perf_counter() - began_s, time.process_time() - cpu_s)


def answered(client: Client, line: str) -> Work:
    """Execute a line of the input, and return the figures of its load."""
    what, topic, *numbers = line.split()
    if what == 'produce':
        return measured(lambda: client.produce(topic, b'x' * int(numbers[0]), float(numbers[1])))
    return measured(lambda: client.consume(topic, int(numbers[0])))


def main() -> None:
    name, batch_bytes, address = sys.argv[1:]
    client = CLIENTS[name](address, int(batch_bytes))
    print('ready', flush=True)
    for line in sys.stdin:
        print(*answered(client, line), flush=True)


if __name__ == '__main__':
    main()
