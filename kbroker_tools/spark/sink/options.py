"""The options of the sink. An option that Spark's Kafka sink or the reader has too has the same name here."""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.base.errors import ConfigError
from kbroker.client.config import CONNECTION_SETTINGS, SECURITY_SETTINGS
from kbroker.client.stream_settings import ProducerSettings
from kbroker.settings.options import choice, whole_number
from kbroker.settings.rows import boolean
from kbroker_tools.spark.options import (
    IGNORED,
    MIB,
    OptionError,
    Row,
    parse_bytes,
    parse_duration_ms,
    suggestion,
)
from kbroker_tools.spark.sink.topics import CHOSEN_BY_BROKER, CONFIG_PREFIX, NewTopics
from kbroker_tools.spark.sink.values import Commit

MOST_TASKS = 10_000
"""The most tasks of a unit (a micro-batch or a job). The row of a decision names the transaction of each task, so this
limits the size of the row."""
LEDGER_TOPIC = '__kbroker_spark_commits'
PROTECTED = {
    'transactional.id': 'the sink makes it of transactionalIdPrefix',
    'transaction.timeout.ms': 'use transactionTimeout instead',
    'transaction.two.phase.commit.enable': 'use twoPhase instead',
    'enable.idempotence': 'the sink needs it',
    'acks': 'the sink needs acks=all',
    'key.serializer': 'keys are binary, so cast them in the query',
    'value.serializer': 'values are binary, so cast them in the query',
}
BINARY = ('org.apache.kafka.common.serialization.bytearrayserializer',)
AS_IT_IS = {'acks': ('all', '-1'), 'enable.idempotence': ('true',), 'key.serializer': BINARY,
            'value.serializer': BINARY}
"""Values of protected settings that the sink uses anyway. If the user sets one of them, it is accepted."""
EXACTLY_ONCE = 'exactly_once'
TWO_PHASE = {'auto': None, 'on': True, 'off': False}
DRIVER_TIMEOUT_MS = 60_000
TASK_TIMEOUT_MS = 15 * 60_000
"""The default of the broker setting transaction.max.timeout.ms."""
BATCH_BYTES = 256 * 1024
"""The default of kafka.batch.size. A producer's own default is 16 KiB. With that, a task spends at least twice as much
CPU time on a row of 1 KiB; `bench/RESULTS.md` has the figures."""
BUFFER_BYTES = 8 * 1024 * 1024
"""The default of kafka.buffer.memory, if batches and requests have their usual sizes.

A task fills the buffer whenever its broker is slower than it. A larger buffer would cost time, because the first use of
memory takes a process longer than filling it.
"""
BUFFERED_BATCHES = 8
"""The default of kafka.buffer.memory has room for at least this many full batches."""
LINGER_MS = 100
"""The default of kafka.linger.ms. A task sends all remaining rows immediately when it ends, so no row waits this long
at the end."""
LEAST_MARGIN_MS = 1000
INT16_MAX, INT32_MAX = 2**15 - 1, 2**31 - 1
MOST_TIMEOUT_MS = INT32_MAX
"""The longest timeout of a transaction, in milliseconds, that Kafka's protocol can represent."""
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


def _timeout_ms(text: str) -> int:
    found_ms = parse_duration_ms(text)
    if not 0 < found_ms <= MOST_TIMEOUT_MS:
        raise ValueError(f'a time such as 15m, from 1 to {MOST_TIMEOUT_MS} ms')
    return found_ms


def _margin_ms(text: str) -> int:
    found_ms = _timeout_ms(text)
    if found_ms < LEAST_MARGIN_MS:
        raise ValueError(f'at least {LEAST_MARGIN_MS} ms: the driver has half of it for its decision')
    return found_ms


def _commit(text: str) -> Commit:
    return Commit(choice(*(each.value for each in Commit))(text))


ROWS = (
    Row('topic', _topic, None),
    Row('delivery', choice(EXACTLY_ONCE, 'at_least_once'), EXACTLY_ONCE),
    Row('transactionalIdPrefix', _prefix, None),
    Row('idempotencyKey', _key, None, 'batch'),
    Row('ifWritten', choice('skip', 'error'), 'skip', 'batch'),
    Row('ledgerTopic', _topic, LEDGER_TOPIC),
    Row('commit', _commit, Commit.DRIVER),
    Row('maxDriverBytes', parse_bytes, 256 * MIB),
    Row('maxStagedBytes', parse_bytes, MIB, 'auto'),
    Row('maxPrepared', whole_number(1, MOST_TASKS), 256, 'tasks'),
    Row('twoPhase', choice(*TWO_PHASE), 'auto', 'tasks'),
    Row('decisionMargin', _margin_ms, 60_000, 'tasks'),
    Row('transactionTimeout', _timeout_ms, None),
    Row('createTopics', boolean, False),
    Row('topicPartitions', whole_number(1, INT32_MAX), None, 'topics'),
    Row('topicReplicationFactor', whole_number(1, INT16_MAX), None, 'topics'),
)
"""The options of the sink. `docs/spark.md` describes them."""
AT_LEAST_ONCE = ('topic', 'delivery', 'transactionalIdPrefix', 'createTopics', 'topicPartitions',
                 'topicReplicationFactor')
"""The options that are allowed with delivery=at_least_once. The prefix is allowed, although it has no effect, because a
query may change its delivery."""
WITH_COMMIT = {'auto': (Commit.AUTO,), 'tasks': (Commit.PREPARED, Commit.AUTO)}
"""Maps the `place` of an option to the values of `commit` with which the option is allowed."""
BY_NAME = {row.name.lower(): row for row in ROWS}


@dataclass(frozen=True)
class SinkOptions:
    """The values of all options. `kafka` has the settings of the producer, which may include passwords."""

    topic: str | None
    """The topic of all rows. None if each row names its topic."""
    is_exactly_once: bool
    prefix: str
    """The prefix of the transactional ids. '' with delivery=at_least_once, which does not need it."""
    idempotency_key: str | None
    ledger_topic: str
    commit: Commit
    max_driver_bytes: int
    max_staged_bytes: int
    max_prepared: int
    two_phase: bool | None
    """True if two-phase commit is required, False if it is not used. With None, it is used if the broker has it."""
    decision_margin_ms: int
    driver_timeout_ms: int
    """The timeout of the driver's transaction in milliseconds. `decision_limit_ms` may return less."""
    task_timeout_ms: int
    """The timeout in milliseconds of a task's transaction without two-phase commit."""
    kafka: dict[str, str] = field(repr=False)
    new_topics: NewTopics | None = None
    """The form of the topics that the sink creates. None if only the broker creates topics, as for any producer."""
    refuses_repetition: bool = False
    """True if a job that was written before is an error. Otherwise it is skipped."""

    def connection(self) -> dict[str, str]:
        """Return the settings that every client of the sink has."""
        return {name: text for name, text in self.kafka.items()
                if name in CONNECTION_SETTINGS or name in SECURITY_SETTINGS}

    def decision_limit_ms(self, is_urgent: bool) -> int:
        """Return the milliseconds after which the broker refuses a decision.

        The driver checks that each transaction of a task stays open for the whole decisionMargin. The driver may use
        half of this time, so it cannot decide after a transaction has timed out. The other half remains for committing
        the transactions.
        """
        return min(self.driver_timeout_ms, self.decision_margin_ms // 2) if is_urgent else self.driver_timeout_ms

    def producer(self) -> dict[str, str]:
        """Return the settings that every producer of the sink has."""
        given = {name: text for name, text in self.kafka.items() if name in ProducerSettings.defaults()}
        largest_bytes = ProducerSettings.from_properties(given).max_request_size_bytes
        batch_bytes = ProducerSettings.from_properties(
            {'batch.size': str(min(BATCH_BYTES, largest_bytes))} | given).batch_size_bytes
        buffer_bytes = max(BUFFER_BYTES, BUFFERED_BATCHES * batch_bytes, 2 * largest_bytes)
        return {'batch.size': str(batch_bytes), 'buffer.memory': str(buffer_bytes), 'linger.ms': str(LINGER_MS)} | given


def parse_sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the options after parsing and checking them. Raise OptionError, which names the option, the value that was
    found and the value that was expected, if an option is wrong."""
    values: dict[str, Any] = {row.name: row.default for row in ROWS}
    kafka: dict[str, str] = {}
    topic_configs: dict[str, str] = {}
    names = set()
    for name, text in given.items():
        lower = name.lower()
        if lower in IGNORED:
            continue
        if lower.startswith('kafka.'):
            _take_client_setting(kafka, lower, text)
            continue
        if lower.startswith(CONFIG_PREFIX) and lower != CONFIG_PREFIX:
            topic_configs[lower.removeprefix(CONFIG_PREFIX)] = text
            continue
        row = BY_NAME.get(lower)
        if row is None:
            raise OptionError(name, f'no such option of the sink{suggestion(lower, [row.name for row in ROWS])}')
        if row.place == 'batch' and is_stream:
            raise OptionError(row.name, 'not allowed here: it is for df.write only; a stream counts its micro-batches')
        values[row.name] = row.value_of(text, refusal=OptionError)
        names.add(row.name)
    _check_together(values, names, kafka)
    new_topics = _new_topics(values, names, topic_configs)
    timeout_ms = values['transactionTimeout']
    return SinkOptions(
        values['topic'], values['delivery'] == EXACTLY_ONCE, values['transactionalIdPrefix'] or '',
        values['idempotencyKey'], values['ledgerTopic'], values['commit'], values['maxDriverBytes'],
        values['maxStagedBytes'], values['maxPrepared'], TWO_PHASE[values['twoPhase']],
        values['decisionMargin'], timeout_ms or DRIVER_TIMEOUT_MS, timeout_ms or TASK_TIMEOUT_MS, kafka,
        new_topics, values['ifWritten'] == 'error')


def _check_together(values: Mapping[str, Any], names: Collection[str], kafka: Mapping[str, str]) -> None:
    is_exactly_once = values['delivery'] == EXACTLY_ONCE
    if 'bootstrap.servers' not in kafka:
        raise OptionError('kafka.bootstrap.servers', 'found none; the sink needs it')
    if is_exactly_once and values['transactionalIdPrefix'] is None:
        raise OptionError('transactionalIdPrefix', 'found none; delivery=exactly_once needs it')
    if values['topic'] == values['ledgerTopic']:
        raise OptionError('topic', f'found {values["topic"]!r}, which is the ledger of the sink')
    if 'ifWritten' in names and values['idempotencyKey'] is None:
        raise OptionError('ifWritten', 'not allowed here: it is for a job with an idempotencyKey')
    for row in ROWS:
        if row.name not in names:
            continue
        if not is_exactly_once and row.name not in AT_LEAST_ONCE:
            raise OptionError(row.name, 'not allowed here: it is for delivery=exactly_once')
        if values['commit'] not in WITH_COMMIT.get(row.place, Commit):
            wanted = ' or '.join(f'commit={each.value}' for each in WITH_COMMIT[row.place])
            raise OptionError(row.name, f'not allowed here: it is for {wanted}')
    _check_producer(kafka)
    timeout_ms = values['transactionTimeout'] or TASK_TIMEOUT_MS
    if values['commit'] is not Commit.DRIVER and values['decisionMargin'] >= timeout_ms:
        raise OptionError('decisionMargin', f'found {values["decisionMargin"]} ms, expected less than the '
                          f'transactionTimeout of the tasks, {timeout_ms} ms')


def _new_topics(values: Mapping[str, Any], names: Collection[str], configs: Mapping[str, str]) -> NewTopics | None:
    """Return the form of new topics, or None without createTopics. Raise OptionError for a form without it."""
    if values['createTopics']:
        return NewTopics(values['topicPartitions'] or CHOSEN_BY_BROKER,
                         values['topicReplicationFactor'] or CHOSEN_BY_BROKER, configs)
    for name in (*(row.name for row in ROWS if row.place == 'topics' and row.name in names),
                 *(CONFIG_PREFIX + name for name in configs)):
        raise OptionError(name, 'not allowed here: it is for createTopics=true')
    return None


def _check_producer(kafka: Mapping[str, str]) -> None:
    settings = {name: text for name, text in kafka.items() if name in ProducerSettings.defaults()}
    try:
        ProducerSettings.from_properties(settings | {'enable.idempotence': 'true'})
    except ConfigError as error:
        raise OptionError(f'kafka.{error.name}', str(error)) from None


def _take_client_setting(kafka: dict[str, str], name: str, text: str) -> None:
    """Store a setting of the producer. Skip it if its value is the one that the sink uses anyway."""
    setting = name.removeprefix('kafka.')
    if setting in PROTECTED:
        if text.strip().lower() not in AS_IT_IS.get(setting, ()):
            raise OptionError(name, f'found {text!r}, but it cannot be set: {PROTECTED[setting]}')
        return
    if setting not in CLIENT_SETTINGS:
        known = [f'kafka.{each}' for each in sorted(CLIENT_SETTINGS)]
        raise OptionError(name, f'no such setting of a producer{suggestion(name, known)}')
    kafka[setting] = text
