"""One step of the reconciliation of a member of a streams group with one subtopology, as formulas on sets."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ACTIVE, STANDBY, WARMUP = ROLES = ('active', 'standby', 'warmup')
Sets = Mapping[str, frozenset[int]]


class Next(NamedTuple):
    """The tasks of the member after the step, by role; `revoked` is empty unless the member has to give tasks up."""

    tasks: dict[str, frozenset[int]]
    revoked: dict[str, frozenset[int]]
    waits: bool


def next_tasks(has: Sets, wants: Sets, unreleased: Sets, owned: Sets | None) -> Next:
    """Return the tasks that follow `has` on the way to `wants`. `unreleased` has the tasks for which the member must
    wait, `owned` the tasks that it reports as its own."""
    free = {role: wants[role] - has[role] - unreleased[role] for role in ROLES}
    to_standby = free[STANDBY] & (has[ACTIVE] | has[WARMUP])
    to_warmup = free[WARMUP] & has[STANDBY]
    to_active = {role: has[role] & wants[ACTIVE] for role in (STANDBY, WARMUP)}
    revoked = {ACTIVE: has[ACTIVE] - wants[ACTIVE],
               STANDBY: has[STANDBY] - wants[STANDBY] - to_warmup - wants[ACTIVE],
               WARMUP: has[WARMUP] - wants[WARMUP] - (to_standby & has[WARMUP]) - wants[ACTIVE]}
    at_once = {ACTIVE: has[ACTIVE] & wants[ACTIVE],
               STANDBY: has[STANDBY] & wants[STANDBY] | to_standby,
               WARMUP: has[WARMUP] & wants[WARMUP] | to_warmup}
    if any(revoked.values()) and (owned is None or any(revoked[role] & owned[role] for role in ROLES)):
        kept = {role: at_once[role] | to_active.get(role, frozenset()) for role in ROLES}
        return Next(kept, revoked, False)
    tasks = {role: at_once[role] | free[role] | (to_active.get(role, frozenset()) - free[ACTIVE]) for role in ROLES}
    return Next(tasks, dict.fromkeys(ROLES, frozenset()), any(wants[role] & unreleased[role] - has[role]
                                                              for role in ROLES))
