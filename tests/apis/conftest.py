"""Fixtures: an in-process broker for each test, a disk whose syncs the test may hold, and clients."""
import gc

import pytest
from api_client import ApiClient, TransactionalClient
from share_client import ShareClient
from support.brokers.in_process_broker import InProcessBroker
from support.disk.held_disk import HeldDisk

FEW = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1'}


@pytest.fixture
def disk():
    return HeldDisk(is_held=False)


@pytest.fixture
def start_node(tmp_path, disk):
    """Yield a function that starts a broker with the given settings on the test's directory."""
    started = []

    def start(**settings):
        node = InProcessBroker(tmp_path, FEW | {name.replace('_', '.'): value for name, value in settings.items()},
                               sync=disk.sync)
        disk.kick = node.flusher.kick
        started.append(node)
        return node.__enter__()

    yield start
    disk.release()
    for node in started:
        node.__exit__(None, None, None)


@pytest.fixture
def node(start_node):
    return start_node()


@pytest.fixture
def client(node):
    """Create the topic `orders` with one partition, and return a client."""
    client = ApiClient(node)
    client.create_topic()
    return client


@pytest.fixture
def producer(node, client):
    return TransactionalClient(node)


@pytest.fixture
def member(node, client):
    """Return a member of a share group. The group reads the one partition of `orders`, from offset 0."""
    member = ShareClient(node, node.topics.topic('orders').topic_id)
    member.initialize()
    return member


@pytest.fixture
def no_collector():
    """Turn Python's garbage collector off for the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
