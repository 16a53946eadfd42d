"""A broker under attack with a listener that requires logins, and the frames of its attackers."""
from __future__ import annotations

import contextlib
from collections.abc import Sequence

from support.brokers.in_process_broker import frame_of, read_answer
from support.brokers.secured_broker import MECHANISMS, PASSWORD, PLAIN_JAAS
from support.clients.raw_client import RawClient
from support.runner.free_ports import free_port

from kbroker.protocol.messages import MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest

GOOD = b'\0alice\0' + PASSWORD.encode()
WRONG = b'\0alice\0nonsense'
OAUTH_JAAS = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;'
HANDSHAKE = frame_of(SaslHandshakeRequest(mechanism='PLAIN'), 1)


def token(content: bytes) -> bytes:
    return frame_of(SaslAuthenticateRequest(auth_bytes=content), 2)


def framed(*frames: bytes) -> bytes:
    return b''.join(len(frame).to_bytes(4, 'big') + frame for frame in frames)


class Guarded:
    """A broker under attack with a listener that requires logins."""

    def __init__(self, besieged, **more):
        self.port, prefix = free_port(), 'listener.name.sasl_plaintext'
        self.broker = besieged({
            'listeners': f'PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{self.port}',
            'sasl.enabled.mechanisms': ','.join(MECHANISMS), f'{prefix}.plain.sasl.jaas.config': PLAIN_JAAS,
            f'{prefix}.oauthbearer.sasl.jaas.config': OAUTH_JAAS,
            **{name.replace('_', '.'): value for name, value in more.items()}})

    def connect(self, source: str = '') -> RawClient:
        return RawClient('127.0.0.1', self.port, source=source)

    def log_in(self) -> RawClient:
        client = self.connect()
        client.exchange(HANDSHAKE)
        answer = read_answer(SaslAuthenticateRequest(), 2, client.exchange(token(GOOD)))
        assert answer.error_code == 0, answer
        return client

    def topics(self) -> set[str]:
        with self.broker.connect() as client:
            return {topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics}


def stop_half_way(attackers: Sequence[RawClient]) -> None:
    """Begin a login with each attacker. One third sends nothing, one third sends half a frame, one third chooses a
    mechanism."""
    for number, attacker in enumerate(attackers):
        with contextlib.suppress(ConnectionError):      # the oldest logins end at the bound
            attacker.socket.sendall([b'', framed(HANDSHAKE)[:7], framed(HANDSHAKE)][number % 3])
