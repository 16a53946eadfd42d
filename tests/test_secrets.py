"""No secret leaves the broker: no secret is in logs, the audit log, DescribeConfigs, the status, answers to clients or
tracebacks.
"""
import functools
import hashlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from support.clients.certificates import make_certificates
from support.kafka.secured_kafka import PLAIN, SCRAM
from support.runner.free_ports import free_port

SECRETS = {name: f'marker-{name}-secret' for name in
           ('key-password', 'plain-admin', 'plain-other', 'scram', 'wrong', 'changed', 'refused', 'misspelt')}


@pytest.fixture
def broker(start_broker, tmp_path):
    """A broker in whose settings a recognizable marker stands for each secret."""
    certificates = make_certificates(tmp_path)
    subprocess.run(['openssl', 'pkcs8', '-topk8', '-in', 'server.key', '-passout',
                    f'pass:{SECRETS["key-password"]}', '-out', 'server.enc'], cwd=certificates, check=True)
    port = free_port()
    broker = start_broker({
        'listeners': f'SASL_SSL://127.0.0.1:{port}', 'advertised.listeners': f'SASL_SSL://localhost:{port}',
        'ssl.keystore.key': (certificates / 'server.enc').read_text().replace('\n', ' '),
        'ssl.keystore.certificate.chain': (certificates / 'server.crt').read_text().replace('\n', ' '),
        'ssl.key.password': SECRETS['key-password'], 'sasl.enabled.mechanisms': 'PLAIN,SCRAM-SHA-512',
        'listener.name.sasl_ssl.plain.sasl.jaas.config':
            f'{PLAIN} required user_admin="{SECRETS["plain-admin"]}" user_other="{SECRETS["plain-other"]}";',
        'listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config': f'{SCRAM} required;',
        'authorizer.class.name': 'StandardAuthorizer', 'super.users': 'User:admin',
        'kbroker.audit.log': str(tmp_path / 'audit.log')})
    broker.port, broker.certificates, broker.audit = port, certificates, tmp_path / 'audit.log'
    return broker


def admin(broker, user, password, mechanism='PLAIN'):
    return AdminClient({'bootstrap.servers': f'localhost:{broker.port}', 'security.protocol': 'SASL_SSL',
                        'sasl.mechanism': mechanism, 'sasl.username': user, 'sasl.password': password,
                        'ssl.ca.location': str(broker.certificates / 'ca.pem'), 'log_level': 0})


def change(client, **configs):
    """Change configs of the broker. Return the text of the error, or an empty text."""
    resource = ConfigResource(ConfigResource.Type.BROKER, '1', incremental_configs=[
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()])
    try:
        client.incremental_alter_configs([resource])[resource].result(120)
    except KafkaException as error:
        return str(error)
    return ''


def refused_login(broker, user, mechanism):
    """Log in with a wrong password. Return the text of the error that the client raises after its timeout."""
    with pytest.raises(KafkaException) as caught:
        admin(broker, user, SECRETS['wrong'], mechanism).list_topics(timeout=3)
    return str(caught.value)


def test_no_secret_leaves_the_broker(broker, tmp_path):
    found = []
    client = admin(broker, 'admin', SECRETS['plain-admin'])
    client.create_topics([NewTopic('orders', 1)])['orders'].result(120)
    client.alter_user_scram_credentials([UserScramCredentialUpsertion(
        'alice', ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), SECRETS['scram'].encode(),
        b'marker-salt')])['alice'].result(120)
    jaas = 'listener.name.sasl_ssl.plain.sasl.jaas.config'
    both = f'user_admin="{SECRETS["plain-admin"]}" user_other="{SECRETS["changed"]}"'
    found += [change(client, **{jaas: f'{PLAIN} required {both};'}),
              change(client, **{jaas: f'{PLAIN} required user_x={SECRETS["refused"]}'}),
              change(client, **{'listener.name.sasl_ssl.ssl.key.password': SECRETS['refused']}),
              change(client, **{'ssl.key.pasword': SECRETS['misspelt']})]
    assert all(found[1:]), 'the other changes are refused'
    with ThreadPoolExecutor() as pool:
        found += pool.map(functools.partial(refused_login, broker), *zip(
            ('admin', 'PLAIN'), ('alice', 'SCRAM-SHA-512'), ('nobody', 'SCRAM-SHA-512'), strict=True))
    assert admin(broker, 'alice', SECRETS['scram'], 'SCRAM-SHA-512').list_topics(timeout=180).topics == {}
    resource = ConfigResource(ConfigResource.Type.BROKER, '1')
    entries = client.describe_configs([resource])[resource].result(120)
    assert entries[jaas].is_sensitive
    assert entries[jaas].value is None
    found += [f'{entry.name}={entry.value} {entry.synonyms}' for entry in entries.values()]
    found.append(subprocess.run([sys.executable, '-m', 'kbroker', 'status', '--data-dir', str(broker.directory)],
                                capture_output=True, text=True, check=True).stdout)
    broker.restart()
    broker.stop()
    found += broker.lines
    found += broker.audit.read_text().splitlines()
    events = ' '.join(found)
    assert '"event": "login"' in events
    assert '"api": "ALTER_USER_SCRAM_CREDENTIALS"' in events
    salted = hashlib.pbkdf2_hmac('sha512', SECRETS['scram'].encode(), b'marker-salt', 4096)
    patterns = [*map(re.escape, SECRETS.values()), 'marker-salt', salted.hex(), 'ENCRYPTED PRIVATE']
    leaks = [line for line in found for pattern in patterns if re.search(pattern, line)]
    assert leaks == []


@pytest.mark.parametrize('settings', [
    {'ssl.key.password': SECRETS['key-password'], 'ssl.keystore.key': f'-----BEGIN X----- {SECRETS["key-password"]}'},
    {'listener.name.sasl_ssl.plain.sasl.jaas.config': f'{PLAIN} required user_a={SECRETS["plain-admin"]} x'},
    {'listener.name.sasl_ssl.plain.sasl.jaas.config': f'"{SECRETS["plain-admin"]}'},
    {'sasl.jaas.config': SECRETS['plain-admin']},
    {'ssl.keystore.password': SECRETS['key-password']},
    {'ssl.keystore.key': SECRETS['key-password']},
])
def test_a_start_that_fails_shows_no_secret(settings, tmp_path):
    given = {'listeners': 'SASL_SSL://127.0.0.1:0', 'sasl.enabled.mechanisms': 'PLAIN',
             'log.dirs': str(tmp_path / 'data')} | settings
    file = tmp_path / 'server.properties'
    file.write_text(''.join(f'{name}={value}\n' for name, value in given.items()))
    for command in (['serve', '--config', str(file)], ['config', '--check', str(file)],
                    ['serve', *(part for name, value in given.items() for part in ('--set', f'{name}={value}'))]):
        done = subprocess.run([sys.executable, '-m', 'kbroker', *command], capture_output=True, text=True, timeout=180,
                              check=False)
        if command[0] == 'serve':
            assert done.returncode == 1
        assert not re.search('marker-[a-z-]*secret', done.stdout + done.stderr), done.stderr
