"""Kafka's tools and kbroker's commands log in to kbroker with the same settings file."""
import subprocess
import sys

import pytest
from support.brokers.broker_process import PROMPT, ROOT, BrokerProcess
from support.brokers.secured_broker import MODULES, PASSWORD, SecuredSettings
from support.kafka.apache_kafka import run_several_tools
from support.runner.command_runner import run_in_process

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

TOPIC_TOOL = 'org.apache.kafka.tools.TopicCommand'
CASES = [(protocol, mechanism) for protocol in ('SASL_PLAINTEXT', 'SASL_SSL')
         for mechanism in ('PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER')]


@pytest.fixture(scope='module')
def secured(tmp_path_factory):
    """Yield the settings of a running broker."""
    directory = tmp_path_factory.mktemp('secured')
    plan = SecuredSettings(directory, ('SASL_PLAINTEXT', 'SASL_SSL'))
    users = [f'--add-scram={mechanism}=[name=alice,password={PASSWORD}]'
             for mechanism in ('SCRAM-SHA-256', 'SCRAM-SHA-512')]
    subprocess.run([sys.executable, '-m', 'kbroker', 'storage', '--data-dir', str(directory / 'data'), *users],
                   cwd=ROOT, check=True, capture_output=True)
    with BrokerProcess(directory / 'data', PROMPT | plan.settings):
        yield plan


def login_module(mechanism, password):
    if mechanism == 'OAUTHBEARER':
        return f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice";'
    module = 'plain.PlainLoginModule' if mechanism == 'PLAIN' else 'scram.ScramLoginModule'
    escaped = password.replace('"', '\\\\"')
    return f'{MODULES}.{module} required username="alice" password="{escaped}";'


def settings_file(directory, plan, protocol, mechanism, password=PASSWORD):
    file = directory / f'{protocol}-{mechanism}-{len(password)}.properties'
    file.write_text(f'security.protocol={protocol}\nsasl.mechanism={mechanism}\nssl.truststore.type=PEM\n'
                    f'ssl.truststore.location={plan.certificates / "ca.pem"}\n'
                    f'sasl.jaas.config={login_module(mechanism, password)}\n')
    return file


def test_each_mechanism(secured, tmp_path):
    runs, names = [], []
    for protocol, mechanism in CASES:
        file = settings_file(tmp_path, secured, protocol, mechanism)
        names.append(f'{protocol}-{mechanism}'.lower())
        common = ('--bootstrap-server', secured.addresses[protocol], '--command-config', str(file))
        runs.append((TOPIC_TOOL, *common, '--create', '--topic', names[-1]))
        done = run_in_process('topics', *common, '--list')
        assert (done.returncode, done.stderr) == (0, ''), done
    for run in run_several_tools(runs):
        assert run.code == 0, run
    listed = run_in_process('topics', *common, '--list').stdout.split()
    assert listed == sorted(names)


def test_a_wrong_password(secured, tmp_path):
    for mechanism in ('PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512'):
        file = settings_file(tmp_path, secured, 'SASL_PLAINTEXT', mechanism, 'wrong')
        arguments = ('--bootstrap-server', secured.addresses['SASL_PLAINTEXT'], '--command-config', str(file), '--list')
        (kafkas,) = run_several_tools([(TOPIC_TOOL, *arguments)])
        ours = run_in_process('topics', *arguments)
        for text in (kafkas.output + kafkas.errors, ours.stderr):
            assert ('Invalid username or password' if mechanism == 'PLAIN' else
                    f'due to invalid credentials with SASL mechanism {mechanism}') in text
        assert kafkas.code == 1 and ours.returncode == 1
