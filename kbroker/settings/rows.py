"""The form of a setting: its type, its parser, its bounds, and its scope."""
import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.base.lean_dataclasses import dataclass

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MIN_SEGMENT_BYTES = 1_048_576
"""The least segment.bytes of a topic (KIP-1030), also of internal topics."""
CLOSE = 0.7
"""The similarity, from 0 to 1, from which a setting is suggested for an unknown name."""


class Type(enum.IntEnum):
    """The type of a value; the numbers are DescribeConfigs' `ConfigType`."""

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
    """The parts of the broker for which a setting may be set, by the prefix of its name.

    `listeners` has the prefixes.
    """

    BROKER = 'the broker'
    LISTENER = 'the broker, or a listener'
    MECHANISM = 'the broker, a listener, or a SASL mechanism of a listener'
    ONLY_MECHANISM = 'a SASL mechanism of a listener'


INTEGER_BOUNDS = {Type.INT: (-2**31, INT_MAX), Type.LONG: (-2**63, LONG_MAX)}


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint that neither bounds nor a list of values can express, and its wording for error messages.

    `holds(value)` may raise ValueError with a more precise wording.
    """

    holds: Callable[[Any], bool]
    expected: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the broker or of a topic.

    `fallbacks` are the settings to use, in order, when this setting is not set, each with the factor that converts its
    unit to this setting's unit. `topic_name` is the topic-level setting whose default this setting is.
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
    """True if DescribeConfigs, help and man page omit the setting."""

    @property
    def attribute(self) -> str:
        """The attribute of `Config` and `LogConfig` that holds the value."""
        return self.name.replace('.', '_')

    def parse(self, text: str) -> Any:
        """Return the value of `text`. Raise ValueError, whose message is the expected form, if it is not valid."""
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
        """Return a value as written in a file and in DescribeConfigs; None for an unset value."""
        if value is None:
            return None
        if self.type is Type.BOOLEAN:
            return 'true' if value else 'false'
        if self.type is Type.DOUBLE:
            return double_text(value)
        return ','.join(value) if self.type is Type.LIST else str(value)

    def usual_text(self, text: str) -> str:
        """Return a text in the form in which DescribeConfigs shows its value, or unchanged if it is not valid."""
        try:
            return self.text(self.parse(text)) or ''
        except ValueError:
            return text


def usual_texts(configs: Mapping[str, str], rows: Mapping[str, Setting]) -> dict[str, str]:
    """Return configs with each value of a known setting in its usual form."""
    return {name: rows[name].usual_text(text) if name in rows else text for name, text in configs.items()}


def double_text(value: float) -> str:
    """Return a number as Java writes it: 0.0, 0.001, 1.0E-5."""
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
    # int() accepts 1_000 and other scripts' digits; Kafka does not.
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
