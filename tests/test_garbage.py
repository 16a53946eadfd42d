"""The garbage collector holds the loop for milliseconds at most, however many objects live."""
import gc
import weakref

import pytest
from support.in_process_broker import InProcessBroker

from kbroker.garbage import exempting_the_old
from kbroker.protocol.messages import CreatePartitionsRequest, CreateTopicsRequest, MetadataRequest

MOST_SEARCHED = 20_000


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)


@pytest.fixture
def serving():
    gc.collect()
    with exempting_the_old():
        yield
    gc.unfreeze()


def test_no_search_grows_with_the_living_objects(serving):
    searched = []

    def note(phase, info):
        if phase == 'start' and info['generation'] == 2:
            searched.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    gc.callbacks.insert(0, note)
    try:
        living = [[] for _ in range(1_000_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(living) == 1_000_000
    assert len(searched) > 10
    assert max(searched) <= MOST_SEARCHED


def test_cycles_of_young_objects_are_freed(serving):
    cycles = [cycle() for _ in range(100_000)]
    assert sum(each() is not None for each in cycles) < 2_000


def test_cycles_that_reach_the_oldest_generation_are_freed(serving):
    node = Node()
    node.itself = node
    old = weakref.ref(node)
    living = []
    while not any(each is node for each in gc.get_objects(2)):
        assert len(living) < 100_000
        living += [[] for _ in range(10_000)]
    del node
    living += [[] for _ in range(100_000)]
    assert old() is None


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker(tmp_path) as broker:
        yield broker


def test_errors_that_are_kept_as_results_leave_no_garbage(broker):
    """A traceback names the frame, which names the results, which named the error."""
    def topic(name, partitions=1):
        return CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)

    def create(*topics):
        return CreateTopicsRequest(timeout_ms=1000, topics=list(topics)), 7

    def enlarge(name, count):
        return CreatePartitionsRequest(timeout_ms=1000, topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count)]), 3

    requests = [create(topic('good')), create(topic('good')), create(topic('a/b')), create(topic('large', 20_000)),
                enlarge('good', 1), enlarge('unknown', 2), enlarge('good', 20_000),
                (MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name='a/b')]), 12)]
    for request, version in requests:      # what the first request of a kind leaves is not of the request
        broker.ask(request, version)
    gc.collect()
    for request, version in requests:
        broker.ask(request, version)
    broker.topics.most_partitions = 0
    for request, version in [create(topic('more')), enlarge('good', 2),
                             (MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name='new')]), 12)]:
        broker.ask(request, version)
    assert gc.collect() == 0
