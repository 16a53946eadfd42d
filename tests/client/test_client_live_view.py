"""Edge cases of the live view: other types of groups, errors for wrong addresses, and modules that it does not load."""
import subprocess
import sys
from contextlib import closing

import click
import pytest
from support.brokers.broker_process import ROOT
from support.brokers.scripted_broker import ScriptedBroker, running, serving
from support.runner.free_ports import free_port

from kbroker.client.config import ClientConfig
from kbroker.client.descriptions import GroupInfo
from kbroker.protocol import messages
from kbroker.protocol.codec import encode
from kbroker_tools.base.command import SETTINGS, Command
from kbroker_tools.cluster.live_view import LiveView
from kbroker_tools.cluster.opening import cluster_options, open_view


@click.command(cls=Command, context_settings=SETTINGS)
@cluster_options
def topics(**options):
    print(*open_view(**options).topics())


def failed(capsys, *arguments):
    """Run a command that fails. Return its one-line error, without the command's name."""
    with pytest.raises(SystemExit) as ended:
        topics.main([*arguments])
    written = capsys.readouterr()
    assert (ended.value.code, written.out, written.err.count('\n')) == (1, '', 1)
    return written.err.rstrip('\n').partition(': ')[2]


# ---- wrong addresses

def test_a_broker_that_is_not_there_is_one_line(capsys):
    port = free_port()
    assert failed(capsys, '--bootstrap-server', f'127.0.0.1:{port}') == (
        f'127.0.0.1:{port} cannot be reached (Connection refused): is a broker running there?')


def test_a_name_that_does_not_resolve_is_one_line(capsys):
    assert failed(capsys, '--bootstrap-server', 'no-such-host.invalid:9092').startswith(
        'no-such-host.invalid:9092: the host name cannot be resolved')


@pytest.mark.parametrize(('answer', 'words'), [
    (b'HTTP/1.1 400 Bad Request\r\n\r\n', 'answers with HTTP: that is not the port of a Kafka broker'),
    (b'\x15\x03\x03\0\2\2\x50', 'answers with TLS, and security.protocol is PLAINTEXT'),
    (b'', 'closed the connection instead of answering ApiVersions'),
])
def test_a_port_of_something_else_is_one_line(capsys, answer, words):
    def handle(connection):
        connection.recv(1000)
        connection.sendall(answer)

    with serving(handle) as port:
        assert words in failed(capsys, '--bootstrap-server', f'127.0.0.1:{port}')


def test_settings_that_are_wrong_are_one_line(capsys, tmp_path):
    file = tmp_path / 'client.properties'
    file.write_text('security.protocol=SASL_SSL\n')
    options = ('--bootstrap-server', 'localhost:9092', '--command-config', str(file))
    assert failed(capsys, *options).startswith('sasl.mechanism: found none, expected one of')
    words = "bootstrap server: found 'localhost', expected HOST:PORT"
    assert failed(capsys, '--bootstrap-server', 'localhost') == words
    file.write_text('security.protocol=SSL\nssl.truststore.location=/no/such/file\n')
    assert failed(capsys, *options) == '/no/such/file: No such file or directory'


# ---- transactions

def test_many_transactions_are_described_with_few_requests():
    """The answer omits an id that no coordinator knows. The view repeats the request for an id whose coordinator is
    loading."""
    ids = [f'tx-{number}' for number in range(1500)]
    broker = ScriptedBroker()
    loading = {'tx-7'}

    def coordinators(request):
        return messages.FindCoordinatorResponse(coordinators=[messages.FindCoordinatorResponse.Coordinator(
            key=key, node_id=1, host='127.0.0.1', port=broker.port) for key in request.coordinator_keys])

    def described(request):
        rows = [messages.DescribeTransactionsResponse.TransactionState(
            error_code=14 if name in loading else 105 if name == 'tx-8' else 0, transactional_id=name,
            transaction_state='Ongoing', transaction_timeout_ms=1, transaction_start_time_ms=2, producer_id=3)
            for name in request.transactional_ids]
        loading.clear()
        return messages.DescribeTransactionsResponse(transaction_states=rows)

    broker.versions['DescribeTransactions'] = (0, 0)
    broker.answers |= {'FindCoordinator': coordinators, 'DescribeTransactions': described}
    with running(broker), closing(LiveView(ClientConfig.load(f'127.0.0.1:{broker.port}'))) as view:
        found = view.transactions_of(ids)
    assert list(found) == [name for name in ids if name != 'tx-8']
    assert broker.asked.count('DescribeTransactions') == 3 and broker.asked.count('FindCoordinator') == 3


# ---- groups

class GroupBroker(ScriptedBroker):
    """A broker with one group, which has a type for which the protocol has a Describe request, or an unknown type."""

    def __init__(self, group_type, described=None):
        super().__init__()
        self.answers |= {
            'FindCoordinator': lambda request: messages.FindCoordinatorResponse(coordinators=[
                messages.FindCoordinatorResponse.Coordinator(key=request.coordinator_keys[0], node_id=1,
                                                             host='127.0.0.1', port=self.port, error_message=None)]),
            'ListGroups': lambda request: messages.ListGroupsResponse(groups=[
                messages.ListGroupsResponse.ListedGroup(group_id='g', protocol_type=group_type, group_state='Stable',
                                                        group_type=group_type)]),
            'DescribeGroups': lambda request: messages.DescribeGroupsResponse(groups=[described or self.missing]),
        }

    missing = messages.DescribeGroupsResponse.DescribedGroup(error_code=69, group_id='', group_state='Dead',
                                                             protocol_type='', protocol_data='')


def group(broker, group_id):
    with running(broker):
        view = LiveView(ClientConfig.load(f'127.0.0.1:{broker.port}'))
        try:
            return view.group(group_id)
        finally:
            view.close()


def test_a_group_of_a_kind_without_description_is_what_the_list_says():
    assert group(GroupBroker('share'), 'g') == GroupInfo('g', 'Stable', 'share', '', 1, ())
    assert group(GroupBroker('share'), 'other') is None


def assignment(version=0, tail=b''):
    row = messages.ConsumerProtocolAssignment
    return version.to_bytes(2) + encode(row(assigned_partitions=[row.TopicPartition(topic='t', partitions=[1, 0])]),
                                        min(version, 3)) + tail


@pytest.mark.parametrize(('protocol_type', 'data', 'partitions'), [
    ('consumer', assignment(), (('t', 0), ('t', 1))),
    ('consumer', assignment(9, b'what a later version adds'), (('t', 0), ('t', 1))),
    ('consumer', b'', ()),
    ('consumer', b'\0\0\xff\xff', ()),
    ('connect', assignment(), ()),
])
def test_the_assignment_of_a_member_is_read_where_it_is_one_of_the_consumer_protocol(protocol_type, data, partitions):
    response = messages.DescribeGroupsResponse
    described = response.DescribedGroup(
        group_id='g', group_state='Stable', protocol_type=protocol_type, protocol_data='range',
        members=[response.DescribedGroupMember(member_id='m', client_id='c', client_host='/h', member_metadata=b'',
                                               member_assignment=data)])
    (member,) = group(GroupBroker('classic', described), 'g').members
    assert member.assignment == partitions


# ---- start-up

def test_a_question_to_a_broker_loads_nothing_that_it_does_not_need(shared_broker):
    program = f'''
import sys
from kbroker.client.config import ClientConfig
from kbroker_tools.cluster.live_view import LiveView
view = LiveView(ClientConfig.load({shared_broker.address!r}))
assert view.transactions() == []
view.close()
print(*sys.modules)
'''
    loaded = set(subprocess.run([sys.executable, '-c', program], cwd=ROOT, check=True, capture_output=True,
                                text=True).stdout.split())
    assert 'kbroker.client.connection' in loaded
    assert loaded.isdisjoint({'ssl', 'hashlib', 'random', 'rich', 'asyncio', 'cramjam', 'lz4',
                              'backports.zstd', 'compression.zstd', 'kbroker.log', 'kbroker.record.compression',
                              'kbroker.settings.config', 'kbroker.client.fetching'})
