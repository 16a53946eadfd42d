"""The commands of every day do the same as Kafka's tools, on kbroker and on Apache Kafka: kbroker-topics, -groups,
-configs, -get-offsets, -log-dirs and -delete-records."""
import contextlib
import json
import pathlib
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, config_command, run_several_tools
from support.kafka.shown_metadata import await_shown_metadata
from support.runner.command_runner import run_in_process

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

KAFKA_TOOLS = {'topics': 'org.apache.kafka.tools.TopicCommand', 'configs': config_command(),
               'groups': 'org.apache.kafka.tools.consumer.group.ConsumerGroupCommand',
               'get-offsets': 'org.apache.kafka.tools.GetOffsetShell',
               'log-dirs': 'org.apache.kafka.tools.LogDirsCommand',
               'delete-records': 'org.apache.kafka.tools.DeleteRecordsCommand'}
# Heartbeats are frequent, because members of the consumer protocol get their partitions with the answers.
QUICK = {'group.consumer.heartbeat.interval.ms': '200', 'group.consumer.min.heartbeat.interval.ms': '200'}
LIMIT_S = 120
LONG = 'a-group-whose-name-is-longer-than-a-column'


@pytest.fixture(scope='module', params=[BrokerProcess, KafkaProcess], ids=['kbroker', 'apache-kafka'])
def staged(request, tmp_path_factory):
    """A broker with topics, settings, and groups with and without members."""
    broker = request.param(tmp_path_factory.mktemp('everyday') / 'data', PROMPT | QUICK)
    broker.start()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.kill9)
        stage(broker.address, stack, ['classic', 'consumer'])
        yield broker
    assert broker.tracebacks() == []


def stage(address, stack, protocols):
    servers = {'bootstrap.servers': address}
    admin = AdminClient(servers)
    topics = [NewTopic('orders', 3, config={'retention.ms': '86400000', 'cleanup.policy': 'compact,delete'}),
              NewTopic('payments', 2), NewTopic('empty', 1)]
    for made in admin.create_topics(topics).values():
        made.result()
    for broker in ('--broker=1', '--broker-defaults'):
        changed = run_in_process('configs', '--bootstrap-server', address, '--alter', broker, '--add-config',
                                 'message.max.bytes=2000000')
        assert changed.returncode == 0, changed.stderr
    await_shown_metadata(address)
    producer = Producer(servers)
    for number in range(12):
        for topic, partitions in (('orders', 3), ('payments', 2)):
            producer.produce(topic, f'{number}', partition=number % partitions)
    producer.flush()
    for group, at in ((LONG, TopicPartition('orders', 1, 2)), ('idle', TopicPartition('payments', 0, 1)),
                      ('idle', TopicPartition('orders', 0, 4))):
        committer = Consumer(servers | {'group.id': group})
        commit(committer, [at])
        committer.close()
    for protocol in protocols:
        active = servers | {'group.id': f'active-{protocol}', 'group.protocol': protocol,
                            'auto.offset.reset': 'earliest', 'enable.auto.commit': 'false'}
        assignor = {'group.remote.assignor': 'uniform'} if protocol == 'consumer' else {}
        members = [Consumer(active | assignor | {'client.id': 'one'}),
                   Consumer(active | {'client.id': 'two', 'group.instance.id': 'instance'})]
        for member in members:
            member.subscribe(['orders', 'payments', 'empty'])
            stack.callback(member.close)
        settle(members)


def settle(members):
    """Poll until each member has its share of the partitions. Then commit offsets for all partitions."""
    end, shares = time.monotonic() + LIMIT_S, []
    while sum(shares) != 6 or not all(shares):
        assert time.monotonic() < end, shares
        for member in members:
            member.poll(0.1)
        shares = [len(member.assignment()) for member in members]
    for member in members:
        member.poll(0.5)
        commit(member, [TopicPartition(at.topic, at.partition, 3) for at in member.assignment()])


def commit(consumer, offsets):
    """Commit offsets. Repeat the commit while Apache Kafka's coordinators load their partitions after a start."""
    passing = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
               KafkaError.COORDINATOR_NOT_AVAILABLE)
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            return
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > end:
                raise


def run_kafkas(address, runs):
    return run_several_tools([[KAFKA_TOOLS[name], '--bootstrap-server', address, *run] for name, run in runs])


def run_ours(address, runs):
    return [run_in_process(name, '--bootstrap-server', address, *run) for name, run in runs]


def both(address, cases):
    """Run cases that change nothing with both tools, concurrently. Return (run, Kafka's result, kbroker's result) for
    each.
    """
    runs = [(name, run) for name, some in cases.items() for run in some]
    with ThreadPoolExecutor(2) as pool:
        kafkas, ours = pool.submit(run_kafkas, address, runs), pool.submit(run_ours, address, runs)
        return list(zip(runs, kafkas.result(), ours.result(), strict=True))


def lines(text):
    """Return the lines of a text, sorted. Kafka prints them in the order of its hash tables."""
    return sorted(text.splitlines())


def words(text):
    """Return the sorted lines of a text as lists of words. Omit the coordinator's address, which is not in a log
    directory.
    """
    return sorted(re.sub(r'\S+:\d+  (\(\d+\))', r'\1', line).split() for line in text.splitlines())


def test_what_is_printed_is_what_kafkas_tools_print(staged):
    """The test also compares the tables of groups with those that kbroker-groups prints for the log directory."""
    cases = {
        'topics': [
            ('--list',), ('--list', '--exclude-internal', '--topic', 'orders|pay.*'),
            ('--describe', '--topic', 'orders'), ('--describe', '--exclude-internal'),
            ('--describe', '--topics-with-overrides', '--exclude-internal'),
            ('--describe', '--under-replicated-partitions'), ('--describe', '--unavailable-partitions'),
            ('--describe', '--at-min-isr-partitions', '--topic', 'orders,payments'),
            ('--describe', '--under-min-isr-partitions'), ('--describe', '--topic', 'nothing', '--if-exists'),
            ('--describe', '--topic', 'orders', '--partition-size-limit-per-response', '1')],
        'groups': [
            ('--list',), ('--list', '--state'), ('--list', '--state', 'empty'),
            ('--list', '--type', '--state'), ('--describe', '--all-groups'),
            ('--describe', '--all-groups', '--offsets', '--verbose'),
            ('--describe', '--all-groups', '--members'), ('--describe', '--all-groups', '--members', '--verbose'),
            ('--describe', '--all-groups', '--state'), ('--describe', '--all-groups', '--state', '--verbose'),
            *(('--reset-offsets', '--dry-run', '--group', 'idle', '--topic', 'orders', *where) for where in (
                ('--to-earliest',), ('--to-latest',), ('--to-current',), ('--to-offset', '99'),
                ('--by-duration', 'P1D'), ('--to-datetime', '2099-01-01T00:00:00.000'))),
            ('--reset-offsets', '--dry-run', '--group', 'idle', '--all-topics', '--shift-by', '-2'),
            ('--reset-offsets', '--dry-run', '--group', LONG, '--group', 'idle', '--topic', 'orders:1,2', '--to-latest',
             '--export')],
        'configs': [
            ('--describe', '--topic', 'orders'), ('--describe', '--topic', 'orders', '--all'),
            ('--describe', '--entity-type', 'topics'), ('--describe', '--broker', '1', '--all'),
            ('--describe', '--entity-type', 'brokers'), ('--describe', '--broker-defaults')],
    }
    different = []
    for run, kafka, ours in both(staged.address, cases):
        assert (kafka.code, ours.returncode) == (0, 0), (run, kafka.errors, ours.stderr)
        # kbroker prints this warning on stderr, and Kafka on stdout.
        said = re.sub(r'\nWarn: .* Falling back to latest known offset\.\n', '', kafka.output)
        if lines(ours.stdout) != lines(said):
            different.append(f'{run}\nKafka:\n{kafka.output}\nkbroker:\n{ours.stdout}')
        if run[0] == 'groups' and run[1][0] == '--describe':
            offline = run_in_process('groups', '--data-dir', staged.directory, *run[1])
            if words(offline.stdout) != words(said):
                different.append(f'{run}\nKafka:\n{kafka.output}\nkbroker of the directory:\n{offline.stdout}')
    assert not different, '\n'.join(different)


def test_offsets_and_sizes_are_those_that_kafkas_tools_print(staged):
    """The directory is compared, too. Apache Kafka preallocates no log files, so the sizes are those of its files."""
    cases = {'get-offsets': [
        (), ('--exclude-internal-topics',), ('--topic', 'orders,pay.*'), ('--topic', 'orders', '--partitions', '0,2'),
        ('--topic-partitions', 'orders:1-,pay.*:-1'), ('--topic-partitions', ':1'),
        *(('--exclude-internal-topics', '--time', time) for time in (
            'latest', '-1', 'earliest', '-2', 'max-timestamp', '-3', 'earliest-local', '-4', 'latest-tiered', '-5', '0',
            '9999999999999'))]}
    for run, kafka, ours in both(staged.address, cases):
        assert (kafka.code, ours.returncode) == (0, 0), (run, kafka.errors, ours.stderr)
        offline = run_in_process('get-offsets', '--data-dir', staged.directory, *run[1])
        assert lines(ours.stdout) == lines(kafka.output) == lines(offline.stdout), run
    cases = {'log-dirs': [('--describe',), ('--describe', '--topic-list', 'orders,payments'),
                          ('--describe', '--broker-list', '1')]}
    for run, kafka, ours in both(staged.address, cases):
        offline = run_in_process('log-dirs', '--data-dir', staged.directory, *run[1])
        assert directories(ours.stdout) == directories(kafka.output) == directories(offline.stdout), run


def directories(text):
    """Return the two lines of text and the document of kafka-log-dirs, with sorted partitions."""
    *said, document = text.splitlines()
    found = json.loads(document)
    for directory in found['brokers'][0]['logDirs']:
        directory['partitions'].sort(key=str)
    return said, found


def test_records_are_deleted_as_kafkas_tool_deletes_them(staged, tmp_path):
    """Each tool deletes from a topic of its own."""
    admin = AdminClient({'bootstrap.servers': staged.address})
    for made in admin.create_topics([NewTopic('they-deleted', 2), NewTopic('them-deleted', 2)]).values():
        made.result()
    await_shown_metadata(staged.address)
    producer = Producer({'bootstrap.servers': staged.address})
    for topic in ('they-deleted', 'them-deleted'):
        for number in range(6):
            producer.produce(topic, f'{number}', partition=number % 2)
    producer.flush()
    said = {}
    for who, run_tool in (('they', run_kafkas), ('them', run_ours)):
        file = tmp_path / f'{who}.json'
        file.write_text(json.dumps({'version': 1, 'partitions': [
            {'topic': f'{who}-deleted', 'partition': 0, 'offset': 2},
            {'topic': f'{who}-deleted', 'partition': 1, 'offset': -1}]}))
        done, = run_tool(staged.address, [('delete-records', ('--offset-json-file', str(file)))])
        said[who] = done.output if who == 'they' else done.stdout
    assert lines(said['them'].replace('them', 'they')) == lines(said['they'])
    found, = run_kafkas(staged.address, [('get-offsets', ('--topic', '.*-deleted', '--time', '-2'))])
    assert lines(found.output) == ['them-deleted:0:2', 'them-deleted:1:3', 'they-deleted:0:2', 'they-deleted:1:3']
    admin.delete_topics(['they-deleted', 'them-deleted'])
    await_shown_metadata(staged.address)


def test_what_is_changed_is_said_as_kafkas_tool_says_it(staged):
    """The two tools make the same changes, each to its own topics and group."""
    cases = [
        ('topics', ('--create', '--topic', '{}-new', '--partitions', '2', '--config', 'retention.ms=5')),
        ('topics', ('--create', '--topic', '{}-new', '--if-not-exists')),
        ('topics', ('--create', '--topic', '{}-with.dot')),
        ('topics', ('--alter', '--topic', '{}-new', '--partitions', '3')),
        ('configs', ('--alter', '--topic', '{}-new', '--add-config', 'segment.ms=77,cleanup.policy=[delete,compact]')),
        ('configs', ('--alter', '--topic', '{}-new', '--delete-config', 'retention.ms')),
        ('configs', ('--describe', '--topic', '{}-new')),
        ('groups', ('--reset-offsets', '--group', '{}-group', '--topic', 'orders:1', '--to-latest', '--execute')),
        ('groups', ('--describe', '--group', '{}-group')),
        ('groups', ('--delete-offsets', '--group', '{}-group', '--topic', 'orders:1')),
        ('groups', ('--reset-offsets', '--group', '{}-group', '--topic', 'orders:1', '--to-latest', '--execute')),
        ('groups', ('--delete', '--group', '{}-group')),
        ('topics', ('--delete', '--topic', '{}-.*')),
    ]

    def runs_for(who):
        return [(name, [text.format(who) for text in run]) for name, run in cases]

    def are_alike(text, kafka):
        return lines(text.replace('them', 'they')) == lines(kafka.output)

    def results(run_tool, who):
        """Run the cases one after the other. After each, wait until the broker shows the change. Return the results."""
        for run in runs_for(who):
            yield from run_tool(staged.address, [run])
            await_shown_metadata(staged.address)

    for (_, run), kafka, ours in zip(runs_for('them'), results(run_kafkas, 'they'), results(run_ours, 'them'),
                                     strict=True):
        assert (kafka.code, ours.returncode) == (0, 0), (run, kafka, ours.stderr)
        assert are_alike(ours.stdout, kafka), (run, ours.stdout, kafka.output)


def test_what_cannot_be_done_fails_in_one_line_with_the_brokers_reason(staged):
    cases = {
        'topics': [('--create', '--topic', 'orders'), ('--create', '--topic', 'a name'),
                   ('--alter', '--topic', 'orders', '--partitions', '2'), ('--describe', '--topic', 'nothing'),
                   ('--create', '--topic', 'new', '--config', 'no.such.setting=1')],
        'configs': [('--alter', '--topic', 'orders', '--add-config', 'no.such.setting=1'),
                    ('--alter', '--topic', 'orders', '--add-config', 'retention.ms=soon'),
                    ('--alter', '--topic', 'nothing', '--add-config', 'retention.ms=5')],
        'groups': [('--describe', '--group', 'nothing'), ('--delete', '--group', 'active-classic'),
                   ('--reset-offsets', '--execute', '--group', 'active-classic', '--topic', 'orders', '--to-latest'),
                   ('--delete-offsets', '--group', 'active-classic', '--topic', 'orders')],
    }
    for (name, run), kafka, ours in both(staged.address, cases):
        assert ours.returncode == 1, run
        assert ours.stderr.count('\n') == 1, (run, ours.stderr)
        assert 'Traceback' not in ours.stderr
        assert name == 'groups' or kafka.code == 1, 'only kafka-consumer-groups exits with 0'


def test_the_log_directory_says_the_same_without_the_broker(staged):
    """The command reads the directory while the broker still runs. The test does not compare topic settings that come
    from the defaults of all brokers.
    """
    directory = pathlib.Path(staged.directory)
    for name, run in (('topics', ('--list',)), ('groups', ('--list',)), ('groups', ('--list', '--state')),
                      ('groups', ('--describe', '--group', 'idle')),
                      ('topics', ('--describe', '--at-min-isr-partitions', '--topic', 'orders'))):
        live = run_in_process(name, '--bootstrap-server', staged.address, *run)
        offline = run_in_process(name, '--data-dir', directory, *run)
        assert (offline.returncode, offline.stdout) == (0, live.stdout), (run, offline.stderr)
