"""A proxy randomly cuts the connections of clients without KIP-890. The broker refuses only late requests."""
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing

import pytest
import random_transactions
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.clients.late_requests import create_topic, refused
from support.proxies.random_cuts import RandomCutProxy

from kbroker.client import Consumer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

CLIENTS = {'ConfluentClient': 'test_confluent', 'KafkaPythonClient': 'test_kafka_python',
           'AiokafkaClient': 'test_aiokafka'}
GAVE_UP = (1, -signal.SIGSEGV)
"""The exit codes of a client process that hung. It prints the stacks of its running threads, and this may crash the
process."""


class CutClient:
    """The process of a client. It is started again each time it ends, because kafka-python may hang after a cut.

    From the lines of the process, it knows which values were committed, which were aborted, and which have an unknown
    outcome.
    """

    def __init__(self, name, address, topic, seed, directory):
        self.name = name
        self.starts = self.hangs = self.transactions = 0
        self.committed, self.aborted, self.unknown = set(), set(), set()
        self.problem = None
        self._words = [CLIENTS[name], name, address, topic, str(seed)]
        self._directory = directory

    def run(self, deadline):
        try:
            while (left := deadline - time.monotonic()) > 0:
                self.starts += 1
                self._run_process(left)
        except BaseException as error:
            self.problem = error

    def _run_process(self, left):
        lines, errors = (self._directory / f'{self.name}-{self.starts}.{kind}' for kind in ('lines', 'errors'))
        with lines.open('w') as output, errors.open('w') as complaints, subprocess.Popen(
                [sys.executable, random_transactions.__file__, *self._words, str(self.starts)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=complaints) as process:
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                code = None
                process.kill()
        self._note(lines.read_text())
        if code is not None:
            stacks = errors.read_text()
            has_given_up = 'Timeout (' in stacks and code in GAVE_UP
            assert has_given_up, f'{self.name} ended with {code}:\n{stacks[-5000:]}'
            self.hangs += 1

    def _note(self, text):
        values = set()
        for line in text.splitlines(keepends=True):
            word, *begun = line.split()
            if not line.endswith('\n'):     # the process was killed
                self.unknown.update(begun)
            elif word == 'began':
                self.transactions += 1
                self.unknown |= values
                values = set(begun)
            else:
                (self.committed if word == 'committed' else self.aborted).update(values)
                values = set()
        self.unknown |= values


def read_committed(address, topic):
    """Read the committed records up to the high watermark. First wait until the broker has aborted the transactions
    that clients left open."""
    with Consumer(address) as every:
        end = every.end_offsets([(topic, 0)])[topic, 0]
    with Consumer(address, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        found = Counter()
        while (consumer.position(topic, 0) or 0) < end:
            found.update(record.value.decode() for batch in consumer.poll(1000) for record in batch.records())
        return found


def test_an_hour_of_random_cuts_refuses_no_live_request(tmp_path, soak_minutes, soak_seed, tally):
    """`--soak-share` and `--soak-seed` choose another duration and other cuts."""
    with closing(RandomCutProxy(soak_seed)) as proxy, BrokerProcess(tmp_path / 'data', PROMPT | {
            'advertised.listeners': f'PLAINTEXT://{proxy.address}', 'kbroker.durability': 'page-cache'}) as broker:
        proxy.target = broker.address
        create_topic(broker.address, 'cuts')
        clients = [CutClient(name, proxy.address, 'cuts', soak_seed, tmp_path) for name in CLIENTS]
        proxy.cuts = True
        deadline = time.monotonic() + 60 * soak_minutes
        threads = [threading.Thread(target=client.run, args=(deadline,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        proxy.cuts = False
        overdue = proxy.overdue()
        counts = {client.name: (client.transactions, client.starts, client.hangs, len(client.unknown))
                  for client in clients}
        print(f'{dict(proxy.counts)} cuts, {refused(broker)} late requests refused, {counts} transactions, starts, '
              'hangs and values with an unknown outcome')
        assert [client.problem for client in clients if client.problem is not None] == []
        assert proxy.refused_live == []
        assert overdue == [], 'a client that hangs must not wait for the broker'
        found = read_committed(broker.address, 'cuts')
        assert [value for value, times in found.items() if times > 1] == []
        for client in clients:
            assert client.transactions > 0
            assert client.committed <= found.keys()
            assert not client.aborted & found.keys()
    tally('minutes of random cuts', round(soak_minutes))
