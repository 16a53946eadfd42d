"""Apache Kafka with StandardAuthorizer and users that log in by SASL/PLAIN."""
from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping

from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import NEWEST, KafkaProcess
from support.runner.free_ports import free_port

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule'
AUTHORIZER = 'org.apache.kafka.metadata.authorizer.StandardAuthorizer'


def password_of(user: str) -> str:
    return f'{user}-secret'


def login_settings(address: str, user: str) -> dict[str, str]:
    """Return the settings with which a client of librdkafka logs in."""
    return {'bootstrap.servers': address, 'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'PLAIN',
            'sasl.username': user, 'sasl.password': password_of(user)}


def plain_users(users: Iterable[str]) -> str:
    """Return the JAAS entry with which a listener knows these users."""
    return f'{PLAIN} required ' + ' '.join(f'user_{user}="{password_of(user)}"' for user in users) + ';'


def authorization_settings(users: Iterable[str], super_users: Iterable[str]) -> dict[str, str]:
    """Return the settings of a broker whose listener SASL_PLAINTEXT knows these users."""
    return {
        'authorizer.class.name': AUTHORIZER,
        'super.users': ';'.join(f'User:{user}' for user in super_users),
        'listener.name.sasl_plaintext.sasl.enabled.mechanisms': 'PLAIN',
        'listener.name.sasl_plaintext.plain.sasl.jaas.config': plain_users(users),
    }


class AuthorizedKafka(KafkaProcess):
    """An Apache Kafka process whose clients log in. Its controller uses a second listener without logins."""

    def __init__(self, directory: pathlib.Path, settings: dict[str, str], users: Iterable[str],
                 super_users: Iterable[str], release: str = NEWEST):
        super().__init__(directory, release=release)
        controller = f'127.0.0.1:{free_port()}'
        self.settings = {
            **settings,
            **authorization_settings(users, [*super_users, 'ANONYMOUS']),
            'listeners': f'SASL_PLAINTEXT://{self.address},PLAINTEXT://127.0.0.1:{free_port()},'
                         f'CONTROLLER://{controller}',
            'controller.quorum.voters': f'1@{controller}',
            'listener.security.protocol.map': 'SASL_PLAINTEXT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT',
        }


class AuthorizedBroker(BrokerProcess):
    """A kbroker process with the same users and rights as an AuthorizedKafka."""

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str], users: Iterable[str],
                 super_users: Iterable[str]):
        address = f'127.0.0.1:{free_port()}'
        super().__init__(directory, {**settings, **authorization_settings(users, super_users),
                                     'listeners': f'SASL_PLAINTEXT://{address}'})
