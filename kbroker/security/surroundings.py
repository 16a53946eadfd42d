"""The parts of the broker that mechanisms need."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.base.clock import Clock, Timers
from kbroker.base.lean_dataclasses import dataclass
from kbroker.security.scram_credential import FindCredential

Submit = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Called as (job, done): run `job()` on a worker thread, then `done` on the loop, with the job's result or its
exception.
"""


@dataclass(frozen=True, slots=True)
class Background:
    """The loop's timers, and `submit` of a worker that has no other jobs, because a job may wait seconds for a peer."""

    timers: Timers
    submit: Submit


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of the broker that a mechanism uses."""

    find_credential: FindCredential
    """Finds a stored credential in the metadata. Call it only on the loop."""
    clock: Clock
    secret: bytes
    """Random bytes that no client knows and that survive restarts."""
    background: Background
