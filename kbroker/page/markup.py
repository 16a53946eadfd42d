"""HTML that is escaped by construction: an element is made only from texts, which are escaped, and from other elements.
"""
from __future__ import annotations

import unicodedata
from html import escape

EMPTY_ELEMENTS = {'input', 'link', 'meta', 'br'}
INVISIBLE = {'Cc', 'Cf', 'Cs', 'Zl', 'Zp'}
"""The categories of Unicode whose characters are shown as escapes: controls, formats and separators of lines."""


class Markup(str):
    """HTML that needs no escaping. Only `element`, `joined` and `lines_of` make it."""

    __slots__ = ()


def element(_name: str, *children: str | Markup | None, **attributes: str | int | bool | None) -> Markup:
    """Return an element. Children that are no Markup are escaped, and None is left out.

    In the names of attributes, `_` stands for `-`, and one at the end is dropped: `class_`. An attribute is left out if
    it is None or False; if it is True, it has no value.
    """
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.removesuffix('_').replace('_', '-')
        written.append(f' {key}' if value is True else f' {key}="{escape(str(value))}"')
    start = f'<{_name}{"".join(written)}>'
    return Markup(start if _name in EMPTY_ELEMENTS else f'{start}{joined(*children)}</{_name}>')


def joined(*children: str | Markup | None) -> Markup:
    """Return the children one after the other. Those that are no Markup are escaped."""
    return Markup(''.join(child if isinstance(child, Markup) else escape(visible(child))
                          for child in children if child is not None))


def visible(text: str) -> str:
    """Return a text whose invisible characters are escapes, so that it cannot look like another one."""
    if text.isascii() and text.isprintable():
        return text
    return ''.join(f'\\u{{{ord(character):x}}}' if unicodedata.category(character) in INVISIBLE else character
                   for character in text)


def name_of(text: str, **attributes: str) -> Markup:
    """Return a name that peers have chosen, isolated: right-to-left text does not reorder what is around it."""
    return element('bdi', text, **attributes)


def lines_of(text: str) -> Markup:
    """Return a text of several lines, for an element that keeps line breaks. Each line is escaped by itself."""
    return Markup('\n'.join(joined(line) for line in text.split('\n')))
