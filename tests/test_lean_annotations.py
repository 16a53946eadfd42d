"""Dataclasses get their fields in modules without `from __future__ import annotations`. Python 3.14 and later evaluate
the annotations of these modules when they are first needed. In an earlier version, the dataclasses of these modules
therefore had no fields on Python 3.14, and the broker did not start.
"""
import dataclasses
import sys
from typing import ClassVar

import pytest

from kbroker.base import lean_dataclasses as lean


def classes_of(module):
    """Return dataclasses that `module` creates: the lean module or that of the standard library."""

    @module.dataclass(frozen=True, slots=True)
    class Rule:
        name: str
        least: int = 1
        kind: ClassVar[str] = 'rule'

        def doubled(self):
            return type(self)(self.name, 2 * self.least)

    @module.dataclass(frozen=True, slots=True)
    class Named(Rule):
        words: tuple[str, ...] = ()

    @module.dataclass
    class Loose(Rule.__base__):
        pass

    return Rule, Named, Loose


def test_the_fields_are_those_of_the_standard_library():
    (rule, named, loose), theirs = classes_of(lean), classes_of(dataclasses)
    assert repr(rule('a', 2)) == repr(theirs[0]('a', 2))
    assert repr(named('a', 2, ('b',))) == repr(theirs[1]('a', 2, ('b',)))
    assert repr(loose()) == repr(theirs[2]())
    assert (rule('a').doubled(), rule.kind) == (rule('a', 2), 'rule')
    assert not hasattr(rule('a'), '__dict__')


@pytest.mark.skipif(sys.version_info < (3, 14), reason='before Python 3.14, such a class cannot be defined')
def test_a_type_that_only_type_checkers_import_is_a_field():
    @lean.dataclass(frozen=True, slots=True)
    class Held:
        source: Imported  # noqa: F821
        kind: ClassVar[Imported] = 'held'  # noqa: F821
        size: int = 0

    assert repr(Held('a', size=3)).endswith("Held(source='a', size=3)")
    assert Held.kind == 'held'
