"""The broker serves no request, whole or damaged, of a client that has not logged in. A request can end the login of
its own connection, but of no other connection.

The broker runs in the test's process, without sockets. `make soak` runs 200,000 frames.
"""
from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz.frames import Frames
from support.brokers.in_process_broker import InProcessBroker, InProcessConnection, frame_of
from support.brokers.secured_broker import PLAIN_JAAS

from kbroker.apis.serving.served import served_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ApiVersionsRequest, SaslHandshakeRequest
from kbroker.security.principal import ANONYMOUS
from kbroker.security.surroundings import Background

LISTENER = 'SASL_PLAINTEXT'
HANDSHAKES = [frame_of(SaslHandshakeRequest(mechanism='PLAIN'), version) for version in (0, 1)]
BEGINNINGS = ([], [frame_of(ApiVersionsRequest(client_software_name='x', client_software_version='1'), 3)],
              [HANDSHAKES[0]], [HANDSHAKES[1]])
"""The frames that a connection sends before the random frame."""
OF_A_LOGIN = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class GuardedConnection(InProcessConnection):
    """A connection to the listener with logins."""

    listener_name = LISTENER
    is_leaving = False

    def await_login(self, _: int) -> None:
        """Do nothing. A real connection bounds the size of frames before a login, but the test sends frames of any
        length.
        """

    def end_login(self) -> None:
        raise AssertionError('a client without a password is logged in')

    def close_after_flush(self) -> None:
        self.is_leaving = True


def submit(job: Any, done: Any) -> None:
    done(job())


@pytest.fixture
def broker(tmp_path) -> Iterator[InProcessBroker]:
    settings = {'listeners': f'{LISTENER}://127.0.0.1:1,PLAINTEXT://127.0.0.1:2', 'sasl.enabled.mechanisms': 'PLAIN',
                f'listener.name.{LISTENER.lower()}.plain.sasl.jaas.config': PLAIN_JAAS,
                'kbroker.durability': 'page-cache', 'connection.failed.authentication.delay.ms': '0'}
    with InProcessBroker(tmp_path, settings) as broker:
        broker.authentication.start(Background(broker.timers, submit), submit)
        yield broker


@pytest.mark.parametrize('count', [4_000, pytest.param(200_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
def test_no_request_before_a_login_is_served_or_ends_more_than_the_login(broker, caplog, count, soak_count, tally):
    count = soak_count(count)
    caplog.set_level(logging.ERROR)
    frames = Frames(served_apis(), count, [b'i' * 16])
    for index, beginning in zip(range(count), itertools.cycle(BEGINNINGS)):
        api, frame = frames.mutated() if index % 3 else frames.plausible()
        connection = GuardedConnection(index)
        connection.session = broker.authentication.open(connection)
        for earlier in (*beginning, frame):
            broker.send(connection, earlier)
        assert not caplog.records, f'frame {index}, {api.key.name}: {frame.hex()}\n{caplog.text}'
        assert connection.session.principal == ANONYMOUS
        key = int.from_bytes(frame[:2], 'big')
        assert key in OF_A_LOGIN or connection.closed is not None or connection.is_leaving, f'{api.key.name}: served'
        broker.clock.advance(60_000)        # so that no login has to wait for those that failed
    assert not list(broker.topics.topics())
    tally('damaged requests', count)
