"""The garbage collector holds the loop for at most some milliseconds, however many objects are alive."""
import collections
import gc
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from support.brokers.broker_fixtures import in_process_broker
from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import build

from kbroker.base.garbage import REQUESTS_BETWEEN, THRESHOLDS, YoungSearch, exempting_the_old
from kbroker.protocol.messages import CreatePartitionsRequest, CreateTopicsRequest, MetadataRequest

MOST_SEARCHED = 20_000
OBJECTS_OF_A_SLICE = 1000


class Node:
    pass


@contextmanager
def searches():
    """Yield a list. Each collection of the oldest generation within the `with` block appends the number of objects that
    it traverses.
    """
    searched = []

    def note(phase, info):
        if phase == 'start' and info['generation'] == 2:
            searched.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    gc.callbacks.insert(0, note)
    try:
        yield searched
    finally:
        gc.callbacks.remove(note)


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
    with searches() as searched:
        living = [[] for _ in range(1_000_000)]
    assert len(living) == 1_000_000
    assert len(searched) > 10
    assert max(searched) <= MOST_SEARCHED


def test_no_search_grows_with_the_requests_that_free_as_much_as_they_leave_behind(serving):
    """With Python's default thresholds, a collection would traverse 14,000 of these objects, and later collections
    more.
    """
    traffic = SimpleNamespace(requests=0)
    search = YoungSearch(traffic, SimpleNamespace(full_slices=0))
    living = collections.deque([[[], []] for _ in range(100_000)])
    gc.freeze()
    with searches() as searched:
        for _ in range(100_000):
            living.append([[], []])
            living.popleft()
            traffic.requests += 1
            search.end_tick()
    assert len(searched) > 50
    assert max(searched) <= 3 * REQUESTS_BETWEEN * 2 * THRESHOLDS[1] + 1000


def test_no_search_grows_with_long_work_that_frees_as_much_as_it_leaves_behind(serving):
    """A response with 50,000 topics creates as many objects and frees as many. In an earlier version, the next garbage
    collection held the loop for 25 ms.
    """
    work = SimpleNamespace(full_slices=0)
    search = YoungSearch(SimpleNamespace(requests=0), work)
    living = collections.deque([[[], []] for _ in range(100_000)])
    gc.freeze()
    with searches() as searched:
        for number in range(100_000):
            living.append([[], []])
            living.popleft()
            if number % OBJECTS_OF_A_SLICE == 0:
                work.full_slices += 1
                search.end_tick()
    assert len(searched) > 20
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


broker = in_process_broker()


def test_errors_that_are_kept_as_results_leave_no_garbage(broker):
    """An error refers to its traceback, the traceback to the frame, the frame to the results, and the results to the
    error. The broker breaks this cycle.
    """
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


def test_a_generation_of_a_classic_group_leaves_no_garbage(tmp_path):
    """A reference cycle that lives until its row is durable may become exempt from collection before it is garbage. It
    would then never be freed.
    """
    def rebalance(broker, member_id):
        joined = broker.ask(build('JoinGroupRequest', group_id='g', member_id=member_id, session_timeout_ms=60_000,
                                  rebalance_timeout_ms=60_000, protocol_type='consumer',
                                  protocols=[dict(name='range', metadata=b'')]), 3)
        assert joined.error_code == 0, joined
        synced = broker.ask(build('SyncGroupRequest', group_id='g', member_id=joined.member_id,
                                  generation_id=joined.generation_id,
                                  assignments=[dict(member_id=joined.member_id, assignment=b'all')]), 3)
        assert synced.error_code == 0 and synced.assignment == b'all'
        return joined.member_id

    with InProcessBroker(tmp_path, {'group.initial.rebalance.delay.ms': '0'}) as broker:
        broker.ask(build('FindCoordinatorRequest', coordinator_keys=['g'], key_type=0), 4)
        member_id = rebalance(broker, '')
        gc.collect()
        rebalance(broker, member_id)
        assert gc.collect() == 0
