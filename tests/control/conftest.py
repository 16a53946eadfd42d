"""Fixtures: a controlled broker with the topic `orders` of three partitions."""
import pytest
from controlled_broker import ControlledBroker


@pytest.fixture
def broker(tmp_path):
    with ControlledBroker(tmp_path) as broker:
        broker.client.create_topic('orders', 3)
        broker.rules.clear_steps()
        yield broker
