"""Kafka's Java clients log in by every mechanism, report a wrong password, and renew their login."""
import json
import subprocess

import pytest
from support.brokers.secured_broker import MECHANISMS, MODULES, PASSWORD
from support.kafka.apache_kafka import java

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

LIMIT_S = 120
RENEWALS = 3
CASES = [(protocol, mechanism) for protocol in ('SASL_PLAINTEXT', 'SASL_SSL') for mechanism in MECHANISMS]
REFUSED = 'org.apache.kafka.common.errors.SaslAuthenticationException: '


def settings_file(directory, secured, protocol, mechanism, password=PASSWORD):
    escaped = password.replace('"', '\\\\"')
    module = 'plain.PlainLoginModule' if mechanism == 'PLAIN' else 'scram.ScramLoginModule'
    login = f'{MODULES}.{module} required username="alice" password="{escaped}";'
    if mechanism == 'OAUTHBEARER':
        login = f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice";'
    file = directory / f'{protocol}-{mechanism}.properties'
    file.write_text(f'bootstrap.servers={secured.plan.addresses[protocol]}\nsecurity.protocol={protocol}\n'
                    f'sasl.mechanism={mechanism}\nsasl.jaas.config={login}\nssl.truststore.type=PEM\n'
                    f'ssl.truststore.location={secured.plan.certificates / "ca.pem"}\n')
    return str(file)


def run(*arguments):
    done = subprocess.run(java('kbroker.Logins', *arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LIMIT_S, check=True)
    return json.loads(done.stdout)


def errors_of(files):
    """Produce a record with each settings file. Return the error of each, or an empty string."""
    answer = run('once', *files)
    return [answer[file] for file in files]


def test_the_java_producer_logs_in_by_each_mechanism(secured, tmp_path):
    files = [settings_file(tmp_path, secured, protocol, mechanism) for protocol, mechanism in CASES]
    assert errors_of(files) == [''] * len(CASES)


def test_the_java_producer_reports_a_wrong_password(secured, tmp_path):
    cases = [case for case in CASES if case[1] != 'OAUTHBEARER']
    files = [settings_file(tmp_path, secured, protocol, mechanism, 'wrong') for protocol, mechanism in cases]
    for (_, mechanism), error in zip(cases, errors_of(files), strict=True):
        reason = ('Authentication failed: Invalid username or password' if mechanism == 'PLAIN' else
                  f'Authentication failed during authentication due to invalid credentials with SASL mechanism '
                  f'{mechanism}')
        assert error == f'{REFUSED}{reason}'


@pytest.fixture(scope='module')
def renewed(secured, tmp_path_factory):
    """Maps each mechanism to the result of a producer that renews its login. All producers run at the same time."""
    directory = tmp_path_factory.mktemp('renewed')
    files = [settings_file(directory, secured, 'SASL_PLAINTEXT', mechanism) for mechanism in MECHANISMS]
    return dict(zip(MECHANISMS, run('renew', str(RENEWALS), *files).values(), strict=True))


@pytest.mark.parametrize('mechanism', MECHANISMS)
def test_the_java_producer_renews_its_login_and_loses_no_message(secured, renewed, mechanism):
    result = renewed[mechanism]
    assert result == {'sent': result['sent'], 'errors': [], 'read': list(range(result['sent']))}
    renewals = secured.renewals(mechanism)
    assert len(renewals) >= RENEWALS
    assert {line['outcome'] for line in renewals} == {'ok'}
