"""The configuration in force, in layers: dynamic changes, then the operator's settings, then Kafka's defaults."""
import enum
import fnmatch
import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.errors import ConfigError, ErrorCode, KafkaError
from kbroker.settings import BROKER_NAME_OF, IGNORED, REFUSED, SETTINGS, TOPIC_SETTINGS, Setting, Type, Update


class Source(enum.IntEnum):
    """The origin of a value; the numbers are DescribeConfigs' `ConfigSource`."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


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
        self._layers: list[tuple[Source, dict[str, Any]]] = [
            (Source.DYNAMIC_BROKER, self._known_dynamic(per_broker or {})),
            (Source.DYNAMIC_DEFAULT_BROKER, self._known_dynamic(cluster_wide or {})),
            (Source.STATIC_BROKER, self._parse_given()),
        ]
        self._values = {name: self._resolve(setting) for name, setting in SETTINGS.items()}
        for name, setting in SETTINGS.items():
            setattr(self, setting.attribute, self._values[name])
        self._check_relations()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f'no setting has the attribute {name}')

    def __getitem__(self, name: str) -> Any:
        """Return the value of the setting with this dotted name."""
        return self._values[name]

    def _parse_given(self) -> dict[str, Any]:
        parsed = {}
        for name, text in self.given.items():
            setting = SETTINGS.get(name)
            if setting is not None:
                try:
                    parsed[name] = setting.parse(text)
                except ValueError as error:
                    raise ConfigError(name, f'{name}: found {_quoted(setting, text)}, expected {error}') from None
            elif (reason := _reason(REFUSED, name)) is not None:
                raise ConfigError(name, f'{name} cannot be honoured: {reason}. Remove it to start without')
            elif (reason := _reason(IGNORED, name)) is not None:
                self.warnings.append(f'{name} has no effect: {reason}')
            else:
                raise ConfigError(name, f'{name} is not a setting{_suggestion(name, SETTINGS)}')
        return parsed

    def _known_dynamic(self, configs: Mapping[str, str]) -> dict[str, Any]:
        parsed = {}
        for name, text in configs.items():
            setting = SETTINGS.get(name)
            if setting is None or setting.update is Update.READ_ONLY:
                self.warnings.append(f'{name} of the metadata log has no effect: it cannot be changed at run time here')
                continue
            try:
                parsed[name] = setting.parse(text)
            except ValueError as error:
                self.warnings.append(f'{name} of the metadata log is left out: found {_quoted(setting, text)}, '
                                     f'expected {error}')
        return parsed

    def _sources(self, setting: Setting) -> Iterator[tuple[str, Any, Source, int]]:
        """Yield (name, value, source, factor) of each source that sets this setting, the strongest first."""
        for source, values in self._layers:
            if setting.name in values:
                yield setting.name, values[setting.name], source, 1
        static = self._layers[-1][1]
        for name, factor in setting.fallbacks:
            if name in static:
                yield name, static[name], Source.STATIC_BROKER, factor
        for name, factor in ((setting.name, 1), *setting.fallbacks):
            if SETTINGS[name].default is not None:
                yield name, SETTINGS[name].default, Source.DEFAULT, factor

    def _resolve(self, setting: Setting) -> Any:
        for _, value, _, factor in self._sources(setting):
            # -1 means "no limit" in every unit.
            return value if factor == 1 or value < 0 else value * factor
        return None

    def _check_relations(self) -> None:
        for low, high in (('group.min.session.timeout.ms', 'group.max.session.timeout.ms'),
                          ('log.cleaner.min.compaction.lag.ms', 'log.cleaner.max.compaction.lag.ms')):
            if self[low] > self[high]:
                raise ConfigError(low, f'{low}: found {self[low]}, expected at most {high}, which is {self[high]}')
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

    def given_texts(self, prefix: str) -> dict[str, str]:
        """Return the operator's settings whose names start with `prefix`, as written."""
        return {name: text for name, text in self.given.items() if name.startswith(prefix)}

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
        protocols = dict(entry.partition(':')[::2] for entry in self['listener.security.protocol.map'])
        found: list[Listener] = []
        for text in self[setting]:
            listener = _parse_listener(setting, text)
            if listener.name in self['controller.listener.names']:
                continue
            protocol = protocols.get(listener.name, listener.name)
            if protocol not in ('PLAINTEXT', 'SSL'):
                raise ConfigError(setting, f'{setting}: found {text} of protocol {protocol}, expected PLAINTEXT or '
                                  'SSL: SASL is not served')
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
        """Return the broker's entries for DescribeConfigs."""
        return [self._entry(setting) for setting in SETTINGS.values() if not setting.internal]

    def _entry(self, setting: Setting) -> ConfigEntry:
        synonyms = self.synonyms(setting.name)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        value = _shown(setting, self[setting.name]) if synonyms else None
        return ConfigEntry(setting.name, value, source, setting.type,
                           setting.update is Update.READ_ONLY, setting.doc, synonyms)

    def synonyms(self, name: str) -> list[Synonym]:
        """Return each source of the setting, strongest first; like Kafka, without defaults of other names."""
        return [Synonym(given, _shown(SETTINGS[given], value), source)
                for given, value, source, _ in self._sources(SETTINGS[name])
                if given == name or source is not Source.DEFAULT]


def validate_broker_configs(changes: Mapping[str, str | None], *, per_broker: bool) -> None:
    """Check dynamic configs that a client wants to set (None: to remove).

    Raises KafkaError: INVALID_REQUEST, as Kafka does for brokers, if the setting cannot be changed this way or the
    value is not valid; INVALID_CONFIG for an unknown name.
    """
    for name, text in changes.items():
        setting = SETTINGS.get(name)
        if setting is None:
            reason = _reason(IGNORED, name) or _reason(REFUSED, name)
            why = f' here: {reason}' if reason else _suggestion(name, SETTINGS)
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{name} is not a setting{why}')
        if setting.update is Update.READ_ONLY:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{name} is read-only: set it in the file and restart')
        if setting.update is Update.PER_BROKER and not per_broker:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{name} can only be changed for one broker, found the default')
        if text is not None:
            _check_value(setting, text, ErrorCode.INVALID_REQUEST)


def _check_value(setting: Setting, text: str, code: ErrorCode) -> None:
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
        warnings.append(f'clients are told to connect to {name}, which is {", ".join(sorted(addresses))} here; clients '
                        'on other machines may need another name: see advertised.listeners')
    else:
        name = found[0][3] or name
    return [listener._replace(host=listener.host or name) for listener in listeners], warnings


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
            suggestion = _suggestion(name, TOPIC_SETTINGS)
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{name} is not a topic setting{suggestion}')
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{name}: found null, expected {setting.expected()}')
        _check_value(setting, text, ErrorCode.INVALID_CONFIG)
    topic = LogConfig(config, {name: text for name, text in overrides.items() if text is not None})
    if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f'min.compaction.lag.ms: found {topic.min_compaction_lag_ms}, '
                         f'expected at most max.compaction.lag.ms, which is {topic.max_compaction_lag_ms}')


def describe_topic(config: Config, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return a topic's entries for DescribeConfigs."""
    return [_topic_entry(config, setting, overrides) for setting in TOPIC_SETTINGS.values() if not setting.internal]


def _topic_entry(config: Config, setting: Setting, overrides: Mapping[str, str]) -> ConfigEntry:
    if setting.name in BROKER_NAME_OF:
        broker_name = BROKER_NAME_OF[setting.name]
        text, synonyms = setting.text(config[broker_name]), config.synonyms(broker_name)
    else:
        text, synonyms = setting.text(setting.default), []
    if setting.name in overrides:
        text = overrides[setting.name]
        synonyms = [Synonym(setting.name, text, Source.DYNAMIC_TOPIC), *synonyms]
    source = synonyms[0].source if synonyms else Source.DEFAULT
    return ConfigEntry(setting.name, text, source, setting.type, False, setting.doc, synonyms)


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


def _suggestion(name: str, known: Iterable[str]) -> str:
    import difflib  # slow to import, and needed only after a mistake

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f'; did you mean {near[0]}?' if near else ''
