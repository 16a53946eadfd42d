"""The report of a failed test: what its brokers contain, and what the test left."""
import pathlib
import re

import pytest
from support.runner.suites import Suite

from kbroker.testing import Broker, report

FAILS = '''
    import pytest
    from confluent_kafka import Producer

    def test_fails(kafka):
        producer = Producer({'bootstrap.servers': kafka.bootstrap_servers, 'transactional.id': 'billing-1'})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce('orders', b'10')
        producer.flush()
        kafka.END()
        assert [] == [b'10']
'''


@pytest.fixture(scope='module')
def failed(tmp_path_factory):
    """(directory, run): a suite that kills its broker in a transaction and fails."""
    directory = tmp_path_factory.mktemp('failed')
    return directory, Suite(directory, FAILS.replace('END', 'kill')).run('--kafka-report', 'pages')


def test_the_report_of_a_failed_test_has_timelines_histories_and_what_holds_readers(failed):
    directory, run = failed
    assert run.outcomes == {'test_fails': 'FAILED'}
    titles = re.findall(r'^-+ (kafka: .*?) -+$', run.output, re.MULTILINE)
    assert titles == ['kafka: why readers wait', 'kafka: timeline of orders:0', 'kafka: history of billing-1',
                      'kafka: timelines as HTML', 'kafka: the directory of the broker']
    assert "orders-0 is held at offset 0 by transactional.id 'billing-1': its transaction is open" in run.output
    assert 'transaction 1: open' in run.output
    page, = (directory / 'pages').iterdir()
    assert page.name == 'test_suite.py-test_fails.orders-0.html' and 'billing-1' in page.read_text()


def test_the_directory_of_a_failed_test_is_kept_and_opens(failed):
    directory, run = failed
    data_dir, = re.findall(r"^Open it: kbroker\.testing\.Broker\(data_dir='(.*)'\)", run.output, re.MULTILINE)
    assert pathlib.Path(data_dir) in list(directory.rglob('data'))
    with Broker(data_dir=data_dir) as kafka:
        assert kafka.values('orders', isolation='read_uncommitted') == [b'10']


def test_the_report_about_a_paused_broker_is_complete(tmp_path):
    run = Suite(tmp_path, FAILS.replace('END', 'pause')).run()
    assert 'kafka: why readers wait' in run.output
    assert 'kafka: history of billing-1' in run.output


def test_the_time_of_a_report_is_bounded_and_what_was_left_out_is_named(tmp_path):
    (tmp_path / 'orders-0').mkdir()
    (tmp_path / 'orders-0' / '00000000000000000000.log').write_bytes(b'x')
    (title, text), = report.sections_of(tmp_path, limit_s=0)
    assert title == 'kafka: no time was left for these commands'
    assert text.splitlines() == [f'kbroker-transactions --data-dir {tmp_path} {words}'
                                 for words in ('timeline orders:0', 'why-stuck')]


def test_a_long_section_has_its_first_and_last_lines():
    lines = report.shortened('\n'.join(map(str, range(1000)))).splitlines()
    assert len(lines) == report.MOST_LINES + 1
    assert lines[0] == '0' and lines[-1] == '999' and '... 880 lines more ...' in lines


def test_a_test_that_leaves_a_broker_open_fails_with_one_line(tmp_path):
    run = Suite(tmp_path, '''
        from kbroker.testing import Broker, report
        def test_leaks():
            test_leaks.broker = Broker()
        def test_is_not_to_blame():
            pass
    ''').run()
    assert re.search(r'^the test left a broker open \(process \d+ on \S+\): use `with Broker\(\)`, or the fixture '
                     'kafka_factory$', run.output, re.MULTILINE)
    assert run.outcomes == {'test_leaks': 'ERROR', 'test_is_not_to_blame': 'PASSED'}


def test_a_test_whose_fault_never_fired_fails_with_its_description(tmp_path):
    run = Suite(tmp_path, '''
        def test_sets_a_fault(kafka):
            kafka.create_topic('payments')
            kafka.delay('request', 50, api='Fetch', topic='payments')
    ''').run()
    assert run.outcomes == {'test_sets_a_fault': 'FAILED'}
    assert re.search(r"^matched no step: delay\('request', delay_ms=50, api='Fetch', topic='payments'\): let the test "
                     r'reach the point, or remove the line$', run.output, re.MULTILINE)


def test_the_report_has_the_holds_and_faults_with_their_counts_and_the_warnings(tmp_path):
    run = Suite(tmp_path, '''
        from kbroker.client import Producer
        def test_fails(kafka_factory):
            kafka = kafka_factory(settings={'num.network.threads': '3'})
            kafka.create_topic('payments')
            kafka.delay('append.written', 1, topic='payments')
            with Producer(kafka.bootstrap_servers) as producer:
                producer.send('payments', b'10')
                producer.flush()
            assert kafka.values('payments') == []
    ''').run()
    assert run.outcomes == {'test_fails': 'FAILED'}
    assert "delay('append.written', delay_ms=1, topic='payments'): matched 1 step" in run.output
    assert re.search(r'^\d\d:\d\d:\d\d warning .*num\.network\.threads has no effect', run.output, re.MULTILINE)
    assert "assert [b'10'] == []" in run.output
