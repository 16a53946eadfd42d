"""An index of the tasks that the members of a streams group hold. A task is identified by a place, such as a
subtopology, and a number."""
from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Self, TypeVar

Place = TypeVar('Place')


class TaskHolders(Generic[Place]):
    """The tasks that members hold, by place. The index counts the holders of each task.

    A copy of the index shares the task numbers of a place with the original until one of the two changes them.
    """

    __slots__ = ('_again', '_held', '_own')

    def __init__(self) -> None:
        self._held: dict[Place, set[int]] = {}
        self._again: dict[tuple[Place, int], int] = {}
        """Maps (place, task number) to the number of holders minus one, for tasks with several holders. Two members can
        have the same task during a load, because compaction may reorder rows."""
        self._own: set[Place] = set()
        """The places whose task numbers this index does not share with another copy."""

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
        """Count one more holder for each of these tasks."""
        if not numbers:
            return
        held = self._own_numbers(place)
        if not held.isdisjoint(numbers):
            for number in held.intersection(numbers):
                self._again[place, number] = self._again.get((place, number), 0) + 1
        held.update(numbers)

    def remove(self, place: Place, numbers: Collection[int]) -> None:
        """Count one less holder for each of these tasks, which must all have a holder."""
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
        """Return the task numbers of a place for a change. Copy them first if another copy of the index shares them."""
        if place not in self._own:
            self._own.add(place)
            self._held[place] = set(self._held.get(place, ()))
        return self._held[place]
