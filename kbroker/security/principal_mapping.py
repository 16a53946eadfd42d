"""The principal of a TLS client: the subject of its certificate, changed by `ssl.principal.mapping.rules`.

The syntax is Kafka's. A rule applies if its pattern matches the whole subject, and the first rule that applies is used.
Patterns and replacements have Java's syntax. The parser refuses each construct that Python's `re` lacks or would
interpret differently. So each accepted pattern matches as in Java.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.security.distinguished_names import subject_text
from kbroker.security.principal import USER, Principal

LONGEST_SUBJECT = 4096
"""The longest accepted subject, in characters. It limits the time of patterns that backtrack."""

_BEFORE_RULE = re.compile(r'[ \t\r\n\f\v,]*')
_DEFAULT = re.compile(r'DEFAULT')
_RULE = re.compile(r'RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)', re.DOTALL)
_BEHIND_RULE = re.compile(r'[ \t\r\n\f\v]*(?:,|\Z)')
_ANY_IN_JAVA = '[^\\n\\r\\u0085\\u2028\\u2029]'
_GROUP_START = re.compile(r'\(\?(?:[:=!>]|<[=!]|i\)|i:|<([A-Za-z][A-Za-z0-9]*)>)')
_SAME_ESCAPES = frozenset('0123456789dDsSwWbBtnrfa')
"""The letters and digits that have the same meaning after a backslash in Java and, with re.ASCII, in Python."""


class MappingError(ValueError):
    """An error: the rules are not valid, or no rule applies to a subject."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. A rule without a pattern is the rule DEFAULT, which keeps the subject unchanged."""

    pattern: re.Pattern[str] | None = None
    replacement: tuple[str | int, ...] = ()
    """The replacement: a text is used literally, a number is replaced by the group with this number."""
    case: str = ''

    def apply(self, subject: str) -> str | None:
        """Return the name for a subject, or None if the rule does not apply."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name = self.pattern.sub(self._replaced, subject)
        return name.lower() if self.case == 'L' else name.upper() if self.case == 'U' else name

    def _replaced(self, match: re.Match[str]) -> str:
        return ''.join(part if isinstance(part, str) else match[part] or '' for part in self.replacement)


Rules = Sequence[Rule]


def parse_mapping_rules(text: str) -> Rules:
    """Parse the value of `ssl.principal.mapping.rules`. Raise MappingError if a rule is not valid.

    A text without a rule is valid, but then no rule applies to any subject.
    """
    rules = []
    at = _end(_BEFORE_RULE, text, 0)
    while at < len(text):
        match = _RULE.match(text, at)
        if match is not None:
            rules.append(Rule(_java_pattern(match[1]), _java_replacement(match[1], match[2]), match[3]))
        else:
            match = _DEFAULT.match(text, at)
            if match is None:
                raise MappingError(f'found {text[at:]!r}, expected DEFAULT or RULE:pattern/replacement/[LU]')
            rules.append(Rule())
        behind = _BEHIND_RULE.match(text, match.end())
        if behind is None:
            raise MappingError(f'found {text[match.end():]!r} behind a rule, expected a comma or the end')
        at = _end(_BEFORE_RULE, text, behind.end())
    return tuple(rules)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


def principal_of_certificate(certificate: bytes, rules: Rules) -> Principal:
    """Return the principal of a client that has this DER certificate.

    Raise MappingError if no rule applies, CertificateError if the certificate cannot be read. The caller then
    closes the connection, so the client does not become anonymous.
    """
    return Principal(USER, mapped_name(subject_text(certificate), rules))


def mapped_name(subject: str, rules: Rules) -> str:
    """Return the name to which the first applicable rule maps a subject. Raise MappingError if no rule applies."""
    if len(subject) > LONGEST_SUBJECT:
        raise MappingError(f'found a subject of {len(subject)} characters, expected at most {LONGEST_SUBJECT}')
    for rule in rules:
        name = rule.apply(subject)
        if name is not None:
            return name
    raise MappingError('no rule of ssl.principal.mapping.rules applies to the subject of the certificate')


def _java_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern in Java's syntax. Raise MappingError for syntax that Python lacks or interprets differently."""
    translated = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == '\\':
            translated.append(_escape(text, at))
            at += 2
        elif char == '[':
            end = _class_end(text, at)
            translated.append(text[at:end])
            at = end
        elif char == '.':
            translated.append(_ANY_IN_JAVA)
            at += 1
        elif text.startswith('(?', at):
            start = _GROUP_START.match(text, at)
            if start is None or (start[0] == '(?i)' and at > 0):
                raise MappingError(f'pattern {text!r}: {text[at:at + 4]!r} is not supported')
            translated.append(start[0] if start[1] is None else f'(?P<{start[1]}>')
            at = start.end()
        else:
            translated.append(char)
            at += 1
    try:
        return re.compile(''.join(translated), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise MappingError(f'pattern {text!r}: {error}') from None


def _escape(text: str, at: int) -> str:
    following = text[at + 1:at + 2]
    if not following or (following.isascii() and following.isalnum() and following not in _SAME_ESCAPES):
        raise MappingError(f'pattern {text!r}: {text[at:at + 2]!r} is not supported')
    return text[at:at + 2]


def _class_end(text: str, start: int) -> int:
    """Return the index after the character class that begins at `start`. Raise MappingError for Java's nested
    classes.
    """
    at = start + 1
    if text.startswith('^', at):
        at += 1
    first = at
    while at < len(text):
        if text[at] == '\\':
            _escape(text, at)
            at += 2
        elif text[at] == '[' or text.startswith('&&', at) or (text[at] == ']' and at == first):
            raise MappingError(f'pattern {text!r}: {text[at:at + 2]!r} in a class is not supported')
        elif text[at] == ']':
            return at + 1
        else:
            at += 1
    raise MappingError(f'pattern {text!r}: found no end of the class at {start}')


def _java_replacement(pattern: str, text: str) -> tuple[str | int, ...]:
    """Parse a replacement in Java's syntax: `$1`, `${name}`, and `\\c` for the character c. Raise MappingError for a
    bad reference.
    """
    groups = _java_pattern(pattern)
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        if text[at] == '\\':
            if at + 1 == len(text):
                raise MappingError(f'replacement {text!r}: found nothing behind the last backslash')
            parts.append(text[at + 1])
            at += 2
        elif text[at] == '$':
            part, at = _reference(text, at, groups)
            parts.append(part)
        else:
            parts.append(text[at])
            at += 1
    return tuple(parts)


def _reference(text: str, at: int, pattern: re.Pattern[str]) -> tuple[str | int, int]:
    """Return the number of the group to which the reference at index `at` refers, and the index after the reference.

    For a number that is no group, return the text of the reference instead. Raise MappingError for a bad reference.
    """
    named = re.compile(r'\$\{([A-Za-z][A-Za-z0-9]*)\}').match(text, at)
    if named is not None:
        if named[1] not in pattern.groupindex:
            raise MappingError(f'replacement {text!r}: the pattern has no group {named[1]!r}')
        return pattern.groupindex[named[1]], named.end()
    digits = re.compile(r'\$([0-9]+)').match(text, at)
    if digits is None:
        raise MappingError(f'replacement {text!r}: a group expected behind $')
    for count in range(len(digits[1]), 0, -1):
        group = int(digits[1][:count])
        if group <= pattern.groups:
            return group, at + 1 + count
    if pattern.groups == 0:
        raise MappingError(f'replacement {text!r}: the pattern has no group')
    return digits[0], digits.end()
