"""Members of share groups (KIP-932) on a coordinator whose clock and disk a test controls."""
from __future__ import annotations

from typing import Any

from support.worlds.consumer_groups import everything
from support.worlds.group_coordinator import GROUP, Answer, World

from kbroker.base.completion import Callback
from kbroker.base.errors import KafkaError
from kbroker.group.modern.heartbeat import JOIN_EPOCH, LEAVE_EPOCH, Call
from kbroker.group.share.group import ShareGroup
from kbroker.protocol.messages import ShareGroupHeartbeatRequest


class Sharer:
    """A member that a test controls. Each call sends one heartbeat and returns its Answer."""

    def __init__(self, world: World, member_id: str, *names: str, group_id: str = GROUP):
        self.world, self.member_id, self.names, self.group_id = world, member_id, list(names), group_id
        self.epoch = JOIN_EPOCH

    def heartbeat(self, **fields: Any) -> Answer:
        """Send a heartbeat with these fields, and adopt the epoch of the answer."""
        request = ShareGroupHeartbeatRequest(**{
            'group_id': self.group_id, 'member_id': self.member_id, 'member_epoch': self.epoch, **fields})
        names = request.subscribed_topic_names
        call = Call(request, None if names is None else frozenset(names), self.member_id, '/127.0.0.1', everything)
        answer = Answer()

        def done(error: KafkaError | None, response: Any) -> None:
            answer.complete(error, response)
            if error is None:
                self.epoch = response.member_epoch

        answer.attempt(lambda: self.world.groups.heartbeats('share', request.group_id).submit(call, Callback(done)))
        if self.world.topics.immediate:
            self.world.run_due()
        return answer

    def join(self, **fields: Any) -> Answer:
        return self.heartbeat(**{'member_epoch': JOIN_EPOCH, 'subscribed_topic_names': self.names, **fields})

    def leave(self) -> Answer:
        return self.heartbeat(member_epoch=LEAVE_EPOCH)


def share_group(world: World, group_id: str = GROUP) -> ShareGroup:
    return world.groups.describe(group_id, 'share')      # type: ignore[no-any-return]
