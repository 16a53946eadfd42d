"""Clients get tokens from an identity provider, and the broker verifies them with keys that it fetches over HTTPS."""
import http.server
import json
import ssl
import threading
import time
from urllib.parse import parse_qs

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from joserfc import jwt
from joserfc.jwk import ECKey
from support.brokers.secured_broker import MODULES
from support.clients.certificates import make_certificates
from support.runner.free_ports import free_port

from kbroker.base.errors import KafkaError
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

SECRET = 'wonder+land'
LOGIN_MODULE = f'{MODULES}.oauthbearer.OAuthBearerLoginModule required'


class Provider:
    """An identity provider that knows one client and serves at an http address and at an https address."""

    def __init__(self, directory):
        self.certificates = make_certificates(directory)
        self.key = ECKey.generate_key('P-256')
        self.asked = []
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self._answer(200, {'keys': [{**provider.key.as_dict(private=False), 'kid': 'one', 'use': 'sig'}]})

            def do_POST(self):
                form = parse_qs(self.rfile.read(int(self.headers['Content-Length'])).decode())
                provider.asked.append((self.path, self.headers['Authorization'], form))
                if self.path == '/refuses':
                    self._answer(401, {'error': 'invalid_client'})
                else:
                    self._answer(200, {'access_token': provider.token(), 'token_type': 'Bearer', 'expires_in': 300})

            def _answer(self, status, members):
                body = json.dumps(members).encode()
                self.send_response(status)
                self.send_header('Content-Type', 'application/json')
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificates / 'server.pem')
        self._servers = [http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) for _ in range(2)]
        self._servers[1].socket = context.wrap_socket(self._servers[1].socket, server_side=True)
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.http, self.https = (f'{scheme}://127.0.0.1:{server.server_port}'
                                 for scheme, server in zip(('http', 'https'), self._servers, strict=True))

    def token(self):
        now = int(time.time())
        claims = {'sub': 'service-account-alice', 'iss': self.https, 'aud': ['kafka', 'account'], 'iat': now,
                  'nbf': now, 'exp': now + 300, 'scope': 'openid profile'}
        return jwt.encode({'alg': 'ES256', 'kid': 'one', 'typ': 'JWT'}, claims, self.key, algorithms=['ES256'])

    def close(self):
        for server in self._servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def provider(tmp_path):
    provider = Provider(tmp_path)
    yield provider
    provider.close()


@pytest.fixture
def address(provider, start_broker):
    """Start a broker that trusts the provider, and return its address."""
    address, prefix = f'127.0.0.1:{free_port()}', 'listener.name.sasl_plaintext.oauthbearer.sasl'
    start_broker({
        'listeners': f'SASL_PLAINTEXT://{address}', 'advertised.listeners': f'SASL_PLAINTEXT://{address}',
        'sasl.enabled.mechanisms': 'OAUTHBEARER',
        f'{prefix}.jaas.config': f'{LOGIN_MODULE} ssl.truststore.location="{provider.certificates / "ca.pem"}";',
        f'{prefix}.server.callback.handler.class': f'{MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler',
        f'{prefix}.oauthbearer.jwks.endpoint.url': f'{provider.https}/keys',
        f'{prefix}.oauthbearer.expected.issuer': provider.https, f'{prefix}.oauthbearer.expected.audience': 'kafka'})
    return address


def ours(provider, address, url):
    return Cluster(ClientConfig.from_settings({
        'bootstrap.servers': address, 'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'OAUTHBEARER',
        'sasl.oauthbearer.token.endpoint.url': url,
        'sasl.login.callback.handler.class': f'{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler',
        'sasl.jaas.config': f'{LOGIN_MODULE} clientId="kafka-client" clientSecret="{SECRET}" scope="openid" '
                            f'ssl.truststore.location="{provider.certificates / "ca.pem"}";'}))


def test_our_client(provider, address):
    for url in (provider.http, provider.https):
        cluster = ours(provider, address, f'{url}/token')
        assert cluster.refresh(()).cluster_id
        cluster.close()
    assert [(path, form['grant_type'], form['scope']) for path, _, form in provider.asked] == [
        ('/token', ['client_credentials'], ['openid'])] * 2
    with pytest.raises(KafkaError, match=r'/refuses answers with status 401 \(invalid_client\)') as caught:
        ours(provider, address, f'{provider.https}/refuses').any()
    assert SECRET not in str(caught.value)


def test_librdkafka(provider, address):
    settings = {'bootstrap.servers': address, 'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanisms': 'OAUTHBEARER',
                'sasl.oauthbearer.method': 'oidc', 'sasl.oauthbearer.client.id': 'kafka-client',
                'sasl.oauthbearer.client.secret': SECRET, 'sasl.oauthbearer.scope': 'openid',
                'sasl.oauthbearer.token.endpoint.url': f'{provider.http}/token'}
    assert AdminClient(settings).list_topics(timeout=180).cluster_id
    provider.key = ECKey.generate_key('P-256')  # of the same id: tokens no longer fit the broker's keys
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=3)
