"""Fixtures of the tests that compare kbroker with Apache Kafka."""
import pytest
from support.kafka.beside_kafka import both_brokers


@pytest.fixture(scope='module')
def addresses(request, tmp_path_factory):
    """The addresses of Kafka and of kbroker. Both run with the settings of the module's COMPARISON and of the fixture's
    parameter.
    """
    chosen = {**request.module.COMPARISON.settings, **getattr(request, 'param', {})}
    with both_brokers(tmp_path_factory.mktemp('brokers'), chosen) as brokers:
        yield [broker.address for broker in brokers]
