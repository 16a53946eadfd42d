"""The rules for topic names."""
from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.base.errors import ErrorCode, KafkaError

MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r'[a-zA-Z0-9._-]+')


def check_topic_name(name: str) -> None:
    """Raise KafkaError(INVALID_TOPIC_EXCEPTION) if `name` is not valid.

    A valid name is also valid as a directory name.
    """
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


def flat_name_of(name: str) -> str | None:
    """Return `name` with '_' instead of '.'. If it contains neither character, return None."""
    return name.replace('.', '_') if '.' in name or '_' in name else None


def check_collision(name: str, by_flat_name: Mapping[str, str]) -> None:
    """Raise KafkaError(INVALID_TOPIC_EXCEPTION) if a topic exists whose name differs only in '.' and '_'.

    Metric names use '_' for both characters, so the two topics would have the same metric names.
    """
    other = by_flat_name.get(flat_name_of(name) or '')
    if other is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f'Topic {name!r} collides with the topic {other!r}')
