"""The row of a setting: its type, parser, bounds and scope."""
import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.base.lean_dataclasses import dataclass

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MIN_SEGMENT_BYTES = 1_048_576
"""The least segment.bytes of a topic (KIP-1030). It applies to internal topics, too."""
CLOSE = 0.7
"""The least similarity, from 0 to 1, at which an error message suggests a setting for an unknown name."""


class Type(enum.IntEnum):
    """The type of a value. The numbers are those of `ConfigType` in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(enum.Enum):
    """How a setting may change while the broker runs."""

    READ_ONLY = 'read-only'
    PER_BROKER = 'per-broker'
    CLUSTER_WIDE = 'cluster-wide'


class Scope(enum.Enum):
    """The parts of the broker for which a setting may be set separately. A prefix of its name selects the part.

    `listeners` documents the prefixes.
    """

    BROKER = 'the broker'
    LISTENER = 'the broker, or a listener'
    MECHANISM = 'the broker, a listener, or a SASL mechanism of a listener'
    ONLY_MECHANISM = 'a SASL mechanism of a listener'


INTEGER_BOUNDS = {Type.INT: (-2**31, INT_MAX), Type.LONG: (-2**63, LONG_MAX)}


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint that bounds and a list of values cannot express, and its wording for error messages.

    `holds(value)` may raise ValueError with a more precise message.
    """

    holds: Callable[[Any], bool]
    expected: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the broker or of a topic.

    `fallbacks` are (setting, factor) pairs: the settings that replace this setting if it is not set, the first one
    preferred. A fallback's value times its factor is in the unit of this setting. `topic_name` is the topic-level
    setting whose default is the value of this setting.
    """

    name: str
    type: Type
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    rule: Rule | None = None
    topic_name: str | None = None
    update: Update = Update.READ_ONLY
    fallbacks: tuple[tuple[str, int], ...] = ()
    scope: Scope = Scope.BROKER
    internal: bool = False
    """True if DescribeConfigs, the help and the man page omit the setting."""

    @property
    def attribute(self) -> str:
        """The name of the attribute of `Config` or `LogConfig` that holds the value."""
        return self.name.replace('.', '_')

    def parse(self, text: str) -> Any:
        """Return the value of `text`.

        If the text is not valid, raise ValueError, whose message is the expected form.
        """
        text = text.strip() if self.type is not Type.PASSWORD else text
        value = PARSERS[self.type](text)
        bounds = INTEGER_BOUNDS.get(self.type)
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise ValueError(self.expected())
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ValueError(self.expected())
        if self.values is not None:
            if self.type is Type.LIST:
                value = tuple(dict.fromkeys(value))
            unknown = set(value if self.type is Type.LIST else [value]) - set(self.values)
            if unknown:
                raise ValueError(self.expected())
        if self.rule is not None and not self.rule.holds(value):
            raise ValueError(self.rule.expected)
        return value

    def expected(self) -> str:
        """Return a description of the valid values, for help and error messages."""
        if self.rule is not None:
            return self.rule.expected
        if self.values is not None:
            return f'{"a list of" if self.type is Type.LIST else "one of"} {", ".join(self.values)}'
        kind = {Type.BOOLEAN: 'true or false', Type.STRING: 'text', Type.LIST: 'a list', Type.PASSWORD: 'text',
                Type.CLASS: 'the name of a class', Type.DOUBLE: 'a number'}.get(self.type, 'a whole number')
        if self.low is None and self.high is None:
            return kind
        default_low, default_high = INTEGER_BOUNDS.get(self.type, (-math.inf, math.inf))
        low = default_low if self.low is None else self.low
        high = default_high if self.high is None else self.high
        return f'{kind} of at least {low}' if high in (LONG_MAX, math.inf) else f'{kind} from {low} to {high}'

    def text(self, value: Any) -> str | None:
        """Return the text of a value in a settings file and in DescribeConfigs. For an unset value, return None."""
        if value is None:
            return None
        if self.type is Type.BOOLEAN:
            return 'true' if value else 'false'
        if self.type is Type.DOUBLE:
            return double_text(value)
        return ','.join(value) if self.type is Type.LIST else str(value)

    def usual_text(self, text: str) -> str:
        """Return a text in the form that DescribeConfigs uses for its value.

        If it is not valid, return it unchanged.
        """
        try:
            return self.text(self.parse(text)) or ''
        except ValueError:
            return text


def usual_texts(configs: Mapping[str, str], rows: Mapping[str, Setting]) -> dict[str, str]:
    """Return a copy of `configs` in which the values of known settings have the form that DescribeConfigs uses."""
    return {name: rows[name].usual_text(text) if name in rows else text for name, text in configs.items()}


def double_text(value: float) -> str:
    """Return a number in Java's form: 0.0, 0.001, 1.0E-5."""
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    mantissa, _, power = repr(abs(float(value))).partition('e')
    whole, _, fraction = mantissa.partition('.')
    digits = (whole + fraction).lstrip('0')
    exponent = int(power or 0) - len(fraction) + len(digits) - 1
    first, others = digits[0], digits[1:].rstrip('0') or '0'
    return f'{"-" if value < 0 else ""}{first}.{others}E{exponent}'


def boolean(text: str) -> bool:
    """Return the value of `true` or `false`, in upper or lower case. Raise ValueError for any other text."""
    lowered = text.lower()
    if lowered not in ('true', 'false'):
        raise ValueError('true or false')
    return lowered == 'true'


def _integer(text: str) -> int:
    # int() also accepts 1_000 and the digits of other scripts. Kafka does not.
    if not re.fullmatch(r'[+-]?[0-9]+', text):
        raise ValueError('a whole number')
    return int(text)


def _double(text: str) -> float:
    if not re.fullmatch(r'[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?', text):
        raise ValueError('a number')
    return float(text)


def _list(text: str) -> tuple[str, ...]:
    return tuple(element.strip() for element in text.split(',')) if text else ()


PARSERS: dict[Type, Callable[[str], Any]] = {
    Type.BOOLEAN: boolean, Type.STRING: str, Type.INT: _integer, Type.LONG: _integer,
    Type.DOUBLE: _double, Type.LIST: _list, Type.CLASS: str, Type.PASSWORD: str,
}


def boolean_row(name: str, default: bool, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.BOOLEAN, default, doc, **more)


def int_row(name: str, default: int | None, doc: str, low: int | None = None, **more: Any) -> Setting:
    return Setting(name, Type.INT, default, doc, low=low, **more)


def long_row(name: str, default: int | None, doc: str, low: int | None = None, **more: Any) -> Setting:
    return Setting(name, Type.LONG, default, doc, low=low, **more)


def string_row(name: str, default: str | None, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.STRING, default, doc, **more)
