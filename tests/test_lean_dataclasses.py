"""Dataclasses without generated source code behave like the dataclasses of the standard library."""
from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from kbroker.base import lean_dataclasses as lean

T = TypeVar('T')
Fields = Any


def classes_of(module):
    """Return dataclasses that `module` creates: the lean module or that of the standard library."""

    @module.dataclass(frozen=True, slots=True)
    class Point(Generic[T]):
        x: T
        y: int = 2
        kind: ClassVar[str] = 'point'

        def sum(self):
            return self.x + self.y

    @module.dataclass(frozen=True, slots=True, kw_only=True)
    class Base:
        name: str
        tags: list[str] = module.field(default_factory=list)

    @module.dataclass(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        size: int = 0

        @property
        def double(self):
            return 2 * self.size

    @module.dataclass
    class Loose:
        """A dataclass that is not frozen."""

        x: int
        found: dict[str, int] = module.field(default_factory=dict)

        def __post_init__(self):
            self.twice = 2 * self.x

    return {'Point': Point, 'Base': Base, 'Derived': Derived, 'Loose': Loose}


OURS, THEIRS = classes_of(lean), classes_of(dataclasses)


def outcome(function):
    """Return the result of a function, or the type of its error."""
    try:
        return function()
    except (AttributeError, TypeError) as error:
        return TypeError if isinstance(error, TypeError) else AttributeError


@pytest.mark.parametrize(('name', 'args', 'given'), [
    ('Point', (1,), {}), ('Point', (1, 5), {}), ('Point', (), {'x': 1, 'y': 3}), ('Point', (1,), {'x': 1}),
    ('Point', (), {}), ('Point', (1, 2, 3), {}), ('Point', (1,), {'z': 1}), ('Base', ('a',), {}),
    ('Base', (), {'name': 'a'}), ('Derived', (), {'name': 'a', 'size': 4, 'tags': ['t']}), ('Derived', (), {'size': 4}),
    ('Loose', (4,), {}), ('Loose', (), {'x': 4, 'found': {'a': 1}}),
])
def test_objects_are_made_shown_and_compared_alike(name, args, given):
    ours, theirs = (outcome(lambda made=made: made[name](*args, **given)) for made in (OURS, THEIRS))
    assert repr(ours) == repr(theirs)
    if not isinstance(theirs, type):
        again = OURS[name](*args, **given)
        assert ours == again
        assert ours != theirs
        assert outcome(lambda: hash(ours)) == outcome(lambda: hash(theirs))


@pytest.mark.parametrize('made', [OURS, THEIRS], ids=['ours', 'theirs'])
def test_frozen_objects_are_not_changed(made):
    point = made['Point'](1)
    assert outcome(lambda: setattr(point, 'x', 2)) is AttributeError
    assert outcome(lambda: delattr(point, 'x')) is AttributeError
    assert (point.x, point.sum(), point.kind) == (1, 3, 'point')
    assert not hasattr(point, '__dict__')


@pytest.mark.parametrize('module', [lean, dataclasses], ids=['ours', 'theirs'])
def test_a_copy_has_other_values_for_some_fields(module):
    made = OURS if module is lean else THEIRS
    derived = made['Derived'](name='a', size=1)
    other = module.replace(derived, size=3)
    assert (other.name, other.size, other.double, derived.size) == ('a', 3, 6, 1)
    assert other.tags is derived.tags
    assert module.astuple(made['Point'](1)) == (1, 2)
    with pytest.raises(TypeError):
        module.replace(derived, weight=1)


def test_defaults_are_made_for_each_object():
    one, other = OURS['Loose'](1), OURS['Loose'](2)
    one.found['a'] = 1
    assert (other.found, other.twice) == ({}, 4)
    assert OURS['Base'](name='a').tags is not OURS['Base'](name='a').tags


def test_a_class_does_not_mix_fields_by_name_with_positional_ones():
    with pytest.raises(TypeError, match='kw_only'):
        @lean.dataclass
        class Mixed(OURS['Base']):
            more: int = 0


@lean.dataclass(frozen=True, slots=True)
class Stored:
    x: int
    names: tuple[str, ...] = ()


def test_frozen_objects_survive_copies_and_pickles():
    stored = Stored(1, ('a',))
    assert copy.copy(stored) == copy.deepcopy(stored) == pickle.loads(pickle.dumps(stored)) == stored
