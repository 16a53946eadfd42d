"""kbroker-perf measures throughput and latency, with the options of Kafka's tools."""
import json
import re
import signal
import subprocess

import pytest
from support.runner.command_runner import ROOT, command_line, run_command, run_in_process

TOPIC = 'perf'


@pytest.fixture(scope='module')
def broker(shared_broker):
    for topic in (TOPIC, 'perf-end'):
        assert run_command('topics', '--bootstrap-server', shared_broker.address, '--create', '--topic', topic,
                           '--partitions', '2').returncode == 0
    return shared_broker


def run(broker, command, *arguments):
    return run_in_process('perf', command, '--bootstrap-server', broker.address, *arguments)


def test_records_are_written_at_a_rate_and_measured(broker):
    done = run(broker, 'produce', '--topic', TOPIC, '--num-records', 300, '--record-size', 50, '--throughput', 1000,
               '--reporting-interval', 100, '--producer-props', 'acks=all', 'linger.ms=1')
    assert (done.returncode, done.stderr) == (0, '')
    *_, last = re.findall(r'^(\d+) records sent, ([\d.]+) records/sec \(', done.stdout, re.MULTILINE)
    assert last[0] == '300' and float(last[1]) <= 1100
    assert re.search(r'ms 50th, .* ms 95th, .* ms 99th, .* ms 99.9th\.$', done.stdout, re.MULTILINE)
    assert 'latency of records: 300 values' in done.stdout


def test_transactions_are_committed_and_their_latency_measured(broker):
    done = run(broker, 'produce', '--topic', TOPIC, '--num-records', 200, '--payload-monotonic', '--throughput', 1000,
               '--transactional-id', 'perf', '--transaction-duration-ms', 50, '--json')
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row['kind'], row['records'], row['latency']['count'], row['failed']) == ('total', 200, 200, 0)
    assert 2 <= row['commits']['count'] <= 5
    shown = run_command('transactions', '--bootstrap-server', broker.address, 'describe', '--transactional-id', 'perf')
    assert 'Complete' in shown.stdout


def test_records_are_read_in_the_columns_of_kafka(broker):
    assert run(broker, 'produce', '--topic', TOPIC, '--num-records', 100, '--record-size', 50).returncode == 0
    done = run(broker, 'consume', '--topic', TOPIC, '--num-records', 100, '--print-metrics')
    heading, row, *rest = done.stdout.splitlines()
    assert len(heading.split(', ')) == len(row.split(', ')) == 10 and int(row.split(', ')[4]) >= 100
    assert rest[0].startswith('latency of polls') and any('records_consumed_total' in line for line in rest)
    alone = run(broker, 'consume', '--topic', TOPIC, '--num-records', 10, '--hide-header', '--json',
                '--isolation-level', 'read_committed')
    assert json.loads(alone.stdout)['kind'] == 'total'


def test_too_few_records_are_reported(broker):
    done = run(broker, 'consume', '--topic', TOPIC, '--num-records', 5, '--from-latest', '--timeout', 100)
    assert done.returncode == 1
    assert 'found 0 records, expected 5: no record arrived for 100 ms (--timeout)' in done.stderr


@pytest.mark.parametrize('options', [[], ['--producer-acks', '1'], ['--transactional-id', 'perf-end']])
def test_the_time_from_a_send_to_its_arrival(broker, options):
    done = run(broker, 'end-to-end', '--topic', 'perf-end', '--num-records', 5, '--record-size', 20, *options)
    assert (done.returncode, done.stderr) == (0, '')
    assert re.search(r'^Avg latency: [\d.]+ ms$', done.stdout, re.MULTILINE)
    assert 'latency from send to poll: 5 values' in done.stdout


@pytest.mark.parametrize(('arguments', 'words'), [
    (['produce', '--topic', 't', '--num-records', '1'], 'exactly one of --record-size, --payload-file and'),
    (['produce', '--topic', 't', '--num-records', '0', '--record-size', '1'], 'not in the range'),
    (['produce', '--topic', 't', '--num-records', '1', '--record-size', '1', 'acks=1'], "found the word 'acks=1'"),
    (['produce', '--topic', 't', '--num-records', '1', '--payload-delimiter', ''], 'found an empty text')])
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    done = run_in_process('perf', *arguments)
    assert done.returncode == 2 and words in ' '.join(done.stderr.split())


@pytest.mark.parametrize('options', [[], ['--transaction-duration-ms', '50']])
def test_a_run_that_is_interrupted_is_reported_up_to_then(broker, options):
    with subprocess.Popen(command_line('perf', 'produce', '--bootstrap-server', broker.address, '--topic', TOPIC,
                                       '--num-records', 10**8, '--record-size', 10, '--throughput', 1000,
                                       '--reporting-interval', 50, *options), cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        assert ' records sent, ' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, '') and 'latency of records: ' in rest


def test_values_come_from_a_file(broker, tmp_path):
    (tmp_path / 'values').write_text('one;two;')
    done = run(broker, 'produce', '--topic', TOPIC, '--num-records', 10, '--payload-file', tmp_path / 'values',
               '--payload-delimiter', ';')
    assert done.returncode == 0 and '10 records sent' in done.stdout
    (tmp_path / 'values').write_text('')
    done = run(broker, 'produce', '--topic', TOPIC, '--num-records', 10, '--payload-file', tmp_path / 'values')
    assert done.returncode == 1 and 'found no value, expected at least one' in done.stderr


def test_a_topic_that_is_not_there_is_one_line(broker):
    for command in ('consume', 'end-to-end'):
        size = ['--record-size', '1'] if command == 'end-to-end' else []
        done = run(broker, command, '--topic', 'perf-none', '--num-records', 1, *size)
        assert (done.returncode, done.stdout.count('latency'), done.stderr.count('\n')) == (1, 0, 1)
        assert 'topic perf-none: UNKNOWN_TOPIC_OR_PARTITION' in done.stderr
