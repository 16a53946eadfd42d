"""The parts of the broker that SASL mechanisms use."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.base.clock import Clock, Timers
from kbroker.base.lean_dataclasses import dataclass
from kbroker.security.scram_credential import FindCredential

Submit = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""The type of `submit(job, done)`: it runs `job()` on a worker thread. Then it calls `done` on the event loop, with the
job's result or its exception.
"""


@dataclass(frozen=True, slots=True)
class Background:
    """The timers of the event loop, and the `submit` of a worker. The worker has no other jobs, because a job may wait
    for a peer for seconds.
    """

    timers: Timers
    submit: Submit


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of the broker that a SASL mechanism uses."""

    find_credential: FindCredential
    """A function that finds a stored credential in the metadata. It may be called only on the event loop."""
    clock: Clock
    secret: bytes
    """Random bytes that no client knows. They do not change when the broker restarts."""
    background: Background
