"""Settings as clients see them: the entries and sources of DescribeConfigs, and the check of a new value."""
import enum
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.settings.rows import Setting, Type


class Source(enum.IntEnum):
    """The source of a value. The numbers are those of `ConfigSource` in DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """A source that sets a value, or that would set it if no stronger source did."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The entry of a setting in DescribeConfigs. `value` is None for an unset setting and for a password."""

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


def quoted(setting: Setting, text: str) -> str:
    """Return a text in quotes for an error message. For a password, return a text that hides it."""
    return 'a hidden value' if setting.type is Type.PASSWORD else repr(text)


def shown(setting: Setting, value: Any) -> str | None:
    """Return the text of a value in DescribeConfigs: None for a password and for an unset value."""
    return None if setting.type is Type.PASSWORD else setting.text(value)


def check_value(setting: Setting, text: str, code: ErrorCode) -> None:
    """Raise KafkaError with `code` unless `text` is a valid value of the setting."""
    try:
        setting.parse(text)
    except ValueError as error:
        raise KafkaError(code, f'{setting.name}: found {quoted(setting, text)}, expected {error}') from None
