"""Apache Kafka with listeners that require SASL and TLS."""
import hashlib

from support.clients.certificates import make_certificates
from support.kafka.apache_kafka import KafkaProcess
from support.runner.free_ports import free_port

from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.errors import check
from kbroker.protocol import messages

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule'
OAUTH = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule'
MECHANISMS = {
    'SASL_PLAINTEXT': {'PLAIN': f'{PLAIN} required user_alice="wonder land";', 'SCRAM-SHA-256': f'{SCRAM} required;',
                       'OAUTHBEARER': f'{OAUTH} required unsecuredLoginStringClaim_sub="broker" '
                                      'unsecuredValidatorRequiredScope="produce";'},
    'SASL_SSL': {'SCRAM-SHA-512': f'{SCRAM} required;'},
}
SCRAM_CODES = {'sha256': 1, 'sha512': 2}
PASSWORD = 'wonder "land"'
REAUTHENTICATION_MS = 600_000


class SecuredKafka:
    """An Apache Kafka process with a listener for each security protocol. `addresses` maps the protocol to the address.
    """

    def __init__(self, directory):
        self.certificates = make_certificates(directory)
        self.kafka = KafkaProcess(directory / 'data')
        self.addresses = {'PLAINTEXT': self.kafka.address} | {
            protocol: f'127.0.0.1:{free_port()}' for protocol in ('SASL_PLAINTEXT', 'SSL', 'SASL_SSL')}
        listeners = self.addresses | {'CONTROLLER': f'127.0.0.1:{free_port()}'}
        self.kafka.settings = {
            'listeners': ','.join(f'{name}://{address}' for name, address in listeners.items()),
            'controller.quorum.voters': f'1@{listeners["CONTROLLER"]}',
            'listener.security.protocol.map': ','.join(f'{name}:{name}' for name in self.addresses)
                                              + ',CONTROLLER:PLAINTEXT',
            'group.initial.rebalance.delay.ms': '0',
            'ssl.keystore.type': 'PEM', 'ssl.keystore.location': str(self.certificates / 'server.pem'),
            'ssl.truststore.type': 'PEM', 'ssl.truststore.location': str(self.certificates / 'ca.pem'),
            'listener.name.ssl.ssl.client.auth': 'required',
            'connections.max.reauth.ms': str(REAUTHENTICATION_MS),
        }
        for listener, mechanisms in MECHANISMS.items():
            prefix = f'listener.name.{listener.lower()}'
            self.kafka.settings[f'{prefix}.sasl.enabled.mechanisms'] = ','.join(mechanisms)
            for mechanism, module in mechanisms.items():
                self.kafka.settings[f'{prefix}.{mechanism.lower()}.sasl.jaas.config'] = module

    def add_user(self, name, password):
        request = messages.AlterUserScramCredentialsRequest
        cluster = Cluster(ClientConfig.load(self.addresses['PLAINTEXT']))
        for digest, code in SCRAM_CODES.items():
            salted = hashlib.pbkdf2_hmac(digest, password.encode(), b'salt', 4096)
            answer = cluster.controller().call(request(upsertions=[request.ScramCredentialUpsertion(
                name=name, mechanism=code, iterations=4096, salt=b'salt', salted_password=salted)]))
            for row in answer.results:
                check(row.error_code, row.user, row.error_message)
        cluster.close()

    def connect(self, protocol, **settings):
        names = {'security.protocol': protocol, 'ssl.truststore.type': 'PEM',
                 'ssl.truststore.location': str(self.certificates / 'ca.pem')}
        names |= {name.replace('_', '.'): value for name, value in settings.items()}
        return Cluster(ClientConfig.from_settings({'bootstrap.servers': self.addresses[protocol]} | names))


def jaas(module, password):
    escaped = password.replace('"', '\\"')
    return f'{module} required username="alice" password="{escaped}";'
