"""Kafka's tools and Java clients work with a broker that requires logins. Users are created, log in, and are deleted.

Covers KIP-554.
"""
import subprocess

import pytest
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.brokers.secured_broker import MODULES, PASSWORD, SecuredSettings
from support.kafka.apache_kafka import config_command, java, run_tools

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

CONFIGS = config_command()
PRODUCER = 'org.apache.kafka.tools.ConsoleProducer'
CONSUMER = 'org.apache.kafka.tools.consumer.ConsoleConsumer'
LIMIT_S = 120


class Tools:
    """A broker, and the settings files of its clients."""

    def __init__(self, directory):
        (directory / 'certificates').mkdir()
        self._directory = directory
        self.plan = SecuredSettings(directory / 'certificates', ('SASL_PLAINTEXT', 'SASL_SSL'))
        self.broker = BrokerProcess(directory / 'data', PROMPT | self.plan.settings)
        self.broker.start()

    def client(self, protocol, mechanism, user='alice', password=PASSWORD):
        """Return the options with which any of Kafka's tools logs in."""
        escaped = password.replace('"', '\\\\"')
        module = 'plain.PlainLoginModule' if mechanism == 'PLAIN' else 'scram.ScramLoginModule'
        lines = [f'security.protocol={protocol}', f'sasl.mechanism={mechanism}', 'ssl.truststore.type=PEM',
                 f'ssl.truststore.location={self.plan.certificates / "ca.pem"}',
                 f'sasl.jaas.config={MODULES}.{module} required username="{user}" password="{escaped}";']
        if mechanism == 'OAUTHBEARER':
            lines[-1] = (f'sasl.jaas.config={MODULES}.oauthbearer.OAuthBearerLoginModule required '
                         f'unsecuredLoginStringClaim_sub="{user}";')
        file = self._directory / f'{protocol}-{mechanism}-{user}-{len(password)}.properties'
        file.write_text('\n'.join(lines))
        return ['--bootstrap-server', self.plan.addresses[protocol], '--command-config', str(file)]

    def configs(self, *options):
        done, = run_tools(CONFIGS, [*self.client('SASL_PLAINTEXT', 'PLAIN'), *options])
        assert done.code == 0, done
        return done.output

    def produce(self, client, line):
        return subprocess.run(java(PRODUCER, *client, '--topic', 'lines'), input=f'{line}\n', capture_output=True,
                              text=True, timeout=LIMIT_S, check=False)


@pytest.fixture(scope='module')
def tools(tmp_path_factory):
    tools = Tools(tmp_path_factory.mktemp('secured-tools'))
    try:
        yield tools
        assert tools.broker.tracebacks() == []
    finally:
        tools.broker.kill9()


def test_a_user_that_kafka_configs_makes_logs_in_until_it_is_deleted(tools):
    user = ['--entity-type', 'users', '--entity-name', 'carol']
    assert 'Completed updating' in tools.configs(
        '--alter', *user, '--add-config', 'SCRAM-SHA-512=[iterations=8192,password=pass,word]')
    assert 'SCRAM-SHA-512=iterations=8192' in tools.configs('--describe', *user)
    carol = tools.client('SASL_SSL', 'SCRAM-SHA-512', 'carol', 'pass,word')
    done = tools.produce(carol, 'from carol')
    assert (done.returncode, done.stderr) == (0, '')
    read, = run_tools(CONSUMER, [*carol, '--topic', 'lines', '--from-beginning', '--max-messages', '1'])
    assert 'from carol' in read.output
    tools.configs('--alter', *user, '--delete-config', 'SCRAM-SHA-512')
    assert 'SCRAM' not in tools.configs('--describe', *user)
    refused, = run_tools(CONFIGS, [*carol, '--describe', '--entity-type', 'topics'])
    assert refused.code != 0
    assert 'invalid credentials with SASL mechanism SCRAM-SHA-512' in refused.output + refused.errors


@pytest.mark.parametrize(('protocol', 'mechanism'), [('SASL_SSL', 'PLAIN'), ('SASL_PLAINTEXT', 'OAUTHBEARER')])
def test_the_java_client_logs_in(tools, protocol, mechanism):
    done, = run_tools('org.apache.kafka.tools.TopicCommand', [*tools.client(protocol, mechanism), '--list'])
    assert done.code == 0, done


def test_the_java_client_reports_a_wrong_password(tools):
    done, = run_tools('org.apache.kafka.tools.TopicCommand', [
        *tools.client('SASL_PLAINTEXT', 'PLAIN', password='wrong'), '--list'])
    assert done.code != 0
    assert 'Authentication failed: Invalid username or password' in done.output + done.errors
