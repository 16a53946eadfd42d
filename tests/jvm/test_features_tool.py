"""kafka-features and kbroker-features print the same and change the levels of both brokers in the same way. Each broker
opens a directory at the levels of Kafka 4.4 that the other one wrote.

Covers KIP-584, KIP-1022 and KIP-1242.
"""
import subprocess
import sys

import pytest
from raw_peer import CLOSED, RawPeer
from support.brokers.broker_process import BrokerProcess, killed_at_the_end
from support.clients.librdkafka import create_topics
from support.kafka.apache_kafka import CLUSTER_ID, KafkaProcess, run_tools
from support.kafka.shown_metadata import await_shown_metadata
from support.runner.command_runner import run_in_process

from kbroker.base.errors import ErrorCode
from kbroker.metadata.features import RELEASES, SUPPORTED_FEATURES

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

TOOL = 'org.apache.kafka.tools.FeatureCommand'
OTHER = 'b2Jyb2tlci1qdWRnZXMtMA'
NAMES = {'client_software_name': 'judge', 'client_software_version': '1'}
EXPECTED = [(cluster_id, node_id) for cluster_id in (None, CLUSTER_ID, OTHER, '') for node_id in (-1, 1, 2, 0, -2)]
"""The cluster ids and node ids that a client may expect. The brokers have CLUSTER_ID and 1."""
RUNS = [
    ('upgrade', '--feature', 'transaction.version=2'),
    ('downgrade', '--feature', 'transaction.version=1', '--dry-run'),
    ('downgrade', '--feature', 'transaction.version=1'),
    ('upgrade', '--feature', 'transaction.version=2', '--dry-run'),
    ('upgrade', '--release-version', '4.3'),
    ('upgrade', '--feature', 'transaction.version=3'),
    ('upgrade', '--feature', 'group.version=1', '--feature', 'no.such.version=1'),
    ('downgrade', '--feature', 'metadata.version=20'),
    ('downgrade', '--release-version', '4.3', '--dry-run'),
    ('disable', '--feature', 'eligible.leader.replicas.version'),
    ('upgrade', '--feature', 'eligible.leader.replicas.version=1'),
    ('upgrade', '--feature', 'share.version=2'),
    ('upgrade', '--feature', 'share.version=3'),
    ('downgrade', '--feature', 'share.version=1'),
    ('upgrade', '--feature', 'metadata.version=31'),
    ('downgrade', '--feature', 'metadata.version=30'),
    ('upgrade', '--release-version', '4.4', '--dry-run'),
    ('upgrade', '--release-version', '4.4'),
    ('upgrade', '--feature', 'metadata.version=34'),
    ('downgrade', '--feature', 'metadata.version=32'),
    ('downgrade', '--feature', 'metadata.version=30', '--feature', 'share.version=1', '--unsafe'),
    ('downgrade', '--feature', 'share.version=1'),
    ('upgrade', '--feature', 'share.version=2'),
]
"""Changes of levels that are made one after the other, from the levels of Kafka 4.3 to those of 4.4."""


def format_directory(directory, release):
    subprocess.run([sys.executable, '-m', 'kbroker', 'storage', 'format', '--data-dir', str(directory), '--cluster-id',
                    CLUSTER_ID, '--release-version', release], check=True, capture_output=True)
    return directory


def ask_versions(broker, cluster_id, node_id):
    peer = RawPeer(broker.address, '')
    answer = peer.ask('ApiVersions', 5, **NAMES, cluster_id=cluster_id, node_id=node_id)
    assert answer != CLOSED
    return answer


def features_of(broker):
    answer = ask_versions(broker, None, -1)
    return ({row.name: (row.min_version, row.max_version) for row in answer.supported_features},
            {row.name: row.max_version_level for row in answer.finalized_features})


def outcome(code, output):
    """Return the exit code and the line for each feature. Omit the reason of a refusal, and kraft.version, which only
    Kafka's tool names. A dry run has the words of a change.
    """
    return code, [line.partition('. ')[0].removesuffix('.').replace('can be', 'was') for line in output.splitlines()
                  if not line.startswith('kraft.version')]


def change_levels(broker, run):
    """Try the change with kbroker-features, and make it with kafka-features. Return what both print, and the levels
    afterwards.
    """
    place = '--bootstrap-server', broker.address
    tried = run_in_process('features', *place, *run, '--dry-run')
    tool, = run_tools(TOOL, [*place, *run], release='4.4')
    await_shown_metadata(broker.address)
    assert outcome(tried.returncode, tried.stdout) == outcome(tool.code, tool.output), run
    return outcome(tool.code, tool.output), features_of(broker)


def described(broker):
    """Return what both tools print about the features. Omit the epoch, which is an offset of the metadata log."""
    place = '--bootstrap-server', broker.address
    texts = run_tools(TOOL, [*place, 'describe'], release='4.4')[0].output, run_in_process(
        'features', *place, 'describe').stdout
    return [[line.partition('Epoch:')[0].rstrip() for line in text.splitlines() if line] for text in texts]


def test_the_tools_print_the_same_and_each_broker_opens_the_directory_of_the_other(tmp_path):
    directories = [format_directory(tmp_path / name, '4.3') for name in ('kafka', 'kbroker')]
    brokers = KafkaProcess(directories[0], release='4.4'), BrokerProcess(directories[1])
    swapped = BrokerProcess(directories[0]), KafkaProcess(directories[1], release='4.4')
    with killed_at_the_end(*brokers, *swapped):
        for broker in brokers:
            broker.start()
        for run in RUNS:
            found = [change_levels(broker, run) for broker in brokers]
            assert found[0] == found[1], run
        assert found[1] == ((0, ['share.version was upgraded to 2']), (SUPPORTED_FEATURES, RELEASES['4.4'] | {
            'kraft.version': 1}))
        texts = [text for broker in brokers for text in described(broker)]
        assert texts == [texts[0]] * 4
        for broker in brokers:
            create_topics(broker.address, orders=1)
            broker.stop()
        for broker in swapped:
            broker.start()
            assert features_of(broker)[1] == RELEASES['4.4'] | {'kraft.version': 1}
            broker.stop()
        assert swapped[1].errors() == []
        for broker in brokers:
            broker.start()
            assert features_of(broker)[1] == RELEASES['4.4'] | {'kraft.version': 1}


def test_a_directory_of_the_levels_of_4_4_is_served_by_both_and_refused_by_kafka_4_3(tmp_path):
    """Both brokers also give the same answers to a client that expects another cluster or node."""
    directory = format_directory(tmp_path / 'data', '4.4')
    kafka, ours = KafkaProcess(directory, release='4.4'), BrokerProcess(directory)
    earlier = KafkaProcess(directory, release='4.3')
    with killed_at_the_end(kafka, ours, earlier):
        answers = []
        for broker in (kafka, ours):
            broker.start()
            assert features_of(broker) == (SUPPORTED_FEATURES, RELEASES['4.4'] | {'kraft.version': 1})
            answers.append([ask_versions(broker, *expected) for expected in EXPECTED])
            broker.stop()
        for expected, theirs, own in zip(EXPECTED, *answers, strict=True):
            assert own.error_code == theirs.error_code, expected
            if own.error_code != ErrorCode.NONE:
                assert own == theirs, expected
        assert kafka.errors() == []
        for _ in range(3):      # Kafka may halt before it has logged the reason, above all while its classes load
            with pytest.raises(AssertionError):
                earlier.start()
            if any("name='metadata.version', featureLevel=33" in line and 'only supports versions 7-30' in line
                   for line in earlier.lines):
                break
        else:
            pytest.fail(''.join(earlier.lines))
