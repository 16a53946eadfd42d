"""An in-process broker whose clients log in, and an audit whose lines a test can read."""
from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from support.brokers.in_process_broker import InProcessBroker
from support.brokers.secured_broker import MECHANISMS, OAUTH_JAAS, PLAIN_JAAS

from kbroker.security.audit import AuditLog
from kbroker.security.surroundings import Background

LISTENER = 'listener.name.sasl_plaintext'
SETTINGS = {
    'listeners': 'SASL_PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2',
    'sasl.enabled.mechanisms': ','.join(MECHANISMS),
    f'{LISTENER}.plain.sasl.jaas.config': PLAIN_JAAS, f'{LISTENER}.oauthbearer.sasl.jaas.config': OAUTH_JAAS}


def do_at_once(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
    done(job())


@contextlib.contextmanager
def login_broker(directory: pathlib.Path, settings: Mapping[str, str], submit: Any = do_at_once) -> Iterator[Any]:
    """Run a broker that serves logins. `submit` gets the jobs of its worker, such as the checks of signatures."""
    with InProcessBroker(directory, {**SETTINGS, **settings}) as broker:
        broker.authentication.start(Background(broker.timers, do_at_once), submit)
        yield broker


class AuditLines:
    """The sink of an audit, which appends each line to `texts`."""

    waiting_bytes = 0

    def __init__(self) -> None:
        self.texts: list[str] = []

    def put(self, line: str) -> None:
        self.texts.append(line)

    def close(self) -> None:
        pass


def audited(broker: Any) -> Any:
    """Let the broker write its audit to `broker.lines`, and return the broker."""
    broker.lines = AuditLines()
    broker.audit = AuditLog(broker.lines, broker.clock)
    broker.lines.texts.clear()
    return broker
