"""Members of share groups (KIP-932) on a coordinator whose clock and disk a test controls."""
from __future__ import annotations

from typing import Any

from support.worlds.group_coordinator import GROUP, Answer, World
from support.worlds.modern_member import ModernMember

from kbroker.group.modern.heartbeat import JOIN_EPOCH
from kbroker.group.share.group import ShareGroup
from kbroker.protocol.messages import ShareGroupHeartbeatRequest


class Sharer(ModernMember):
    """A member of a share group."""

    request_class, kind = ShareGroupHeartbeatRequest, 'share'

    def __init__(self, world: World, member_id: str, *names: str, group_id: str = GROUP):
        super().__init__(world, member_id, group_id)
        self.names = list(names)

    def heartbeat(self, **fields: Any) -> Answer:
        return self.send(**fields)

    def join(self, **fields: Any) -> Answer:
        return self.send(**{'member_epoch': JOIN_EPOCH, 'subscribed_topic_names': self.names, **fields})


def share_group(world: World, group_id: str = GROUP) -> ShareGroup:
    return world.groups.describe(group_id, 'share')      # type: ignore[no-any-return]
