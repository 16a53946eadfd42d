"""The options of the sink. Options with a counterpart in Spark's Kafka sink or in the reader keep their names."""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.client.config import CONNECTION_SETTINGS, SECURITY_SETTINGS
from kbroker.client.stream_settings import ProducerSettings
from kbroker_tools.spark.options import (
    IGNORED,
    MIB,
    OptionError,
    Row,
    parse_bytes,
    parse_duration_ms,
    parsed,
    suggestion,
)

LEDGER_TOPIC = '__kbroker_spark_commits'
PROTECTED = {
    'transactional.id': 'the sink makes it of transactionalIdPrefix',
    'transaction.timeout.ms': 'use transactionTimeout instead',
    'transaction.two.phase.commit.enable': 'the driver ends its transaction itself',
    'enable.idempotence': 'the sink needs it',
    'acks': 'the sink needs acks=all',
    'key.serializer': 'keys are binary, so cast them in the query',
    'value.serializer': 'values are binary, so cast them in the query',
}
CLIENT_SETTINGS = frozenset({*CONNECTION_SETTINGS, *SECURITY_SETTINGS, *ProducerSettings.defaults()}) - PROTECTED.keys()


def _topic(text: str) -> str:
    if not re.fullmatch(r'[\w.-]{1,249}', text, re.ASCII) or text in ('.', '..'):
        raise ValueError('the name of one topic')
    return text


def _prefix(text: str) -> str:
    if not text or '~' in text or len(text.encode()) > 200:
        raise ValueError("1 to 200 bytes without '~', which separates the prefix from the sink's own part of an id")
    return text


def _key(text: str) -> str:
    if not text:
        raise ValueError('a name of the job')
    return text


ROWS = (
    Row('topic', _topic, None),
    Row('transactionalIdPrefix', _prefix, None),
    Row('idempotencyKey', _key, None, 'batch'),
    Row('ledgerTopic', _topic, LEDGER_TOPIC),
    Row('transactionTimeout', parse_duration_ms, 60_000),
    Row('maxDriverBytes', parse_bytes, 256 * MIB),
)
"""The options of the sink. `docs/spark.md` describes them."""
BY_NAME = {row.name.lower(): row for row in ROWS}


@dataclass(frozen=True)
class SinkOptions:
    """The values of all options. `kafka` has the settings of the producer; it may hold passwords."""

    topic: str | None
    """None: each row names its topic."""
    prefix: str
    idempotency_key: str | None
    ledger_topic: str
    transaction_timeout_ms: int
    max_driver_bytes: int
    kafka: dict[str, str] = field(repr=False)

    def connection(self) -> dict[str, str]:
        """Return the settings that every client has."""
        return {name: text for name, text in self.kafka.items()
                if name in CONNECTION_SETTINGS or name in SECURITY_SETTINGS}


def parse_sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Parse and check the options. OptionError names the option, the found value and the expected one."""
    values: dict[str, Any] = {row.name.lower(): row.default for row in ROWS}
    kafka: dict[str, str] = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in IGNORED:
            continue
        if lower.startswith('kafka.'):
            kafka[_client_setting(lower, text)] = text
            continue
        row = BY_NAME.get(lower)
        if row is None:
            raise OptionError(name, f'no such option of the sink{suggestion(lower, [row.name for row in ROWS])}')
        if row.place == 'batch' and is_stream:
            raise OptionError(row.name, 'not allowed here: it is for df.write only; a stream counts its micro-batches')
        values[lower] = parsed(row, row.name, text)
    for name, known in (('kafka.bootstrap.servers', 'bootstrap.servers' in kafka),
                        ('transactionalIdPrefix', values['transactionalidprefix'] is not None)):
        if not known:
            raise OptionError(name, 'found none; the sink needs it')
    if values['topic'] == values['ledgertopic']:
        raise OptionError('topic', f'found {values["topic"]!r}, which is the ledger of the sink')
    return SinkOptions(values['topic'], values['transactionalidprefix'], values['idempotencykey'],
                       values['ledgertopic'], values['transactiontimeout'], values['maxdriverbytes'], kafka)


def _client_setting(name: str, text: str) -> str:
    setting = name.removeprefix('kafka.')
    if setting in PROTECTED:
        raise OptionError(name, f'found {text!r}, but it cannot be set: {PROTECTED[setting]}')
    if setting not in CLIENT_SETTINGS:
        known = [f'kafka.{each}' for each in sorted(CLIENT_SETTINGS)]
        raise OptionError(name, f'no such setting of a producer{suggestion(name, known)}')
    return setting
