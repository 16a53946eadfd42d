"""The configuration in force, in layers: dynamic changes, then the operator's settings, then Kafka's defaults."""
import enum
import fnmatch
import functools
import ipaddress
import itertools
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.suggestions import did_you_mean
from kbroker.settings.groups import AT_MOST, LESS_THAN
from kbroker.settings.listeners import (
    PREFIX,
    SECURITY_PROTOCOLS,
    names_behind_a_listener,
    names_in_force,
    row_of,
    split_name,
)
from kbroker.settings.rows import CLOSE, Scope, Setting, Type, Update
from kbroker.settings.table import (
    BROKER_NAME_OF,
    IGNORED,
    KERBEROS,
    REFUSED,
    SASL_MECHANISMS,
    SETTINGS,
    TOPIC_SETTINGS,
)


class Source(enum.IntEnum):
    """The origin of a value; the numbers are DescribeConfigs' `ConfigSource`."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class Synonym(NamedTuple):
    """One source that sets a value, or would set it if a stronger one did not."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as DescribeConfigs returns it. `value` is None for an unset setting and for a password."""

    name: str
    value: str | None
    source: Source
    type: Type
    read_only: bool
    documentation: str
    synonyms: list[Synonym] = field(default_factory=list)

    @property
    def is_sensitive(self) -> bool:
        return self.type is Type.PASSWORD


class Listener(NamedTuple):
    """An address to bind or to advertise to clients; an empty host means every interface."""

    name: str
    host: str
    port: int
    protocol: str = 'PLAINTEXT'

    @property
    def has_login(self) -> bool:
        """True if clients log in by SASL."""
        return self.protocol.startswith('SASL_')

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith('SSL')

    def __str__(self) -> str:
        host = f'[{self.host}]' if ':' in self.host else self.host
        return f'{self.name}://{host}:{self.port}'


class Config:
    """Every setting as an attribute: its dotted name with underscores.

    `given` holds the operator's settings. `cluster_wide` and `per_broker` are the BROKER configs of the metadata log,
    for all brokers and for this one. Raises ConfigError if a given name is unknown or a given value is not valid.
    A dynamic value that is not valid is ignored with a warning: it was accepted once, and the broker must start.
    """

    def __init__(self, given: Mapping[str, str], *, cluster_wide: Mapping[str, str] | None = None,
                 per_broker: Mapping[str, str] | None = None):
        self.given = dict(given)
        self.warnings: list[str] = []
        """Messages for the operator that do not stop the start."""
        static = self._parse_given()
        self._layers: list[tuple[Source, dict[str, Any]]] = [
            (Source.DYNAMIC_BROKER, self._known_dynamic(per_broker or {}, static)),
            (Source.DYNAMIC_DEFAULT_BROKER, self._known_dynamic(cluster_wide or {}, static)),
            (Source.STATIC_BROKER, static),
        ]
        self._texts = [per_broker or {}, cluster_wide or {}, self.given]
        """The texts of the layers' values. They may hold names that the layers leave out."""
        self._values = {name: self._resolve(name, setting) for name, setting in SETTINGS.items()}
        for name, setting in SETTINGS.items():
            setattr(self, setting.attribute, self._values[name])
        self._check_relations()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f'no setting has the attribute {name}')

    def __getitem__(self, name: str) -> Any:
        """Return the value of the setting with this dotted name."""
        return self._values[name]

    def _parse_given(self) -> dict[str, Any]:
        """Parse the plain settings, then those of a listener: their names depend on `listeners`."""
        parsed: dict[str, Any] = {}
        for is_prefixed in (False, True):
            for name, text in self.given.items():
                if name.startswith(PREFIX) is is_prefixed:
                    setting = self._row(name, parsed)
                    if setting is not None:
                        try:
                            parsed[name] = setting.parse(text)
                        except ValueError as error:
                            raise ConfigError(
                                name, f'{name}: found {_quoted(setting, text)}, expected {error}') from None
        return parsed

    def _row(self, name: str, static: Mapping[str, Any]) -> Setting | None:
        """Return the row of a setting. None for one without effect, with a warning. Raises ConfigError."""
        try:
            setting = find_setting(name, listener_names(static))
        except IgnoredSettingError as error:
            self.warnings.append(str(error))
            return None
        if name == setting.name and setting.scope is Scope.ONLY_MECHANISM:
            self.warnings.append(f'{name} has no effect: only {PREFIX}LISTENER.MECHANISM.{name} has one')
        return setting

    def _known_dynamic(self, configs: Mapping[str, str], static: Mapping[str, Any]) -> dict[str, Any]:
        parsed = {}
        for name, text in configs.items():
            try:
                setting = find_setting(name, listener_names(static))
            except ConfigError:
                setting = None
            if setting is None or setting.update is Update.READ_ONLY:
                self.warnings.append(f'{name} of the metadata log has no effect: it cannot be changed at run time here')
                continue
            try:
                parsed[name] = setting.parse(text)
            except ValueError as error:
                self.warnings.append(f'{name} of the metadata log is left out: found {_quoted(setting, text)}, '
                                     f'expected {error}')
        return parsed

    def _sources(self, name: str, setting: Setting) -> Iterator[tuple[str, Any, Source, int]]:
        """Yield (name, value, source, factor) of each source that sets this setting, the strongest first.

        `name` is the name of the setting, perhaps with a prefix.
        """
        for source, values in self._layers:
            if name in values:
                yield name, values[name], source, 1
        if name != setting.name:
            yield from self._sources(setting.name, setting)
            return
        static = self._layers[-1][1]
        for other, factor in setting.fallbacks:
            if other in static:
                yield other, static[other], Source.STATIC_BROKER, factor
        for other, factor in ((name, 1), *setting.fallbacks):
            if SETTINGS[other].default is not None:
                yield other, SETTINGS[other].default, Source.DEFAULT, factor

    def _resolve(self, name: str, setting: Setting) -> Any:
        for _, value, _, factor in self._sources(name, setting):
            # -1 means "no limit" in every unit.
            return value if factor == 1 or value < 0 else value * factor
        return None

    def is_set(self, name: str) -> bool:
        """Return whether the operator or a change at run time set this name, which may have a prefix."""
        return any(name in values for _, values in self._layers)

    def value_of(self, name: str) -> Any:
        """Return the value under a name that `is_set`."""
        return next(values[name] for _, values in self._layers if name in values)

    def _check_relations(self) -> None:
        for low, high in (('group.min.session.timeout.ms', 'group.max.session.timeout.ms'),
                          ('log.cleaner.min.compaction.lag.ms', 'log.cleaner.max.compaction.lag.ms'), *AT_MOST):
            if self[low] > self[high]:
                raise ConfigError(low, f'{low}: found {self[low]}, expected at most {high}, which is {self[high]}')
        for low, high in ((f'group.{low}', f'group.{high}') for low, high in LESS_THAN):
            if self[low] >= self[high]:
                raise ConfigError(low, f'{low}: found {self[low]}, expected less than {high}, which is {self[high]}')
        if set(self['process.roles']) != {'broker', 'controller'}:
            raise ConfigError('process.roles', f'process.roles: found {",".join(self["process.roles"])!r}, expected '
                              'broker,controller: one process is both')
        bound, advertised = self.bound_listeners, self.advertised
        if not bound:
            raise ConfigError('listeners', 'listeners: found none that is not a controller\'s, expected at least one')
        for listener in advertised:
            if listener.host in ('0.0.0.0', '::'):
                raise ConfigError('advertised.listeners', f'advertised.listeners: found {listener}, expected an '
                                  'address that clients can connect to')
            if listener.name not in {other.name for other in bound}:
                raise ConfigError('advertised.listeners', f'advertised.listeners: found {listener}, expected names out '
                                  f'of listeners: {", ".join(other.name for other in bound)}')
        for listener in bound:
            if listener.has_login and not ListenerConfig(self, listener)['sasl.enabled.mechanisms']:
                raise ConfigError('sasl.enabled.mechanisms', 'sasl.enabled.mechanisms: found none for the listener '
                                  f'{listener.name}, expected some of {", ".join(SASL_MECHANISMS)}')

    @property
    def listener_names(self) -> dict[str, bool]:
        """Listeners that the settings name, in lower case, and whether they are bound."""
        return listener_names(self._values)

    def for_listener(self, name: str) -> 'ListenerConfig':
        """Return the settings in force for a bound listener."""
        listener = next(listener for listener in self.bound_listeners if listener.name == name.upper())
        return ListenerConfig(self, listener)

    @property
    def log_directory(self) -> str:
        """The one directory that holds all data."""
        return str(self['log.dirs'][0])

    @property
    def bound_listeners(self) -> list[Listener]:
        """The addresses to bind, without the controller's."""
        return self._listeners('listeners')

    @property
    def advertised(self) -> list[Listener]:
        """The addresses for clients. Port 0 means the bound port; an empty host means this machine's name.

        `addresses_for_clients` resolves the name.
        """
        listeners = self._listeners('listeners' if self['advertised.listeners'] is None else 'advertised.listeners')
        if self['advertised.listeners'] is not None:
            return listeners
        return [listener._replace(host='' if listener.host in ('0.0.0.0', '::') else listener.host)
                for listener in listeners]

    def _listeners(self, setting: str) -> list[Listener]:
        protocols = dict(entry.upper().partition(':')[::2] for entry in self['listener.security.protocol.map'])
        found: list[Listener] = []
        for text in self[setting]:
            listener = _parse_listener(setting, text)
            if listener.name in self['controller.listener.names']:
                continue
            if listener.name not in protocols:
                raise ConfigError(setting, f'{setting}: found {text}, expected a name out of '
                                  f'listener.security.protocol.map: {", ".join(protocols)}')
            protocol = protocols[listener.name]
            if protocol not in SECURITY_PROTOCOLS:
                raise ConfigError('listener.security.protocol.map', 'listener.security.protocol.map: found '
                                  f'{listener.name}:{protocol}, expected one of {", ".join(SECURITY_PROTOCOLS)}')
            if listener.name in {other.name for other in found}:
                raise ConfigError(setting, f'{setting}: found the name {listener.name} twice, expected it once')
            found.append(listener._replace(protocol=protocol))
        return found

    def with_changes(self, *, cluster_wide: Mapping[str, str], per_broker: Mapping[str, str]) -> 'Config':
        """Return this configuration with its dynamic configs replaced by these, which must be complete."""
        return Config(self.given, cluster_wide=cluster_wide, per_broker=per_broker)

    def adopt(self, other: 'Config') -> None:
        """Replace every value by `other`'s, in place, so that each holder of this object sees the new values."""
        self.__dict__.update(other.__dict__)

    def describe(self) -> list[ConfigEntry]:
        """Return the broker's entries for DescribeConfigs. Settings of single listeners are listed if they are set."""
        prefixed = sorted({name for _, values in self._layers for name in values if name not in SETTINGS})
        return [*(self._entry(name, setting) for name, setting in SETTINGS.items() if not setting.internal),
                *(self._entry(name, find_setting(name, self.listener_names)) for name in prefixed)]

    def _entry(self, name: str, setting: Setting) -> ConfigEntry:
        synonyms = self._synonyms(name, setting)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        value = _shown(setting, self._resolve(name, setting)) if synonyms else None
        return ConfigEntry(name, value, source, setting.type, setting.update is Update.READ_ONLY, setting.doc, synonyms)

    def synonyms(self, name: str) -> list[Synonym]:
        """Return each source of the setting, strongest first, with its text as it was written.

        Like Kafka, without the sources of other names that come before the first of this very name.
        """
        return self._synonyms(name, SETTINGS[name])

    def _synonyms(self, name: str, setting: Setting) -> list[Synonym]:
        names = later_names().get(name, (name,)) if name == setting.name else (name, setting.name)
        found = [*self._written(names, setting),
                 *(Synonym(other, _shown(setting, SETTINGS[other].default), Source.DEFAULT)
                   for other in names if other in SETTINGS and SETTINGS[other].default is not None)]
        return list(itertools.dropwhile(lambda synonym: synonym.name != name, found))

    def _written(self, names: Iterable[str], setting: Setting) -> Iterator[Synonym]:
        """Yield the sources that set one of the names, strongest first."""
        for (source, values), texts in zip(self._layers, self._texts, strict=True):
            for name in names:
                if name in values:
                    yield Synonym(name, None if setting.type is Type.PASSWORD else texts[name], source)

    def strongest(self, name: str) -> tuple[str | None, Source]:
        """Return the text of the strongest source of a setting, in the unit of the setting, and that source."""
        setting = SETTINGS[name]
        for other, text, source in self._written(later_names()[name], setting):
            return (text if dict(setting.fallbacks).get(other, 1) == 1 else setting.text(self[name])), source
        return setting.text(self[name]), Source.DEFAULT


@functools.cache
def later_names() -> dict[str, tuple[str, ...]]:
    """Return the names that may set a setting, the strongest first: as of Kafka, of those that may change at run time.

    Minutes may be set in hours. Only a description asks, so a start does not.
    """
    found: dict[str, tuple[str, ...]] = {}
    for setting in SETTINGS.values():
        others = setting.fallbacks if setting.update is not Update.READ_ONLY else ()
        names = (setting.name, *(name for name, _ in others))
        for place, name in enumerate(names):
            found[name] = max(found.get(name, ()), names[place:], key=len)
    return found


class IgnoredSettingError(ConfigError):
    """A setting of Kafka's has no effect here. The message says why."""


def listener_names(values: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether a listener is bound, by its name in lower case, for each that the settings name."""
    def value(name: str) -> Any:
        return values[name] if name in values else SETTINGS[name].default

    bound = {text.partition('://')[0].lower() for text in value('listeners')}
    mapped = {entry.partition(':')[0].lower() for entry in value('listener.security.protocol.map')}
    controllers = {name.lower() for name in value('controller.listener.names')}
    return {name: name in bound - controllers for name in bound | mapped | controllers}


def find_setting(name: str, listeners: Mapping[str, bool]) -> Setting:
    """Return the row of a name that may have a prefix; `listeners` as `listener_names` returns them.

    Raises IgnoredSettingError and ConfigError.
    """
    scoped = split_name(name, listeners) if name.startswith(PREFIX) else None
    setting = SETTINGS.get(name) if scoped is None else row_of(scoped)
    if scoped is None and setting is None and name.startswith(PREFIX):
        raise ConfigError(name, f'{name}: found no listener of this name, expected one of '
                          f'{", ".join(sorted(listeners))}')
    plain = name if scoped is None else scoped.setting
    if scoped is not None and scoped.mechanism == KERBEROS.lower():
        raise ConfigError(name, f'{name} cannot be honoured: GSSAPI is not served, only {", ".join(SASL_MECHANISMS)}. '
                          'Remove it to start without')
    if setting is None and plain in SETTINGS:
        assert scoped is not None
        raise ConfigError(name, f'{name} cannot be honoured: {plain} is set for {SETTINGS[plain].scope.value}')
    if setting is None and (reason := _reason(IGNORED, plain)) is not None:
        raise IgnoredSettingError(name, f'{name} has no effect: {reason}')
    if setting is None and (reason := _reason(REFUSED, plain)) is not None:
        raise ConfigError(name, f'{name} cannot be honoured: {reason}. Remove it to start without')
    if setting is None:
        known = SETTINGS if scoped is None or scoped.mechanism else names_behind_a_listener()
        suggestion = did_you_mean(plain, known, least=CLOSE, prefix=name.removesuffix(plain))
        raise ConfigError(name, f'{name} is not a setting{suggestion}')
    if scoped is not None and not listeners[scoped.listener]:
        raise IgnoredSettingError(name, f'{name} has no effect: no listener {scoped.listener.upper()} is bound')
    return setting


class ListenerConfig:
    """The settings in force for one listener, or for one SASL mechanism of it, by their plain names."""

    def __init__(self, config: Config, listener: Listener, mechanism: str = ''):
        self.listener = listener
        self._config = config
        self._mechanism = mechanism

    def for_mechanism(self, mechanism: str) -> 'ListenerConfig':
        """Return the settings in force for a SASL mechanism of this listener."""
        return ListenerConfig(self._config, self.listener, mechanism)

    def __getitem__(self, name: str) -> Any:
        """Return the value of the setting with this plain name."""
        given = self._given(SETTINGS[name])
        if given is not None:
            return self._config.value_of(given)
        return SETTINGS[name].default

    def name_of(self, name: str) -> str:
        """Return the name under which a setting is set, or else should be: for error messages."""
        setting = SETTINGS[name]
        return self._given(setting) or self._names(setting)[0]

    def is_set(self, name: str) -> bool:
        """Return whether a setting has another source than its default."""
        return self._given(SETTINGS[name]) is not None

    def texts(self, prefix: str) -> dict[str, str]:
        """Return the settings that are set and whose plain names start with `prefix`, as they are written."""
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


def validate_broker_configs(config: Config, changes: Mapping[str, str | None], *, per_broker: bool) -> None:
    """Check dynamic configs that a client wants to set (None: to remove).

    Raises KafkaError: INVALID_REQUEST, as Kafka does for brokers, if the setting cannot be changed this way or the
    value is not valid; INVALID_CONFIG for an unknown name.
    """
    for name, text in changes.items():
        try:
            setting = find_setting(name, config.listener_names)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if setting.update is Update.READ_ONLY:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{name} is read-only: set it in the file and restart')
        if setting.scope is not Scope.BROKER and name == setting.name and setting.update is Update.PER_BROKER:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'{name} can only be changed for a listener: {PREFIX}LISTENER.{name}')
        if setting.update is Update.PER_BROKER and not per_broker:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{name} can only be changed for one broker, found the default')
        if text is not None:
            check_value(setting, text, ErrorCode.INVALID_REQUEST)


def check_value(setting: Setting, text: str, code: ErrorCode) -> None:
    """Raise KafkaError with `code` unless `text` is a valid value of the setting."""
    try:
        setting.parse(text)
    except ValueError as error:
        raise KafkaError(code, f'{setting.name}: found {_quoted(setting, text)}, expected {error}') from None


def addresses_for_clients(config: Config) -> tuple[list[Listener], list[str]]:
    """Return the addresses for clients, with this machine's name for an empty host, and warnings for the operator.

    Raises ConfigError if the name is needed and does not resolve. May wait for the resolver.
    """
    listeners = config.advertised
    unnamed = [listener for listener in listeners if not listener.host]
    if not unnamed:
        return listeners, []
    name, addresses = socket.gethostname(), set[str]()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
        addresses = {str(address[0]).partition('%')[0] for *_, address in found}
    except (OSError, UnicodeError):
        raise ConfigError('advertised.listeners', f'advertised.listeners: found no host for {unnamed[0]}, and this '
                          f'machine\'s name {name!r} does not resolve; expected the name or address that clients '
                          f'connect to: advertised.listeners={unnamed[0]._replace(host="HOST")}') from None
    warnings = []
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        warnings.append(f'clients connect to {name}, which is {", ".join(sorted(addresses))} here; clients '
                        'on other machines may need another name: see advertised.listeners')
    else:
        name = found[0][3] or name
    return [listener._replace(host=listener.host or name) for listener in listeners], warnings


def is_loopback(host: str) -> bool:
    """Return whether no other machine reaches a listener at `host`. An empty host is every interface."""
    try:
        return ipaddress.ip_address(host or '0.0.0.0').is_loopback
    except ValueError:
        pass        # a name
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address[0]).partition('%')[0]).is_loopback for *_, address in found)


def check_exposure(config: Config) -> list[str]:
    """Return warnings about listeners that other machines reach.

    Raises ConfigError if clients of such a listener do not authenticate and `kbroker.allow.insecure.listener` is false.
    """
    warnings = []
    exposed = [listener for listener in config.bound_listeners if not is_loopback(listener.host)]
    for listener in exposed:
        settings = config.for_listener(listener.name)
        has_certificates = listener.has_tls and settings['ssl.client.auth'] == 'required'
        if not listener.has_login and not has_certificates:
            if not config.kbroker_allow_insecure_listener:
                raise ConfigError('listeners', f'listeners: other machines reach {listener}, and its clients do not '
                                  'log in. Expected an address of loopback, SASL, or TLS with ssl.client.auth='
                                  'required; kbroker.allow.insecure.listener=true starts the broker nevertheless')
            warnings.append(f'every machine that reaches {listener} may use it without a login')
        weak = {'PLAIN', 'OAUTHBEARER'}.intersection(settings['sasl.enabled.mechanisms'])
        if listener.has_login and not listener.has_tls and weak:
            warnings.append(f'{listener} has no TLS: {" and ".join(sorted(weak))} send secrets that others can read; '
                            'SCRAM does not')
    if exposed and config.authorizer_class_name and config.allow_everyone_if_no_acl_found:
        warnings.append('allow.everyone.if.no.acl.found=true: every client may use what no ACL is about')
    return warnings


class LogConfig:
    """The configuration of one topic: attributes by topic-level name, from its overrides and the broker's defaults.

    Unknown and invalid overrides are ignored: they were already in the metadata log. Changes by a client are checked by
    `validate_topic_configs` first.
    """

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_ms: int
    retention_bytes: int
    cleanup_policy: frozenset[str]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    preallocate: bool
    min_insync_replicas: int
    internal_segment_bytes: int | None

    def __init__(self, config: Config, overrides: Mapping[str, str]):
        self.overrides = dict(overrides)
        for name, setting in TOPIC_SETTINGS.items():
            setattr(self, setting.attribute, self._value(config, name, setting))
        self.cleanup_policy = frozenset(self.cleanup_policy)
        if self.internal_segment_bytes is not None:
            self.segment_bytes = self.internal_segment_bytes

    def _value(self, config: Config, name: str, setting: Setting) -> Any:
        if name in self.overrides:
            try:
                return setting.parse(self.overrides[name])
            except ValueError:
                pass
        return config[BROKER_NAME_OF[name]] if name in BROKER_NAME_OF else setting.default


def validate_topic_configs(overrides: Mapping[str, str | None], config: Config) -> None:
    """Check a topic's complete overrides. Raises KafkaError INVALID_CONFIG, which names the setting."""
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG,
                             f'{name} is not a topic setting{did_you_mean(name, TOPIC_SETTINGS, least=CLOSE)}')
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{name}: found null, expected {setting.expected()}')
        check_value(setting, text, ErrorCode.INVALID_CONFIG)
    topic = LogConfig(config, {name: text for name, text in overrides.items() if text is not None})
    if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f'min.compaction.lag.ms: found {topic.min_compaction_lag_ms}, '
                         f'expected at most max.compaction.lag.ms, which is {topic.max_compaction_lag_ms}')


def describe_topic(config: Config, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return a topic's entries for DescribeConfigs: values in their usual form, sources as they were written."""
    return [_topic_entry(config, setting, overrides) for setting in TOPIC_SETTINGS.values() if not setting.internal]


def _topic_entry(config: Config, setting: Setting, overrides: Mapping[str, str]) -> ConfigEntry:
    broker_name = BROKER_NAME_OF.get(setting.name)
    synonyms = [] if broker_name is None else config.synonyms(broker_name)
    if setting.name in overrides:
        text: str | None = setting.usual_text(overrides[setting.name])
        synonyms = [Synonym(setting.name, text, Source.DYNAMIC_TOPIC), *synonyms]
    else:
        text = setting.text(setting.default if broker_name is None else config[broker_name])
    source = synonyms[0].source if synonyms else Source.DEFAULT
    return ConfigEntry(setting.name, text, source, setting.type, False, setting.doc, synonyms)


def describe_new_topic(config: Config, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return a topic's entries for CreateTopics: like Kafka, each value as the strongest source has written it."""
    entries = []
    for setting in TOPIC_SETTINGS.values():
        broker_name = BROKER_NAME_OF.get(setting.name)
        text: str | None
        if setting.name in overrides:
            text, source = overrides[setting.name], Source.DYNAMIC_TOPIC
        elif broker_name is not None:
            text, source = config.strongest(broker_name)
        else:
            text, source = setting.text(setting.default), Source.DEFAULT
        if not setting.internal:
            entries.append(ConfigEntry(setting.name, text, source, setting.type, False, setting.doc))
    return entries


def _quoted(setting: Setting, text: str) -> str:
    return 'a hidden value' if setting.type is Type.PASSWORD else repr(text)


def _shown(setting: Setting, value: Any) -> str | None:
    return None if setting.type is Type.PASSWORD else setting.text(value)


def _parse_listener(setting: str, text: str) -> Listener:
    name, separator, address = text.partition('://')
    host, colon, port = address.rpartition(':')
    bracketed = host.startswith('[') and host.endswith(']')
    if (not separator or not name or not colon or not port.isdecimal() or int(port) > 65535
            or (':' in host and not bracketed)):
        raise ConfigError(setting, f'{setting}: found {text!r}, expected NAME://HOST:PORT, an IPv6 host in brackets')
    return Listener(name.upper(), host[1:-1] if bracketed else host, int(port))


def _reason(patterns: Mapping[str, str], name: str) -> str | None:
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(name, pattern)), None)
