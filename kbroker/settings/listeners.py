"""Listeners, and the settings of one listener or of one SASL mechanism of a listener (KIP-103, KIP-226).

The names of these settings have a prefix:

    listener.name.LISTENER.SETTING
    listener.name.LISTENER.MECHANISM.SETTING

LISTENER and MECHANISM are in lower case. The name with the mechanism is stronger than the name with only the listener,
which is stronger than the plain name.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from kbroker.base.errors import ConfigError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.settings.rows import Scope, Setting
from kbroker.settings.table import KERBEROS, SASL_MECHANISMS, SETTINGS

PREFIX = 'listener.name.'
SECURITY_PROTOCOLS = {'PLAINTEXT': 0, 'SSL': 1, 'SASL_PLAINTEXT': 2, 'SASL_SSL': 3}
"""Maps each security protocol of listeners to its number in the metadata log."""
ONLY_PREFIXED = {'ssl.client.auth': ('SASL_SSL',)}
"""Maps each of some settings to the protocols whose listeners ignore its plain name, as in Kafka."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to bind or to report to clients. An empty host means every interface."""

    name: str
    host: str
    port: int
    protocol: str = 'PLAINTEXT'

    @property
    def has_login(self) -> bool:
        """True if clients log in with SASL."""
        return self.protocol.startswith('SASL_')

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith('SSL')

    def __str__(self) -> str:
        host = f'[{self.host}]' if ':' in self.host else self.host
        return f'{self.name}://{host}:{self.port}'


def parse_listener(setting: str, text: str) -> Listener:
    """Parse `NAME://HOST:PORT`, an element of the list `setting`. Raise ConfigError for any other text."""
    name, separator, address = text.partition('://')
    host, colon, port = address.rpartition(':')
    bracketed = host.startswith('[') and host.endswith(']')
    if (not separator or not name or not colon or not port.isdecimal() or int(port) > 65535
            or (':' in host and not bracketed)):
        raise ConfigError(setting, f'{setting}: found {text!r}, expected NAME://HOST:PORT, an IPv6 host in brackets')
    return Listener(name.upper(), host[1:-1] if bracketed else host, int(port))


@dataclass(frozen=True, slots=True)
class ScopedName:
    """The parts of a prefixed name. `listener` and `mechanism` are in lower case.

    `mechanism` is '' if the name has none.
    """

    listener: str
    mechanism: str
    setting: str

    def __str__(self) -> str:
        return f'{PREFIX}{self.listener}.{self.mechanism}{"." if self.mechanism else ""}{self.setting}'


def split_name(name: str, listeners: Iterable[str]) -> ScopedName | None:
    """Return the parts of a prefixed name, or None if its listener is not one of `listeners`.

    The names in `listeners` are in lower case.
    """
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
    """Return the row of the setting in `scoped`, or None if no setting has this name or it may not have this prefix."""
    row = SETTINGS.get(scoped.setting)
    if row is None or row.scope not in (
            (Scope.MECHANISM, Scope.ONLY_MECHANISM) if scoped.mechanism else (Scope.LISTENER, Scope.MECHANISM)):
        return None
    return row


def listener_setting_names() -> Iterator[str]:
    """Yield every name that may follow the prefix `listener.name.LISTENER.`."""
    for row in SETTINGS.values():
        if row.scope in (Scope.LISTENER, Scope.MECHANISM):
            yield row.name
        if row.scope in (Scope.MECHANISM, Scope.ONLY_MECHANISM):
            yield from (f'{mechanism.lower()}.{row.name}' for mechanism in SASL_MECHANISMS)


def names_in_force(listener: str, protocol: str, mechanism: str, row: Setting) -> list[str]:
    """Return the names under which `row` may be set for a listener, the strongest first.

    If `mechanism` is not '', include the names for this mechanism.
    """
    names = []
    if mechanism and row.scope in (Scope.MECHANISM, Scope.ONLY_MECHANISM):
        names.append(str(ScopedName(listener.lower(), mechanism.lower(), row.name)))
    if row.scope in (Scope.LISTENER, Scope.MECHANISM):
        names.append(str(ScopedName(listener.lower(), '', row.name)))
    if row.scope is not Scope.ONLY_MECHANISM and protocol not in ONLY_PREFIXED.get(row.name, ()):
        names.append(row.name)
    return names


class NamedValues(Protocol):
    """The values of settings by their full names, which may have the prefix of a listener."""

    def is_set(self, name: str) -> bool:
        """Return whether the operator or a dynamic change set this name."""

    def value_of(self, name: str) -> Any:
        """Return the value under this name. The caller has checked that the name `is_set`."""


class ListenerConfig:
    """The settings in force for one listener, or for one of its SASL mechanisms, by their plain names."""

    def __init__(self, config: NamedValues, listener: Listener, mechanism: str = ''):
        self.listener = listener
        self._config = config
        self._mechanism = mechanism

    def for_mechanism(self, mechanism: str) -> ListenerConfig:
        """Return the settings in force for a SASL mechanism of this listener."""
        return ListenerConfig(self._config, self.listener, mechanism)

    def __getitem__(self, name: str) -> Any:
        """Return the value in force of the setting with this plain name."""
        given = self._given(SETTINGS[name])
        if given is not None:
            return self._config.value_of(given)
        return SETTINGS[name].default

    def name_of(self, name: str) -> str:
        """Return the full name that sets a setting. If none does, return the strongest name that could.

        Error messages use the result.
        """
        setting = SETTINGS[name]
        return self._given(setting) or self._names(setting)[0]

    def is_set(self, name: str) -> bool:
        """Return whether the operator or a dynamic change set the setting with this plain name."""
        return self._given(SETTINGS[name]) is not None

    def texts(self, prefix: str) -> dict[str, str]:
        """Return {plain name: text} for the settings that are set and whose plain names start with `prefix`."""
        found = {}
        for name, setting in SETTINGS.items():
            if name.startswith(prefix) and (given := self._given(setting)) is not None:
                text = setting.text(self._config.value_of(given))
                assert text is not None
                found[name] = text
        return found

    def _names(self, setting: Setting) -> list[str]:
        return names_in_force(self.listener.name, self.listener.protocol, self._mechanism, setting)

    def _given(self, setting: Setting) -> str | None:
        return next((name for name in self._names(setting) if self._config.is_set(name)), None)
