"""Kafka's command-line tools work on a live broker, and on its files after a stop.

Covers KIP-113, KIP-455, KIP-595, KIP-836 and KIP-853.
"""
import json
import re

import pytest
from support.clients.sample_topic import sample_topic
from support.kafka.apache_kafka import config_command, dump_log, run_tool

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

TOOLS = 'org.apache.kafka.tools'
COMPLAINTS = re.compile(r'corrupt|mismatch|not found in log|Exception|error|could not be|invalid', re.IGNORECASE)


def segment_files(directory, topic):
    return sorted(path for partition in directory.glob(f'{topic}-*') for path in partition.iterdir()
                  if path.suffix in ('.log', '.index', '.timeindex', '.txnindex', '.snapshot') and path.stat().st_size)


def test_dump_log_reads_every_file_that_the_broker_leaves(broker):
    with sample_topic(broker.address):
        broker.stop()
    files = segment_files(broker.directory, 'orders')
    assert {path.suffix for path in files} >= {'.log', '.txnindex', '.snapshot'}
    text = dump_log(*files)
    assert not COMPLAINTS.search(text), text
    assert 'endTxnMarker: COMMIT' in text
    assert 'endTxnMarker: ABORT' in text
    assert len(re.findall(r'payload: plain', text)) == 20


@pytest.mark.parametrize(('topic', 'decoder', 'expected'), [
    ('__transaction_state', 'transaction-log', 'history'), ('__consumer_offsets', 'offsets', 'readers'),
    ('__cluster_metadata', 'cluster-metadata', 'orders')])
def test_dump_log_decodes_the_internal_topics_that_the_broker_leaves(broker, topic, decoder, expected):
    with sample_topic(broker.address):
        broker.stop()
    text = dump_log(*(path for path in segment_files(broker.directory, topic) if path.suffix == '.log'), decode=decoder)
    assert expected in text
    assert not re.search(r'corrupt|Exception|could not be', text), text


def test_the_console_tools_describe_what_a_client_did(broker):
    def run(tool, *arguments):
        return run_tool(tool, '--bootstrap-server', broker.address, *arguments)

    orders = ('--entity-type', 'topics', '--entity-name', 'orders')
    with sample_topic(broker.address):
        assert 'PartitionCount: 2' in run(f'{TOOLS}.TopicCommand', '--describe', '--topic', 'orders')
        assert 'retention.ms' in run(config_command(), '--describe', '--all', *orders)
        run(config_command(), '--alter', *orders, '--add-config', 'retention.ms=1234567')
        assert 'retention.ms=1234567' in run(f'{TOOLS}.TopicCommand', '--describe', '--topic', 'orders')
        group = run(f'{TOOLS}.consumer.group.ConsumerGroupCommand', '--describe', '--group', 'readers')
        assert re.search(r'readers\s+orders\s+0\s+10\s', group), group
        transactions = run(f'{TOOLS}.TransactionsCommand', 'list')
        assert re.search(r'history\s+\d+\s+\d+\s+Ongoing', transactions), transactions
        offsets = run(f'{TOOLS}.GetOffsetShell', '--topic', 'orders')
        assert re.search(r'orders:1:14\b', offsets), offsets
        assert str(broker.directory) in run(f'{TOOLS}.LogDirsCommand', '--describe')
        assert 'transaction.version' in run(f'{TOOLS}.FeatureCommand', 'describe')
        assert 'EndTxn' in run(f'{TOOLS}.BrokerApiVersionsCommand')


def test_the_console_consumer_reads_just_what_is_committed(broker):
    def read(timeout_ms):
        text = run_tool(f'{TOOLS}.consumer.ConsoleConsumer', '--bootstrap-server', broker.address, '--topic', 'orders',
                        '--from-beginning', '--isolation-level', 'read_committed', '--timeout-ms', str(timeout_ms))
        return set(text.splitlines())

    committed = {f'plain {number}' for number in range(20)} | {'commit_transaction'}
    with sample_topic(broker.address):
        if not (lines := read(5_000)) >= committed:
            lines = read(120_000)       # on a slow machine, the first one ended before it got a record
        assert lines >= committed
        assert not lines & {'abort_transaction', 'open'}


def test_records_can_be_deleted_up_to_an_offset(broker, tmp_path):
    bootstrap = ('--bootstrap-server', broker.address)
    file = tmp_path / 'offsets.json'
    file.write_text(json.dumps({'version': 1, 'partitions': [{'topic': 'orders', 'partition': 1, 'offset': 5}]}))
    with sample_topic(broker.address):
        run_tool(f'{TOOLS}.DeleteRecordsCommand', *bootstrap, '--offset-json-file', str(file))
        offsets = run_tool(f'{TOOLS}.GetOffsetShell', *bootstrap, '--topic', 'orders', '--time', 'earliest')
    assert re.search(r'orders:1:5\b', offsets), offsets


def test_the_quorum_and_the_places_of_replicas_are_shown_and_kept(broker, tmp_path):
    bootstrap = ('--bootstrap-server', broker.address)
    reassign = ('org.apache.kafka.tools.reassign.ReassignPartitionsCommand', *bootstrap)
    plan, topics = tmp_path / 'plan.json', tmp_path / 'topics.json'
    with sample_topic(broker.address):
        topics.write_text(json.dumps({'version': 1, 'topics': [{'topic': 'orders'}]}))
        plan.write_text(json.dumps({'version': 1, 'partitions': [
            {'topic': 'orders', 'partition': 1, 'replicas': [1], 'log_dirs': [str(broker.directory)]}]}))
        quorum = ('org.apache.kafka.tools.MetadataQuorumCommand', *bootstrap, 'describe')
        status = run_tool(*quorum, '--status')
        assert re.search(r'LeaderId:\s+1\n', status), status
        assert re.search(r'CurrentVoters:\s+\[\{"id": 1', status), status
        replication = run_tool(*quorum, '--replication')
        assert re.search(r'^1\s+\S+\s+\d+\s+0\s.*Leader', replication, re.MULTILINE), replication
        assert 'No partition reassignments found.' in run_tool(*reassign, '--list')
        generated = run_tool(*reassign, '--generate', '--topics-to-move-json-file', str(topics), '--broker-list', '1')
        assert '"replicas":[1]' in generated.partition('Proposed')[2], generated
        executed = run_tool(*reassign, '--execute', '--reassignment-json-file', str(plan))
        assert 'Successfully started partition reassignment for orders-1' in executed, executed
        assert 'Successfully started moving log directory' in executed, executed
        verified = run_tool(*reassign, '--verify', '--reassignment-json-file', str(plan))
        assert 'Reassignment of partition orders-1 is completed.' in verified, verified
        cancelled = run_tool(*reassign, '--cancel', '--reassignment-json-file', str(plan))
        assert 'None of the specified partition reassignments are active.' in cancelled, cancelled
        logs = run_tool(f'{TOOLS}.LogDirsCommand', *bootstrap, '--describe', '--topic-list', 'orders')
        assert '"partition":"orders-1"' in logs, logs
