"""kbroker-dump-log prints the same bytes as kafka-dump-log, for the logs of both brokers and for generated files."""
import subprocess
import sys
import tarfile

import pytest
from decoded import run_dump_tool, sections
from support.brokers.broker_process import ROOT, BrokerProcess
from support.clients.sample_topic import sample_topic
from support.disk.segment_corpus import corpus, damaged
from support.kafka.apache_kafka import TOOL_LIMIT_S, KafkaProcess

from kbroker.record.batch import encode_batch
from kbroker_tools.rows.releases import NEWEST

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DIRECTORIES = ROOT / 'tests' / 'data' / 'kafka-directories'
DUMPED = {'.log', '.checkpoint', '.index', '.timeindex', '.txnindex', '.snapshot'}
DECODERS = {'__consumer_offsets': '--offsets-decoder', '__transaction_state': '--transaction-log-decoder',
            '__cluster_metadata': '--cluster-metadata-decoder'}


def kafkas(files, *options, release=NEWEST):
    done = run_dump_tool(files, *options, release=release)
    return done.code, done.output.encode(), done.errors


def ours(files, *options):
    command = [sys.executable, '-m', 'kbroker_tools.commands.dump_log_start', *options,
               '--files', ','.join(map(str, files))]
    done = subprocess.run(command, capture_output=True, timeout=TOOL_LIMIT_S, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


def assert_same(files, *options, release=NEWEST):
    expected, found = kafkas(files, *options, release=release), ours(files, *options, '--compat', release)
    for line, other in zip(found[1].splitlines(), expected[1].splitlines(), strict=False):
        assert line == other
    assert found[1] == expected[1]
    assert sections(found[2]) == sections(expected[2])
    assert found[0] == expected[0] == 0


@pytest.mark.parametrize('options', [
    (), ('--deep-iteration',), ('--print-data-log',), ('--print-data-log', '--skip-record-metadata'),
    ('--deep-iteration', '--skip-record-metadata'), ('--print-data-log', '--max-bytes', '300'),
    ('--offsets-decoder', '--max-bytes', '1')], ids=' '.join)
def test_every_kind_of_batch_is_shown_as_kafka_does(options, tmp_path):
    assert_same(corpus(tmp_path), *options)


def test_the_suffix_decides(tmp_path):
    for name in ('plain', '00000000000000000000.log.deleted', '.hidden', 'x.txt'):
        (tmp_path / name).write_bytes(b'')
    assert_same(sorted(tmp_path.iterdir()))


def test_numbers_are_shown_by_kafkas_decoders(tmp_path):
    path = tmp_path / f'{0:020d}.log'
    path.write_bytes(encode_batch([(1, bytes(4), b'\xff' * 8), (2, b'\x80\x00\x00\x01', b'\x7f' + bytes(7)),
                                   (3, None, None)]))
    tools = 'org.apache.kafka.tools.api'
    assert_same([path], '--key-decoder-class', f'{tools}.IntegerDecoder',
                '--value-decoder-class', f'{tools}.LongDecoder')


def test_up_to_where_kafkas_tool_gives_up_both_say_the_same(tmp_path):
    for path in damaged(tmp_path):
        expected, found = kafkas([path], '--print-data-log'), ours([path], '--print-data-log', '--compat', NEWEST)
        assert found[:2] == expected[:2], path
        assert found[0] == 1
        assert len(found[2].splitlines()) == 1, found[2]


def assert_same_by_topic(root, release=NEWEST):
    """Compare the dumps of all files of a log directory. For an internal topic, use the decoder of the topic."""
    for topic in (*DECODERS, None):
        files = sorted(path for path in root.rglob('*') if path.suffix in DUMPED and path.is_file()
                       # Kafka's tool fails on an index over an empty log.
                       and not path.parent.name.endswith('-delete')
                       and (topic in str(path) if topic else not any(other in str(path) for other in DECODERS)))
        assert files, topic
        assert_same(files, DECODERS.get(topic, '--print-data-log'), release=release)


@pytest.mark.parametrize('release', ['4.3', NEWEST])
def test_directories_that_kafka_wrote_are_shown_as_kafka_does(tmp_path, release):
    for archive in DIRECTORIES.glob('*.tgz'):
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / archive.stem, filter='data')
    assert_same_by_topic(tmp_path, release)


@pytest.mark.parametrize('broker_class', [BrokerProcess, KafkaProcess])
def test_what_either_broker_leaves_of_a_history_is_shown_as_kafka_does(broker_class, tmp_path):
    with broker_class(tmp_path / 'data') as broker, sample_topic(broker.address):
        broker.stop()
    assert_same_by_topic(tmp_path / 'data')
