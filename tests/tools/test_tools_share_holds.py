"""`why-stuck` and the records that members of share groups hold, with a live broker and a share consumer."""
import json
import os
import re
import shutil

import pytest
from support.brokers.broker_fixtures import module_broker
from support.brokers.broker_process import PROMPT_SHARES
from support.runner.command_runner import run_in_process

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.producer import Producer
from kbroker.client.share_consumer import ShareConsumer
from kbroker.client.share_sessions import AcknowledgeType
from kbroker.client.stream_settings import ShareConsumerSettings
from kbroker.daemon.status import NoBrokerError

LOCK_MS = 3_600_000
SETTINGS = {
    **PROMPT_SHARES,
    'group.share.record.lock.duration.ms': str(LOCK_MS), 'group.share.max.record.lock.duration.ms': str(LOCK_MS),
}
WAIT_MS = 120_000
broker = module_broker(SETTINGS)


@pytest.fixture
def topic(broker, cluster, request):
    """Return the name of a topic and of a share group. The topic has two partitions, and four records in the first one.
    The group begins with these records."""
    topic = re.sub('[^a-z0-9]', '-', request.node.name)
    assert Admin(cluster).create_topics([NewTopic(topic, 2)]) == {topic: None}
    producer = Producer(cluster)
    for number in range(4):
        producer.send(topic, b'v%d' % number, partition=0)
    producer.flush()
    reset = run_in_process('share-groups', '--bootstrap-server', broker.address, '--group', topic, '--topic', topic,
                           '--reset-offsets', '--to-earliest', '--execute')
    assert reset.returncode == 0, reset.stderr
    return topic


@pytest.fixture
def consumer(cluster, topic):
    """Yield a member of the share group. It has received the four records and acknowledged none of them."""
    consumer = ShareConsumer(cluster, ShareConsumerSettings(topic, is_explicit=True))
    consumer.subscribe([topic])
    assert consumer.poll(WAIT_MS)
    yield consumer
    consumer.close()


def why_stuck(*arguments):
    return run_in_process('transactions', 'why-stuck', *arguments)


def share_groups(*arguments):
    done = why_stuck(*arguments, '--json')
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout)['share_groups']


def test_a_directory_and_a_broker_on_this_machine_show_the_same_held_records(broker, topic, consumer):
    found = share_groups(f'{topic}:0', '--data-dir', broker.directory)
    held, = found['ranges']
    member_id, since_ms, ends_ms = held.pop('member_id'), held.pop('since_ms'), held.pop('lock_ends_ms')
    assert (found['records'], found['left_out'], found['not_seen']) == (4, 0, None)
    assert held == {'group_id': topic, 'topic': topic, 'partition': 0, 'first_offset': 0, 'last_offset': 3,
                    'delivery_count': 1, 'is_ending': False}
    described = run_in_process('share-groups', '--bootstrap-server', broker.address, '--describe', '--members',
                               '--group', topic, '--json')
    assert member_id == json.loads(described.stdout)['consumer_id']
    assert ends_ms - since_ms == LOCK_MS
    named, = share_groups(topic, '--bootstrap-server', broker.address)['ranges']
    assert (named['member_id'], named['last_offset']) == (member_id, 3)


def test_the_table_has_a_row_for_each_held_range(broker, topic, consumer):
    consumer.acknowledge(topic, 0, 1, AcknowledgeType.ACCEPT)
    consumer.commit()
    done = why_stuck(f'{topic}:0', '--bootstrap-server', broker.address)
    assert done.returncode == 0, done.stderr
    verdict, *_, title, heading, first, second = done.stdout.splitlines()
    assert verdict.startswith(f'{topic}-0 is not held')
    assert title == 'share groups hold 3 records here:'
    assert heading.split() == ['Group', 'Topic', 'Partition', 'FirstOffset', 'LastOffset', 'Member', 'DeliveryCount',
                               'Since', 'LockEnds']
    rows = [[cell.strip() for cell in line.split('\t')] for line in (first, second)]
    assert [row[:5] for row in rows] == [[topic, topic, '0', '0', '0'], [topic, topic, '0', '2', '3']]
    assert all(row[6] == '1' and re.fullmatch(r'.*Z \(in .+\)', row[8]) for row in rows), rows


def test_a_share_group_is_a_group_to_ask_for(broker, topic, consumer):
    for place in (('--bootstrap-server', broker.address), ('--data-dir', broker.directory)):
        found = share_groups('--group', topic, *place)
        assert [(held['group_id'], held['first_offset']) for held in found['ranges']] == [(topic, 0)]


def test_partitions_without_held_records_have_no_table(broker, topic, consumer):
    done = why_stuck(f'{topic}:1', '--bootstrap-server', broker.address)
    assert (done.returncode, 'share groups' in done.stdout) == (0, False)
    assert share_groups(f'{topic}:1', '--data-dir', broker.directory) == {
        'records': 0, 'ranges': [], 'left_out': 0, 'not_seen': None}


def test_without_a_socket_the_command_says_how_to_see_what_is_held(broker, topic, consumer, monkeypatch):
    """The status socket exists only on the machine of the broker, so the command cannot use it for a remote broker."""
    def find_none(directory, question):
        raise NoBrokerError(directory)

    monkeypatch.setattr('kbroker_tools.stuck.holds.read_status', find_none)
    place = ('--bootstrap-server', broker.address)
    done = why_stuck(f'{topic}:0', *place)
    assert share_groups(f'{topic}:0', *place) == {
        'records': None, 'ranges': [], 'left_out': None,
        'not_seen': 'no kbroker of this cluster runs on this machine'}
    assert done.returncode == 0
    assert 'cannot be seen: no kbroker of this cluster runs on this machine' in done.stdout
    assert '--data-dir DIR' in done.stdout.splitlines()[-1]


def test_a_partition_directory_asks_the_broker_around_it(broker, topic, consumer):
    path = os.path.join(broker.directory, f'{topic}-0')
    assert share_groups(f'{topic}:0', '--data-dir', path)['records'] == 4


def test_a_copied_directory_holds_nothing(broker, topic, consumer, tmp_path):
    shutil.copytree(broker.directory, tmp_path / 'copy')
    assert share_groups(f'{topic}:0', '--data-dir', tmp_path / 'copy')['records'] == 0
