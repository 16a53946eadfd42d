"""The identity of a client, for the authorizer and the quotas (KIP-11)."""
from __future__ import annotations

from typing import NamedTuple

USER = 'User'


class Principal(NamedTuple):
    """A type, always `User` here, and a name; written `User:alice`. Both are compared exactly."""

    type: str
    name: str

    def __str__(self) -> str:
        return f'{self.type}:{self.name}'


ANONYMOUS = Principal(USER, 'ANONYMOUS')
"""The client of a listener that does not authenticate."""


def parse_principals(text: str) -> list[Principal]:
    """Return the principals of `super.users`: separated by semicolons, because names hold commas. Raises ValueError."""
    return [parse_principal(part) for part in map(str.strip, text.split(';')) if part]


def parse_principal(text: str) -> Principal:
    """Return the principal of `TYPE:NAME`; the name may contain colons. Raises ValueError."""
    kind, colon, name = text.partition(':')
    if not (kind and colon and name):
        raise ValueError(f'found {text!r}, expected TYPE:NAME, as in User:alice')
    return Principal(kind, name)
