"""The fixtures of the pytest plugin: in plain tests, in asyncio, in classes of unittest, and in two processes."""
import asyncio
import pathlib
import subprocess
import sys

import pytest
from support.runner.pages import ROOT
from support.runner.suites import Suite

from kbroker.testing import BrokerError
from kbroker.testing.access import make_certificates

USES = '''
    import asyncio, unittest
    import pytest
    from confluent_kafka import Producer
    from kbroker.testing import Broker

    @pytest.mark.parametrize('number', [1, 2])
    def test_fresh(kafka, number):
        kafka.create_topic('payments')
        kafka.send('payments', b'%d' % number)
        assert kafka.values('payments') == [b'%d' % number]

    def test_in_asyncio(kafka):
        async def use():
            await asyncio.to_thread(kafka.create_topic, 'payments')
            return await asyncio.to_thread(kafka.values, 'payments')
        assert asyncio.run(use()) == []

    class TestWithAFixture(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def use(self, kafka):
            self.kafka = kafka

        def test_values(self):
            self.kafka.create_topic('payments')
            self.assertEqual(self.kafka.values('payments'), [])

    class TestWithoutPytest(unittest.TestCase):
        def setUp(self):
            self.kafka = self.enterContext(Broker())

        def test_values(self):
            self.kafka.create_topic('payments')
            self.assertEqual(self.kafka.values('payments'), [])

    def test_settings(kafka_factory):
        first = kafka_factory(settings={'num.partitions': '3'})
        second = kafka_factory(data_dir=first.data_dir.parent / 'other')
        assert first.bootstrap_servers != second.bootstrap_servers
        first.create_topic('payments', partitions=-1)
        assert len(Producer(first.client_config).list_topics('payments').topics['payments'].partitions) == 3
'''


def test_each_kind_of_test_gets_a_broker_of_its_own(tmp_path):
    """The bench of the fixture and the tests of leftovers use several processes."""
    suite = Suite(tmp_path, USES)
    run = suite.run()
    assert set(run.outcomes.values()) == {'PASSED'} and len(run.outcomes) == 6, run.output
    assert not [path for path in suite.temporary.iterdir() if path.name.startswith('kbroker-')]


def test_an_installed_package_brings_the_plugin_and_no_warning(tmp_path):
    suite = Suite(tmp_path, '''
        def test_has_a_broker(kafka):
            assert kafka.is_running
    ''')
    suite.install()
    (tmp_path / 'conftest.py').unlink()
    run = suite.run('-W', 'error')
    assert run.outcomes == {'test_has_a_broker': 'PASSED'}, run.output
    assert 'kbroker-1.0' in run.output


def test_a_suite_without_a_fixture_imports_nothing_of_the_kit(tmp_path):
    run = Suite(tmp_path, '''
        import sys
        def test_nothing_is_imported():
            assert [name for name in sys.modules if name.startswith('kbroker')] == [
                'kbroker', 'kbroker.testing', 'kbroker.testing.plugin', 'kbroker.testing.exploring',
                'kbroker.testing.exploring.plugin']
    ''').run()
    assert run.code == 0, run.output


@pytest.mark.parametrize('keywords', [
    "tls=True", "tls='mutual'", "sasl='PLAIN'", "sasl='SCRAM-SHA-256', tls=True", "sasl='SCRAM-SHA-512'"])
def test_clients_reach_a_secured_broker_with_its_files(keywords, kafka_factory):
    import aiokafka
    import kafka
    from confluent_kafka import Producer
    broker = kafka_factory(**eval(f'dict({keywords})'))
    broker.create_topic('orders')
    producer = Producer(broker.client_config | {'acks': 'all'})
    producer.produce('orders', b'confluent-kafka')
    producer.flush()
    with kafka.KafkaAdminClient(**broker.client_config.kafka_python) as admin:
        assert 'orders' in admin.list_topics()

    async def list_topics() -> set[str]:
        consumer = aiokafka.AIOKafkaConsumer(**broker.client_config.aiokafka)
        await consumer.start()
        topics = await consumer.topics()
        await consumer.stop()
        return set(topics)
    assert asyncio.run(list_topics()) == {'orders'}
    command = [sys.executable, '-m', 'kbroker_tools.commands.topics', '--command-config',
               str(broker.client_config.properties), '--bootstrap-server', broker.bootstrap_servers, '--list']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ['orders'], done.stderr
    assert broker.values('orders') == [b'confluent-kafka']


def test_a_client_without_a_login_is_refused(kafka_factory):
    from kbroker.client import Admin, KafkaError
    broker = kafka_factory(sasl='PLAIN')
    with pytest.raises((KafkaError, OSError)), Admin(broker.bootstrap_servers, default_api_timeout_ms=500) as admin:
        admin.create_topics({'orders': 1})


@pytest.mark.parametrize(('keywords', 'message'), [
    ({'sasl': 'SCRAM'}, "sasl: found 'SCRAM', expected one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
    ({'tls': 'both'}, "tls: found 'both', expected True, False or 'mutual'")])
def test_a_listener_that_does_not_exist_is_one_clear_error(keywords, message, kafka_factory):
    with pytest.raises(ValueError, match=message):
        kafka_factory(**keywords)


def test_certificates_without_openssl_are_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(BrokerError, match=r'found no program openssl.*: install the package openssl$'):
        make_certificates(tmp_path / 'certificates')


def test_a_directory_that_the_test_gives_stays_where_it_is_after_a_failure(tmp_path):
    run = Suite(tmp_path, f'''
        def test_fails(kafka_factory):
            kafka_factory(data_dir={str(tmp_path / 'given')!r}).create_topic('payments')
            assert False
    ''').run()
    assert run.outcomes == {'test_fails': 'FAILED'}
    assert pathlib.Path(tmp_path / 'given' / 'payments-0').exists()


SHARED = '''
    import pytest
    from kbroker.client import Consumer, Producer
    seen = []

    @pytest.mark.parametrize('number', [1, 2])
    def test_topics(kafka_session, number):
        topic = kafka_session.topic('payments')
        seen.append((kafka_session.pid, topic))
        kafka_session.send(topic, b'10')
        assert kafka_session.values(topic) == [b'10']

    def test_one_broker():
        (first, _), (second, _) = seen
        assert first == second
        assert [topic for _, topic in seen] == ['test_topics-1-1-payments', 'test_topics-2-2-payments']

    def test_leaves_a_transaction(kafka_session):
        kafka_session.create_topic('payments')
        producer = Producer(kafka_session.bootstrap_servers, transactional_id='billing-1')
        producer.init_transactions()
        producer.begin_transaction()
        producer.send('payments', b'10')
        producer.flush()

    def test_leaves_a_hold(kafka_session):
        kafka_session.hold('transaction.prepared', transactional_id='billing-2')
        kafka_session.unmatched = lambda: []

    def test_kills(kafka_session):
        kafka_session.kill()

    def test_finds_an_empty_broker(kafka_session):
        assert kafka_session.topics() == [] and kafka_session.control.rules == []
'''


def test_a_test_that_leaves_something_on_the_shared_broker_fails_and_the_next_one_finds_it_empty(tmp_path):
    run = Suite(tmp_path, SHARED).run()
    assert run.outcomes == {
        'test_topics[1]': 'PASSED', 'test_topics[2]': 'PASSED', 'test_one_broker': 'PASSED', 'test_kills': 'PASSED',
        'test_leaves_a_transaction': 'ERROR', 'test_leaves_a_hold': 'ERROR', 'test_finds_an_empty_broker': 'PASSED'}
    assert "the test left on the shared broker: transaction 'billing-1' is Ongoing" in run.output
    assert ("the test left on the shared broker: hold('transaction.prepared', transactional_id='billing-2') is in force"
            in run.output)
