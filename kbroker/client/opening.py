"""Creates the cluster and the settings object of a client from its arguments."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, cast

from kbroker.base.clock import Clock
from kbroker.base.errors import ConfigError
from kbroker.base.suggestions import did_you_mean
from kbroker.client.cluster import Cluster
from kbroker.client.config import CONNECTION_SETTINGS, SECURITY_SETTINGS, ClientConfig

Servers = str | Sequence[str] | Cluster | None
"""The value of bootstrap.servers as one string or a list, or a cluster whose connections several clients share."""

CLIENT_ID = 'kbroker-client'
SHORT_NAMES = {'two_phase_commit': 'transaction.two.phase.commit.enable'}
"""Maps each parameter whose setting cannot be found by replacing underscores with dots to the name of its setting."""


class InvalidSetting(ConfigError, ValueError):
    """An error in a setting that a program gave to a client: an unknown name, or a value that is not valid."""


class ClientSettings(Protocol):
    """The settings of one type of client, such as a producer."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self: ...

    @classmethod
    def defaults(cls) -> dict[str, str]:
        """Return {setting: default} for all settings."""


S = TypeVar('S', bound=ClientSettings)


class Opening(NamedTuple, Generic[S]):
    cluster: Cluster
    settings: S
    is_owned: bool
    """True if the client must close the cluster."""


def open_cluster(servers: Servers, settings: S | Mapping[str, object] | None, options: Mapping[str, object],
                 kind: type[S], clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep) -> Opening[S]:
    """Return the cluster and the settings object of a client. `options` take precedence over `settings`.

    A new cluster connects at its first use. If `servers` is a cluster, its connections keep their settings, including
    unknown settings. Raise InvalidSetting for a setting that neither the connections nor this type of client know.
    """
    known = kind.defaults()
    given = as_properties({setting_name(name): value for name, value in options.items()})
    if isinstance(settings, kind):
        if used := given.keys() & known.keys():
            raise TypeError(f'found {min(used)} beside {kind.__name__}, expected it to contain all settings')
    else:
        given = as_properties(cast(Mapping[str, object], settings or {})) | given
    try:
        if servers is None or isinstance(servers, Sequence):
            if servers is not None:
                given['bootstrap.servers'] = servers if isinstance(servers, str) else ','.join(servers)
            config = ClientConfig.from_settings({'client.id': CLIENT_ID, **given})
            _refuse_unknown(config.properties, known)
            cluster, properties = Cluster(config, clock, sleep), dict(config.properties)
        else:
            _refuse_unknown(given, known)
            cluster, properties = servers, {**servers.config.properties, **given}
        chosen = settings if isinstance(settings, kind) else kind.from_properties(properties)
    except ConfigError as error:
        raise InvalidSetting(error.name, str(error)) from None
    return Opening(cluster, chosen, cluster is not servers)


def setting_name(parameter: str) -> str:
    """Return the name of the setting that a parameter sets, such as `linger.ms` for `linger_ms`."""
    return SHORT_NAMES.get(parameter, parameter.replace('_', '.'))


def as_properties(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the settings with their values as texts, as in a properties file. Omit a setting whose value is None."""
    return {name: as_text(value) for name, value in settings.items() if value is not None}


def as_text(value: object) -> str:
    """Return the value of a setting as a text, as in a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_unknown(given: Mapping[str, str], known: Collection[str]) -> None:
    unknown = sorted(given.keys() - set(known))
    if not unknown:
        return
    name = unknown[0]
    if name in SECURITY_SETTINGS:
        part = name.partition('.')[0].upper()
        raise ConfigError(name, f'found {name}, which has no effect unless security.protocol contains {part}')
    hint = did_you_mean(name, [*known, *CONNECTION_SETTINGS, *SECURITY_SETTINGS], ': ')
    raise ConfigError(name, f'{name}: this client does not have this setting{hint}')
