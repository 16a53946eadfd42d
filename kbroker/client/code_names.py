"""Finds the codes of Kafka's requests by their names, such as `topic`, `transactional-id` or `read`."""
from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

Code = TypeVar('Code', bound=IntEnum)


def code_named(codes: type[Code], name: str, place: str) -> Code:
    """Return the code with this name. Raise ValueError if no code has the name. The message contains `place`."""
    found = codes.__members__.get(name.upper().replace('-', '_'))
    if found is None:
        expected = ', '.join(known.lower() for known in codes.__members__ if known != 'UNKNOWN')
        raise ValueError(f'found {name!r} {place}, expected one of {expected}')
    return found
