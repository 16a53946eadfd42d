"""Reconciliation: the functions that move a member from its assignment towards its target.

A member first gives up the partitions or tasks that are not in its target. Then it gets those in its target that no
other member holds. The functions are pure: they return a new value, and use no clock, log or setting.

An assignment maps a key to numbers with their assignment epochs. In consumer and share groups, a key is the id of a
topic and a number is a partition. In streams groups, a key is (role, subtopology) and a number is a task; their
functions are in `streams/reconciliation`.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Container, Generator, Mapping
from enum import IntEnum
from typing import Generic, TypeVar

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field, replace
from kbroker.base.long_work import Pace

Key = TypeVar('Key')
Numbers = Mapping[Key, Mapping[int, int]]
"""Maps key -> number of a partition or task -> assignment epoch, the epoch in which the member got it."""
Sets = Mapping[Key, frozenset[int]]

FREE = -1
"""The owner's epoch that stands for "no member holds the partition"."""

NO_EPOCH = 0
"""The assignment epoch of partitions in share groups, which several members may have. Rows of share groups have no
assignment epochs."""


class State(IntEnum):
    """The progress of a member towards its target. Rows of consumer and share groups store these values. Rows of
    streams groups store these values plus one."""

    STABLE = 0
    UNREVOKED = 1
    """The member has to give up partitions or tasks, and has not confirmed yet that it has."""
    UNRELEASED = 2
    """The member waits for partitions or tasks of its target that other members still hold."""
    UNKNOWN = 127
    """A state that a later version of the broker has stored, and that this version does not know."""


@dataclass(frozen=True, slots=True)
class Assigned(Generic[Key]):
    """The assignment of one member. The fields are those of the row that stores it."""

    state: State = State.STABLE
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Numbers[Key] = field(default_factory=dict)
    pending: Numbers[Key] = field(default_factory=dict)
    """The partitions or tasks that the member has to give up, and for which it has not confirmed this yet."""

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is State.STABLE and self.epoch == epoch


Steps = Generator[None, None, Assigned[Key]]
"""A reconciliation in progress: a generator that returns the next value, or the same object if nothing changes."""


def reconcile(member: Assigned[bytes], target_epoch: int, target: Sets[bytes], owner: Callable[[bytes, int], int],
              owned: Sets[bytes] | None, subscribed: Collection[bytes] | None, subscription_changed: bool
              ) -> Steps[bytes]:
    """Return the next assignment of a member of a consumer group.

    * `owner` returns the epoch of the member that holds a partition, or FREE.
    * `owned` has the partitions that the member reports as its own. It is None if the request has no list of them.
    * `subscribed` has the ids of the subscribed topics that exist; partitions of other topics in `target` are ignored.
      It is None if the member subscribes to no topics.

    Raise FENCED_MEMBER_EPOCH if the member's state is UNKNOWN and the member may still own a partition.
    """
    def is_unreleased(topic: bytes, partition: int) -> bool:
        return owner(topic, partition) != FREE and partition not in member.pending.get(topic, ())

    if member.is_reconciled_to(target_epoch) or (
            member.state is State.UNREVOKED and (yield from owns(owned, member.pending))):
        return (yield from _trim(member, owned, subscribed)) if subscription_changed else member
    check_known(member, owned)
    wanted = {topic: partitions for topic, partitions in target.items() if subscribed and topic in subscribed}
    return (yield from _next(member, member.epoch, target_epoch, wanted, is_unreleased, owned))


def reconcile_shared(member: Assigned[bytes], target_epoch: int, target: Sets[bytes], subscribed: Container[bytes],
                     subscription_changed: bool) -> Steps[bytes]:
    """Return the next assignment of a member of a share group. The member gets its whole target immediately, because
    several members may have the same partition."""
    if member.epoch != target_epoch:
        wanted: Mapping[bytes, Collection[int]] = target
    elif subscription_changed and any(topic not in subscribed for topic in member.assigned):
        wanted = member.assigned
    else:
        return member
    pace = Pace()
    assigned = {}
    for topic, partitions in wanted.items():
        if partitions and topic in subscribed:
            assigned[topic] = dict.fromkeys(sorted(partitions), NO_EPOCH)
        if pace.spend(len(partitions) // 8 + 1):
            yield
    return Assigned(State.STABLE, target_epoch, member.epoch, assigned)


def check_known(member: Assigned[Key], owned: Sets[Key] | None) -> None:
    """Raise FENCED_MEMBER_EPOCH if the member's state is UNKNOWN and the member may still own something."""
    if member.state is State.UNKNOWN and (owned is None or any(owned.values())):
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH,
                         'the state of the member is not known; it has to give everything up and join again')


def _next(member: Assigned[Key], epoch: int, target_epoch: int, target: Sets[Key],
          is_unreleased: Callable[[Key, int], bool], owned: Sets[Key] | None) -> Steps[Key]:
    """Return the assignment that follows for a member whose current assignment is known. If the member may still own
    partitions or tasks that are not in its target, revoke them; the member epoch is then `epoch`. Otherwise, move the
    member to `target_epoch`, and add all partitions or tasks of the target that no other member holds."""
    pace = Pace()
    kept: dict[Key, dict[int, int]] = {}
    revoked: dict[Key, dict[int, int]] = {}
    added: dict[Key, dict[int, int]] = {}
    waits = False
    for key in dict.fromkeys([*member.assigned, *target]):
        has, wants = member.assigned.get(key, {}), target.get(key, frozenset())
        kept[key] = {number: since for number, since in has.items() if number in wants}
        revoked[key] = {number: since for number, since in has.items() if number not in wants}
        news = added[key] = {}
        for number in sorted(wants.difference(has)):
            if is_unreleased(key, number):
                waits = True
            else:
                news[number] = target_epoch
            if pace.spend():
                yield
        if pace.spend(len(has) // 8 + 1):
            yield
    revoked = without_empty(revoked)
    if revoked and (yield from owns(owned, revoked)):
        return Assigned(State.UNREVOKED, epoch, member.epoch, without_empty(kept), revoked)
    for key, news in added.items():
        kept[key].update(news)
        if pace.spend():
            yield
    state = State.UNRELEASED if waits else State.STABLE
    return Assigned(state, target_epoch, member.epoch, without_empty(kept), {})


def _trim(member: Assigned[Key], owned: Sets[Key] | None, subscribed: Collection[Key] | None) -> Steps[Key]:
    """Revoke the partitions of topics that the member no longer subscribes to. Keep the member's epoch."""
    topics = subscribed or ()
    kept = {key: numbers for key, numbers in member.assigned.items() if key in topics}
    dropped = {key: numbers for key, numbers in member.assigned.items() if key not in topics}
    if not dropped and (subscribed is not None or member.pending):
        return member           # if no subscribed topic is left, Kafka counts this as a change
    pending = {key: {**member.pending.get(key, {}), **dropped.get(key, {})} for key in [*member.pending, *dropped]}
    if pending and (yield from owns(owned, pending)):
        return Assigned(State.UNREVOKED, member.epoch, member.epoch, kept, pending)
    return replace(member, previous_epoch=member.epoch, assigned=kept, pending={})


def owns(owned: Sets[Key] | None, numbers: Numbers[Key]) -> Generator[None, None, bool]:
    """Return whether the member may still own one of the partitions or tasks in `numbers`. Return True if `owned` is
    None, because the request does not list what the member owns.
    """
    if owned is None:
        return True
    pace = Pace()
    for key, revoked in numbers.items():
        if not owned.get(key, frozenset()).isdisjoint(revoked):
            return True
        if pace.spend(len(revoked) // 8 + 1):
            yield
    return False


def without_empty(numbers: dict[Key, dict[int, int]]) -> dict[Key, dict[int, int]]:
    """Return the numbers without the keys that have none."""
    return {key: found for key, found in numbers.items() if found}
