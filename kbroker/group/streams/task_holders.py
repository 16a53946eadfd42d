"""An index of the tasks that the members of a streams group hold. Each task is in a place, such as a subtopology."""
from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Self, TypeVar

Place = TypeVar('Place')


class TaskHolders(Generic[Place]):
    """The numbers of the tasks that members hold in each place. A task with two holders counts twice.

    A copy shares the numbers of a place with its original until one of the two changes them.
    """

    __slots__ = ('_again', '_held', '_own')

    def __init__(self) -> None:
        self._held: dict[Place, set[int]] = {}
        self._again: dict[tuple[Place, int], int] = {}
        """The number of holders of a task besides the first one. A compaction may reorder rows so that two members have
        a task for some time."""
        self._own: set[Place] = set()
        """The places whose numbers this copy does not share with another copy."""

    def copy(self) -> Self:
        twin = type(self)()
        twin._held = self._held.copy()
        twin._again = self._again.copy()
        self._own.clear()
        return twin

    def has(self, place: Place, number: int) -> bool:
        """Return whether a member holds the task."""
        return number in self._held.get(place, ())

    def add(self, place: Place, numbers: Collection[int]) -> None:
        """Count one holder more for each task."""
        if not numbers:
            return
        held = self._own_numbers(place)
        if not held.isdisjoint(numbers):
            for number in held.intersection(numbers):
                self._again[place, number] = self._again.get((place, number), 0) + 1
        held.update(numbers)

    def remove(self, place: Place, numbers: Collection[int]) -> None:
        """Count one holder less for each task. Each task must have a holder."""
        if not numbers:
            return
        held = self._own_numbers(place)
        again = [number for number in numbers if (place, number) in self._again] if self._again else []
        held.difference_update(numbers)
        for number in again:
            held.add(number)
            self._again[place, number] -= 1
            if not self._again[place, number]:
                del self._again[place, number]
        if not held:
            del self._held[place]
            self._own.discard(place)

    def _own_numbers(self, place: Place) -> set[int]:
        """Return the numbers of a place so that they can be changed. Copy them first if they are shared."""
        if place not in self._own:
            self._own.add(place)
            self._held[place] = set(self._held.get(place, ()))
        return self._held[place]
