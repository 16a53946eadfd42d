"""Histories of a streams group: operations that run on two brokers. They also use the operations of `group_histories`.

A history has a group, the source topics a, b and c, internal topics r and s, and members A to E. Topic c does not exist
at first. Members have single letters as ids, because Kafka iterates them in the order of a hash table. For single
letters, this is the alphabetical order. The ids of processes share a place of that table, however small it is: Kafka
iterates them in the reverse order of their first members.

Kafka has no order among equally loaded processes, nor among equally loaded members of a process: its priority queue
compares only loads. If the brokers choose differently among three or more of them, `has_another_choice` compares only
the properties that Kafka defines.
"""
from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from group_histories import (
    REBALANCE_TIMEOUT_MS,
    SET,
    SHORT_SESSION_MS,
    GroupSide,
    MemberCrash,
)
from histories import TooSlow

from kbroker.base.errors import ErrorCode
from kbroker.group.streams.topology import Status

SETTINGS = {
    'offsets.topic.num.partitions': '1',
    'group.coordinator.append.linger.ms': '0',
    'offsets.retention.check.interval.ms': '86400000',  # a check ends a group without members
    'group.streams.assignment.interval.ms': '0',
    'group.streams.min.assignment.interval.ms': '0',
    'group.streams.min.session.timeout.ms': SHORT_SESSION_MS,
    'group.streams.min.heartbeat.interval.ms': '500',
    'group.streams.heartbeat.interval.ms': '15000',  # the errors of creations are remembered twice as long
    'group.streams.initial.rebalance.delay.ms': '0',
    'kbroker.replication.factor.accept': 'strict',
}
DETAILS = ('Source topics ', 'Internal topics are missing: ', "The member's topology", 'Streams group member ',
           'Assignment delayed ', 'Missing required client tags')
"""The beginnings of the status details whose words are compared."""
PROCESSES = dict(zip('ABCDE', '0@P`p', strict=True))
"""Maps the letter of a process in a history to its id. The ids have the same hash modulo 16."""
CREATION_LIMIT_S = 30
FAILED = '; Creation failed'
"""The text in a status detail that precedes the names of topics that cannot be created."""
ROLES = ('active', 'standby', 'warmup')
Tasks = dict[str, list[dict[str, Any]] | None]
Task = tuple[str, str, int]
"""A task: (role, subtopology, number)."""
Changes = tuple[tuple[str, Any], ...]
"""Additional fields of a request, by name."""
Shape = Callable[[Callable[[str], str]], list[dict[str, Any]]]


def part(number: str, sources: list[str], *, reads: list[dict[str, Any]] | None = None, sinks: list[str] | None = None,
         logs: list[dict[str, Any]] | None = None, together: list[tuple[list[int], list[int]]] | None = None,
         **fields: Any) -> dict[str, Any]:
    """Return a subtopology with these source topics, repartition topics, changelogs and copartition groups."""
    return dict(
        subtopology_id=number, source_topics=sources, source_topic_regex=[], repartition_sink_topics=sinks or [],
        state_changelog_topics=logs or [], repartition_source_topics=reads or [], copartition_groups=[
            dict(source_topics=topics, source_topic_regex=[], repartition_source_topics=internal)
            for topics, internal in together or []]) | fields


def internal(name: str, partitions: int = 0, replication_factor: int = 0, **configs: str) -> dict[str, Any]:
    return dict(name=name, partitions=partitions, replication_factor=replication_factor, topic_configs=[
        dict(key=key.replace('_', '.'), value=value) for key, value in configs.items()])


def _count(t: Callable[[str], str], partitions: int = 0) -> list[dict[str, Any]]:
    """Return the topology of an application that counts. It reads topic a, repartitions to r, and has the changelog s.
    """
    return [part('0', [t('a')], sinks=[t('r')]),
            part('1', [], reads=[internal(t('r'), partitions)], logs=[internal(t('s'), cleanup_policy='compact')])]


def _join(t: Callable[[str], str], partitions: int = 0) -> list[dict[str, Any]]:
    """Return the topology of an application that joins topic a with topic b, which it repartitions."""
    return [part('0', [t('b')], sinks=[t('r')]),
            part('1', [t('a')], reads=[internal(t('r'), partitions)], together=[([0], [0])])]


SHAPES: dict[str, Shape] = {
    'a': lambda t: [part('0', [t('a')])],
    'a, b': lambda t: [part('0', [t('a')]), part('1', [t('b')])],
    'state': lambda t: [part('0', [t('a')], logs=[internal(t('s'))])],
    'count': _count,
    'count in 2': lambda t: _count(t, 2),
    'a join b': lambda t: [part('0', [t('a'), t('b')], together=[([0, 1], [])])],
    'a join r': _join,
    'a join r of 3': lambda t: _join(t, 3),
    'a join r of 2': lambda t: _join(t, 2),
    'c': lambda t: [part('0', [t('c')])],
    'a, c with state': lambda t: [part('0', [t('a'), t('c')], logs=[internal(t('s'))])],
}
"""Valid topologies. Their topics may be missing."""

ODD_SHAPES: dict[str, Shape] = {
    'nothing': lambda t: [],
    'no sources': lambda t: [part('0', [])],
    'no sources, a changelog': lambda t: [part('0', [], logs=[internal(t('s'))])],
    'one id twice': lambda t: [part('0', [t('a')]), part('0', [t('b')])],
    'one source twice': lambda t: [part('0', [t('a'), t('a')])],
    'one source in two parts': lambda t: [part('0', [t('a')]), part('1', [t('a')])],
    'an empty id': lambda t: [part('', [t('a')])],
    'parts not in order': lambda t: [part('1', [t('b')]), part('0', [t('a')])],
    'ten parts': lambda t: [part(str(number), [t('a')]) for number in range(12)],
    'a changelog with partitions': lambda t: [part('0', [t('a')], logs=[internal(t('s'), 2)])],
    'a changelog with -1 partitions': lambda t: [part('0', [t('a')], logs=[internal(t('s'), -1)])],
    'a repartition topic with -1 partitions': lambda t: [
        part('0', [t('a')], sinks=[t('r')]), part('1', [], reads=[internal(t('r'), -1)])],
    'a repartition topic without a writer': lambda t: [part('0', [t('a')], reads=[internal(t('r'))])],
    'a fixed repartition topic without a writer': lambda t: [part('0', [t('a')], reads=[internal(t('r'), 2)])],
    'a sink without a reader': lambda t: [part('0', [t('a')], sinks=[t('r')])],
    'a loop': lambda t: [part('0', [], reads=[internal(t('r'))], sinks=[t('r')])],
    'a loop with a source': lambda t: [part('0', [t('a')], reads=[internal(t('r'))], sinks=[t('r')])],
    'a loop with a source that is read later': lambda t: [
        part('0', [t('a')], reads=[internal(t('r'))], sinks=[t('s')]),
        part('1', [t('b')], reads=[internal(t('s'))], sinks=[t('r')])],
    'a topic decided by one that is decided later': lambda t: [
        part('0', [t('a')], reads=[internal(t('r'))], sinks=[t('s')]),
        part('1', [t('b')], sinks=[t('r')]), part('2', [], reads=[internal(t('s'))])],
    'a topic decided by one that is decided before': lambda t: [
        part('1', [t('a')], reads=[internal(t('r'))], sinks=[t('s')]),
        part('0', [t('b')], sinks=[t('r')]), part('2', [], reads=[internal(t('s'))])],
    'a topic written by two': lambda t: [
        part('0', [t('a')], sinks=[t('r')]), part('1', [t('b')], sinks=[t('r')]),
        part('2', [], reads=[internal(t('r'))])],
    'a topic written by one without sources': lambda t: [
        part('0', [], sinks=[t('r')]), part('1', [t('a')], reads=[internal(t('r'))])],
    'no sources beside a missing one': lambda t: [part('0', []), part('1', [t('c')])],
    'the changelog is a source of two': lambda t: [part('0', [t('a'), t('b')], logs=[internal(t('a'))])],
    'a copartition group changes a count in a chain': lambda t: [
        part('0', [t('a')], sinks=[t('r')]),
        part('1', [t('b')], reads=[internal(t('r'))], sinks=[t('s')], together=[([0], [0])]),
        part('2', [], reads=[internal(t('r')), internal(t('s'))])],
    'two copartition groups with one repartition topic': lambda t: [
        part('0', [t('a')], sinks=[t('r')]),
        part('1', [t('a'), t('b')], reads=[internal(t('r'))], together=[([0], [0]), ([1], [0])])],
    'a loop of two': lambda t: [part('0', [], reads=[internal(t('r'))], sinks=[t('s')]),
                                part('1', [], reads=[internal(t('s'))], sinks=[t('r')])],
    'an internal topic': lambda t: [part('0', ['__consumer_offsets'])],
    'an internal topic as a sink': lambda t: [part('0', [t('a')], sinks=['__transaction_state'])],
    'a name with a space': lambda t: [part('0', [t('a b')])],
    'an empty name': lambda t: [part('0', [''])],
    'a long name': lambda t: [part('0', ['x' * 250])],
    'a changelog with a bad name': lambda t: [part('0', [t('a')], logs=[internal(t('!'))])],
    'a source as a changelog': lambda t: [part('0', [t('a')], logs=[internal(t('a'))])],
    'another source as a changelog': lambda t: [part('0', [t('a')], logs=[internal(t('b'))])],
    'a source as a repartition topic': lambda t: [part('0', [t('a')], reads=[internal(t('b'), 5)])],
    'a source as a wrong repartition topic': lambda t: [part('0', [t('a')], reads=[internal(t('b'), 2)])],
    'a changelog of two parts': lambda t: [part('0', [t('a')], logs=[internal(t('s'))]),
                                           part('1', [t('b')], logs=[internal(t('s'))])],
    'a repartition topic of two parts': lambda t: [part('0', [t('a')], sinks=[t('r')]),
                                                   part('1', [], reads=[internal(t('r'))]),
                                                   part('2', [], reads=[internal(t('r'), 2)])],
    'an expression': lambda t: [part('0', [t('a')], source_topic_regex=['x.*'])],
    'a copartition group without topics': lambda t: [part('0', [t('a')], together=[([], [])])],
    'a copartition group of an unknown topic': lambda t: [part('0', [t('a')], together=[([1], [])])],
    'a copartition group of a negative topic': lambda t: [part('0', [t('a')], together=[([-1], [])])],
    'a copartition group of an unknown repartition topic': lambda t: [part('0', [t('a')], together=[([0], [0])])],
    'a copartition group of repartition topics': lambda t: [
        part('0', [t('a')], sinks=[t('r')]), part('1', [t('b')], sinks=[t('s')]),
        part('2', [], reads=[internal(t('r')), internal(t('s'))], together=[([], [0, 1])])],
    'a copartition group of fixed repartition topics': lambda t: [
        part('0', [t('a')], sinks=[t('r')]), part('1', [t('b')], sinks=[t('s')]),
        part('2', [], reads=[internal(t('r'), 2), internal(t('s'))], together=[([], [0, 1])])],
    'a copartition group of two fixed repartition topics': lambda t: [
        part('0', [t('a')], sinks=[t('r')]), part('1', [t('b')], sinks=[t('s')]),
        part('2', [], reads=[internal(t('r'), 2), internal(t('s'), 4)], together=[([], [0, 1])])],
    'a copartition group with a missing topic': lambda t: [part('0', [t('a'), t('c')], together=[([0, 1], [])])],
    'a chain of repartition topics': lambda t: [
        part('0', [t('a')], sinks=[t('r')]),
        part('1', [], reads=[internal(t('r'))], sinks=[t('s')]),
        part('2', [], reads=[internal(t('s'))], logs=[internal(t('q'))])],
    'a copartition group in a chain': lambda t: [
        part('0', [t('a')], sinks=[t('r')]),
        part('1', [t('b')], reads=[internal(t('r'))], sinks=[t('s')], together=[([0], [0])]),
        part('2', [], reads=[internal(t('s'))], logs=[internal(t('q'))])],
    'a changelog with a bad config': lambda t: [part('0', [t('a')], logs=[internal(t('s'), cleanup_policy='no')])],
    'a changelog with an unknown config': lambda t: [part('0', [t('a')], logs=[internal(t('s'), no_such='1')])],
    'a changelog with three replicas': lambda t: [part('0', [t('a')], logs=[internal(t('s'), 0, 3)])],
    'a changelog with -1 replicas': lambda t: [part('0', [t('a')], logs=[internal(t('s'), 0, -1)])],
    'a changelog with -2 replicas': lambda t: [part('0', [t('a')], logs=[internal(t('s'), 0, -2)])],
    'a repartition topic of too many partitions': lambda t: [part('0', [t('a')], reads=[internal(t('r'), 100_000)])],
}
"""Topologies that Kafka Streams does not send."""


class StreamsSide(GroupSide):
    """One broker in a history of a streams group."""

    lanes = 1

    def __init__(self, address: str, group: str):
        self._known_missing: set[str] = set()
        """The internal topics that an answer has reported as missing."""
        super().__init__(address, group)
        self.shapes: dict[str, list[dict[str, Any]]] = {}
        """Maps a member to the topology with which it joined last."""
        self.tasks: dict[str, Tasks] = {}
        self.tasks_before: dict[str, Tasks] = {}
        """`tasks` maps a member to its tasks. `tasks_before` maps it to its tasks before the last answer with tasks."""
        self.endpoint_epochs: dict[str, int] = {}
        self.processes: dict[str, str] = {}
        """Maps a member to its process, as the rows show it."""
        self.most_members = 0
        """The highest number of members during the last step. It counts a member that left in this step, because the
        member had tasks in an earlier target.
        """
        self.targets: dict[str, frozenset[Task]] = {}
        self.targets_before: dict[str, frozenset[Task]] = {}
        """`targets` maps a member to its target tasks, as the rows show them. `targets_before` has those before the
        last step.
        """
        self.held: dict[str, frozenset[Task]] = {}
        self.held_before: dict[str, frozenset[Task]] = {}
        """The tasks that each member has, as the rows show them: now, and before the last step."""
        self._targets: dict[str, frozenset[Task]] = {}
        self._held: dict[str, frozenset[Task]] = {}

    def close(self) -> None:
        for name in {*self.internal_topics(), *(self.topic(name) for name in 'rsq')}:
            if self.error_of(name) == ErrorCode.NONE:
                self.peer.ask('DeleteTopics', 5, topic_names=[name], timeout_ms=30000)
        super().close()

    def error_of(self, topic: str) -> int:
        answer = self.peer.ask('Metadata', topics=[dict(name=topic)], allow_auto_topic_creation=False)
        return int(answer.topics[0].error_code)

    def await_end_of_topic(self, topic: str) -> None:
        """Wait until the broker no longer knows a deleted topic."""
        self.wait_until(lambda: self.error_of(topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def internal_topics(self) -> set[str]:
        """Return the internal topics that may exist, from all topologies of this history."""
        return {topic['name'] for parts in self.shapes.values() for each in parts
                for topic in (*each['state_changelog_topics'], *each['repartition_source_topics'])
                if topic['name'].startswith(f'{self.group}-')}

    def rows(self) -> list[list[tuple[str, Any]]]:
        self.most_members = len(self.processes)
        found = super().rows()
        self.targets_before, self.targets = self.targets, dict(self._targets)
        self.held_before, self.held = self.held, dict(self._held)
        return found

    def with_later_rows(self, rows: list[list[tuple[str, Any]]]) -> list[list[tuple[str, Any]]]:
        before_step, most_members = (self.targets_before, self.held_before), self.most_members
        found = super().with_later_rows(rows)
        (self.targets_before, self.held_before), self.most_members = before_step, max(
            most_members, self.most_members)
        return found

    def note_row(self, kind: str, key: Any, value: Any) -> None:
        if kind in ('StreamsGroupTargetAssignmentMember', 'StreamsGroupCurrentMemberAssignment'):
            known = self._targets if kind == 'StreamsGroupTargetAssignmentMember' else self._held
            known.pop(key.member_id, None)
            if value is not None:
                known[key.member_id] = frozenset(
                    (role, tasks.subtopology_id, number) for role in ROLES
                    for tasks in getattr(value, f'{role}_tasks') for number in tasks.partitions)
        elif kind == 'StreamsGroupMemberMetadata' and value is not None:
            self.processes[key.member_id] = value.process_id
            self.most_members = max(self.most_members, len(self.processes))
        elif kind == 'StreamsGroupMemberMetadata':
            self.processes.pop(key.member_id, None)

    def has_another_choice(self, other: Any) -> bool:
        assert isinstance(other, StreamsSide)
        return (self.targets != other.targets and self.targets_before == other.targets_before
                and self.processes == other.processes and self.most_members > 2
                and self.merits() == other.merits())

    def merits(self) -> tuple[list[Task], list[float], int]:
        """Return the properties of a target that Kafka defines: its tasks, the loads of the processes, and the number
        of tasks that stay with the members that have them.
        """
        loads = collections.Counter[str]()
        for member, tasks in self.targets.items():
            loads[self.processes.get(member, member)] += len(tasks)
        threads = collections.Counter(self.processes.values())
        stay = sum(len(tasks & self.held_before.get(member, frozenset())) for member, tasks in self.targets.items())
        return (sorted(task for tasks in self.targets.values() for task in tasks),
                sorted(loads[process] / threads[process] for process in threads), stay)

    def beat(self, slot: str, version: int = 1, **fields: Any) -> Any:
        """Send a StreamsGroupHeartbeat, and wait until missing topics exist. Return the answer in comparable form."""
        fields = {'group_id': self.group, 'member_id': slot, 'endpoint_information_epoch': 0,
                  'shutdown_application': False, **fields}
        answer = self.peer.ask('StreamsGroupHeartbeat', version, **fields)
        if answer.error_code == 0:
            self.epochs[slot] = answer.member_epoch
            self.endpoint_epochs[slot] = answer.endpoint_information_epoch
            if fields.get('topology') is not None:
                self.shapes[slot] = fields['topology']['subtopologies']
            if answer.active_tasks is not None:
                self.tasks_before[slot] = self.tasks.get(slot, {})
                self.tasks[slot] = {role: [dict(subtopology_id=tasks.subtopology_id, partitions=list(tasks.partitions))
                                           for tasks in getattr(answer, f'{role}_tasks') or ()] for role in ROLES}
            if self.is_kafka:
                self.forget_early_failures(answer)
            self.await_internal_topics(answer)
        return self.comparable(answer)

    def forget_early_failures(self, answer: Any) -> None:
        """Remove a report that internal topics could not be created from the first answer that calls the topics
        missing. Kafka creates them in the background. On a busy machine, the creation sometimes fails before Kafka
        sends this answer.
        """
        for status in answer.status or ():
            if status.status_code == Status.MISSING_INTERNAL_TOPICS:
                missing = set(missing_topics(status))
                if not missing <= self._known_missing:
                    status.status_detail = status.status_detail.partition(FAILED)[0]
                self._known_missing |= missing

    def await_internal_topics(self, answer: Any) -> None:
        """Wait until the internal topics exist, or until the answers contain an error that prevents their creation.

        Kafka does not repeat a creation that overlapped with the deletion of the same topic. Such a history is not
        judged.
        """
        missing = [status for status in answer.status or () if status.status_code == Status.MISSING_INTERNAL_TOPICS]
        if missing:
            names = missing_topics(missing[0])
            refused = [parts for parts in self.shapes.values() if any(
                self.is_refused(topic) and topic['name'] in names for each in parts
                for topic in (*each['state_changelog_topics'], *each['repartition_source_topics']))]
            if refused and self.is_kafka:
                self.await_refusal(refused[0])
            elif not refused:
                try:
                    self.wait_until(lambda: all(self.error_of(name) == ErrorCode.NONE for name in names),
                                    CREATION_LIMIT_S)
                except AssertionError:
                    if self.is_kafka:
                        raise TooSlow from None
                    raise
                self.await_coordinator({name: None for name in names})
            self.let_metadata_settle()

    def await_refusal(self, parts: list[dict[str, Any]]) -> None:
        """Wait until Kafka's answers say that the internal topics of a topology cannot be created.

        Kafka creates them in the background, and remembers errors by topic. Another group with the same topology gets
        the same errors, and does not change the group of the history. Sometimes Kafka never shows the error. Such a
        history is not judged.
        """
        def is_known() -> bool:
            fields = dict(group_id=self.looking_group(), member_id='looks',
                          endpoint_information_epoch=0, shutdown_application=False)
            answer = self.peer.ask('StreamsGroupHeartbeat', 0, **fields, member_epoch=0,
                                   rebalance_timeout_ms=REBALANCE_TIMEOUT_MS, process_id='looks', client_tags=[],
                                   topology=dict(epoch=0, subtopologies=parts), active_tasks=[], standby_tasks=[],
                                   warmup_tasks=[])
            self.peer.ask('StreamsGroupHeartbeat', 0, **fields, member_epoch=-1)
            assert answer.error_code == ErrorCode.NONE, answer
            return any('Creation failed' in status.status_detail for status in answer.status or ())

        try:
            self.wait_until(is_known, CREATION_LIMIT_S)
        except AssertionError:
            raise TooSlow from None

    @staticmethod
    def is_refused(topic: dict[str, Any]) -> bool:
        """Return whether a topic cannot be created."""
        return topic['replication_factor'] not in (0, 1, -1) or topic['partitions'] > 1000 or any(
            config['value'] == 'no' or config['key'] == 'no.such' for config in topic['topic_configs'])

    def owned_tasks(self, slot: str, report: str) -> dict[str, Any]:
        """Return the fields with the tasks that a member reports: no tasks, its current tasks, or its current and its
        previous tasks.
        """
        if report == 'null':
            return {}
        sources = [self.tasks.get(slot, {})] * (report != 'empty') + [
            self.tasks_before.get(slot, {})] * (report == 'both')
        found: dict[str, Any] = {}
        for role in ROLES:
            numbers: dict[str, set[int]] = {}
            for tasks in sources:
                for entry in tasks.get(role) or ():
                    numbers.setdefault(entry['subtopology_id'], set()).update(entry['partitions'])
            found[f'{role}_tasks'] = [dict(subtopology_id=key, partitions=sorted(each))
                                      for key, each in numbers.items()]
        return found

    def comparable(self, value: Any, name: str = '') -> Any:
        """Return the comparable form as for a consumer group. Ignore the order of topics in a status, the words of most
        details, and the shorter intervals of kbroker while a group changes.
        """
        if name == 'heartbeat_interval_ms':
            return '*'
        if name != 'status_detail':
            return super().comparable(value, name)
        detail, _, failure = value.replace(self.group, 'g').partition(FAILED)
        return (sorted(detail.replace(',', '').split()) if detail.startswith(DETAILS) else '*'), bool(failure)

    def described(self) -> Any:
        return self.peer.ask('StreamsGroupDescribe', 1, group_ids=[self.group], include_authorized_operations=False,
                             include_topology_description=True).groups[0]

    def configure(self, operation: int) -> None:
        is_short = operation == SET
        self.set_configs({'streams.session.timeout.ms': SHORT_SESSION_MS if is_short else None,
                          'streams.heartbeat.interval.ms': '500' if is_short else None})


def missing_topics(status: Any) -> list[str]:
    """Return the names of the internal topics that a status calls missing."""
    names: list[str] = status.status_detail.partition(': ')[2].partition(';')[0].split(', ')
    return names


def changed(changes: Changes) -> dict[str, Any]:
    """Return fields of a request from the changes of an operation, in which tuples replace lists."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changes}


# ---- operations

@dataclasses.dataclass(frozen=True)
class StreamsJoin:
    """A member joins, or joins again. The heartbeat has all fields."""

    slot: str
    shape: str
    process: str = ''
    epoch: int = 0
    endpoint: str = ''
    changes: Changes = ()

    def run(self, side: StreamsSide) -> Any:
        parts = {**SHAPES, **ODD_SHAPES}[self.shape](side.topic)
        return side.beat(self.slot, **{
            **dict(member_epoch=0, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                   process_id=PROCESSES[self.process or self.slot],
                   topology=dict(epoch=self.epoch, subtopologies=parts), active_tasks=[], standby_tasks=[],
                   warmup_tasks=[], client_tags=[],
                   user_endpoint=dict(host=self.endpoint, port=1) if self.endpoint else None),
            **changed(self.changes)})


@dataclasses.dataclass(frozen=True)
class StreamsBeat:
    """A member sends a heartbeat. Its epoch is the member's epoch plus `shift`. `endpoints` is the epoch of the
    endpoints that it knows, or `last` for those of its last answer.
    """

    slot: str
    report: str = 'null'
    shift: int = 0
    shutdown: bool = False
    endpoints: str = 'last'
    changes: Changes = ()
    version: int = 1

    def run(self, side: StreamsSide) -> Any:
        known = side.endpoint_epochs.get(self.slot, 0) if self.endpoints == 'last' else int(self.endpoints)
        return side.beat(
            self.slot, self.version, member_epoch=max(side.epochs.get(self.slot, 1) + self.shift, 0),
            shutdown_application=self.shutdown, endpoint_information_epoch=known,
            **side.owned_tasks(self.slot, self.report), **changed(self.changes))


@dataclasses.dataclass(frozen=True)
class StreamsLeave:
    slot: str
    epoch: int = -1
    changes: Changes = ()

    def run(self, side: StreamsSide) -> Any:
        return side.beat(self.slot, member_epoch=self.epoch, **changed(self.changes))


class StreamsCrash(MemberCrash):
    def last_beat(self) -> StreamsBeat:
        return StreamsBeat(self.slot)


@dataclasses.dataclass(frozen=True)
class Standbys:
    """The number of standby replicas of the group changes."""

    number: int

    def run(self, side: StreamsSide) -> None:
        side.set_config('streams.num.standby.replicas', str(self.number))


@dataclasses.dataclass(frozen=True)
class RequiredTags:
    """The client tags that members of the group must have change."""

    names: str

    def run(self, side: StreamsSide) -> None:
        side.set_config('streams.rack.aware.assignment.tags', self.names)


@dataclasses.dataclass(frozen=True)
class DeleteInternal:
    """An administrator deletes an internal topic."""

    name: str

    def run(self, side: StreamsSide) -> None:
        topic = side.topic(self.name)
        if side.error_of(topic) == ErrorCode.NONE:
            side.peer.ask('DeleteTopics', 5, topic_names=[topic], timeout_ms=30000)
            side.await_end_of_topic(topic)
            side.await_coordinator({topic: 0})
        side.let_metadata_settle()


@dataclasses.dataclass(frozen=True)
class OddBeat:
    """A heartbeat with arbitrary fields, valid or not."""

    slot: str
    fields: tuple[tuple[str, Any], ...]

    def run(self, side: StreamsSide) -> Any:
        fields = dict(self.fields)
        if fields.get('topology') is not None:
            fields['topology'] = dict(epoch=0, subtopologies=SHAPES[fields['topology']](side.topic))
        return side.beat(self.slot, **fields)
