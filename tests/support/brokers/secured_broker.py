"""A broker with listeners that require logins, and the settings of clients for them."""
import base64
import json
import pathlib
import subprocess
import sys
import time

from support.brokers.broker_process import PROMPT, ROOT, BrokerProcess
from support.clients.certificates import make_certificates
from support.runner.free_ports import free_port

MODULES = 'org.apache.kafka.common.security'
PASSWORD = 'wonder "land"'
USERS = {'alice': PASSWORD, 'bob': 'x'}
PLAIN_JAAS = f'{MODULES}.plain.PlainLoginModule required ' + ' '.join(
    f'user_{name}="{password}"' for name, password in {'alice': PASSWORD.replace('"', '\\"'), 'bob': 'x'}.items()) + ';'
SCRAM_JAAS = f'{MODULES}.scram.ScramLoginModule required;'
OAUTH_JAAS = f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
MECHANISMS = ('PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER')
LIFETIME_MS = 3000


class SecuredSettings:
    """The settings of a broker with a listener for each security protocol. `addresses` maps each protocol to the
    address of its listener.
    """

    def __init__(self, directory: pathlib.Path, protocols=('SASL_PLAINTEXT', 'SASL_SSL', 'PLAINTEXT'), **more):
        self.addresses = {protocol: f'127.0.0.1:{free_port()}' for protocol in protocols}
        self.certificates = make_certificates(directory) if any('SSL' in protocol for protocol in protocols) else None
        listeners = ','.join(f'{protocol}://{address}' for protocol, address in self.addresses.items())
        self.settings = {'listeners': listeners, 'advertised.listeners': listeners,
                         'sasl.enabled.mechanisms': ','.join(MECHANISMS)}
        if self.certificates is not None:
            self.settings |= {'ssl.keystore.location': str(self.certificates / 'server.pem'),
                              'ssl.truststore.location': str(self.certificates / 'ca.pem')}
        for protocol in protocols:
            if protocol.startswith('SASL_'):
                prefix = f'listener.name.{protocol.lower()}'
                self.settings |= {f'{prefix}.plain.sasl.jaas.config': PLAIN_JAAS,
                                  f'{prefix}.scram-sha-256.sasl.jaas.config': SCRAM_JAAS,
                                  f'{prefix}.scram-sha-512.sasl.jaas.config': SCRAM_JAAS,
                                  f'{prefix}.oauthbearer.sasl.jaas.config': OAUTH_JAAS}
        self.settings |= {name.replace('_', '.'): value for name, value in more.items()}


class SecuredBroker:
    """A running broker that requires logins and writes an audit log. Clients on SASL_PLAINTEXT must soon log in again.
    """

    def __init__(self, directory: pathlib.Path):
        (directory / 'certificates').mkdir()
        self.plan = SecuredSettings(directory / 'certificates', ('SASL_PLAINTEXT', 'SASL_SSL'))
        self.audit = directory / 'audit.log'
        self.plan.settings['kbroker.audit.log'] = str(self.audit)
        for mechanism in MECHANISMS:
            name = f'listener.name.sasl_plaintext.{mechanism.lower()}.connections.max.reauth.ms'
            self.plan.settings[name] = str(LIFETIME_MS)
        subprocess.run([sys.executable, '-m', 'kbroker', 'storage', '--data-dir', str(directory / 'data'), *(
            f'--add-scram={mechanism}=[name=alice,password={PASSWORD}]'
            for mechanism in MECHANISMS if mechanism.startswith('SCRAM'))], cwd=ROOT, check=True, capture_output=True)
        self.broker = BrokerProcess(directory / 'data', PROMPT | self.plan.settings)
        self.broker.start()

    def logins(self, event: str = 'login') -> list[dict]:
        """Return the entries of the audit log about an event."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line for line in lines if line['event'] == event]

    def renewals(self, mechanism: str) -> list[dict]:
        return [line for line in self.logins('reauthentication') if line['mechanism'] == mechanism]

    def close(self) -> None:
        """Kill the broker. Assert that its output has no traceback, and that neither its log nor the audit log contains
        a password.
        """
        self.broker.kill9()
        assert self.broker.tracebacks() == []
        assert not any('wonder' in line for line in self.broker.lines)
        assert 'wonder' not in self.audit.read_text()


def unsecured_token(name: str, lifetime_s: int = 3600, now_s: int | None = None) -> str:
    """Return a token without a signature."""
    def part(content):
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b'=').decode()

    now_s = int(time.time()) if now_s is None else now_s
    return f'{part({"alg": "none"})}.{part({"sub": name, "iat": now_s, "exp": now_s + lifetime_s})}.'
