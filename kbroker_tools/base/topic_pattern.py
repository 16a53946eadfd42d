"""The pattern that selects topics in the options of Kafka's tools."""
from __future__ import annotations

import re

from kbroker_tools.base.command import ToolError


def pattern_of(text: str) -> re.Pattern[str]:
    """Compile a list of regular expressions, as Kafka does. Quotes around the list, and blanks in it, are ignored."""
    words = text.replace(',', '|').replace(' ', '').lstrip('"\'').rstrip('"\'')
    try:
        return re.compile(words)
    except re.error as error:
        raise ToolError(f'{text} is not a regular expression: {error}') from None
