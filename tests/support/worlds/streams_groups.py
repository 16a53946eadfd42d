"""Members of streams groups (KIP-1071) on a coordinator whose clock and disk a test controls."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.worlds.group_coordinator import GROUP, Answer, World
from support.worlds.modern_member import ModernMember

from kbroker.base.errors import ErrorCode
from kbroker.group.modern.group import LEAVE_FOR_A_WHILE_EPOCH
from kbroker.group.modern.heartbeat import JOIN_EPOCH
from kbroker.group.streams.group import StreamsGroup
from kbroker.protocol.messages import StreamsGroupHeartbeatRequest

Request = StreamsGroupHeartbeatRequest
Tasks = Mapping[str, set[int]]


def topology(epoch: int = 0, sources: tuple[str, ...] = ('t',), changelogs: tuple[str, ...] = ()) -> Any:
    """Return a topology with a single subtopology, '0'."""
    return Request.Topology(epoch=epoch, subtopologies=[Request.Subtopology(
        subtopology_id='0', source_topics=list(sources), source_topic_regex=[], repartition_sink_topics=[],
        state_changelog_topics=[Request.TopicInfo(name=name, partitions=0, replication_factor=0, topic_configs=[])
                                for name in changelogs],
        repartition_source_topics=[], copartition_groups=[])])


class StreamsClient(ModernMember):
    """A member of a streams group."""

    request_class, kind = Request, 'streams'

    def __init__(self, world: World, member_id: str, *, process: str | None = None, group_id: str = GROUP,
                 rebalance_timeout_ms: int = 300_000, declared: Any = None, instance: str | None = None):
        super().__init__(world, member_id, group_id)
        self.process = process or f'process-{member_id}'
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.instance = instance
        self.topology = topology() if declared is None else declared

    def send(self, **fields: Any) -> Answer:
        return super().send(**{'endpoint_information_epoch': 0, 'shutdown_application': False,
                               'instance_id': self.instance, **fields})

    def join(self, **fields: Any) -> Answer:
        return self.send(**{'member_epoch': JOIN_EPOCH, 'rebalance_timeout_ms': self.rebalance_timeout_ms,
                            'topology': self.topology, 'active_tasks': [], 'standby_tasks': [], 'warmup_tasks': [],
                            'process_id': self.process, **fields})

    def leave_for_a_while(self) -> Answer:
        return self.send(member_epoch=LEAVE_FOR_A_WHILE_EPOCH)

    def heartbeat(self, active: Tasks | None = None, **fields: Any) -> Answer:
        """Send a heartbeat. Report `active` tasks unless it is None."""
        if active is not None:
            fields = {'standby_tasks': [], 'warmup_tasks': [], **fields, 'active_tasks': [
                Request.TaskIds(subtopology_id=name, partitions=sorted(numbers)) for name, numbers in active.items()]}
        return self.send(**fields)


def streams_group(world: World, group_id: str = GROUP) -> StreamsGroup:
    return world.groups.describe(group_id, 'streams')       # type: ignore[no-any-return]


def active_tasks(answer: Answer) -> dict[str, set[int]] | None:
    """Return the active tasks in an answer, or None if the answer has no tasks because they have not changed."""
    assert answer.code is ErrorCode.NONE, answer.error
    if answer.value.active_tasks is None:
        return None
    return {tasks.subtopology_id: set(tasks.partitions) for tasks in answer.value.active_tasks}


def statuses(answer: Answer) -> dict[int, str]:
    return {status.status_code: status.status_detail for status in answer.value.status}
