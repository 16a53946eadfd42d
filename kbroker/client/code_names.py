"""The codes in Kafka's requests by their names: `topic`, `transactional-id`, `read` ..."""
from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

Code = TypeVar('Code', bound=IntEnum)


def code_named(codes: type[Code], name: str, place: str) -> Code:
    """Return the code with this name. Raise ValueError, which names `place`, if no code has it."""
    found = codes.__members__.get(name.upper().replace('-', '_'))
    if found is None:
        expected = ', '.join(known.lower() for known in codes.__members__ if known != 'UNKNOWN')
        raise ValueError(f'found {name!r} {place}, expected one of {expected}')
    return found
