"""A broker in the process for each test, the disk in the test's hands, and a client."""
import pytest
from api_client import ApiClient, HeldDisk, TransactionalClient
from in_process import InProcessBroker

FEW = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1'}


@pytest.fixture
def disk():
    return HeldDisk()


@pytest.fixture
def start_node(tmp_path, disk):
    """A function that starts a broker with these settings on the test's directory."""
    started = []

    def start(**settings):
        node = InProcessBroker(tmp_path, FEW | {name.replace('_', '.'): value for name, value in settings.items()},
                               sync=disk.sync)
        disk.kick = node.flusher.kick
        started.append(node)
        return node.__enter__()

    yield start
    disk.let_go()
    for node in started:
        node.__exit__(None, None, None)


@pytest.fixture
def node(start_node):
    return start_node()


@pytest.fixture
def client(node):
    """A client, and a topic `orders` of one partition."""
    client = ApiClient(node)
    client.create_topic()
    return client


@pytest.fixture
def producer(node, client):
    return TransactionalClient(node)
