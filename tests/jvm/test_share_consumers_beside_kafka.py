"""Share consumers do the same on Apache Kafka and on kbroker, and kbroker-share-consume prints the same as Kafka's
tool.

Covers KIP-932 and KIP-1222.
"""
import json
import subprocess
import time

import pytest
from support.kafka.apache_kafka import java, run_tools
from support.kafka.beside_kafka import both_brokers
from support.kafka.shown_metadata import await_shown_metadata
from support.runner.command_runner import run_command, run_in_process

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(400)]

CONSOLE = 'org.apache.kafka.tools.consumer.ConsoleShareConsumer'
GROUPS = 'org.apache.kafka.tools.consumer.group.ShareGroupCommand'
VERIFIABLE = 'org.apache.kafka.tools.VerifiableShareConsumer'
LIMIT_S = 90
SETTINGS = {
    'share.coordinator.state.topic.replication.factor': '1', 'share.coordinator.state.topic.min.isr': '1',
    'group.share.heartbeat.interval.ms': '200', 'group.share.min.heartbeat.interval.ms': '200',
    'group.share.min.record.lock.duration.ms': '1000',
}
LOCK_MS = 10_000
PARTS = [option for name in ('partition', 'offset', 'delivery')
         for option in ('--formatter-property', f'print.{name}=true')]


@pytest.fixture(scope='module')
def brokers(tmp_path_factory):
    """The two brokers: [Apache Kafka, kbroker]."""
    with both_brokers(tmp_path_factory.mktemp('beside'), SETTINGS) as brokers:
        yield brokers


def prepared(broker, topic, partitions=1, texts=(), **settings):
    """Create a topic and write records. Create a group of the same name that reads the topic from its beginning. Return
    the options of the tools.
    """
    cluster = Cluster(ClientConfig.load(broker.address))
    assert Admin(cluster).create_topics([NewTopic(topic, partitions)]) == {topic: None}
    write(cluster, topic, texts, partitions)
    cluster.close()
    options = ['--bootstrap-server', broker.address, '--topic', topic, '--group', topic]
    reset = [*options, '--reset-offsets', '--to-earliest', '--execute']
    deadline = time.monotonic() + LIMIT_S
    while (done := run_in_process('share-groups', *reset)).returncode:
        # Kafka's group coordinator may learn of a new topic later than the leader of its partitions does.
        assert 'UNKNOWN_TOPIC_OR_PARTITION' in done.stderr and time.monotonic() < deadline, done.stderr
    return options


def write(cluster, topic, texts, partitions=1, transactional_id=None, commits=True):
    producer = Producer(cluster, ProducerSettings(transactional_id=transactional_id))
    if transactional_id is not None:
        producer.init_transactions()
        producer.begin_transaction()
    for number, text in enumerate(texts):
        producer.send(topic, text.encode(), partition=number % partitions)
    producer.flush()
    if transactional_id is not None:
        producer.commit_transaction() if commits else producer.abort_transaction()


def lines(text):
    return sorted(line.split() for line in text.splitlines() if line.strip())


def lag(options):
    described = run_in_process('share-groups', *options[:2], *options[4:], '--describe', '--json')
    return sum(json.loads(line)['lag'] for line in described.stdout.splitlines())


@pytest.mark.parametrize('outcome', [(), ('--release',), ('--reject',)])
def test_both_tools_print_the_same_on_both_brokers(brokers, outcome):
    """A record that is always released is delivered five times, which is the default of
    group.share.delivery.count.limit.
    """
    texts = [f'v{number}' for number in range(4)]
    count = str(len(texts) * (5 if '--release' in outcome else 1))
    more = [*PARTS, *outcome, '--max-messages', count, '--timeout-ms', '120000']
    found = []
    for broker in brokers:
        theirs, ours = (prepared(broker, f'printed-{tool}{"".join(outcome)}', texts=texts) for tool in ('java', 'ours'))
        found.append((lines(shown_by_kafkas_tool(theirs, more)), lag(theirs)))
        done = run_command('share-consume', *ours, *more, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        found.append((lines(done.stdout), lag(ours)))
    assert all(each == found[0] for each in found), found
    assert len(found[0][0]) == int(count) and found[0][1] == 0


def shown_by_kafkas_tool(options, more):
    """Return the output of the console share consumer."""
    done, = run_tools(CONSOLE, [*options, *more])
    assert done.code == 0, done.errors
    return done.output


def settled(ask, is_settled):
    deadline = time.monotonic() + LIMIT_S
    while not is_settled(found := ask()):
        assert time.monotonic() < deadline, found
    return found


def test_members_in_java_accept_each_record_once_on_both_brokers(brokers):
    """Three of Kafka's verifiable share consumers run, each with a different acknowledgement mode."""
    texts = [f'v{number}' for number in range(600)]
    for broker in brokers:
        options = prepared(broker, 'members', 3)
        members = [subprocess.Popen(java(VERIFIABLE, *options[:4], '--group-id', 'members', '--acknowledgement-mode',
                                         mode), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
                   for mode in ('auto', 'sync', 'async')]
        try:
            settled(lambda options=options: run_in_process('share-groups', *options[:2], *options[4:], '--describe',
                                                           '--members', '--json').stdout.splitlines(),
                    lambda found: len(found) == 3 and all(json.loads(line)['partitions'] for line in found))
            cluster = Cluster(ClientConfig.load(broker.address))
            write(cluster, 'members', texts, 3)
            cluster.close()
            settled(lambda options=options: lag(options), lambda found: found == 0)
            accepted = []
            for member in members:
                member.terminate()
                output, _ = member.communicate(timeout=LIMIT_S)
                events = [json.loads(line) for line in output.splitlines() if line.startswith('{')]
                accepted.append(sum(event['count'] for event in events if event['name'] == 'offsets_acknowledged'))
            assert sum(accepted) == len(texts), accepted
        finally:
            for member in members:
                member.kill()
                member.communicate()


def test_read_committed_hides_aborted_records_on_both_brokers(brokers):
    found = []
    for broker in brokers:
        options = prepared(broker, 'committed')
        isolated = run_in_process('configs', *options[:2], '--alter', '--entity-type', 'groups', '--entity-name',
                                  'committed', '--add-config', 'share.isolation.level=read_committed')
        assert isolated.returncode == 0, isolated.stderr
        await_shown_metadata(broker.address)
        cluster = Cluster(ClientConfig.load(broker.address))
        for number, commits in enumerate((True, False, True)):
            write(cluster, 'committed', [f'{number}a', f'{number}b'], transactional_id='writer', commits=commits)
        cluster.close()
        found.append(lines(shown_by_kafkas_tool(options, [*PARTS, '--max-messages', '4', '--timeout-ms', '120000'])))
    assert found[0] == found[1]
    assert [line[-1] for line in found[0]] == ['0a', '0b', '2a', '2b']


def test_resets_of_both_tools_print_the_same_on_both_brokers(brokers):
    runs = [('--to-earliest', '--dry-run'), ('--to-latest', '--execute'),
            ('--to-datetime', '2999-01-01T00:00:00.000', '--execute'),
            ('--to-datetime', '1999-01-01T00:00:00.000', '--execute')]
    for broker in brokers:
        options = prepared(broker, 'reset', 2, ['a', 'b', 'c'])
        for run, theirs in zip(runs, run_tools(GROUPS, *[[*options, '--reset-offsets', *run] for run in runs]),
                               strict=True):
            ours = run_in_process('share-groups', *options, '--reset-offsets', *run)
            table = [line for line in lines(theirs.output) if line[0] in ('GROUP', 'reset')]
            assert lines(ours.stdout) == table != [], (run, theirs)


def test_a_java_consumer_that_renews_its_locks_keeps_its_records_on_both_brokers(brokers):
    """The consumer renews its locks, and so keeps its records for longer than a lock lasts."""
    runs = []
    for broker in brokers:
        options = prepared(broker, 'renewed', texts=['a', 'b', 'c'])
        locked = run_in_process('configs', *options[:2], '--alter', '--entity-type', 'groups', '--entity-name',
                                'renewed', '--add-config', f'share.record.lock.duration.ms={LOCK_MS}')
        assert locked.returncode == 0, locked.stderr
        await_shown_metadata(broker.address)
        runs.append((options, subprocess.Popen(
            java('kbroker.Renewals', broker.address, 'renewed', '3', str(LOCK_MS + LOCK_MS // 2)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)))
    found = []
    try:
        for options, process in runs:
            output, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, errors
            found.append((output.splitlines(), lag(options)))
    finally:
        for _, process in runs:
            process.kill()
            process.communicate()
    assert found[0] == found[1]
    assert found[1] == ([f'lock: {LOCK_MS} ms', 'renewed: true', 'deliveries: a 1, b 1, c 1', 'accepted: a, b, c',
                         'failures: '], 0)
