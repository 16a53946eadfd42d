"""Functions that return fixtures with brokers. A test file assigns a fixture to `broker`, with the settings that its
tests need:

    broker = in_process_broker({'offsets.topic.num.partitions': '1'})
    broker = module_broker(SETTINGS)
    broker = either_broker(SETTINGS, scope='module')
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.kafka.apache_kafka import KafkaProcess

Settings = Mapping[str, str] | None


def in_process_broker(settings: Settings = None, topics: Mapping[str, int] | None = None) -> Callable[..., Any]:
    """Return a fixture: a broker within the test's process. `topics` maps the names of its topics to their numbers of
    partitions.
    """
    @pytest.fixture
    def broker(tmp_path: Any) -> Iterator[InProcessBroker]:
        with InProcessBroker(tmp_path / 'data', settings) as broker:
            for topic, partitions in (topics or {}).items():
                broker.topics.create(topic, partitions, {})
            yield broker

    return broker


def module_broker(settings: Settings = None) -> Callable[..., Any]:
    """Return a fixture: a kbroker process that all tests of the file share."""
    @pytest.fixture(scope='module')
    def broker(tmp_path_factory: Any) -> Iterator[BrokerProcess]:
        with BrokerProcess(tmp_path_factory.mktemp('broker'), settings) as broker:
            yield broker

    return broker


def either_broker(settings: Settings = None, scope: Literal['function', 'module'] = 'function') -> Callable[..., Any]:
    """Return a fixture that runs its tests twice: with a process of kbroker, then with one of Apache Kafka."""
    @pytest.fixture(scope=scope, params=[BrokerProcess, KafkaProcess], ids=['kbroker', 'apache-kafka'])
    def broker(request: Any, tmp_path_factory: Any) -> Iterator[BrokerProcess | KafkaProcess]:
        with request.param(tmp_path_factory.mktemp('broker') / 'data', settings) as broker:
            yield broker

    return broker
