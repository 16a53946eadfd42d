"""Options whose values are texts: the settings of clients and the options of programs, and parsers of usual forms.

A parser returns the value of a text, or raises ValueError with the expected form. `rows` has the settings of the
broker, whose parsers follow from their types.
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
    """A setting of a client or an option of a program."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    """The value of an option that is not given."""

    def value_of(self, text: str, name: str = '', refusal: Callable[[str, str], ConfigError] = bad_setting) -> Any:
        """Return the value of a text that was given under `name`, by default the option's own name.

        Raise the error that `refusal` makes of the name and the problem if the text is not valid.
        """
        try:
            return self.parse(text)
        except ValueError as error:
            raise refusal(name or self.name, f'found {text!r}, expected {error}') from None


def choice(*words: str) -> Callable[[str], str]:
    """Return the parser of one of these words, in any case of letters. The value has the case of the word here."""
    def parse(text: str) -> str:
        for word in words:
            if text.lower() == word.lower():
                return word
        raise ValueError(' or '.join(words))
    return parse


def whole_number(least: int, most: int, noun: str = 'a whole number') -> Callable[[str], int]:
    """Return the parser of a number in these bounds. `noun` names the number in the expected form."""
    def parse(text: str) -> int:
        # int() accepts 1_000 and other scripts' digits; Kafka does not.
        if not re.fullmatch(r'[+-]?[0-9]{1,19}', text) or not least <= int(text) <= most:
            raise ValueError(f'{noun} from {least} to {most}')
        return int(text)
    return parse
