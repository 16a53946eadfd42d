"""Names that clients choose, in the output of commands: each one stays in its line, whatever characters it has."""
import json

import pytest
from support.runner.command_runner import run_in_process

from kbroker.client import Admin, Consumer, Producer
from kbroker.client.admin import NewTopic

NAME = 'a\x1b[2J\u202e\nKBROKER b'
SHOWN = 'a\\x1b[2J\\u202e\\nKBROKER b'


@pytest.fixture(scope='module')
def used(shared_broker):
    """Yield a broker with a group, a member and a transaction, which all have the given name."""
    with Admin(shared_broker.address) as admin:
        admin.create_topics([NewTopic('t', 1)])
    with (Consumer(shared_broker.address, group_id=NAME, client_id=NAME, topics=['t']) as consumer,
          Producer(shared_broker.address, transactional_id=NAME) as producer):
        while not consumer.assignment:
            consumer.poll(100)
        consumer.commit({('t', 0): 0})
        producer.begin_transaction()
        producer.send('t', b'v')
        producer.flush()
        yield shared_broker


COMMANDS = [
    ('groups', '--list'), ('groups', '--describe', '--all-groups'),
    ('groups', '--describe', '--group', NAME, '--members'),
    ('groups', '--describe', '--all-groups', '--state'), ('groups', '--list', '--state'),
    ('groups', '--delete', '--group', NAME), ('groups', '--delete-offsets', '--group', NAME, '--topic', 't'),
    ('groups', '--reset-offsets', '--group', NAME, '--topic', 't', '--to-earliest'),
    ('transactions', 'list'), ('transactions', 'describe', '--transactional-id', NAME),
    ('transactions', 'why-stuck', 't:0'), ('transactions', 'history', NAME), ('transactions', 'timeline', 't:0'),
    ('txn-state', '--from-beginning', '--transactional-id', NAME), ('topics', '--describe', '--topic', NAME)]


@pytest.mark.parametrize('place', ['broker', 'directory'])
@pytest.mark.parametrize('command', COMMANDS, ids=range(len(COMMANDS)))
def test_a_name_makes_no_line_and_no_sequence_that_a_terminal_obeys(used, command, place):
    name, *arguments = command
    where = ['--bootstrap-server', used.address] if place == 'broker' else ['--data-dir', str(used.directory)]
    done = run_in_process(name, *arguments, *where)
    for text in (done.stdout, done.stderr):
        assert text.replace('\n', '').replace('\t', '').isprintable(), text
        assert not any(line.startswith('KBROKER') for line in text.splitlines()), text


def test_a_list_has_the_names_in_lines_in_json_and_on_request_as_they_are(used):
    def listed(*options):
        return run_in_process('groups', '--list', '--bootstrap-server', used.address, *options).stdout

    assert listed() == SHOWN + '\n'
    assert json.loads(listed('--json'))['group'] == NAME
    assert listed('--raw') == NAME + '\n'
