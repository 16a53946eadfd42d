"""Changes of the metadata wait for the disk. Other clients are served during the wait."""
import errno
import random

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.disk.faulty_file_systems import FreezingFileSystem
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode

CREATION = build('CreateTopicsRequest', topics=[{'name': 'new', 'num_partitions': 2, 'replication_factor': 1}])
GROWTH = build('CreatePartitionsRequest', topics=[{'name': 'orders', 'count': 3, 'assignments': None}])
DELETION = build('DeleteTopicsRequest', topics=[{'name': 'orders'}])
SEGMENT_BYTES = {'name': 'segment.bytes', 'value': '2000000'}
CONFIGS = build('IncrementalAlterConfigsRequest', resources=[
    {'resource_type': 2, 'resource_name': 'orders', 'configs': [SEGMENT_BYTES]},
    {'resource_type': 4, 'resource_name': '', 'configs': [{'name': 'log.retention.ms', 'value': '77000'}]},
    {'resource_type': 2, 'resource_name': 'nope', 'configs': [SEGMENT_BYTES]}])
CHANGES = [CREATION, GROWTH, DELETION, CONFIGS]


def names_of(changes):
    return [type(change).__name__ for change in changes]


def seen_by_another_client(node):
    """Return the topics and configs that another client sees."""
    topics = {topic.name: len(topic.partitions) for topic in node.ask(build('MetadataRequest', topics=None), 13).topics}
    described = node.ask(build('DescribeConfigsRequest', resources=[
        {'resource_type': 2, 'resource_name': 'orders', 'configuration_keys': ['segment.bytes', 'retention.ms']}]), 4)
    return topics, [config.value for config in described.results[0].configs or []]


def settle(node, disk):
    while disk.jobs or len(node.long_work):
        disk.finish_all()
        node.turn()


def error_codes(response):
    return [result.error_code for name in ('topics', 'results', 'responses')
            for result in getattr(response, name, [])]


@pytest.mark.parametrize('change', CHANGES, ids=names_of(CHANGES))
def test_other_clients_are_served_and_see_nothing_until_the_change_is_durable(node, client, disk, change):
    before = seen_by_another_client(node)
    disk.is_held = True
    connection = node.begin(change, change.versions[1])
    for _ in range(5):
        node.turn()
    assert len(disk.jobs) == 1 and not connection.replies
    assert seen_by_another_client(node) == before
    assert not len(node.long_work)      # the change costs the loop nothing while it waits
    settle(node, disk)
    assert error_codes(node.answer_to(connection, change, change.versions[1])) in ([0], [0, 0, 3])
    assert seen_by_another_client(node) != before


@pytest.mark.parametrize('change', CHANGES, ids=names_of(CHANGES))
def test_a_change_whose_sync_fails_is_refused_and_stays_invisible(node, client, disk, change):
    before = node.metadata.image
    disk.is_held = True
    connection = node.begin(change, change.versions[1])
    disk.finish(OSError(errno.EIO, 'the disk is gone'))
    node.turn()
    codes = error_codes(node.answer_to(connection, change, change.versions[1]))
    assert set(codes) <= {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert ErrorCode.KAFKA_STORAGE_ERROR in codes
    assert node.metadata.image is before and node.logs.failure is not None


def test_a_deletion_waits_for_its_renames_while_others_are_served(node, client, disk):
    disk.is_held = True
    connection = node.begin(DELETION, 6)
    disk.finish()
    node.turn()
    assert len(disk.jobs) == 1 and not connection.replies       # the sync of the directory
    assert 'orders' not in seen_by_another_client(node)[0]
    settle(node, disk)
    assert error_codes(node.answer_to(connection, DELETION, 6)) == [0]


def test_many_resources_wait_for_one_sync(node, client, disk):
    names = [f't{number}' for number in range(50)]
    for name in names:
        node.topics.create(name, 1, {})
    request = build('IncrementalAlterConfigsRequest', resources=[
        {'resource_type': 2, 'resource_name': name, 'configs': [SEGMENT_BYTES]} for name in names])
    disk.is_held = True
    connection = node.begin(request, 1)
    node.turn()
    assert len(disk.jobs) == 1
    disk.finish()
    node.turn()
    assert error_codes(node.answer_to(connection, request, 1)) == [0] * 50
    assert {node.topics.topic(name).config.segment_bytes for name in names} == {2_000_000}


def test_a_producer_id_and_an_internal_topic_do_not_wait_for_a_change_in_flight(node, client, disk):
    disk.is_held = True
    creation = node.begin(CREATION, 7)
    request = build('InitProducerIdRequest', transactional_id=None, transaction_timeout_ms=1000)
    assert node.ask(request, 4).producer_id == 0
    found = node.ask(build('FindCoordinatorRequest', key_type=0, coordinator_keys=['g']), 4)
    assert found.coordinators[0].error_code == 0
    node.turn()
    assert node.answer_to(creation, CREATION, 7).topics[0].error_code == 0
    settle(node, disk)      # the thread reports what is known
    assert {'new', '__consumer_offsets'} <= set(node.metadata.image.topics)


def test_changes_of_many_clients_happen_in_the_order_in_which_they_came(node, client, disk):
    disk.is_held = True
    requests = [build('CreateTopicsRequest', topics=[{'name': f'n{number}', 'num_partitions': 1,
                                                      'replication_factor': 1}]) for number in range(20)]
    connections = [node.begin(request, 7) for request in requests]
    assert len(disk.jobs) == 1
    for number, connection in enumerate(connections):
        assert not connection.replies and f'n{number}' not in node.metadata.image.topics
        disk.finish()
        while not connection.replies:
            node.turn()
            if not connection.replies and disk.jobs:
                disk.finish()
        assert node.answer_to(connection, requests[number], 7).topics[0].error_code == 0


def test_a_clean_stop_ends_the_changes_that_wait(start_node, disk, tmp_path):
    node = start_node()
    disk.is_held = True
    connections = [node.begin(CREATION, 7) for _ in range(3)]
    node.close()
    codes = [node.answer_to(connection, CREATION, 7).topics[0].error_code for connection in connections]
    assert codes == [0, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.TOPIC_ALREADY_EXISTS]
    node.crash()        # it is closed already
    with InProcessBroker(tmp_path) as again:
        assert len(again.topics.topic('new').partitions) == 2


@pytest.mark.parametrize('seed', range(6))
def test_a_power_cut_while_a_change_waits_leaves_all_of_it_or_nothing(tmp_path, disk, seed):
    (tmp_path / 'before').mkdir()
    fs = FreezingFileSystem(tmp_path / 'before')
    node = InProcessBroker(tmp_path / 'before', fs=fs, sync=disk.sync)
    with node:
        disk.is_held = True
        connection = node.begin(CREATION, 7)
        assert not connection.replies
        fs.crash(tmp_path / 'after', random.Random(seed))
        node.crash()
    with InProcessBroker(tmp_path / 'after') as after:
        topic = after.topics.topic('new')
        assert topic is None or len(topic.partitions) == 2
        if topic is None:
            after.topics.create('new', 2, {})


def test_producer_ids_do_not_wait_for_the_disk_when_a_block_is_used_up(node, client, disk):
    """When a hundred ids of a block are left, the broker starts to allocate the next block."""
    request = build('InitProducerIdRequest', transactional_id=None, transaction_timeout_ms=1000)
    assert [node.ask(request, 4).producer_id for _ in range(900)] == list(range(900))
    disk.is_held = True
    assert [node.ask(request, 4).producer_id for _ in range(20)] == list(range(900, 920))
    assert len(disk.jobs) == 1 and node.metadata.image.next_producer_id == 1000     # written, not durable
    settle(node, disk)
    assert node.metadata.image.next_producer_id == 2000
    assert [node.ask(request, 4).producer_id for _ in range(980)] == list(range(920, 1900))
    assert not disk.jobs


def test_producer_ids_that_are_used_up_before_the_next_block_is_durable_wait_for_the_disk(node, client, disk):
    request = build('InitProducerIdRequest', transactional_id=None, transaction_timeout_ms=1000)
    for _ in range(900):
        node.ask(request, 4)
    disk.is_held = True
    found = [node.ask(request, 4).producer_id for _ in range(1200)]
    settle(node, disk)
    found += [node.ask(request, 4).producer_id for _ in range(1200)]
    assert len(set(found)) == 2400 and min(found) == 900
