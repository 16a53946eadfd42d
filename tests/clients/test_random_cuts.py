"""Clients from before KIP-890, whose connections are cut at random: no request is refused that is not late."""
import random
import threading
import time
from collections import Counter
from contextlib import closing, suppress

import pytest
import test_confluent
import test_kafka_python
from behaviours import fresh
from support.broker_process import PROMPT, serving
from support.late_requests import create_topic, refused
from support.random_cuts import RandomCutProxy
from test_aiokafka import AiokafkaClient
from test_confluent import ConfluentClient
from test_kafka_python import KafkaPythonClient

from kbroker.client import Consumer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

TIMEOUT_MS = 10_000
CLIENT_LIMIT_S = 10
WITHOUT_OFFSETS = {ConfluentClient}
"""librdkafka 2.x may lose its own request after a cut, and then waits for the answer to its offsets for ever."""


class Loop:
    """Transactions of one client until a deadline. It knows of each value whether it was committed."""

    def __init__(self, kind, address, topic, seed):
        self.kind, self.address, self.topic = kind, address, topic
        self.name = kind.__name__
        self.committed, self.aborted, self.unknown = set(), set(), set()
        self.transactions = self.starts = 0
        self.problems = []
        self._random = random.Random(f'{seed} {self.name}')
        self._group = fresh('group')

    def run(self, deadline):
        try:
            while time.monotonic() < deadline:
                self.starts += 1
                with suppress(Exception):       # the client gives up; the next one fences it
                    self._run_producer(deadline)
        except BaseException as error:
            self.problems.append(error)

    def _run_producer(self, deadline):
        client = self.kind(self.address)
        try:
            with client.consumer(self._group) as consumer, client.transactional(self.name, TIMEOUT_MS) as producer:
                while time.monotonic() < deadline:
                    self._run_transaction(producer, consumer)
        finally:
            getattr(client, 'close', bool)()

    def _run_transaction(self, producer, consumer):
        values = {f'{self.name}-{self.starts}-{self.transactions}-{number}'
                  for number in range(self._random.randint(1, 4))}
        self.transactions += 1
        self.unknown |= values
        producer.begin()
        for value in sorted(values):
            producer.send(self.topic, 0, value)
        if self._random.random() < 0.5:
            producer.flush()
        if self.kind not in WITHOUT_OFFSETS:
            producer.send_offsets({(self.topic, 0): self.transactions}, consumer)
        if self._random.random() < 0.7:
            producer.commit()
            self.committed |= values
        else:
            producer.abort()
            self.aborted |= values
        self.unknown -= values


def read_committed(address, topic):
    """Read up to the high watermark: a transaction that a client has left open has to time out first."""
    with Consumer(address) as every:
        end = every.end_offsets([(topic, 0)])[topic, 0]
    with Consumer(address, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        found = Counter()
        while (consumer.position(topic, 0) or 0) < end:
            found.update(record.value.decode() for batch in consumer.poll(1000) for record in batch.records())
        return found


def test_an_hour_of_random_cuts_refuses_no_live_request(tmp_path, soak_minutes, soak_seed, monkeypatch):
    """`--soak-minutes` and `--soak-seed` choose another duration and other cuts."""
    for client in (test_confluent, test_kafka_python):
        monkeypatch.setattr(client, 'LIMIT_S', CLIENT_LIMIT_S)
    with closing(RandomCutProxy(soak_seed)) as proxy, serving(tmp_path / 'data', PROMPT | {
            'advertised.listeners': f'PLAINTEXT://{proxy.address}', 'kbroker.durability': 'page-cache'}) as broker:
        proxy.target = broker.address
        create_topic(broker.address, 'cuts')
        loops = [Loop(kind, proxy.address, 'cuts', soak_seed)
                 for kind in (ConfluentClient, KafkaPythonClient, AiokafkaClient)]
        deadline = time.monotonic() + 60 * soak_minutes
        threads = [threading.Thread(target=loop.run, args=(deadline,), daemon=True) for loop in loops]
        proxy.cuts = True
        for thread in threads:
            thread.start()
        threads[0].join(60 * soak_minutes)
        proxy.cuts = False
        for thread in threads:
            thread.join(3 * CLIENT_LIMIT_S)     # kafka-python may wait for ever for an answer that was cut
        print(f'{dict(proxy.counts)} cuts, {refused(broker)} late requests refused, '
              f'{({loop.name: (loop.transactions, loop.starts, len(loop.unknown)) for loop in loops})} '
              'transactions, starts and values with an unknown outcome; '
              f'{sum(thread.is_alive() for thread in threads)} clients hang')
        assert [problem for loop in loops for problem in loop.problems] == []
        assert proxy.refused_live == []
        found = read_committed(broker.address, 'cuts')
        assert [value for value, times in found.items() if times > 1] == []
        for loop in loops:
            assert loop.transactions > 10 * soak_minutes
            assert loop.committed <= found.keys()
            assert not loop.aborted & found.keys()
