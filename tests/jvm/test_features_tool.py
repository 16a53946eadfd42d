"""kafka-features changes the levels of features on Apache Kafka and on kbroker, and prints the same.

Covers KIP-584 and KIP-1022.
"""
import pytest
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, run_tools
from support.kafka.shown_metadata import await_shown_metadata

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

TOOL = 'org.apache.kafka.tools.FeatureCommand'
RUNS = [
    ('upgrade', '--feature', 'transaction.version=2'),
    ('downgrade', '--feature', 'transaction.version=1', '--dry-run'),
    ('downgrade', '--feature', 'transaction.version=1'),
    ('upgrade', '--feature', 'transaction.version=2', '--dry-run'),
    ('upgrade', '--release-version', '4.3'),
    ('upgrade', '--feature', 'transaction.version=3'),
    ('upgrade', '--feature', 'group.version=1', '--feature', 'no.such.version=1'),
    ('downgrade', '--feature', 'metadata.version=20'),
    ('downgrade', '--release-version', '3.9', '--dry-run'),
    ('disable', '--feature', 'eligible.leader.replicas.version'),
    ('upgrade', '--feature', 'eligible.leader.replicas.version=1'),
]


def test_the_tool_prints_the_same(tmp_path):
    found = []
    for broker in (KafkaProcess(tmp_path / 'kafka'), BrokerProcess(tmp_path / 'kbroker')):
        with broker:
            runs = []
            for run in RUNS:
                runs += run_tools(TOOL, ['--bootstrap-server', broker.address, *run])
                await_shown_metadata(broker.address)
            asked, = run_tools(TOOL, ['--bootstrap-server', broker.address, 'describe'])
            found.append([*map(outcome, runs), levels(asked.output)])
    for run, kafka, ours in zip([*RUNS, 'describe'], *found, strict=True):
        assert ours == kafka, run


def outcome(run):
    """Return the exit code and the line for each feature. Omit the reason of a refusal."""
    return run.code, [line.partition('. ')[0].removesuffix('.') for line in run.output.splitlines()]


def levels(text):
    """Return the lines of `describe`. Omit the epoch, which is an offset of the metadata log."""
    return [line.partition('Epoch:')[0].split() for line in text.splitlines()]
