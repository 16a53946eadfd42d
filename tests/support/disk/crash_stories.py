"""The stories for tests in which the power or the disk fails. A story is a list of steps of a `BusyClient`."""
from __future__ import annotations

from support.clients.promises import TOPIC, Step
from support.disk.crash_points import SOURCE, STOP, Case, transaction

SETTINGS = {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1',
            'log.index.size.max.bytes': '4096'}
ROLLS_ALWAYS = {'log.roll.ms': '1'}
A, B, C = ((TOPIC, partition) for partition in range(3))
AGAIN, TABLE, SHORT = ('again', 0), ('table', 0), ('short', 0)
CLEANER_BACKOFF_MS = 15_000
RETENTION_MS = 1000
EXHAUSTED = 32766
"""The last epoch of a producer id. The transaction after it gets a new producer id."""
BLOCK = 1000
"""The number of producer ids in a block that the broker allocates. It requests the next block when a tenth of the ids
is left.
"""


def topics() -> list[Step]:
    return [
        ('create_topic', (TOPIC, 3)),
        ('create_topic', ('source', 2)),
        ('find_coordinators', ()),
        ('init_idempotent', ()),
        ('produce', ({A: ['plain 0'], B: ['plain 1', 'plain 2']},)),
        ('commit_offsets', ({SOURCE: 1},)),
        ('produce', ({A: ['plain 3']},)),
    ]


def before_transactions() -> list[Step]:
    return [*topics(), ('init_transactions', ())]


def table() -> list[Step]:
    """Return the steps of a compacted topic: values that are superseded, deleted and kept."""
    return [
        ('create_topic_with', ('table', 1, {'cleanup.policy': 'compact', 'delete.retention.ms': '0',
                                            'min.cleanable.dirty.ratio': '0.01'})),
        ('init_idempotent', ()),
        ('put', (TABLE, {'a': '1', 'b': '1', 'c': '1'})),
        ('put', (TABLE, {'a': '2', 'b': None})),
        ('let_pass', (CLEANER_BACKOFF_MS,)),
        ('put', (TABLE, {'c': '2', 'd': '1'})),
        ('put', (TABLE, {'b': '3', 'a': None})),
        ('let_pass', (CLEANER_BACKOFF_MS,)),
        ('let_pass', (CLEANER_BACKOFF_MS,)),
        ('put', (TABLE, {'d': '2'})),
    ]


COMMITTED = [*transaction(1, True), *transaction(2, True)]
ABORTED = [*transaction(1, False), *transaction(2, True)]
TOPICS: list[Step] = [
    ('create_topic', (TOPIC, 3)),
    ('init_idempotent', ()),
    ('produce', ({A: ['kept 0'], B: ['kept 1']},)),
    ('create_topic', ('short', 2)),
    ('produce', ({SHORT: ['short 0'], ('short', 1): ['short 1']},)),
    ('delete_topic', ('short',)),
    ('produce', ({C: ['kept 2']},)),
    ('create_topic', ('again', 1)),
    ('delete_topic', ('again',)),
    ('create_topic', ('again', 2)),
]
SAME_NAME: list[Step] = [
    ('create_topic', ('again', 1)),
    ('init_idempotent', ()),
    ('produce', ({AGAIN: [f'old {number}' for number in range(10)]},)),
    ('delete_records', (AGAIN, 8)),
    ('let_pass', (60_000,)),
    ('delete_topic', ('again',)),
    ('create_topic', ('again', 1)),
    ('init_idempotent', ()),
    ('produce', ({AGAIN: ['new']},)),
]
COMPACTION: list[Step] = [
    *transaction(1, True),
    ('let_pass', (CLEANER_BACKOFF_MS,)),
    *transaction(2, False),
    ('commit_offsets', ({('source', 1): 7},)),
    *transaction(3, True),
    ('let_pass', (CLEANER_BACKOFF_MS,)),
    ('let_pass', (CLEANER_BACKOFF_MS,)),
    *transaction(4, True),
]
RETENTION: list[Step] = [
    ('create_topic_with', ('short', 1, {'retention.ms': str(RETENTION_MS)})),
    ('init_idempotent', ()),
    ('produce', ({SHORT: ['old 0', 'old 1']},)),
    ('produce', ({SHORT: ['old 2']},)),
    ('expire', (SHORT, RETENTION_MS, 3)),
    ('produce', ({SHORT: ['newer 0']},)),
    ('expire', (SHORT, RETENTION_MS, 4)),
    ('produce', ({SHORT: ['new 0']},)),
]
CONFIGS: list[Step] = [
    ('create_topic_with', ('again', 1, {'retention.ms': '70000'})),
    ('alter_config', ('again', 'retention.ms', '80000')),
    ('alter_config', ('again', 'max.message.bytes', '9000')),
    ('init_idempotent', ()),
    ('produce', ({AGAIN: ['kept']},)),
    ('alter_config', ('again', 'retention.ms', '90000')),
    ('delete_topic', ('again',)),
    ('create_topic_with', ('again', 1, {'max.message.bytes': '8000'})),
    ('alter_config', ('again', 'max.message.bytes', '7000')),
]
PRODUCER_IDS: list[Step] = [
    ('use_up_producer_ids', (BLOCK - BLOCK // 10 - 2,)),
    ('use_up_producer_ids', (4,)),
    ('produce', ({A: ['of the first block']},)),
    ('use_up_producer_ids', (BLOCK // 10,)),
    ('produce', ({A: ['of the second block']},)),
    *transaction(1, True),
]
CLEAN_STOPS: list[Step] = [
    *transaction(1, True),
    STOP,
    *transaction(2, False)[:-1],
    STOP,
    ('end', (False,)),
    ('produce', ({A: ['after two stops']},)),
]

CASES = {
    'committed': Case(COMMITTED, 2, SETTINGS, before_transactions()),
    'committed with version 1 and rolls': Case(COMMITTED, 1, SETTINGS | ROLLS_ALWAYS, before_transactions()),
    'aborted with version 1': Case(ABORTED, 1, SETTINGS, before_transactions()),
    'aborted with rolls': Case(ABORTED, 2, SETTINGS | ROLLS_ALWAYS, before_transactions()),
    'a new directory': Case([*before_transactions(), *transaction(1, True)], 2, SETTINGS),
    'topics': Case(TOPICS, 2, SETTINGS),
    'a topic of the same name': Case(SAME_NAME, 2, SETTINGS),
    'compaction': Case(COMPACTION, 2, SETTINGS | ROLLS_ALWAYS, before_transactions()),
    'compaction of a table': Case(table(), 2, SETTINGS | ROLLS_ALWAYS),
    'retention': Case(RETENTION, 2, SETTINGS | {
        'log.retention.check.interval.ms': '1000', 'log.segment.delete.delay.ms': '1000'}),
    'configs': Case(CONFIGS, 2, SETTINGS),
    'the last epoch': Case([*transaction(2, True), *transaction(3, False), *transaction(4, True)], 2, SETTINGS, [
        *before_transactions(), ('jump_to_epoch', (EXHAUSTED - 2,)), *transaction(1, True)]),
    'the last epoch with version 1': Case(
        [*transaction(2, True), ('init_transactions', ()), *transaction(3, True)], 1, SETTINGS, [
            *before_transactions(), ('jump_to_epoch', (EXHAUSTED - 1,)), *transaction(1, True),
            ('init_transactions', ())]),
    'blocks of producer ids': Case(PRODUCER_IDS, 2, SETTINGS, before_transactions()),
    'clean stops': Case(CLEAN_STOPS, 2, SETTINGS, before_transactions()),
}
