"""Requests that wait for data: woken by partitions, looked at once a turn, forgotten with their connection."""
from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """A parked request."""

    def look_again(self) -> None:
        """Something that it waits for has moved."""

    def answer_now(self) -> None:
        """The broker stops: answer with what there is."""

    def give_up(self) -> None:
        """Its connection is gone: let go of everything."""


class WaitingRoom:
    """Parked requests. Appends wake them as often as they like; each looks again once, at the end of the turn."""

    def __init__(self) -> None:
        self._by_connection: dict[int, Waiter] = {}
        self._woken: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._by_connection)

    def enter(self, connection_id: int, waiter: Waiter) -> None:
        """A connection waits for one answer at a time, so it has one waiter at most."""
        self._by_connection[connection_id] = waiter

    def leave(self, connection_id: int) -> None:
        waiter = self._by_connection.pop(connection_id, None)
        if waiter is not None:
            self._woken.pop(waiter, None)

    def wake(self, waiter: Waiter) -> None:
        self._woken[waiter] = None

    def turn_ends(self) -> None:
        """Called by the loop after each batch of events."""
        while self._woken:
            woken, self._woken = self._woken, {}
            for waiter in woken:
                waiter.look_again()

    def answer_all(self) -> None:
        """Let everyone go with what there is: a stop does not wait for data that may never come."""
        for waiter in tuple(self._by_connection.values()):
            waiter.answer_now()

    def connection_closed(self, connection_id: int) -> None:
        waiter = self._by_connection.get(connection_id)
        if waiter is not None:
            waiter.give_up()
