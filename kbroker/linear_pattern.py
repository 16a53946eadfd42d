"""Regular expressions from clients, matched in time linear in the text.

Python's `re` backtracks: one hostile pattern would block the only thread for hours. Kafka uses RE2 for the same reason.
The syntax is a subset of RE2's: alternatives, groups, repetitions up to MAX_REPEAT, classes, the escapes below and the
anchors. Flags, named classes and word boundaries, which are rare in a filter of names, are not supported.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

MAX_REPEAT = 1000
MAX_STATES = 2000
PART_STATES = 500

Predicate = Callable[[str], bool]

_DIGITS = frozenset('0123456789')
_SPACES = frozenset('\t\n\f\r ')
_WORD = frozenset('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_')
_CLASSES: dict[str, Predicate] = {
    'd': _DIGITS.__contains__, 's': _SPACES.__contains__, 'w': _WORD.__contains__,
    'D': lambda char: char not in _DIGITS, 'S': lambda char: char not in _SPACES,
    'W': lambda char: char not in _WORD,
}
_BOUNDS = re.compile(r'\{([0-9]{1,9})(,?)((?<=,)[0-9]{1,9}|)\}')
_CONTROLS = {'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'v': '\v', 'a': '\a'}


class PatternError(ValueError):
    """The pattern is not valid, or too large. The message names what was found and where."""


@dataclass(frozen=True, slots=True)
class _One:
    """Matches one character for which `passes` returns True."""

    passes: Predicate


@dataclass(frozen=True, slots=True)
class _Anchor:
    at_end: bool


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


_Node = _One | _Anchor | _Sequence | _Alternatives | _Repeat
_Step = _One | _Anchor | tuple[int, ...]
"""A state: consume a character, match at an edge, or (a tuple) continue at any of these states."""


class LinearPattern:
    """A compiled pattern that matches whole texts. Raises PatternError."""

    def __init__(self, text: str):
        self._steps: list[_Step] = []
        self._emitted = 0
        self._emit(_Parser(text).parse())
        self._end = self._reserve()

    def matches(self, text: str) -> bool:
        """Return whether all of `text` matches, in time proportional to len(text) times the pattern's states."""
        steps = self.match_in_parts(text)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def match_in_parts(self, text: str) -> Generator[None, None, bool]:
        """Match as `matches`, and yield after each PART_STATES states."""
        states = self._closure([0], 0, len(text))
        done = 0
        for position, char in enumerate(text):
            done += len(states)
            if done >= PART_STATES:
                done = 0
                yield
            ahead = [state + 1 for state in states
                     if isinstance(step := self._steps[state], _One) and step.passes(char)]
            states = self._closure(ahead, position + 1, len(text))
            if not states:
                return False
        return self._end in states

    def _closure(self, pending: list[int], position: int, length: int) -> list[int]:
        """Return the states reachable from `pending` at `position` that consume a character or are the end."""
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
            elif isinstance(step, _Anchor):
                if position == (length if step.at_end else 0):
                    pending.append(state + 1)
            else:
                found.append(state)
        return found

    def _emit(self, node: _Node) -> None:
        """Append the states of `node`; it continues with the state appended next."""
        self._emitted += 1                                    # counts empty nodes too: (){1000}
        if self._emitted > MAX_STATES:
            raise PatternError(f'the pattern needs more than {MAX_STATES} states')
        match node:
            case _One() | _Anchor():
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

    MAX_DEPTH = 100

    def __init__(self, text: str):
        self._text = text
        self._position = 0
        self._depth = 0

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

    def _alternatives(self) -> _Node:
        parts = [self._sequence()]
        while self._accept('|'):
            parts.append(self._sequence())
        return _Alternatives(parts)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ('', '|', ')'):
            parts.append(self._repeated())
        return _Sequence(parts)

    def _repeated(self) -> _Node:
        node = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return node
        self._accept('?')                                     # lazy or greedy makes no difference to a whole match
        if self._peek() in ('*', '+', '?'):
            raise self._error(f'a repetition of a repetition, {self._peek()!r},')
        return _Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (('*', (0, None)), ('+', (1, None)), ('?', (0, 1))):
            if self._accept(sign):
                return bounds
        found = _BOUNDS.match(self._text, self._position)
        if found is None:
            return None                                       # a brace that is not a bound is a literal
        least, comma, most = found.groups()
        low = int(least)
        high = low if not comma else int(most) if most else None
        if low > MAX_REPEAT or (high is not None and not low <= high <= MAX_REPEAT):
            raise self._error(f'the bounds {found[0]}, outside 0 to {MAX_REPEAT} or falling,')
        self._position = found.end()
        return low, high

    def _atom(self) -> _Node:
        char = self._take()
        if char == '(':
            return self._group()
        if char == '[':
            return _One(self._class())
        if char == '.':
            return _One(lambda found: found != '\n')
        if char in '^$':
            return _Anchor(char == '$')
        if char in '*+?':
            raise self._error(f'nothing to repeat before {char!r}')
        if char == '\\':
            return _One(self._escape())
        return _One(char.__eq__)

    def _group(self) -> _Node:
        if self._accept('?P<') or self._accept('?<'):
            end = self._text.find('>', self._position)
            if not self._text[self._position:max(end, 0)].isidentifier():
                raise self._error('a group name that is none')
            self._position = end + 1
        elif not self._accept('?:') and self._peek() == '?':
            raise self._error('a group of an unknown kind')
        self._depth += 1
        if self._depth > self.MAX_DEPTH:
            raise self._error(f'more than {self.MAX_DEPTH} groups inside each other')
        node = self._alternatives()
        self._depth -= 1
        if not self._accept(')'):
            raise self._error('a missing )')
        return node

    def _escape(self) -> Predicate:
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        return self._escaped(char).__eq__

    def _escaped(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == 'x':
            digits = self._take() + self._take()
            try:
                return chr(int(digits, 16))
            except ValueError:
                raise self._error(f'{digits!r} instead of two hex digits') from None
        if char.isalnum():
            raise self._error(f'the unknown escape \\{char}')
        return char

    def _class(self) -> Predicate:
        negated = self._accept('^')
        tests: list[Predicate] = []
        ranges: list[tuple[str, str]] = []
        is_first = True                                       # a leading ] is a literal
        while is_first or self._peek() != ']':
            is_first = False
            if self._text.startswith('[:', self._position):
                raise self._error('a named class')
            first = self._take()
            if first == '\\':
                if self._peek() in _CLASSES:
                    tests.append(_CLASSES[self._take()])
                    continue
                first = self._escaped(self._take())
            last = first
            if self._peek() == '-' and self._text[self._position + 1:self._position + 2] not in ('', ']'):
                self._take()
                last = self._take()
                last = self._escaped(self._take()) if last == '\\' else last
                if last < first:
                    raise self._error(f'the falling range {first}-{last}')
            ranges.append((first, last))
        self._take()
        return lambda char: negated != (any(test(char) for test in tests)
                                        or any(low <= char <= high for low, high in ranges))
