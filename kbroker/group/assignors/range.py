"""The assignor `range`: each member gets consecutive partitions of each of its topics.

Static members come first, in the order of their instance ids. A static member therefore gets the same partitions when
it returns under another member id. Members that subscribe to the same topics get the same partition numbers in each
topic if the topics have equally many partitions. A consumer that joins topics needs that.
"""
from __future__ import annotations

from kbroker.base.long_work import Pace
from kbroker.group.assignors.spec import Assignment, Spec, SpecMember, Steps

NAME = 'range'


def assign(spec: Spec) -> Steps:
    pace = Pace()
    members = sorted(spec.members, key=_place)
    result: dict[str, Assignment] = {member.member_id: {} for member in members}
    for topic, count in spec.partitions.items():
        subscribers = members
        if not spec.is_homogeneous:
            subscribers = []
            for member in members:
                if topic in member.topics:
                    subscribers.append(member)
                if pace.spend():
                    yield
        elif not members or topic not in members[0].topics:
            continue
        quota, extra = divmod(count, len(subscribers) or 1)
        first = 0
        for member in subscribers[:count]:
            end = first + quota + (extra > 0)
            extra -= extra > 0
            result[member.member_id][topic] = frozenset(range(first, end))
            first = end
            if pace.spend(quota // 8 + 1):
                yield
    return result


def _place(member: SpecMember) -> tuple[bool, str]:
    return member.instance_id is None, member.member_id if member.instance_id is None else member.instance_id
