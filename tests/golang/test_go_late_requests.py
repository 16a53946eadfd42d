"""Clients in Go: late requests of sarama, and franz-go with a broker that serves version 6 of InitProducerId.

Covers KIP-890.
"""
import functools
import subprocess
from contextlib import closing

import pytest
from support.brokers.broker_process import PROMPT, ROOT, BrokerProcess
from support.clients.late_requests import LATE, check_of_lines, create_topic, run_transaction
from support.clients.line_producer import LineProducer
from support.runner.machine_requirements import JUDGES, fetching

from kbroker.client import Consumer
from kbroker.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.go, pytest.mark.soak, pytest.mark.timeout(600)]


@functools.cache
def program():
    """Compile the producers in Go, and return the path of the program."""
    path = JUDGES / 'go' / 'producers'
    with fetching():
        subprocess.run(['go', 'build', '-o', str(path), '.'], cwd=ROOT / 'tests' / 'golang' / 'producers', check=True,
                       stdin=subprocess.DEVNULL, timeout=500)
    return str(path)


LATE_AND_COUNTED = [key for key in LATE if key is not ApiKey.TXN_OFFSET_COMMIT]
"""The late requests whose refusals the broker counts. sarama sends its offsets when a transaction ends. A late request
with offsets finds a transaction without offsets, and is refused for that."""


@pytest.mark.parametrize(('api_key', 'course'), [
    *((key, 'late') for key in LATE_AND_COUNTED), *((key, 'lost') for key in LATE)],
    ids=lambda value: getattr(value, 'name', value))
def test_a_late_request_of_sarama_is_refused_and_one_without_an_answer_executed_once(proxied, api_key, course):
    check_of_lines(*proxied, [program(), 'sarama'], api_key, course)


def test_franz_go_sees_no_difference_if_two_phase_commit_is_served(tmp_path):
    with BrokerProcess(tmp_path / 'data', PROMPT | {'transaction.two.phase.commit.enable': 'true'}) as broker:
        create_topic(broker.address, 'franz')
        with LineProducer([program(), 'franz-go', broker.address, 'franz']) as producer:
            for numbers, end in ((range(3), producer.commit), (range(3, 6), producer.abort),
                                 (range(6, 9), producer.commit)):
                run_transaction(producer, 'franz', numbers, lambda *_: None)
                end()
        with closing(Consumer(broker.address, isolation_level='read_committed',
                              auto_offset_reset='earliest')) as consumer:
            consumer.assign([('franz', 0)])
            found = []
            while len(found) < 6:
                found += [record.value.decode() for batch in consumer.poll(1000) for record in batch.records()]
        assert found == [f'v{number}' for number in (0, 1, 2, 6, 7, 8)]
