"""The names in a request, in every API: its topics, partitions, groups and transactional ids."""
import pytest
from support.messages.message_builder import build

from kbroker.protocol.targets import MOST_TARGETS, named_in

IDS = {b'\1' * 16: 'orders'}


@pytest.mark.parametrize(('name', 'fields', 'facts'), [
    ('Produce', {'transactional_id': 'tx', 'topic_data': [{'name': 'orders', 'partition_data': [{'index': 2}]}]},
     {'transactional_id': 'tx', 'topic': 'orders', 'partition': 2}),
    ('Produce', {'topic_data': [{'topic_id': b'\1' * 16, 'partition_data': [{'index': 0}]}]},
     {'topic': 'orders', 'partition': 0}),
    ('Produce', {'topic_data': [{'topic_id': b'\2' * 16, 'partition_data': [{'index': 0}]}]}, {}),
    ('Fetch', {'topics': [{'topic': 'orders', 'partitions': [{'partition': 1}, {'partition': 2}]}]},
     {'targets': [{'topic': 'orders', 'partition': 1}, {'topic': 'orders', 'partition': 2}]}),
    ('FindCoordinator', {'key_type': 0, 'coordinator_keys': ['g']}, {'group': 'g'}),
    ('FindCoordinator', {'key_type': 1, 'key': 'tx'}, {'transactional_id': 'tx'}),
    ('FindCoordinator', {'key_type': 2, 'key': 'g:topic:0'}, {}),
    ('InitProducerId', {'transactional_id': 'tx', 'producer_id': 7, 'producer_epoch': 1},
     {'transactional_id': 'tx', 'producer_id': 7, 'producer_epoch': 1}),
    ('InitProducerId', {'transactional_id': None}, {}),
    ('AddPartitionsToTxn', {'v3_and_below_transactional_id': 'tx', 'v3_and_below_topics': [
        {'name': 'orders', 'partitions': [3]}]}, {'transactional_id': 'tx', 'topic': 'orders', 'partition': 3}),
    ('AddPartitionsToTxn', {'transactions': [
        {'transactional_id': name, 'topics': [{'name': 'orders', 'partitions': [number]}]}
        for number, name in enumerate(('a', 'b'))]},
     {'transactional_ids': ['a', 'b'], 'targets': [{'topic': 'orders', 'partition': 0},
                                                   {'topic': 'orders', 'partition': 1}]}),
    ('AddOffsetsToTxn', {'transactional_id': 'tx', 'group_id': 'g', 'producer_id': 0, 'producer_epoch': 0},
     {'transactional_id': 'tx', 'group': 'g', 'producer_id': 0, 'producer_epoch': 0}),
    ('TxnOffsetCommit', {'transactional_id': 'tx', 'group_id': 'g', 'producer_id': 5, 'topics': [
        {'name': 'orders', 'partitions': [{'partition_index': 0}]}]},
     {'transactional_id': 'tx', 'group': 'g', 'topic': 'orders', 'partition': 0, 'producer_id': 5,
      'producer_epoch': 0}),
    ('OffsetFetch', {'groups': [{'group_id': 'g', 'topics': [{'name': 'orders', 'partition_indexes': [4]}]}]},
     {'group': 'g', 'topic': 'orders', 'partition': 4}),
    ('DescribeGroups', {'groups': ['g', 'h']}, {'groups': ['g', 'h']}),
    ('DeleteGroups', {'groups_names': ['g']}, {'group': 'g'}),
    ('DescribeTransactions', {'transactional_ids': ['a', 'b', 'a']}, {'transactional_ids': ['a', 'b']}),
    ('Metadata', {'topics': [{'name': 'orders'}]}, {'topic': 'orders'}),
    ('Metadata', {'topics': None}, {}),
    ('DeleteTopics', {'topic_names': ['orders', 'bills']}, {'targets': [{'topic': 'orders'}, {'topic': 'bills'}]}),
    ('WriteTxnMarkers', {'markers': [{'topics': [{'name': 'orders', 'partition_indexes': [0]}]}]},
     {'topic': 'orders', 'partition': 0}),
    ('ElectLeaders', {'topic_partitions': [{'topic': 'orders', 'partitions': [0]}]},
     {'topic': 'orders', 'partition': 0}),
    ('ConsumerGroupHeartbeat', {'group_id': 'g', 'subscribed_topic_names': ['orders']},
     {'group': 'g', 'topic': 'orders'}),
    ('ApiVersions', {}, {}),
])
def test_a_request_names(name, fields, facts):
    assert named_in(build(f'{name}Request', **fields), IDS.get) == facts


def test_a_request_for_very_many_partitions_names_the_first_of_them():
    partitions = [{'partition': index} for index in range(MOST_TARGETS + 5)]
    facts = named_in(build('FetchRequest', topics=[{'topic': 'orders', 'partitions': partitions}]), IDS.get)
    assert len(facts['targets']) == MOST_TARGETS
