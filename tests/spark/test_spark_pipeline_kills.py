"""The pipeline of docs/spark.md under kills: each payment arrives once, whichever process is killed, and at whichever
step.

Covers promises 1, 2 and 4 of docs/design.md.
"""
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.clients.committed_records import committed_records
from support.runner.pages import blocks
from support.runner.process_sessions import children_of, kill_session
from support.spark.sink_place import DECISION, DRIVER, KBROKER, PREPARED, STEPS, SinkPlace
from support.spark.spark_cluster import VARIABLES, SparkCluster, settings
from support.spark.spark_machine import quick_start

from kbroker.client import Admin, Producer
from kbroker.client.admin import NewTopic

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]
PARTITIONS = 3
PAYMENTS = 60
"""The number of payments in a round. Every second payment is large."""
LARGE = 100_000
LIMIT_S = 400
ROUNDS = 10


class Pipeline:
    """The two brokers, and the program of docs/spark.md that copies from one to the other."""

    def __init__(self, directory):
        self._directory = directory
        self.source = BrokerProcess(directory / 'source', PROMPT)
        self.target = SinkPlace(KBROKER, directory / 'target')
        self.paid = 0

    def start(self):
        self.source.start()
        self.target.start()
        self.target.proxy.watch({'large-payments~d': 'driver', 'large-payments~t': 'task', '__kbroker_spark': 'ledger',
                                 'large-payments': 'rows'})
        for address, topic in ((self.source.address, 'payments'), (self.target.proxy.address, 'large-payments')):
            with Admin(address, client_id='judge') as admin:
                assert admin.create_topics([NewTopic(topic, PARTITIONS)])[topic] is None

    def close(self):
        self.target.close()
        self.source.kill9()
        assert self.source.tracebacks() == []

    def program(self, name, writer):
        """Return the program of docs/spark.md, changed so that a run has several micro-batches."""
        program, = blocks('docs/spark.md', 'python')
        for old, new in (('localhost:9092', self.source.address), ('localhost:9192', self.target.proxy.address),
                         ('/data/', f'{self._directory}/{name}/'),
                         (".option('subscribe', 'payments')",
                          ".option('subscribe', 'payments').option('maxOffsetsPerTrigger', 25)"),
                         (".option('topic', 'large-payments')",
                          f".option('topic', 'large-payments').option('commit', '{writer}')")):
            assert old in program
            program = program.replace(old, new)
        return program

    def pay(self):
        """Write the payments of a round. Each payment of the test has a different amount."""
        with Producer(self.source.address) as producer:
            for number in range(self.paid, self.paid + PAYMENTS):
                producer.send('payments', json.dumps({'customer': 'c', 'cents': number + number % 2 * LARGE}).encode(),
                              partition=number % PARTITIONS)
        self.paid += PAYMENTS

    def assert_each_large_payment_arrived_once(self):
        assert self.arrived() == {number + LARGE: 1 for number in range(1, self.paid, 2)}

    def arrived(self):
        """Return the committed amounts in the target, with their counts."""
        with Admin(self.target.proxy.address, client_id='judge') as admin:
            ongoing = [row.transactional_id for row in admin.list_transactions(state_filters=['Ongoing'])]
            assert ongoing == []
            return Counter(json.loads(record.value)['cents']
                           for _, record in committed_records(admin, 'large-payments', PARTITIONS))


@pytest.fixture
def pipeline(tmp_path):
    pipeline = Pipeline(tmp_path)
    try:
        pipeline.start()
        yield pipeline
    finally:
        pipeline.close()


def test_both_brokers_are_killed_when_a_micro_batch_is_decided(spark, pipeline):
    program = pipeline.program('a', PREPARED)
    pipeline.pay()
    stop = pipeline.target.proxy.stop_at(DECISION)

    def kill():
        stop.wait()
        pipeline.source.kill9()
        pipeline.target.kill9()
        stop.lose()
        pipeline.source.start()
        pipeline.target.start()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        exec(program, {})
    except Exception as error:      # the query failed: the next start continues it
        print(error)
    killer.join()
    exec(program, {})
    pipeline.assert_each_large_payment_arrived_once()


class Program:
    """The pipeline's program as a process in a separate process session, with its executors on a cluster."""

    def __init__(self, text, cluster, log):
        arguments = ['--master', cluster.address]
        for name, value in (settings() | {'spark.driver.memory': '512m', 'spark.ui.enabled': 'false'}).items():
            arguments += ['--conf', f'{name}={value}']
        environment = os.environ | quick_start() | VARIABLES | {'PYSPARK_SUBMIT_ARGS':
                                                                shlex.join([*arguments, 'pyspark-shell'])}
        environment.pop('PYSPARK_GATEWAY_PORT', None)
        environment.pop('PYSPARK_GATEWAY_SECRET', None)
        self._process = subprocess.Popen([sys.executable, '-c', text], env=environment, stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log, start_new_session=True)

    def kill9(self):
        kill_session(self._process.pid)
        self._process.wait()

    def wait(self):
        """Wait for the end of the program. Return whether it has succeeded."""
        return self._process.wait(LIMIT_S) == 0


@pytest.fixture
def cluster(tmp_path):
    cluster = SparkCluster(tmp_path)
    yield cluster
    cluster.close()


VICTIMS = ('driver', 'executor', 'source', 'target', 'all')


def strike(victim, pipeline, program, cluster, rng):
    """Kill the victims, and restart the brokers among them."""
    if victim in ('driver', 'all'):
        program.kill9()
    if victim in ('executor', 'all'):
        executors = [pid for worker in cluster.worker_pids() for pid in children_of(worker)]
        os.kill(rng.choice(executors), signal.SIGKILL)
    if victim in ('source', 'all'):
        pipeline.source.kill9()
        pipeline.source.start()
    if victim in ('target', 'all'):
        pipeline.target.kill9()
        pipeline.target.start()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize('writer', [DRIVER, PREPARED])
def test_each_process_is_killed_at_a_step_by_chance_in_each_round(pipeline, cluster, tmp_path, writer, soak_count):
    seed = random.randrange(1 << 32)
    print('seed', seed)
    rng = random.Random(seed)
    text = pipeline.program('a', writer)
    with open(tmp_path / 'program.log', 'ab') as log:
        for number in range(soak_count(ROUNDS, len(VICTIMS))):
            pipeline.pay()
            victim, step = VICTIMS[number % len(VICTIMS)], rng.choice(STEPS[writer])
            stop = pipeline.target.proxy.stop_at(step, skipped=rng.randrange(2))
            program = Program(text, cluster, log)
            try:
                stop.wait()
                print(number, victim, step)
                strike(victim, pipeline, program, cluster, rng)
                rng.choice([stop.lose, stop.release])()
                program.wait()
            finally:
                program.kill9()
        program = Program(text, cluster, log)
        try:
            assert program.wait(), (tmp_path / 'program.log').read_text()[-5000:]
        finally:
            program.kill9()
    pipeline.assert_each_large_payment_arrived_once()
