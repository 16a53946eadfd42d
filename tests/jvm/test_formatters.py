"""kbroker-txn-state and the decoders print the rows of both brokers byte for byte as Apache Kafka's tools do.

Kafka's tools are the console consumer with its message formatters, and the dump tool. They differ in one respect: the
console consumer prints no end of line between objects, but kbroker prints one after each object.
"""
import confluent_kafka
import pytest
import streams_histories
from decoded import kafkas_text, our_text
from group_histories import Commit
from streams_histories import Standbys, StreamsBeat, StreamsJoin, StreamsLeave, StreamsSide
from support.brokers.broker_fixtures import either_broker
from support.clients.sample_topic import LIMIT_S, sample_topic
from support.kafka.apache_kafka import run_tools
from support.runner.command_runner import run_command

from kbroker.record.records import decode_records
from kbroker_tools.cluster.directory_view import DirectoryView
from kbroker_tools.rows.decoders import RowReader
from kbroker_tools.rows.releases import NEWEST

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

CONSUMER = 'org.apache.kafka.tools.consumer'
FORMATTERS = {'transaction': ('__transaction_state', 'TransactionLogMessageFormatter'),
              'offsets': ('__consumer_offsets', 'OffsetsMessageFormatter'),
              'group-metadata': ('__consumer_offsets', 'GroupMetadataMessageFormatter')}
SETTINGS = {**streams_histories.SETTINGS, 'transaction.state.log.num.partitions': '1',
            'group.initial.rebalance.delay.ms': '0'}
STREAMS_ROWS = {f'{name}Key' for name in ('StreamsGroupMetadata', 'StreamsGroupMemberMetadata', 'StreamsGroupTopology',
                                          'StreamsGroupTargetAssignmentMetadata', 'StreamsGroupTargetAssignmentMember',
                                          'StreamsGroupCurrentMemberAssignment')}
broker = either_broker(SETTINGS)


def consume_in_a_group(address):
    """Run a consumer of a group until it has a subscription and an assignment, and commit an offset."""
    consumer = confluent_kafka.Consumer({'bootstrap.servers': address, 'group.id': 'members',
                                         'auto.offset.reset': 'earliest', 'enable.auto.commit': False})
    consumer.subscribe(['orders'])
    message = consumer.poll(LIMIT_S)
    assert message is not None and message.error() is None
    consumer.commit(message, asynchronous=False)
    return consumer


def run_a_streams_group(address):
    """Let two members share the tasks of a topology, with standby tasks, endpoints and offsets. Then let one member
    leave.
    """
    side = StreamsSide(address, 'counting')
    for operation in [Standbys(1), StreamsJoin('A', 'count', endpoint='host'), StreamsBeat('A'),
                      *[StreamsBeat('A', 'last')] * 2, StreamsJoin('B', 'count'),
                      *[StreamsBeat(slot, 'last') for slot in 'ABAB'], Commit('A', 'a', 0, 0, 9), StreamsLeave('B')]:
        operation.run(side)
    return side


def rows_of(directory):
    """Return the kinds of rows in `__consumer_offsets`, which are the names of the types of their keys."""
    reader = RowReader('__consumer_offsets')
    rows = [reader.read(record.key, record.value) for header, data in DirectoryView(directory).batches(
        '__consumer_offsets', 0) if not header.is_control for record in decode_records(data)]
    return {type(key).__name__ for key, _, _ in rows}


def count_of_records(directory, topic):
    return sum(header.records_count for header, _ in DirectoryView(directory).batches(topic, 0)
               if not header.is_control)


def kafkas(broker, topic, formatter):
    """Return Kafka's output for all records. The tool does not stop at the end of the log, so it gets the number of
    records.
    """
    done, = run_tools(f'{CONSUMER}.ConsoleConsumer', [
        '--bootstrap-server', broker.address, '--topic', topic, '--partition', '0', '--offset', 'earliest',
        '--formatter', f'{CONSUMER}.{formatter}', '--max-messages', str(count_of_records(broker.directory, topic))],
        release=NEWEST)
    assert done.code == 0, done.errors
    return done.output


def ours(*arguments):
    done = run_command('txn-state', '--from-beginning', *arguments)
    assert (done.returncode, done.stderr) == (0, '')
    return done.stdout


def test_rows_are_shown_as_the_console_consumer_and_the_dump_tool_show_them(broker):
    with sample_topic(broker.address):
        consumer = consume_in_a_group(broker.address)
        side = run_a_streams_group(broker.address)
        assert rows_of(broker.directory) > STREAMS_ROWS
        expected = {name: kafkas(broker, *row) for name, row in FORMATTERS.items()}
        live = {name: ours('--bootstrap-server', broker.address, '--formatter', name) for name in FORMATTERS}
        offline = {name: ours('--data-dir', broker.directory, '--formatter', name) for name in FORMATTERS}
        consumer.close()
        side.close()
    assert live == offline
    assert {name: text.replace('\n', '') for name, text in live.items()} == expected
    for name, text in live.items():
        assert expected[name]
        assert all(line.startswith('{"key":{"type":') and line.endswith('}') for line in text.splitlines())
    assert '"members":[{"memberId":' in expected['group-metadata']
    assert '"transactionStatus":"PrepareCommit"' in expected['transaction']
    broker.stop()
    for name, topic in (('offsets', '__consumer_offsets'), ('transaction', '__transaction_state'),
                        ('cluster-metadata', '__cluster_metadata'), ('string', 'orders')):
        files = sorted(path for path in broker.directory.glob(f'{topic}-*/*.log') if path.stat().st_size)
        assert our_text(name, files) == kafkas_text(name, files)
