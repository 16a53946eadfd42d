"""The common part of members of consumer, share and streams groups, on a coordinator that a test controls."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.worlds.group_coordinator import GROUP, Answer, World

from kbroker.base.completion import Callback
from kbroker.base.errors import KafkaError
from kbroker.group.modern.heartbeat import JOIN_EPOCH, LEAVE_EPOCH, Call


def everything(_topic: str) -> bool:
    return True


class ModernMember:
    """A member that a test controls. Each call sends one heartbeat and returns its Answer."""

    request_class: Any
    kind = ''
    """The kind of the member's group: consumer, share or streams."""

    def __init__(self, world: World, member_id: str, group_id: str = GROUP,
                 may_describe: Callable[[str], bool] = everything):
        self.world, self.member_id, self.group_id, self.may_describe = world, member_id, group_id, may_describe
        self.epoch = JOIN_EPOCH

    def send(self, **fields: Any) -> Answer:
        """Send a heartbeat with these fields, and adopt the epoch of the answer."""
        request = self.request_class(**{
            'group_id': self.group_id, 'member_id': self.member_id, 'member_epoch': self.epoch, **fields})
        names = getattr(request, 'subscribed_topic_names', None)
        call = Call(request, None if names is None else frozenset(names), self.member_id, '/127.0.0.1',
                    self.may_describe, version=1)
        answer = Answer()

        def done(error: KafkaError | None, reply: Any) -> None:
            response = getattr(reply, 'response', reply)
            answer.complete(error, response)
            if error is None:
                self.epoch = response.member_epoch

        answer.attempt(lambda: self.world.groups.heartbeats(self.kind, request.group_id).submit(call, Callback(done)))
        if self.world.topics.immediate:
            self.world.run_due()
        return answer

    def leave(self) -> Answer:
        return self.send(member_epoch=LEAVE_EPOCH)
