"""Handlers that build large responses, in a complete in-process broker. The reference only encodes the same response.

python -m pytest bench/bench_apis.py --benchmark-group-by=group --benchmark-columns=median,iqr,rounds
"""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'tests'))

from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import build

from kbroker.protocol.codec import encode

TOPICS = 100
PARTITIONS = 10
VERSION = 12


@pytest.fixture(scope='module')
def broker(tmp_path_factory):
    with InProcessBroker(tmp_path_factory.mktemp('bench')) as broker:
        broker.ask(
            build(
                'CreateTopicsRequest',
                timeout_ms=1000,
                topics=[
                    {'name': f'topic-{index}', 'num_partitions': PARTITIONS, 'replication_factor': 1}
                    for index in range(TOPICS)
                ],
            )
        )
        yield broker


@pytest.fixture
def all_topics():
    return build('MetadataRequest', topics=None)


@pytest.mark.benchmark(group=f'metadata of {TOPICS} topics of {PARTITIONS} partitions')
def test_request_to_answer(benchmark, broker, all_topics):
    benchmark(lambda: broker.begin(all_topics, VERSION))


@pytest.mark.benchmark(group=f'metadata of {TOPICS} topics of {PARTITIONS} partitions')
def test_encoding_of_the_answer_alone(benchmark, broker, all_topics):
    answer = broker.ask(all_topics, VERSION)
    benchmark(lambda: encode(answer, VERSION))
