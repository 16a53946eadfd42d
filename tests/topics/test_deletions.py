"""Deletion of topics, and of their committed offsets by the group coordinator."""
import logging

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import TURN_MS, Client, Promises
from support.messages.message_builder import build

SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1'}
TURNS = 100


@pytest.mark.parametrize('names', [('orders', '__consumer_offsets'), ('__transaction_state', '__consumer_offsets')])
def test_the_offsets_of_a_topic_go_with_the_topic_that_has_them(tmp_path, caplog, names):
    """When one request deleted a topic and `__consumer_offsets`, the coordinator once wrote tombstones for the topic's
    offsets to logs that were already closed, and logged two errors."""
    with InProcessBroker(tmp_path, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 1)
        client.find_coordinators()
        commit = broker.ask(build('OffsetCommitRequest', group_id='group', generation_id_or_member_epoch=-1, topics=[
            {'name': name, 'partitions': [{'partition_index': 0, 'committed_offset': 1}]} for name in names]), 8)
        assert {row.error_code for topic in commit.topics for row in topic.partitions} == {0}
        request = build('DeleteTopicsRequest', topics=[{'name': name} for name in names])
        deletion = broker.begin(request, 6)
        for _ in range(TURNS):
            broker.clock.advance(TURN_MS)
            broker.turn()
        answer = broker.answer_to(deletion, request, 6)
        assert [result.error_code for result in answer.responses] == [0, 0]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
