"""A guard that refuses the use of a client by a second thread, in a forked process, and after `close`.

A use by a second thread or process would corrupt the connections, because a client has no locks. A client belongs to
the thread that uses it first after its construction.
"""
from __future__ import annotations

import os
import weakref
from threading import get_ident

UNCLAIMED = -1
REFUSED = -2
"""An identifier that no thread has. So one comparison with the calling thread finds every wrong use."""

_GUARDS: weakref.WeakSet[ExclusiveUse] = weakref.WeakSet()


class ExclusiveUse:
    """The owner of a client.

    To save nanoseconds, a caller may compare its own identifier with `thread`, and call `claim` only if they differ.
    """

    __slots__ = ('__weakref__', '_refusal', '_what', 'thread')

    def __init__(self, what: str):
        self._what = what
        self._refusal = ''
        self.thread = UNCLAIMED
        """The identifier of the owning thread, UNCLAIMED or REFUSED."""
        _GUARDS.add(self)

    @property
    def is_refused(self) -> bool:
        return self.thread == REFUSED

    def check(self) -> None:
        """Raise RuntimeError unless the calling thread may use the client."""
        if self.thread != get_ident():
            self.claim()

    def claim(self) -> None:
        """Make the calling thread the owner if the client has none.

        Raise RuntimeError if a different thread is the owner.
        """
        if self.thread == REFUSED:
            raise RuntimeError(f'found {self._what} {self._refusal}')
        if self.thread != UNCLAIMED:
            raise RuntimeError(f'found {self._what} that is used by two threads, expected one: it belongs to the '
                               'thread that used it first')
        self.thread = get_ident()

    def end(self, refusal: str = 'that was closed, expected an open one') -> None:
        """Refuse all later uses. `refusal` is the reason that the error gives."""
        self.thread, self._refusal = REFUSED, refusal


def _refuse_all_after_fork() -> None:
    for guard in list(_GUARDS):
        guard.end('that was made before a fork, expected one that this process made: both would share its connections')


os.register_at_fork(after_in_child=_refuse_all_after_fork)
