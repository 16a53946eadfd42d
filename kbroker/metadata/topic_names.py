"""The rules for topic names."""
from __future__ import annotations

import re
from collections.abc import Iterable

from kbroker.errors import ErrorCode, KafkaError

MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r'[a-zA-Z0-9._-]+')


def check_topic_name(name: str) -> None:
    """Raise KafkaError(INVALID_TOPIC_EXCEPTION) unless `name` is valid, which also makes it a valid directory name."""
    if not name:
        problem = 'it is empty'
    elif name in ('.', '..'):
        problem = "it must not be '.' or '..'"
    elif len(name) > MAX_NAME_LENGTH:
        problem = f'it has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed'
    elif not _LEGAL.fullmatch(name):
        problem = "only ASCII letters, digits, '.', '_' and '-' are allowed"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f'Topic name {name!r} is not valid: {problem}')


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raise KafkaError(INVALID_TOPIC_EXCEPTION) if another name differs only in '.' and '_', as metric names clash."""
    if '.' not in name and '_' not in name:
        return
    flat = name.replace('.', '_')
    for other in others:
        if other.replace('.', '_') == flat:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f'Topic {name!r} collides with the topic {other!r}')
