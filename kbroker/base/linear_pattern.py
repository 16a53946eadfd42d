"""Regular expressions from clients. The time to match a text grows only linearly with its length.

Python's `re` backtracks, so a hostile pattern would block the only thread for hours. Kafka uses RE2/J for the same
reason. The syntax is RE2's: alternatives, groups, flags, repetitions up to MAX_REPEAT, classes, escapes, Unicode
categories, and assertions.

A pattern is refused if it is not valid, or if it names a Unicode script. It is also refused if it needs more than
MAX_LENGTH characters, MAX_STATES states or MAX_DEPTH nested groups.

RE2 itself (the package google-re2) has no wheels for Python 3.15 and none for musl, so not every broker could use it.

A pattern is compiled to states. While a text is matched, the set of possible states after each character is computed.
Each set is stored with its successors, so most characters cost one dictionary lookup. The memory for the stored sets is
bounded.
"""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

MAX_LENGTH = 4096
MAX_REPEAT = 1000
MAX_STATES = 2000
MAX_DEPTH = 100
MAX_REMEMBERED = 50_000
"""The most states in all stored sets of a pattern and in the links to their successors."""
PART_STATES = 500

Predicate = Callable[[str], bool]

_DIGITS = '0123456789'
_LOWER = 'abcdefghijklmnopqrstuvwxyz'
_UPPER = _LOWER.upper()
_ASCII = ''.join(map(chr, range(128)))
_PRINT = _ASCII[32:127]
_ALNUM = _DIGITS + _UPPER + _LOWER
_WORD = _ALNUM + '_'

_ESCAPED_CLASSES = {'d': _DIGITS, 's': '\t\n\f\r ', 'w': _WORD}
_NAMED_CLASSES = {
    'alnum': _ALNUM, 'alpha': _UPPER + _LOWER, 'ascii': _ASCII, 'blank': '\t ', 'cntrl': _ASCII[:32] + _ASCII[127:],
    'digit': _DIGITS, 'graph': _PRINT[1:], 'lower': _LOWER, 'print': _PRINT,
    'punct': ''.join(char for char in _PRINT[1:] if char not in _ALNUM), 'space': '\t\n\v\f\r ', 'upper': _UPPER,
    'word': _WORD, 'xdigit': _DIGITS + 'ABCDEFabcdef',
}
_CATEGORIES = frozenset((
    'Cc', 'Cf', 'Co', 'Cs', 'Ll', 'Lm', 'Lo', 'Lt', 'Lu', 'Mc', 'Me', 'Mn', 'Nd', 'Nl', 'No', 'Pc', 'Pd', 'Pe', 'Pf',
    'Pi', 'Po', 'Ps', 'Sc', 'Sk', 'Sm', 'So', 'Zl', 'Zp', 'Zs'))
_CONTROLS = {'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'v': '\v', 'a': '\a'}

_BOUNDS = re.compile(r'\{(0|[1-9][0-9]*)(,?)((?<=,)(?:0|[1-9][0-9]*)|)\}')
_GROUP_NAME = re.compile(r'P?<([A-Za-z0-9_]+)>')
_FLAGS = re.compile(r'([imsU]*)(?:-([imsU]+))?([:)])')
_OCTAL = re.compile('0[0-7]{0,2}|[1-7][0-7]{1,2}')
_HEX = re.compile(r'x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})')
_CATEGORY = re.compile(r'(\^?)([A-Z])|\{(\^?)([A-Za-z_]+)\}')
_NAMED_CLASS = re.compile(r'\[:(\^?)([a-z]*):\]')


class PatternError(ValueError):
    """Raised if a pattern is not valid or too large. The message says what was found, and at which position."""


class _Assertion(StrEnum):
    """A condition on the characters around a position in the text: the one before it and the one after it."""

    TEXT_BEGINS = 'A'
    TEXT_ENDS = 'z'
    LINE_BEGINS = '^'
    LINE_ENDS = '$'
    AT_WORD_EDGE = 'b'
    NOT_AT_WORD_EDGE = 'B'


class _Kind(IntEnum):
    """The kinds of characters that assertions distinguish."""

    NONE = 0
    """No character: the position is at the start or the end of the text."""
    NEWLINE = 1
    WORD = 2
    OTHER = 3


def _kind(char: str) -> _Kind:
    return _Kind.NEWLINE if char == '\n' else _Kind.WORD if char in _WORD else _Kind.OTHER


def _holds(assertion: _Assertion, before: _Kind, after: _Kind) -> bool:
    match assertion:
        case _Assertion.TEXT_BEGINS:
            return before is _Kind.NONE
        case _Assertion.TEXT_ENDS:
            return after is _Kind.NONE
        case _Assertion.LINE_BEGINS:
            return before <= _Kind.NEWLINE
        case _Assertion.LINE_ENDS:
            return after <= _Kind.NEWLINE
        case _Assertion.AT_WORD_EDGE:
            return (before is _Kind.WORD) != (after is _Kind.WORD)
        case _Assertion.NOT_AT_WORD_EDGE:
            return (before is _Kind.WORD) == (after is _Kind.WORD)


@dataclass(frozen=True, slots=True)
class _One:
    """Matches one character for which `passes` returns True."""

    passes: Predicate


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: list[_Node]


@dataclass(frozen=True, slots=True)
class _Alternatives:
    parts: list[_Node]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _One | _Assertion | _Sequence | _Alternatives | _Repeat
_Step = _One | _Assertion | tuple[int, ...]
"""A state. _One consumes a character, _Assertion checks a condition, and a tuple continues at any of its states."""


@dataclass(slots=True)
class _Set:
    """The set of possible states after a character of the text, with its successors."""

    states: frozenset[int]
    before: _Kind
    """The kind of the last character consumed."""
    following: dict[str, _Set] = field(default_factory=dict)
    accepts: bool | None = None
    """True if the text may end after this character. None until this is computed."""


class LinearPattern:
    """A compiled pattern that matches whole texts. The constructor raises PatternError if the pattern is refused."""

    def __init__(self, text: str):
        self._sets: dict[tuple[frozenset[int], _Kind], _Set] = {}
        self._steps: list[_Step] = []
        self._emitted = 0
        self._emit(_Parser(text).parse())
        self._end = self._reserve()
        self.remembered = 0

    def __del__(self) -> None:
        self._forget()

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches all of `text`.

        The time is proportional to len(text) times the number of states.
        """
        steps = self.match_in_parts(text)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def match_in_parts(self, text: str) -> Generator[None, None, bool]:
        """Return whether the pattern matches all of `text`, as `matches` does, but yield after each PART_STATES states.
        """
        current = self._find(frozenset([0]), _Kind.NONE)
        done = 0
        for char in text:
            following = current.following.get(char)
            if following is None:
                following = self._follow(current, char)
                done += len(self._steps)
            current = following
            done += 1
            if done >= PART_STATES:
                done = 0
                yield
            if not current.states:
                return False
        if current.accepts is None:
            current.accepts = self._end in self._closure(current, _Kind.NONE)
        return current.accepts

    def _follow(self, current: _Set, char: str) -> _Set:
        """Compute and store the successor of `current` after the character `char`. Return it."""
        kind = _kind(char)
        ahead = frozenset(state + 1 for state in self._closure(current, kind)
                          if isinstance(step := self._steps[state], _One) and step.passes(char))
        if self.remembered > MAX_REMEMBERED:
            self._forget()
        current.following[char] = following = self._find(ahead, kind)
        self.remembered += 1
        return following

    def _find(self, states: frozenset[int], before: _Kind) -> _Set:
        found = self._sets.get((states, before))
        if found is None:
            found = self._sets[states, before] = _Set(states, before)
            self.remembered += len(states) + 1
        return found

    def _forget(self) -> None:
        for one in self._sets.values():
            one.following.clear()                             # links between the sets form cycles
        self._sets.clear()
        self.remembered = 0

    def _closure(self, current: _Set, after: _Kind) -> Iterable[int]:
        """Return the states that are reachable from a set without consuming a character.

        The result contains only states that consume a character, and the end state if it is reachable. `after` is the
        kind of the next character.
        """
        pending = list(current.states)
        seen: set[int] = set()
        found = []
        while pending:
            state = pending.pop()
            if state in seen:
                continue
            seen.add(state)
            step = self._steps[state]
            if isinstance(step, tuple) and state != self._end:
                pending.extend(step)
            elif isinstance(step, _Assertion):
                if _holds(step, current.before, after):
                    pending.append(state + 1)
            else:
                found.append(state)
        return found

    def _emit(self, node: _Node) -> None:
        """Append the states of `node`. A match of `node` continues at the state that is appended next."""
        self._emitted += 1                                    # also counts empty nodes, as those of (){1000}
        if self._emitted > MAX_STATES:
            raise _too_many_states()
        match node:
            case _One() | _Assertion():
                self._steps.append(node)
            case _Sequence(parts):
                for part in parts:
                    self._emit(part)
            case _Alternatives(parts):
                self._emit_alternatives(parts)
            case _Repeat(part, least, most):
                for _ in range(least):
                    self._emit(part)
                if most is None:
                    self._emit_loop(part)
                else:
                    self._emit_optional(part, most - least)

    def _emit_alternatives(self, parts: list[_Node]) -> None:
        exits = []
        for part in parts[:-1]:
            fork = self._reserve()
            self._emit(part)
            exits.append(self._reserve())
            self._steps[fork] = (fork + 1, len(self._steps))
        self._emit(parts[-1])
        for leave in exits:
            self._steps[leave] = (len(self._steps),)

    def _emit_loop(self, part: _Node) -> None:
        fork = self._reserve()
        self._emit(part)
        self._steps.append((fork,))
        self._steps[fork] = (fork + 1, len(self._steps))

    def _emit_optional(self, part: _Node, times: int) -> None:
        forks = []
        for _ in range(times):
            forks.append(self._reserve())
            self._emit(part)
        for fork in forks:
            self._steps[fork] = (fork + 1, len(self._steps))

    def _reserve(self) -> int:
        self._steps.append(())
        return len(self._steps) - 1


class _Parser:
    """A recursive-descent parser of a pattern."""

    def __init__(self, text: str):
        if len(text) > MAX_LENGTH:
            raise PatternError(f'the pattern has {len(text)} characters; at most {MAX_LENGTH} are allowed')
        self._text = text
        self._position = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()
        self._names: set[str] = set()
        self._atoms = 0

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._position < len(self._text):
            raise self._error('an unmatched )')
        return node

    def _error(self, found: str) -> PatternError:
        return PatternError(f'found {found} at position {self._position} of {self._text!r}')

    def _peek(self) -> str:
        return self._text[self._position:self._position + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._error('the end')
        self._position += 1
        return char

    def _accept(self, text: str) -> bool:
        if not self._text.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
        return found

    def _alternatives(self) -> _Node:
        parts = [self._sequence()]
        while self._accept('|'):
            parts.append(self._sequence())
        return _Alternatives(parts)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ('', '|', ')'):
            if self._accept('\\Q'):
                literals, _, _ = self._text[self._position:].partition('\\E')
                self._position += len(literals)
                self._accept('\\E')
                parts += map(self._literal, literals[:-1])
                if literals:
                    parts.append(self._repeated(self._literal(literals[-1])))
            elif parts and self._is_repetition():             # after flags: it repeats the node before them
                parts.append(self._repeated(parts.pop()))
            elif not self._accept('\\E') and (atom := self._atom()) is not None:
                self._atoms += 1
                if self._atoms > MAX_STATES:                  # each atom takes a state at least: parse no further
                    raise _too_many_states()
                parts.append(self._repeated(atom))
        return _Sequence(parts)

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._accept('?')                                     # lazy or greedy makes no difference to a whole match
        if self._is_repetition():
            raise self._error(f'a repetition of a repetition, {self._peek()!r},')
        return _Repeat(node, *bounds)

    def _is_repetition(self) -> bool:
        return self._peek() in ('*', '+', '?') or _BOUNDS.match(self._text, self._position) is not None

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (('*', (0, None)), ('+', (1, None)), ('?', (0, 1))):
            if self._accept(sign):
                return bounds
        found = self._match(_BOUNDS)
        if found is None:
            return None                                       # a brace that is not a bound is a literal
        least, comma, most = found.groups()
        if max(len(least), len(most)) > len(str(MAX_REPEAT)):
            raise self._error(f'a bound above {MAX_REPEAT}')
        low = int(least)
        high = low if not comma else int(most) if most else None
        if low > MAX_REPEAT or (high is not None and not low <= high <= MAX_REPEAT):
            raise self._error(f'the bounds {found[0]}, outside 0 to {MAX_REPEAT} or falling,')
        return low, high

    def _atom(self) -> _Node | None:
        """Parse one node. Return None for a group that only sets flags, because it produces no node."""
        if self._is_repetition():
            raise self._error(f'nothing to repeat before {self._peek()!r}')
        char = self._take()
        match char:
            case '(':
                return self._group()
            case '[':
                return self._class()
            case '.':
                return _One(_always if 's' in self._flags else '\n'.__ne__)
            case '^':
                return _Assertion.LINE_BEGINS if 'm' in self._flags else _Assertion.TEXT_BEGINS
            case '$':
                return _Assertion.LINE_ENDS if 'm' in self._flags else _Assertion.TEXT_ENDS
            case '\\' if self._peek() and self._peek() in 'AzbB':
                return _Assertion(self._take())
            case '\\':
                passes = self._escaped_class()
                return self._literal(self._escaped()) if passes is None else _One(passes)
        return self._literal(char)

    def _literal(self, char: str) -> _One:
        if 'i' not in self._flags:
            return _One(char.__eq__)
        folded = _fold(char)
        return _One(lambda found: _fold(found) == folded)

    def _folded(self, passes: Predicate) -> Predicate:
        """If the flag `i` is set, return a predicate that ignores case. Otherwise return `passes`."""
        if 'i' not in self._flags:
            return passes
        return lambda char: any(map(passes, _cases(char)))

    def _group(self) -> _Node | None:
        flags = self._flags
        if self._accept('?'):
            name = self._match(_GROUP_NAME)
            if name is not None and name[1] in self._names:
                raise self._error(f'the group name {name[1]!r} for a second time')
            if name is not None:
                self._names.add(name[1])
            elif self._change_flags() == ')':
                return None
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f'more than {MAX_DEPTH} groups inside each other')
        node = self._alternatives()
        self._depth -= 1
        if not self._accept(')'):
            raise self._error('a missing )')
        self._flags = flags
        return node

    def _change_flags(self) -> str:
        """Parse flags such as `i-s`. Return the character after them.

        The character is `)` if the flags apply to the rest of the enclosing group, and `:` if they apply to a new
        group.
        """
        found = self._match(_FLAGS)
        if found is None:
            raise self._error('a group of an unknown kind')
        self._flags = (self._flags | set(found[1])) - set(found[2] or '')
        return found[3]

    def _escaped_class(self) -> Predicate | None:
        r"""Parse a class such as \d, after its backslash. Return None if the text is not a class."""
        char = self._peek()
        if char.lower() in _ESCAPED_CLASSES:
            self._take()
            members = _ESCAPED_CLASSES[char.lower()]
            return _negated(self._folded(members.__contains__), char.isupper())
        if not (self._accept('p') or self._accept('P')):
            return None
        found = self._match(_CATEGORY)
        if found is None:
            raise self._error(f'no category of Unicode after \\{char}')
        hat, name = (found[1], found[2]) if found[2] else (found[3], found[4])
        return _negated(self._folded(self._category(name)), (char == 'P') != bool(hat))

    def _category(self, name: str) -> Predicate:
        if name == 'Any':
            return _always
        members = frozenset(one for one in _CATEGORIES if one == name or one[0] == name)
        if not members:
            raise self._error(f'{name!r}, which is no category of Unicode,')
        return lambda char: unicodedata.category(char) in members

    def _escaped(self) -> str:
        """Parse an escape of a single character, after its backslash. Return the character."""
        octal = self._match(_OCTAL)
        if octal is not None:
            return chr(int(octal[0], 8))
        hexadecimal = self._match(_HEX)
        if hexadecimal is not None:
            code = int(hexadecimal[1] or hexadecimal[2], 16)
            if code > 0x10ffff:
                raise self._error(f'{hexadecimal[0]!r}, which is no character,')
            return chr(code)
        char = self._take()
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _ALNUM or char > '\x7f':
            raise self._error(f'the unknown escape \\{char}')
        return char

    def _class(self) -> _One:
        is_negated = self._accept('^')
        tests: list[Predicate] = []
        is_first = True                                       # a leading ] is a literal
        while is_first or self._peek() != ']':
            is_first = False
            if self._text.startswith('[:', self._position) and ':]' in self._text[self._position + 2:]:
                tests.append(self._named_class())
                continue
            if self._accept('\\'):
                passes = self._escaped_class()
                if passes is not None:
                    tests.append(passes)
                    continue
                first = self._escaped()
            else:
                first = self._take()
            last = first
            if self._peek() == '-' and self._text[self._position + 1:self._position + 2] not in ('', ']'):
                self._take()
                last = self._escaped() if self._accept('\\') else self._take()
                if last < first:
                    raise self._error(f'the falling range {first}-{last}')
            tests.append(self._folded(_range(first, last)))
        self._take()
        return _One(_negated(lambda char: any(test(char) for test in tests), is_negated))

    def _named_class(self) -> Predicate:
        found = self._match(_NAMED_CLASS)
        if found is None or found[2] not in _NAMED_CLASSES:
            raise self._error('an unknown named class')
        return _negated(self._folded(_NAMED_CLASSES[found[2]].__contains__), bool(found[1]))


def _too_many_states() -> PatternError:
    return PatternError(f'the pattern needs more than {MAX_STATES} states')


def _always(char: str) -> bool:
    return True


def _negated(passes: Predicate, is_negated: bool) -> Predicate:
    return (lambda char: not passes(char)) if is_negated else passes


def _range(first: str, last: str) -> Predicate:
    return lambda char: first <= char <= last


def _fold(char: str) -> str:
    """Return one character that represents both the upper and the lower case of `char`."""
    upper = char.upper()
    lower = (upper if len(upper) == 1 else char).lower()
    return lower if len(lower) == 1 else char


def _cases(char: str) -> set[str]:
    return {char, *(case for case in (char.lower(), char.upper(), _fold(char)) if len(case) == 1)}
