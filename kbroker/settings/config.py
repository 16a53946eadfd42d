"""The configuration in force. It has three layers: dynamic changes, the operator's settings, and Kafka's defaults."""
import fnmatch
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import replace
from kbroker.settings.entries import ConfigEntry, Source, Synonym, check_value, quoted, shown
from kbroker.settings.groups import AT_MOST, LESS_THAN
from kbroker.settings.listeners import (
    PREFIX,
    SECURITY_PROTOCOLS,
    Listener,
    ListenerConfig,
    listener_setting_names,
    parse_listener,
    row_of,
    split_name,
)
from kbroker.settings.rows import CLOSE, Scope, Setting, Type, Update
from kbroker.settings.table import (
    IGNORED,
    KERBEROS,
    REFUSED,
    SASL_MECHANISMS,
    SETTINGS,
)

METRICS = 'METRICS'
"""The name of the listener whose settings are those of TLS for metrics.listen."""


class Config:
    """The values of all settings. Each is an attribute, named like the setting with `_` instead of `.`.

    `given` holds the operator's settings. `cluster_wide` and `per_broker` are the BROKER configs in the metadata log,
    for all brokers and for this broker. The constructor raises ConfigError if a given name is unknown or a given value
    is not valid. An invalid dynamic value is ignored with a warning: it was valid when a client set it, and the broker
    must start.
    """

    def __init__(self, given: Mapping[str, str], *, cluster_wide: Mapping[str, str] | None = None,
                 per_broker: Mapping[str, str] | None = None):
        self.given = dict(given)
        self.warnings: list[str] = []
        """Warnings for the operator. They do not prevent the start."""
        static = self._parse_given()
        self._layers: list[tuple[Source, dict[str, Any]]] = [
            (Source.DYNAMIC_BROKER, self._known_dynamic(per_broker or {}, static)),
            (Source.DYNAMIC_DEFAULT_BROKER, self._known_dynamic(cluster_wide or {}, static)),
            (Source.STATIC_BROKER, static),
        ]
        self._texts = [per_broker or {}, cluster_wide or {}, self.given]
        """The texts of the values, one mapping for each layer. A mapping may contain names that its layer ignores."""
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
        """Parse the operator's settings: first the plain names, then the names with the prefix of a listener.

        A prefixed name is valid only if the plain setting `listeners` names its listener.
        """
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
                                name, f'{name}: found {quoted(setting, text)}, expected {error}') from None
        return parsed

    def _row(self, name: str, static: Mapping[str, Any]) -> Setting | None:
        """Return the row of a setting. If the setting has no effect, add a warning and return None.

        Raise ConfigError for an unknown name.
        """
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
                self.warnings.append(f'{name} of the metadata log is left out: found {quoted(setting, text)}, '
                                     f'expected {error}')
        return parsed

    def _sources(self, name: str, setting: Setting) -> Iterator[tuple[str, Any, Source, int]]:
        """Yield (name, value, source, factor) for each source that sets this setting, the strongest first.

        `name` may have the prefix of a listener. A value times its factor is in the unit of `setting`.
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
            # -1 means "no limit" in every unit, so it is not converted.
            return value if factor == 1 or value < 0 else value * factor
        return None

    def is_set(self, name: str) -> bool:
        """Return whether the operator or a dynamic change set this name, which may have a prefix."""
        return any(name in values for _, values in self._layers)

    def value_of(self, name: str) -> Any:
        """Return the strongest value under this name. The caller has checked that the name `is_set`."""
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
        if self['metrics.listen'] and METRICS in {listener.name for listener in bound}:
            raise ConfigError('listeners', f'listeners: found the name {METRICS}, which is the one of metrics.listen; '
                              'expected another name')
        for listener in bound:
            if listener.has_login and not ListenerConfig(self, listener)['sasl.enabled.mechanisms']:
                raise ConfigError('sasl.enabled.mechanisms', 'sasl.enabled.mechanisms: found none for the listener '
                                  f'{listener.name}, expected some of {", ".join(SASL_MECHANISMS)}')

    @property
    def listener_names(self) -> dict[str, bool]:
        """Maps each listener name in the settings, in lower case, to whether that listener is bound."""
        return listener_names(self._values)

    def for_listener(self, name: str) -> ListenerConfig:
        """Return the settings in force for the bound listener `name`."""
        listeners = [*self.bound_listeners, *([self.metrics_listener] if self.metrics_listener else [])]
        return ListenerConfig(self, next(listener for listener in listeners if listener.name == name.upper()))

    @property
    def metrics_listener(self) -> Listener | None:
        """The address of metrics.listen. It is no listener for clients, but has the settings of one for TLS."""
        scheme, separator, address = self['metrics.listen'].rpartition('://')
        if not address:
            return None
        return replace(parse_listener('metrics.listen', f'{METRICS}://{address}'),
                       protocol='SSL' if separator and scheme == 'https' else 'PLAINTEXT')

    @property
    def log_directory(self) -> str:
        """The log directory. kbroker has only one, and it holds all data."""
        return str(self['log.dirs'][0])

    @property
    def bound_listeners(self) -> list[Listener]:
        """The addresses to bind. They exclude the controller's listeners."""
        return self._listeners('listeners')

    @property
    def advertised(self) -> list[Listener]:
        """The addresses that the broker reports to clients. Port 0 means the port to which the listener is bound.

        An empty host means the name of this machine, which `addresses_for_clients` looks up.
        """
        listeners = self._listeners('listeners' if self['advertised.listeners'] is None else 'advertised.listeners')
        if self['advertised.listeners'] is not None:
            return listeners
        return [replace(listener, host='' if listener.host in ('0.0.0.0', '::') else listener.host)
                for listener in listeners]

    def _listeners(self, setting: str) -> list[Listener]:
        protocols = dict(entry.upper().partition(':')[::2] for entry in self['listener.security.protocol.map'])
        found: list[Listener] = []
        for text in self[setting]:
            listener = parse_listener(setting, text)
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
            found.append(replace(listener, protocol=protocol))
        return found

    def with_changes(self, *, cluster_wide: Mapping[str, str], per_broker: Mapping[str, str]) -> 'Config':
        """Return a configuration with the same operator's settings and these dynamic configs.

        The arguments replace all dynamic configs, so they must be complete.
        """
        return Config(self.given, cluster_wide=cluster_wide, per_broker=per_broker)

    def adopt(self, other: 'Config') -> None:
        """Replace every value by that of `other`, in place, so that all holders of this object see the new values."""
        self.__dict__.update(other.__dict__)

    def describe(self) -> list[ConfigEntry]:
        """Return the broker's entries for DescribeConfigs.

        A setting of a single listener has an entry only if it is set.
        """
        prefixed = sorted({name for _, values in self._layers for name in values if name not in SETTINGS})
        return [*(self._entry(name, setting) for name, setting in SETTINGS.items() if not setting.internal),
                *(self._entry(name, find_setting(name, self.listener_names)) for name in prefixed)]

    def _entry(self, name: str, setting: Setting) -> ConfigEntry:
        synonyms = self._synonyms(name, setting)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        value = shown(setting, self._resolve(name, setting)) if synonyms else None
        return ConfigEntry(name, value, source, setting.type, setting.update is Update.READ_ONLY, setting.doc, synonyms)

    def synonyms(self, name: str) -> list[Synonym]:
        """Return the sources of a setting, the strongest first, each with the text that its source contains.

        Like Kafka, omit the sources under other names that precede the first source under the name itself.
        """
        return self._synonyms(name, SETTINGS[name])

    def _synonyms(self, name: str, setting: Setting) -> list[Synonym]:
        names = later_names().get(name, (name,)) if name == setting.name else (name, setting.name)
        found = [*self._written(names, setting),
                 *(Synonym(other, shown(setting, SETTINGS[other].default), Source.DEFAULT)
                   for other in names if other in SETTINGS and SETTINGS[other].default is not None)]
        return list(itertools.dropwhile(lambda synonym: synonym.name != name, found))

    def _written(self, names: Iterable[str], setting: Setting) -> Iterator[Synonym]:
        """Yield the sources that set one of the names, the strongest first. Defaults are not included."""
        for (source, values), texts in zip(self._layers, self._texts, strict=True):
            for name in names:
                if name in values:
                    yield Synonym(name, None if setting.type is Type.PASSWORD else texts[name], source)

    def strongest(self, name: str) -> tuple[str | None, Source]:
        """Return (text, source) of the strongest source of a setting. The text is in the setting's own unit."""
        setting = SETTINGS[name]
        for found in self._written(later_names()[name], setting):
            is_in_its_unit = dict(setting.fallbacks).get(found.name, 1) == 1
            return (found.value if is_in_its_unit else setting.text(self[name])), found.source
        return setting.text(self[name]), Source.DEFAULT


@functools.cache
def later_names() -> dict[str, tuple[str, ...]]:
    """Map each setting to the names that may set it, the strongest first. The names may have different units.

    For example, log.retention.hours may set log.retention.ms. Like Kafka, give several names only to settings that may
    change at run time. Only descriptions need the result, so it is not computed at the start.
    """
    found: dict[str, tuple[str, ...]] = {}
    for setting in SETTINGS.values():
        others = setting.fallbacks if setting.update is not Update.READ_ONLY else ()
        names = (setting.name, *(name for name, _ in others))
        for place, name in enumerate(names):
            found[name] = max(found.get(name, ()), names[place:], key=len)
    return found


class IgnoredSettingError(ConfigError):
    """Raised for a setting of Kafka that has no effect in kbroker. The message gives the reason."""


def listener_names(values: Mapping[str, Any]) -> dict[str, bool]:
    """Map the name of each listener that the settings mention, in lower case, to whether that listener is bound."""
    def value(name: str) -> Any:
        return values[name] if name in values else SETTINGS[name].default

    bound = {text.partition('://')[0].lower() for text in value('listeners')}
    mapped = {entry.partition(':')[0].lower() for entry in value('listener.security.protocol.map')}
    controllers = {name.lower() for name in value('controller.listener.names')}
    if value('metrics.listen'):
        bound.add(METRICS.lower())
    return {name: name in bound - controllers for name in bound | mapped | controllers}


def find_setting(name: str, listeners: Mapping[str, bool]) -> Setting:
    """Return the row of the setting `name`, which may have a prefix. `listeners` is a result of `listener_names`.

    Raise IgnoredSettingError if the setting has no effect, ConfigError if it is unknown or cannot be honoured.
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
        known = SETTINGS if scoped is None or scoped.mechanism else listener_setting_names()
        from kbroker.base.suggestions import did_you_mean  # a start does not need it

        suggestion = did_you_mean(plain, known, least=CLOSE, prefix=name.removesuffix(plain))
        raise ConfigError(name, f'{name} is not a setting{suggestion}')
    if scoped is not None and not listeners[scoped.listener]:
        raise IgnoredSettingError(name, f'{name} has no effect: no listener {scoped.listener.upper()} is bound')
    return setting


def validate_broker_configs(config: Config, changes: Mapping[str, str | None], *, per_broker: bool) -> None:
    """Check dynamic configs that a client wants to set. The value None removes a config.

    Raise KafkaError INVALID_CONFIG for an unknown name. Like Kafka for brokers, raise INVALID_REQUEST if a value is not
    valid or its setting cannot be changed this way.
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


def _reason(patterns: Mapping[str, str], name: str) -> str | None:
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(name, pattern)), None)
