"""Members of streams groups (KIP-1071) on a coordinator whose clock and disk a test controls."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.worlds.group_coordinator import GROUP, Answer, World

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.modern.heartbeat import JOIN_EPOCH, LEAVE_EPOCH, Call
from kbroker.group.streams.group import StreamsGroup
from kbroker.protocol.messages import StreamsGroupHeartbeatRequest

Request = StreamsGroupHeartbeatRequest
Tasks = Mapping[str, set[int]]


def topology(epoch: int = 0, sources: tuple[str, ...] = ('t',), changelogs: tuple[str, ...] = ()) -> Any:
    """Return a topology of one subtopology, '0'."""
    return Request.Topology(epoch=epoch, subtopologies=[Request.Subtopology(
        subtopology_id='0', source_topics=list(sources), source_topic_regex=[], repartition_sink_topics=[],
        state_changelog_topics=[Request.TopicInfo(name=name, partitions=0, replication_factor=0, topic_configs=[])
                                for name in changelogs],
        repartition_source_topics=[], copartition_groups=[])])


class StreamsClient:
    """A member that a test controls. Each call sends one heartbeat and returns its Answer."""

    def __init__(self, world: World, member_id: str, *, process: str | None = None, group_id: str = GROUP,
                 rebalance_timeout_ms: int = 300_000, declared: Any = None):
        self.world, self.member_id, self.group_id = world, member_id, group_id
        self.process = process or f'process-{member_id}'
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.topology = topology() if declared is None else declared
        self.epoch = JOIN_EPOCH

    def send(self, **fields: Any) -> Answer:
        """Send a heartbeat with these fields, and adopt the epoch of the answer."""
        request = Request(**{'group_id': self.group_id, 'member_id': self.member_id, 'member_epoch': self.epoch,
                             'endpoint_information_epoch': 0, 'shutdown_application': False, **fields})
        call = Call(request, None, self.member_id, '/127.0.0.1', lambda _topic: True)
        answer = Answer()

        def done(error: KafkaError | None, reply: Any) -> None:
            answer.complete(error, None if reply is None else reply.response)
            if error is None:
                self.epoch = reply.response.member_epoch

        answer.attempt(lambda: self.world.groups.heartbeats('streams', request.group_id).submit(call, Callback(done)))
        if self.world.topics.immediate:
            self.world.run_due()
        return answer

    def join(self, **fields: Any) -> Answer:
        return self.send(**{'member_epoch': JOIN_EPOCH, 'rebalance_timeout_ms': self.rebalance_timeout_ms,
                            'topology': self.topology, 'active_tasks': [], 'standby_tasks': [], 'warmup_tasks': [],
                            'process_id': self.process, **fields})

    def heartbeat(self, active: Tasks | None = None, **fields: Any) -> Answer:
        """Send a heartbeat. Report `active` tasks unless it is None."""
        if active is not None:
            fields = {'standby_tasks': [], 'warmup_tasks': [], **fields, 'active_tasks': [
                Request.TaskIds(subtopology_id=name, partitions=sorted(numbers)) for name, numbers in active.items()]}
        return self.send(**fields)

    def leave(self) -> Answer:
        return self.send(member_epoch=LEAVE_EPOCH)


def streams_group(world: World, group_id: str = GROUP) -> StreamsGroup:
    return world.groups.describe(group_id, 'streams')       # type: ignore[no-any-return]


def active_tasks(answer: Answer) -> dict[str, set[int]] | None:
    """Return the active tasks in an answer, None if they are as before."""
    assert answer.code is ErrorCode.NONE, answer.error
    if answer.value.active_tasks is None:
        return None
    return {tasks.subtopology_id: set(tasks.partitions) for tasks in answer.value.active_tasks}


def statuses(answer: Answer) -> dict[int, str]:
    return {status.status_code: status.status_detail for status in answer.value.status}
