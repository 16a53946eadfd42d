"""kbroker-streams-groups prints the same as kafka-streams-groups, about groups on both brokers and about groups in a
log directory.

Covers KIP-1071, KIP-1331 and KIP-1357.
"""
import json

import pytest
from streams_histories import (
    SETTINGS,
    SHAPES,
    Standbys,
    StreamsBeat,
    StreamsJoin,
    StreamsLeave,
    StreamsSide,
    internal,
    part,
)
from support.brokers.broker_fixtures import either_broker
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, run_tools
from support.runner.command_runner import run_in_process

from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer import Producer

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

TOOL = 'org.apache.kafka.tools.streams.StreamsGroupCommand'
NAME = 'counting'
GROUP = ('--group', NAME)
TABLES = [('--describe', *GROUP), ('--describe', *GROUP, '--offsets', '--verbose'), ('--describe', *GROUP, '--members'),
          ('--describe', *GROUP, '--members', '--verbose'), ('--describe', '--all-groups')]
"""The options with which the output for a log directory is the same as for its broker."""
QUESTIONS = [('--list',), ('--list', '--state'), ('--list', '--state', 'stable'), ('--list', '--state', 'NotReady'),
             *TABLES, ('--describe', *GROUP, '--state'), ('--describe', *GROUP, '--state', '--verbose')]
RESETS = [('--reset-offsets', *GROUP, '--all-input-topics', '--to-earliest', '--dry-run'),
          ('--reset-offsets', *GROUP, '--input-topic', f'{NAME}-a:0', '--to-offset', '2', '--dry-run', '--export'),
          ('--reset-offsets', *GROUP, '--all-input-topics', '--to-latest', '--execute')]
RELEASE = '4.4'
"""The release of Kafka's tool, whose columns both tools have."""
PLUGIN = {'group.streams.topology.description.plugin.class':
          'org.apache.kafka.server.streams.InMemoryTopologyDescriptionPlugin'}
NO_MEMBERS = f"Error: Streams group '{NAME}' has no active members."
"""A note that kbroker-streams-groups prints on stderr."""

broker = either_broker(SETTINGS)


def counting(topic):
    """Return a topology whose internal topics have the names that Kafka Streams gives them."""
    return [part('0', [topic('a')], sinks=[topic('x-repartition')]),
            part('1', [], reads=[internal(topic('x-repartition'))], logs=[internal(topic('x-changelog'))])]


def words(text):
    """Return the non-empty lines of a text as words, sorted. Kafka's columns have different widths, and Kafka sorts
    lines and tasks by hashes.
    """
    lines = [line.split() for line in text.splitlines() if line.strip() and line.strip() != NO_MEMBERS]
    return lines[:1] + sorted(map(sorted, lines[1:]))


def test_the_tables_and_resets_are_those_of_kafkas_tool(broker, monkeypatch):
    def ours(*arguments):
        return run_in_process('streams_groups', *arguments)

    def compare(questions):
        theirs_of = run_tools(TOOL, *[[*server, *each] for each in questions], release=RELEASE)
        for question, theirs in zip(questions, theirs_of, strict=True):
            assert words(ours(*server, *question).stdout) == words(theirs.output), question

    server = ('--bootstrap-server', broker.address)
    monkeypatch.setitem(SHAPES, 'counting', counting)
    side = StreamsSide(broker.address, NAME)
    cluster = Cluster(ClientConfig.load(broker.address))
    producer = Producer(cluster)
    for number in range(20):
        producer.send(f'{NAME}-a', b'%d' % number, partition=number % 3)
    producer.flush()
    cluster.close()
    for operation in [Standbys(1), StreamsJoin('A', 'counting'), StreamsBeat('A'), StreamsJoin('B', 'counting'),
                      *[StreamsBeat(slot, 'last') for slot in 'AABABAB']]:
        operation.run(side)
    side.peer.ask('OffsetCommit', 9, group_id=NAME, member_id='A', generation_id_or_member_epoch=side.epochs['A'],
                  topics=[dict(name=f'{NAME}-a', partitions=[
                      dict(partition_index=number, committed_offset=number + 1, committed_metadata='')
                      for number in range(3)])])
    compare(QUESTIONS)
    live = [ours(*server, *question).stdout for question in TABLES]
    assert all(live)
    broker.restart()
    assert [words(ours(*server, *question).stdout) for question in TABLES] == list(map(words, live))
    broker.stop()
    offline = ('--data-dir', str(broker.directory), '--describe', *GROUP)
    assert [ours('--data-dir', str(broker.directory), *question).stdout for question in TABLES] == live
    assert ours(*offline, '--state').stdout.split()[-3:] == ['sticky', 'Stable', '2']
    refused = ours(*offline, '--topology')
    assert refused.returncode == 2 and '--topology needs a broker' in refused.stderr
    broker.start()
    for slot in 'AB':
        StreamsLeave(slot).run(StreamsSide(broker.address, NAME))
    compare([*QUESTIONS, *RESETS])
    assert 'Successful' in ours(*server, '--delete-offsets', *GROUP, '--input-topic', f'{NAME}-a:2').stdout
    compare([('--reset-offsets', *GROUP, '--input-topic', f'{NAME}-a:0,1', '--to-earliest', '--dry-run')])
    missing = ('--reset-offsets', *GROUP, '--input-topic', f'{NAME}-a', '--to-earliest', '--execute')
    (theirs,), refused = run_tools(TOOL, [*server, *missing], release=RELEASE), ours(*server, *missing)
    assert 'not part of the group' in theirs.output, theirs
    assert refused.returncode == 1 and f'has no offset in {NAME}-a-2' in refused.stderr, refused


def node(name, kind, topics=(), sink=None, stores=(), successors=()):
    return dict(name=name, node_type=kind, source_topics=list(topics), sink_topic=sink, stores=list(stores),
                successors=list(successors))


DESCRIPTION = dict(
    subtopologies=[
        dict(subtopology_id='0', nodes=[
            node('source', 1, topics=('b', 'a'), successors=('map', 'count')),
            node('map', 2, successors=('out',)), node('count', 2, stores=('s2', 's1'), successors=('out',)),
            node('out', 3, sink='c'), node('by-record', 3)]),
        dict(subtopology_id='1', nodes=[node('alone', 1, topics=('c',))])],
    global_stores=[dict(source=node('global-source', 1, topics=('g',), successors=('global',)),
                        processor=node('global', 2, stores=('all',)))])


def test_the_description_of_a_topology_is_shown_as_kafkas_tool_shows_it(tmp_path, monkeypatch):
    question = ('--describe', *GROUP, '--topology')
    monkeypatch.setitem(SHAPES, 'counting', counting)
    with KafkaProcess(tmp_path / 'kafka', {**SETTINGS, **PLUGIN}, release=RELEASE) as kafka:
        def both():
            server = ('--bootstrap-server', kafka.address)
            theirs, = run_tools(TOOL, [*server, *question], release=RELEASE)
            return theirs, run_in_process('streams_groups', *server, *question)

        side = StreamsSide(kafka.address, NAME)
        for operation in [StreamsJoin('A', 'counting'), StreamsBeat('A')]:
            operation.run(side)
        theirs, ours = both()
        assert (theirs.code, theirs.output.strip()) == (
            1, f"Error: No topology description is stored for streams group '{NAME}'.")
        assert (ours.returncode, ours.stdout) == (1, '')
        assert f"no topology description is stored for streams group '{NAME}'" in ours.stderr
        stored = side.peer.ask('StreamsGroupTopologyDescriptionUpdate', 0, group_id=NAME, member_id='A',
                               topology_epoch=0, topology_description=DESCRIPTION)
        assert stored.error_code == 0, stored
        theirs, ours = both()
        assert (ours.returncode, ours.stdout.splitlines()) == (0, theirs.output.splitlines())
        shown = run_in_process('streams_groups', '--bootstrap-server', kafka.address, *question, '--json')
        row = json.loads(shown.stdout)
        assert row['subtopologies'][0]['nodes'][3] == {
            'name': 'out', 'kind': 'sink', 'topics': ['c'], 'stores': [], 'successors': []}
        assert row['global_stores'][0]['processor']['stores'] == ['all']


def test_a_broker_without_descriptions_says_that_none_is_stored(tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, 'counting', counting)
    with BrokerProcess(tmp_path / 'data', SETTINGS) as broker:
        server = ('--bootstrap-server', broker.address)
        StreamsJoin('A', 'counting').run(StreamsSide(broker.address, NAME))
        theirs, = run_tools(TOOL, [*server, '--describe', *GROUP, '--topology'], release=RELEASE)
        ours = run_in_process('streams_groups', *server, '--describe', *GROUP, '--topology')
    assert (theirs.code, theirs.output.strip()) == (
        1, f"Error: No topology description is stored for streams group '{NAME}'.")
    assert (ours.returncode, ours.stdout) == (1, '') and 'no topology description is stored' in ours.stderr


def test_offsets_and_a_group_are_deleted_with_the_topics_of_the_application(broker, monkeypatch):
    def ours(*arguments):
        return run_in_process('streams_groups', '--bootstrap-server', broker.address, *arguments, *GROUP)

    monkeypatch.setitem(SHAPES, 'counting', counting)
    side = StreamsSide(broker.address, NAME)
    for operation in [StreamsJoin('A', 'counting'), StreamsBeat('A')]:
        operation.run(side)
    refused = ours('--delete')
    assert refused.returncode == 1 and 'NON_EMPTY_GROUP' in refused.stderr, refused
    StreamsLeave('A').run(side)
    side.peer.ask('OffsetCommit', 9, group_id=NAME, member_id='', generation_id_or_member_epoch=-1, topics=[
        dict(name=f'{NAME}-a', partitions=[dict(partition_index=0, committed_offset=1, committed_metadata='')])])
    refused = ours('--reset-offsets', '--input-topic', f'{NAME}-b', '--to-latest', '--dry-run')
    assert refused.returncode == 1 and 'is not an input topic' in refused.stderr, refused
    one = ours('--reset-offsets', '--input-topic', f'{NAME}-a:0', '--to-latest', '--execute',
               '--delete-internal-topic', f'{NAME}-x-repartition')
    assert one.returncode == 0 and one.stdout.split()[4:8] == [NAME, f'{NAME}-a', '0', '0'], one
    side.await_end_of_topic(f'{NAME}-x-repartition')
    assert 'Successful' in ours('--delete-offsets', '--all-input-topics').stdout
    deleted = ours('--delete', '--delete-all-internal-topics')
    assert deleted.returncode == 1 and f'{NAME}-x-repartition' in deleted.stderr, deleted
    side.await_end_of_topic(f'{NAME}-x-changelog')
    missing = ours('--describe')
    assert missing.returncode == 1 and f'there is no streams group {NAME}' in missing.stderr
