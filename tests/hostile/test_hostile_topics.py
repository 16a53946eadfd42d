"""Attacks with topics, which are created and deleted in a loop, created by Metadata, or described in a loop."""
from __future__ import annotations

import pytest
from hostile.siege import create, many_connections
from support.brokers.in_process_broker import frame_of, read_answer

from kbroker.protocol.messages import CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest

TOPICS = 50
CONNECTIONS = 4


def ask_all(clients, requests, version):
    """Send a request over each connection, then read the answers."""
    for client, request in zip(clients, requests, strict=True):
        client.send(frame_of(request, version))
    return [read_answer(request, version, client.receive())
            for client, request in zip(clients, requests, strict=True)]


@pytest.mark.parametrize('rounds', [5, pytest.param(60, marks=pytest.mark.soak)])
def test_topics_are_created_and_deleted_in_a_loop(besieged, rounds):
    broker = besieged()
    names = [[f'storm-{number}-{index}' for index in range(TOPICS)] for number in range(CONNECTIONS)]
    creations = [CreateTopicsRequest(timeout_ms=30_000, topics=[
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in some])
        for some in names]
    deletions = [DeleteTopicsRequest(timeout_ms=30_000, topics=[
        DeleteTopicsRequest.DeleteTopicState(name=name) for name in some]) for some in names]
    with broker.watched(rss_mb=150), many_connections(broker, CONNECTIONS) as attackers:
        for _ in range(rounds):
            for answer in ask_all(attackers, creations, 7):
                assert {topic.error_code for topic in answer.topics} == {0}
            for answer in ask_all(attackers, deletions, 6):
                assert {topic.error_code for topic in answer.responses} == {0}


@pytest.mark.parametrize('rounds', [2, pytest.param(20, marks=pytest.mark.soak)])
def test_metadata_creates_ever_new_topics(besieged, rounds):
    """A request for 500 topics once stopped the loop for 4.4 s."""
    broker = besieged()
    with broker.watched(rss_mb=200), many_connections(broker, CONNECTIONS) as attackers:
        for number in range(rounds):
            requests = [MetadataRequest(allow_auto_topic_creation=True, topics=[
                MetadataRequest.MetadataRequestTopic(name=f'auto-{number}-{attacker}-{index}') for index in range(250)])
                for attacker in range(CONNECTIONS)]
            for answer in ask_all(attackers, requests, 12):
                assert {topic.error_code for topic in answer.topics} == {0}


@pytest.mark.parametrize(('partitions', 'rounds'), [(2_000, 50), pytest.param(10_000, 200, marks=pytest.mark.soak)])
def test_metadata_of_all_partitions_in_a_loop(besieged, partitions, rounds):
    broker = besieged()
    with broker.connect() as client:
        create(client, 'wide', partitions // 2)
        create(client, 'wider', partitions // 2)
    request = MetadataRequest(topics=None)
    frame = frame_of(request, 12)
    with broker.watched(rss_mb=300), many_connections(broker, CONNECTIONS) as attackers:
        for _ in range(rounds):
            for attacker in attackers:
                attacker.send(frame)
            replies = [attacker.receive() for attacker in attackers]
    assert sum(len(topic.partitions) for topic in read_answer(request, 12, replies[-1]).topics) >= partitions
