"""The identity of a client, for the authorizer and the quotas (KIP-11)."""
from __future__ import annotations

from typing import NamedTuple

USER = 'User'


class Principal(NamedTuple):
    """A principal: a type, which is always `User` in kbroker, and a name. Its text is, for example, `User:alice`. Upper
    and lower case differ in both.
    """

    type: str
    name: str

    def __str__(self) -> str:
        return f'{self.type}:{self.name}'


ANONYMOUS = Principal(USER, 'ANONYMOUS')
"""The principal of a client on a listener that does not authenticate clients."""


def parse_principals(text: str) -> list[Principal]:
    """Return the principals in the value of `super.users`. Semicolons separate them, because names may contain commas.

    Raise ValueError if a principal is not TYPE:NAME.
    """
    return [parse_principal(part) for part in map(str.strip, text.split(';')) if part]


def parse_principal(text: str) -> Principal:
    """Return the principal that a text `TYPE:NAME` describes. The name may contain colons. Raise ValueError
    otherwise.
    """
    kind, colon, name = text.partition(':')
    if not (kind and colon and name):
        raise ValueError(f'found {text!r}, expected TYPE:NAME, as in User:alice')
    return Principal(kind, name)
