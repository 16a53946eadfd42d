"""kbroker-share-consume and kbroker-share-groups with a live broker: outcomes of records, and resets of groups."""
import json
import re
import signal
import subprocess

import pytest
from support.brokers.broker_fixtures import module_broker
from support.brokers.broker_process import PROMPT_SHARES
from support.runner.command_runner import ROOT, command_line, run_command, run_in_process, run_until_idle

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer import Producer
from kbroker_tools.groups.offset_resets import csv_row

LIMIT_S = 120
broker = module_broker(PROMPT_SHARES)


@pytest.fixture
def place(broker, request):
    """Return the options that name a topic of one partition and a group of the same name. The group begins at the
    topic's start."""
    cluster, topic = Cluster(ClientConfig.load(broker.address)), re.sub('[^a-z0-9]', '-', request.node.name)
    assert Admin(cluster).create_topics([NewTopic(topic, 1)]) == {topic: None}
    producer = Producer(cluster)
    for number in range(4):
        producer.send(topic, b'v%d' % number, partition=0)
    producer.flush()
    cluster.close()
    found = ('--bootstrap-server', broker.address, '--topic', topic, '--group', topic)
    reset = run_in_process('share-groups', *found, '--reset-offsets', '--to-earliest', '--execute')
    assert reset.returncode == 0, reset.stderr
    return found


def lag(place):
    described = run_in_process('share-groups', *place[:2], *place[4:], '--describe', '--json')
    return [json.loads(line)['lag'] for line in described.stdout.splitlines()]


def consume(place, *options):
    return run_command('share-consume', *place, *options, timeout=LIMIT_S)


def test_shown_records_are_accepted_and_the_rest_is_released(place):
    first = consume(place, '--max-messages', '1')
    assert (first.stdout, first.stderr, first.returncode) == ('v0\n', 'Processed a total of 1 messages\n', 0)
    assert lag(place) == [3]
    expected = 'Delivery:2\tv1\nDelivery:2\tv2\nDelivery:2\tv3\n'
    rest = run_until_idle(lambda ms: consume(place, '--timeout-ms', ms, '--formatter-property', 'print.delivery=true'),
                          expected.__eq__)
    assert rest.stdout == expected
    assert lag(place) == [0]


def test_released_records_come_again_and_rejected_ones_do_not(place):
    assert [line.split() for line in consume(place, '--max-messages', '8', '--release', '--property',
                                             'print.delivery=true').stdout.splitlines()] == [
        [f'Delivery:{count}', f'v{number}'] for count in (1, 2) for number in range(4)]
    assert consume(place, '--max-messages', '4', '--reject', '--json').stdout.count('"delivery_count":3') == 4
    assert lag(place) == [0]


def test_a_record_that_cannot_be_shown_ends_the_command_or_is_rejected(place):
    cluster = Cluster(ClientConfig.load(place[1]))
    producer = Producer(cluster)
    producer.send(place[3], b'', key=b'\x00', partition=0)
    producer.flush()
    cluster.close()
    halted = consume(place, '--formatter', 'offsets')
    assert halted.returncode == 1 and 'offset 4' in halted.stderr
    assert lag(place) == [1]
    rejected = consume(place, '--formatter', 'offsets', '--max-messages', '1', '--reject-message-on-error')
    assert rejected.returncode == 0 and 'rejecting this message' in rejected.stderr
    assert lag(place) == [0]


def test_properties_of_the_formatter_come_from_a_file_too(place, tmp_path):
    properties = tmp_path / 'formatter.properties'
    properties.write_text('print.offset=true\nprint.key=true\n')
    shown = consume(place, '--formatter-config', properties, '--property', 'print.key=false', '--max-messages', '1')
    assert shown.stdout == 'Offset:0\tv0\n'


def test_an_interrupt_ends_the_membership(place):
    process = subprocess.Popen(command_line('share-consume', *place), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, cwd=ROOT)
    try:
        assert [process.stdout.readline() for _ in range(4)] == [f'v{number}\n' for number in range(4)]
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, complaints
    finally:
        process.kill()
        process.communicate()
    described = run_in_process('share-groups', *place[:2], *place[4:], '--describe', '--state', '--json')
    assert json.loads(described.stdout)['state'] == 'Empty'


def test_the_command_for_consumer_groups_names_the_one_for_share_groups(place):
    found = run_in_process('groups', *place[:2], '--describe', *place[4:])
    assert found.returncode == 1 and f'group {place[5]} is a share group, see kbroker-share-groups' in found.stderr


def test_a_missing_topic_is_reported(broker):
    missing = consume(('--bootstrap-server', broker.address, '--topic', 'nowhere'))
    assert missing.returncode == 1 and 'topic nowhere' in missing.stderr


def test_one_outcome_can_be_chosen():
    both = run_in_process('share-consume', '--bootstrap-server', 'localhost:1', '--topic', 't', '--release', '--reject')
    assert both.returncode == 2 and 'At most one of --reject and --release' in both.stderr


@pytest.mark.parametrize(('options', 'offset'), [
    (('--to-latest',), 4), (('--to-earliest',), 0), (('--to-datetime', '1999-01-01T00:00:00.000'), 0),
    (('--to-datetime', '2999-01-01T00:00:00.000'), 4), (('--to-offset', '3'), 3), (('--to-offset', '-1'), 0),
    (('--to-offset', '9'), 4), (('--to-current',), 0),
])
def test_a_reset_is_shown_and_with_execute_made(place, options, offset):
    topic = place[3]
    for begun in ('--to-latest', '--to-earliest'):
        run_in_process('share-groups', *place, '--reset-offsets', begun, '--execute')
    for how, lag_then in (('--dry-run', 4), ('--execute', 4 - offset)):
        found = run_in_process('share-groups', *place, '--reset-offsets', *options, how)
        assert [line.split() for line in found.stdout.splitlines() if line] == [
            ['GROUP', 'TOPIC', 'PARTITION', 'NEW-OFFSET'], [topic, topic, '0', str(offset)]], found.stderr
        assert lag(place) == [lag_then]


@pytest.mark.parametrize(('options', 'message'), [
    (('--to-earliest', '--execute'), '--reset-offsets needs --topic or --all-topics'),
    (('--to-earliest', '--topic', 't'), 'give exactly one of --dry-run and --execute'),
    (('--execute', '--topic', 't'), 'give exactly one of --to-earliest, --to-latest, --to-current, --to-offset, '
     '--to-datetime and --from-file'),
    (('--to-earliest', '--execute', '--topic', 't', '--group', 'h'), '--reset-offsets takes one --group'),
])
def test_options_of_a_reset_that_do_not_go_together_are_refused(options, message):
    found = run_in_process('share-groups', '--bootstrap-server', 'localhost:1', '--group', 'g', '--reset-offsets',
                           *options)
    assert found.returncode == 2 and message in found.stderr


def test_offsets_outside_the_log_are_moved_to_its_ends_with_a_note(place):
    found = run_in_process('share-groups', *place, '--reset-offsets', '--to-offset', '9', '--dry-run')
    assert f'{place[3]}-0: 9 is above the end of the log, using 4' in found.stderr
    assert found.returncode == 0


def test_exported_offsets_are_a_plan_that_a_file_executes(place, tmp_path):
    topic = place[3]
    exported = run_in_process('share-groups', *place, '--reset-offsets', '--to-offset', '2', '--dry-run', '--export')
    assert exported.stdout.split() == [csv_row((topic, 0, 2))]
    plan = tmp_path / 'plan.csv'
    plan.write_text(exported.stdout)
    done = run_in_process('share-groups', *place[:2], *place[4:], '--reset-offsets', '--from-file', str(plan),
                          '--execute')
    assert done.stdout.split()[-4:] == [topic, topic, '0', '2'], done.stderr
    assert lag(place) == [2]
    current = run_in_process('share-groups', *place[:2], *place[4:], '--reset-offsets', '--all-topics', '--to-current',
                             '--dry-run', '--export')
    assert current.stdout == exported.stdout


@pytest.mark.parametrize(('text', 'message'), [
    ('no.such.topic,0,2', 'there is no partition no.such.topic-0'), ('orders,0', 'line 1: found'),
])
def test_a_file_that_does_not_fit_changes_nothing(place, tmp_path, text, message):
    plan = tmp_path / 'plan.csv'
    plan.write_text(text)
    done = run_in_process('share-groups', *place[:2], *place[4:], '--reset-offsets', '--from-file', str(plan),
                          '--execute')
    assert done.returncode == 1 and message in done.stderr
    assert lag(place) == [4]


def test_a_partition_in_which_the_group_has_not_begun_has_no_current_offset(place):
    topic = place[3]
    cluster = Cluster(ClientConfig.load(place[1]))
    assert Admin(cluster).create_partitions({topic: 2}) == {topic: None}
    cluster.close()
    done = run_in_process('share-groups', *place, '--reset-offsets', '--to-current', '--dry-run')
    assert done.returncode == 1
    assert f"group '{topic}' has not begun in {topic}-1: name only partitions with a start offset" in done.stderr
    one = run_in_process('share-groups', *place[:2], *place[4:], '--topic', f'{topic}:0', '--reset-offsets',
                         '--to-current', '--dry-run')
    assert one.stdout.split()[-4:] == [topic, topic, '0', '0'], one.stderr


def test_a_group_that_is_none_cannot_be_reset_in_all_topics(broker):
    found = run_in_process('share-groups', '--bootstrap-server', broker.address, '--group', 'nobody', '--reset-offsets',
                           '--all-topics', '--to-earliest', '--execute', '--timeout', '30000')
    assert found.returncode == 1 and 'has no offsets' in found.stderr
