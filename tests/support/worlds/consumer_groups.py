"""Members of consumer groups (KIP-848) on a coordinator whose clock and disk a test controls."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from support.worlds.group_coordinator import GROUP, Answer, World
from support.worlds.modern_member import ModernMember, everything

from kbroker.base.errors import ErrorCode
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.modern.group import LEAVE_FOR_A_WHILE_EPOCH
from kbroker.group.modern.heartbeat import JOIN_EPOCH
from kbroker.group.records import GroupRow, read_row
from kbroker.protocol.messages import ConsumerGroupHeartbeatRequest
from kbroker.record.records import decode_records

Partitions = Mapping[str, set[int]]


class Consumer(ModernMember):
    """A member of a consumer group."""

    request_class, kind = ConsumerGroupHeartbeatRequest, 'consumer'

    def __init__(self, world: World, member_id: str, *, names: list[str] | None = None, regex: str | None = None,
                 instance: str | None = None, group_id: str = GROUP, assignor: str | None = None,
                 rebalance_timeout_ms: int = 300_000, may_describe: Callable[[str], bool] = everything):
        super().__init__(world, member_id, group_id, may_describe)
        self.names, self.regex, self.assignor, self.instance = names, regex, assignor, instance
        self.rebalance_timeout_ms = rebalance_timeout_ms

    def send(self, **fields: Any) -> Answer:
        return super().send(**{'instance_id': self.instance, **fields})

    def join(self, **fields: Any) -> Answer:
        return self.send(**{
            'member_epoch': JOIN_EPOCH, 'rebalance_timeout_ms': self.rebalance_timeout_ms, 'topic_partitions': [],
            'subscribed_topic_names': self.names if self.regex is None else None, 'subscribed_topic_regex': self.regex,
            'server_assignor': self.assignor, **fields})

    def heartbeat(self, owned: Partitions | None = None, **fields: Any) -> Answer:
        """Send a heartbeat. Report `owned` partitions unless it is None."""
        if owned is not None:
            topic_class = ConsumerGroupHeartbeatRequest.TopicPartitions
            fields['topic_partitions'] = [
                topic_class(topic_id=self.world.topics.topic(name).topic_id, partitions=sorted(partitions))
                for name, partitions in owned.items()]
        return self.send(**fields)

    def leave_for_a_while(self) -> Answer:
        return self.send(member_epoch=LEAVE_FOR_A_WHILE_EPOCH)


def consumer_group(world: World, group_id: str = GROUP) -> ConsumerGroup:
    return world.groups.describe(group_id, 'consumer')      # type: ignore[no-any-return]


def assignment_in(world: World, answer: Answer) -> dict[str, set[int]] | None:
    """Return {topic name: assigned partitions} from an answer, or None if the answer has no assignment."""
    assert answer.code is ErrorCode.NONE, answer.error
    if answer.value.assignment is None:
        return None
    return {world.topics.topic_by_id(topic.topic_id).name: set(topic.partitions)
            for topic in answer.value.assignment.topic_partitions}


def batches_of_types(world: World) -> list[list[str]]:
    """Return the types of the group rows in each batch of the log. The type of a tombstone is followed by T."""
    found = []
    for batch in world.partition.stored:
        rows = [read_row(record.key, record.value, record.offset) for record in decode_records(batch)]
        found.append([f'{"T" if row.value is None else ""}{row.key.row_type}'
                      for row in rows if isinstance(row, GroupRow)])
    return [batch for batch in found if batch]


def last_batch(world: World) -> list[str]:
    return batches_of_types(world)[-1]
