"""Options with text values (the settings of clients and the options of programs), and parsers of common types of
values.

A parser returns the value of a text, or raises ValueError whose message is the expected form. The settings of the
broker are in `rows`, and their types determine their parsers.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kbroker.base.errors import ConfigError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.settings.tls import bad_setting


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a client, or an option of a program."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    """The value if the option is not given."""

    def value_of(self, text: str, name: str = '', refusal: Callable[[str, str], ConfigError] = bad_setting) -> Any:
        """Return the value of a text that was given under `name`. An empty `name` means the option's own name.

        If the text is not valid, raise `refusal(name, problem)`.
        """
        try:
            return self.parse(text)
        except ValueError as error:
            raise refusal(name or self.name, f'found {text!r}, expected {error}') from None


def choice(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts one of these words, in upper or lower case.

    The parser returns the word in the case of `words`.
    """
    def parse(text: str) -> str:
        for word in words:
            if text.lower() == word.lower():
                return word
        raise ValueError(' or '.join(words))
    return parse


def whole_number(least: int, most: int, noun: str = 'a whole number') -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`. Its error messages call the number `noun`."""
    def parse(text: str) -> int:
        # int() also accepts 1_000 and the digits of other scripts. Kafka does not.
        if not re.fullmatch(r'[+-]?[0-9]{1,19}', text) or not least <= int(text) <= most:
            raise ValueError(f'{noun} from {least} to {most}')
        return int(text)
    return parse
