"""Settings of one listener, or of one SASL mechanism of it, by the prefix of their names (KIP-103, KIP-226):

    listener.name.LISTENER.SETTING
    listener.name.LISTENER.MECHANISM.SETTING

LISTENER and MECHANISM are written in lower case. The more precise name wins: that of the mechanism, that of the
listener, the plain setting.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.settings.rows import Scope, Setting
from kbroker.settings.table import KERBEROS, SASL_MECHANISMS, SETTINGS

PREFIX = 'listener.name.'
SECURITY_PROTOCOLS = {'PLAINTEXT': 0, 'SSL': 1, 'SASL_PLAINTEXT': 2, 'SASL_SSL': 3}
"""The security protocols of listeners, with their numbers in the metadata log."""
ONLY_PREFIXED = {'ssl.client.auth': ('SASL_SSL',)}
"""Settings whose plain form does not count for listeners of these protocols, as in Kafka."""


class ScopedName(NamedTuple):
    """The parts of a prefixed name. `listener` and `mechanism` are in lower case; without a mechanism it is ''."""

    listener: str
    mechanism: str
    setting: str

    def __str__(self) -> str:
        return f'{PREFIX}{self.listener}.{self.mechanism}{"." if self.mechanism else ""}{self.setting}'


def split_name(name: str, listeners: Iterable[str]) -> ScopedName | None:
    """Return the parts of a prefixed name. None if it names none of `listeners`, which are in lower case."""
    rest = name.removeprefix(PREFIX)
    for listener in sorted(listeners, key=len, reverse=True):
        if rest.startswith(f'{listener}.'):
            setting = rest[len(listener) + 1:]
            for mechanism in (*SASL_MECHANISMS, KERBEROS):
                if setting.startswith(f'{mechanism.lower()}.'):
                    return ScopedName(listener, mechanism.lower(), setting[len(mechanism) + 1:])
            return ScopedName(listener, '', setting)
    return None


def row_of(scoped: ScopedName) -> Setting | None:
    """Return the row of a setting that may have this prefix, or None."""
    row = SETTINGS.get(scoped.setting)
    if row is None or row.scope not in (
            (Scope.MECHANISM, Scope.ONLY_MECHANISM) if scoped.mechanism else (Scope.LISTENER, Scope.MECHANISM)):
        return None
    return row


def names_behind_a_listener() -> Iterator[str]:
    """Yield every name that may stand behind the prefix of a listener."""
    for row in SETTINGS.values():
        if row.scope in (Scope.LISTENER, Scope.MECHANISM):
            yield row.name
        if row.scope in (Scope.MECHANISM, Scope.ONLY_MECHANISM):
            yield from (f'{mechanism.lower()}.{row.name}' for mechanism in SASL_MECHANISMS)


def names_in_force(listener: str, protocol: str, mechanism: str, row: Setting) -> list[str]:
    """Return the names that set a setting of a listener, or of its mechanism unless that is '', the strongest first."""
    names = []
    if mechanism and row.scope in (Scope.MECHANISM, Scope.ONLY_MECHANISM):
        names.append(str(ScopedName(listener.lower(), mechanism.lower(), row.name)))
    if row.scope in (Scope.LISTENER, Scope.MECHANISM):
        names.append(str(ScopedName(listener.lower(), '', row.name)))
    if row.scope is not Scope.ONLY_MECHANISM and protocol not in ONLY_PREFIXED.get(row.name, ()):
        names.append(row.name)
    return names
