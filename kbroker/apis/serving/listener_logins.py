"""Creates the SASL mechanisms of each listener from its settings, at the start and after a change of settings at run
time."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.base.clock import Clock, Timers
from kbroker.base.errors import ConfigError
from kbroker.security.mechanism import Mechanism
from kbroker.security.surroundings import Background, Surroundings
from kbroker.settings.config import Config
from kbroker.settings.exposure import is_loopback
from kbroker.settings.listeners import Listener, ListenerConfig

if TYPE_CHECKING:
    from kbroker.security.principal_mapping import Rules

SMALL_FRAME_BYTES = 64 * 1024
"""The size in bytes of the largest accepted frame before a login, unless `sasl.server.max.receive.size` is set. The
largest message of a login, an OAUTHBEARER token, has 16 KiB."""
SETTINGS_OF_MECHANISMS = 'sasl.'

logger = logging.getLogger('kbroker.security')


class ListenerLogins:
    """The mechanisms with which clients of a listener can log in, with their settings."""

    __slots__ = ('largest_frame_bytes', 'lifetimes_ms', 'listener', 'mechanisms', 'rules', 'texts')

    def __init__(self, listener: Listener):
        self.listener = listener
        self.rules: Rules = ()
        """The rules that map the names in TLS certificates to principals."""
        self.mechanisms: dict[str, Mechanism] = {}
        self.lifetimes_ms: dict[str, int] = {}
        """Maps each mechanism to its value of `connections.max.reauth.ms`."""
        self.texts: dict[str, Mapping[str, str]] = {}
        """Maps each mechanism to its settings, which contain secrets."""
        self.largest_frame_bytes = 0
        """The size in bytes of the largest accepted frame before a login. 0: the same size as after a login."""


def listener_logins(config: Config, listener: Listener, surroundings: Surroundings,
                    before: ListenerLogins | None = None) -> ListenerLogins:
    """Return the logins of a listener. A mechanism in `before` is reused if its settings are unchanged. The caller must
    load and start all new mechanisms. Raise ConfigError if a setting is invalid.
    """
    settings = config.for_listener(listener.name)
    logins = ListenerLogins(listener)
    if not listener.has_login:
        if listener.has_tls:
            logins.rules = mapping_rules(settings)
        return logins
    from kbroker.security.mechanisms import mechanism_for  # slow to import, and not always used

    is_guarded = config.kbroker_allow_insecure_listener or is_loopback(listener.host)
    for name in settings['sasl.enabled.mechanisms']:
        own = settings.for_mechanism(name)
        texts = logins.texts[name] = own.texts(SETTINGS_OF_MECHANISMS)
        logins.lifetimes_ms[name] = own['connections.max.reauth.ms']
        if before is not None and before.texts.get(name) == texts:
            logins.mechanisms[name] = before.mechanisms[name]
        else:
            logins.mechanisms[name] = mechanism_for(name, own, surroundings, is_guarded=is_guarded)
    logins.largest_frame_bytes = SMALL_FRAME_BYTES
    if settings.is_set('sasl.server.max.receive.size'):
        logins.largest_frame_bytes = settings['sasl.server.max.receive.size']
    return logins


def check_logins(config: Config) -> None:
    """Raise the ConfigError that a start of the broker would raise. Only errors in the settings themselves are found,
    not those in the files or servers to which settings refer."""
    clock = Clock()
    background = Background(Timers(clock), lambda job, done: None)
    surroundings = Surroundings(lambda mechanism, name: None, clock, b'', background)
    for listener in config.bound_listeners:
        listener_logins(config, listener, surroundings)


def mapping_rules(settings: ListenerConfig) -> Rules:
    from kbroker.security.principal_mapping import parse_mapping_rules

    try:
        return parse_mapping_rules(settings['ssl.principal.mapping.rules'])
    except ValueError as error:
        name = settings.name_of('ssl.principal.mapping.rules')
        raise ConfigError(name, f'{name}: {error}') from None
