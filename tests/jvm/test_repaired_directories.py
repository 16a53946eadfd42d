"""Apache Kafka's dump tool accepts a directory that kbroker-check repaired, and Apache Kafka opens it without warnings.
"""
from __future__ import annotations

import re

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import Client, Promises
from support.kafka.apache_kafka import KafkaProcess, run_tool
from support.runner.command_runner import run_command

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DUMP = 'org.apache.kafka.tools.DumpLogSegments'
SETTINGS = {'log.index.interval.bytes': '200', 'log.index.size.max.bytes': '48'}
MENDED = re.compile('[Cc]orrupt|Recovering unflushed|Could not find offset index|Found invalid|Deleting')


def test_kafka_has_nothing_to_mend_in_a_repaired_directory(tmp_path):
    directory = tmp_path / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 1)
        client.find_coordinators()
        client.init_transactions()
        for number in range(40):
            client.begin()
            client.produce_in_transaction({('orders', 0): [f'{number}-a', f'{number}-b']})
            client.end(number % 2 == 0)
    partition = directory / 'orders-0'
    expected = {path.name: path.read_bytes() for path in partition.glob('*.txnindex')}
    logs = sorted(partition.glob('*.log'))
    for path in (*partition.glob('*index'), *partition.glob('*.snapshot')):
        path.write_bytes(b'garbage')
    with logs[-1].open('ab') as file:
        file.write(logs[-1].read_bytes()[:50])
    assert run_command('check', directory).returncode == 1
    done = run_command('check', directory, '--repair', '--no-dry-run', '--truncate-torn-tail')
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name: path.read_bytes() for path in partition.glob('*.txnindex')} == expected

    indexes = ','.join(str(path) for path in sorted(partition.glob('*index')) if path.stat().st_size)
    for option in ('--verify-index-only', '--index-sanity-check'):
        said = run_tool(DUMP, option, '--files', indexes)
        assert said.count('Dumping') == len(indexes.split(','))
        assert not re.search('mismatch|Mismatch|Exception|misplaced|corrupt|out of order', said), said
    with KafkaProcess(directory) as kafka:
        mended = [line for line in kafka.lines if 'orders-0' in line and MENDED.search(line)]
        assert mended == []
        kafka.stop()
    assert run_command('check', directory).returncode == 0
