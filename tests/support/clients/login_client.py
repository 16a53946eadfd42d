"""A client that logs in to a broker in the test's process, frame by frame."""
from __future__ import annotations

from typing import Any

from support.brokers.in_process_broker import InProcessBroker, InProcessConnection, frame_of, read_answer

from kbroker.protocol import messages
from kbroker.security.session import Session


def versions(name: str = 'judge') -> Any:
    return messages.ApiVersionsRequest(client_software_name=name, client_software_version='1')


class LoginConnection(InProcessConnection):
    largest_frame_bytes: int | None = None
    is_leaving = False
    session: Session

    @property
    def is_closed(self) -> bool:
        return self.closed is not None

    def await_login(self, largest_frame_bytes: int) -> None:
        self.largest_frame_bytes = largest_frame_bytes

    def end_login(self) -> None:
        self.largest_frame_bytes = None

    def close_after_flush(self) -> None:
        self.is_leaving = True


def connect(broker: InProcessBroker, listener: str = 'SASL_PLAINTEXT') -> LoginConnection:
    """Return a connection that has sent nothing yet."""
    connection = LoginConnection(next(broker._connection_ids))
    connection.listener_name = listener
    connection.session = broker.authentication.open(connection)
    return connection


class LoginClient:
    """The connection of a client that logs in. It has already received the answer to ApiVersions."""

    def __init__(self, broker: InProcessBroker, listener: str = 'SASL_PLAINTEXT'):
        self.broker = broker
        self.connection = connect(broker, listener)
        self.broker.send(self.connection, frame_of(versions(), 3))
        self.answered = len(self.connection.replies)

    @property
    def session(self) -> Session:
        return self.connection.session

    def ask(self, request: Any, version: int) -> Any:
        """Send a request. Return the answer, or None if the broker has not answered yet."""
        self.broker.send(self.connection, frame_of(request, version))
        return self.answer(request, version)

    def answer(self, request: Any, version: int) -> Any:
        """Return the next answer to a request that was sent earlier, or None if it has not arrived yet."""
        if len(self.connection.replies) == self.answered:
            return None
        self.answered += 1
        reply = self.connection.replies[-1]
        assert reply is not None
        return read_answer(request, version, reply)

    def handshake(self, mechanism: str = 'PLAIN', version: int = 1) -> Any:
        return self.ask(messages.SaslHandshakeRequest(mechanism=mechanism), version)

    def token(self, token: bytes, version: int = 2) -> Any:
        return self.ask(messages.SaslAuthenticateRequest(auth_bytes=token), version)

    def wait(self, ms: int) -> None:
        self.broker.clock.advance(ms)
        self.broker.turn()

    def log_in(self, token: bytes, mechanism: str = 'PLAIN') -> Any:
        assert self.handshake(mechanism).error_code == 0
        return self.token(token)
