"""Requests of each API whose answers depend on the rights of the client, with the rights that they need.

A case names resources that the client gets rights to (`mine`), and others for which it never gets any (`yours`,
`hidden`). A scenario says which of the needed rights the user has. Each pair of a case and a scenario has its own user,
so all ACLs can exist from the beginning.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from support.messages.message_builder import batch_of

from kbroker.apis.serving.served import served_apis
from kbroker.protocol import messages
from kbroker.security.acl_codes import CLUSTER_NAME, WILDCARD, Operation, PatternType, Permission, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
TOPICS = 'data.mine', 'data.yours', 'log.mine', 'log.yours', 'open.mine', 'open.yours'
"""The topics that exist. Each has one partition. `data` has a record, `log` is written to, `open` is part of a
transaction.
"""
GROUPS = 'group.mine', 'group.yours'
"""The groups that exist. They have offsets of `data.mine` and `data.yours`."""
TRANSACTIONAL_IDS = 'id.mine', 'id.yours', 'id.open'

ADMIN = 'admin'
SUPER_USER = 'root'
SCENARIOS = ('all', 'nothing', 'prefixed', 'wildcard', 'deny over allow', 'super user', 'other host')
"""The scenarios of every case. In addition, a case has a scenario without each of its rights, and a scenario for each
entry of `instead`.
"""


class Need(NamedTuple):
    operation: Operation
    resource_type: ResourceType
    name: str = CLUSTER_NAME


class World(NamedTuple):
    """The names that a request may use: {topic name: id}, and a tag that no other request has."""

    ids: dict[str, bytes]
    tag: str

    def topic_id(self, name: str) -> bytes:
        """Return the id of a topic, or an unknown id that is made from the name if the topic does not exist."""
        return self.ids.get(name) or name.encode()[:16].ljust(16, b'.')


class Case(NamedTuple):
    name: str
    api: str
    fields: Callable[[int, World], dict[str, Any]]
    needs: tuple[Need, ...]
    instead: tuple[tuple[Need, ...], ...] = ()
    """Alternatives to `needs`. Each entry has rights that suffice instead."""
    first_version: int = 0
    last_version: int = 99
    by_version: tuple[tuple[int, int, int], ...] = ()
    """The rights that count only in some versions: (index of the right in `needs`, first version, last version). If the
    last version is below the first, the answer never depends on the right.
    """
    topics: tuple[str, ...] = ()
    """Further topics that exist. {tag} is replaced by the tag of the request."""

    def versions(self) -> range:
        key = getattr(messages, f'{self.api}Request').api_key
        api, = (api for api in served_apis() if api.key == key)
        return range(max(api.min_version, self.first_version), min(api.max_version, self.last_version) + 1)

    def counts(self, number: int, version: int) -> bool:
        """Return whether the answer in this version depends on the right with this index in `needs`."""
        return all(first <= version <= last for right, first, last in self.by_version if right == number)

    def scenarios(self) -> Iterator[str]:
        yield from SCENARIOS if self.needs else ('nothing', 'super user')
        if len(self.needs) > 1:
            yield from (f'without {number}' for number in range(len(self.needs)))
        yield from (f'instead {number}' for number in range(len(self.instead)))

    def user(self, scenario: str) -> str:
        return SUPER_USER if scenario == 'super user' else f'{self.name}-{scenario}'.replace(' ', '-')

    def tag(self, scenario: str, version: int) -> str:
        return f'{self.name}-{scenario}-{version}'.replace(' ', '-')

    def acls(self, scenario: str, versions: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the ACLs of the user of this scenario, as fields of CreateAcls."""
        needs, pattern, host = self.needs, PatternType.LITERAL, WILDCARD
        if scenario.startswith('without '):
            without = int(scenario.removeprefix('without '))
            needs = tuple(need for number, need in enumerate(needs) if number != without)
        elif scenario.startswith('instead '):
            needs = self.instead[int(scenario.removeprefix('instead '))]
        elif scenario in ('nothing', 'super user'):
            needs = ()
        elif scenario == 'other host':
            host = '10.1.2.3'
        seen = set()
        for version in versions:
            for need in needs:
                name = need.name.format(tag=self.tag(scenario, version))
                if scenario == 'prefixed' and need.resource_type != CLUSTER:
                    name, pattern = name[:-2], PatternType.PREFIXED
                elif scenario == 'wildcard' and need.resource_type != CLUSTER:
                    name, pattern = WILDCARD, PatternType.LITERAL
                else:
                    pattern = PatternType.LITERAL
                permissions = [Permission.ALLOW]
                if scenario == 'deny over allow' and need == needs[0]:
                    permissions.append(Permission.DENY)
                for permission in permissions:
                    found = dict(
                        resource_type=int(need.resource_type), resource_name=name, resource_pattern_type=int(pattern),
                        principal=f'User:{self.user(scenario)}', host=host, operation=int(need.operation),
                        permission_type=int(permission))
                    if tuple(found.values()) not in seen:
                        seen.add(tuple(found.values()))
                        yield found


def need(operation: str, kind: str, *names: str) -> tuple[Need, ...]:
    return tuple(Need(Operation[operation], ResourceType[kind], name) for name in names or (CLUSTER_NAME,))


CREATING = (need('READ', 'GROUP', 'creating.{tag}')
            + need('DESCRIBE', 'TOPIC', 'data.mine', 'first.{tag}', 'second.{tag}'))
"""The rights that a streams group needs whose application has two changelogs, except the right to create the
changelogs.
"""
FOUR = 'data.mine', 'data.yours', 'absent.mine', 'hidden'
"""Two topics that exist and two that do not. The client has rights to the first topic of each pair."""


def named(version: int, world: World, name: str, by_id_from: int, key: str = 'name') -> dict[str, Any]:
    return {'topic_id': world.topic_id(name)} if version >= by_id_from else {key: name}


def produce(version: int, world: World, **options: Any) -> dict[str, Any]:
    transactional = options.pop('transactional', False)
    fields = dict(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True) if transactional else {}
    records = batch_of(1_700_000_000_000, b'value', **fields)
    names = options.pop('names', ('log.mine', 'log.yours', 'absent.mine', 'hidden'))
    return dict(acks=-1, timeout_ms=5000, **options, topic_data=[
        dict(**named(version, world, name, 13), partition_data=[dict(index=0, records=records)]) for name in names])


def fetch(version: int, world: World, names: tuple[str, ...] = FOUR, **options: Any) -> dict[str, Any]:
    return dict(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, **options, topics=[
        dict(**named(version, world, name, 13, 'topic'), partitions=[
            dict(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]) for name in names])


def fetch_as_follower(version: int, world: World) -> dict[str, Any]:
    if version >= 15:
        return fetch(version, world, replica_state=dict(replica_id=1, replica_epoch=-1))
    return fetch(version, world, replica_id=1)


def commit(version: int, world: World, group: str = 'group.mine') -> dict[str, Any]:
    return dict(group_id=group, generation_id_or_member_epoch=-1, member_id='', topics=[
        dict(**named(version, world, name, 10), partitions=[dict(partition_index=0, committed_offset=1)])
        for name in FOUR])


def commit_in_transaction(version: int, world: World) -> dict[str, Any]:
    return dict(transactional_id='id.mine', group_id='group.mine', producer_id=7, producer_epoch=0, topics=[
        dict(**named(version, world, name, 6), partitions=[dict(partition_index=0, committed_offset=1)])
        for name in FOUR])


def fetch_offsets(version: int, world: World, all_topics: bool = False) -> dict[str, Any]:
    def topics() -> list[dict[str, Any]] | None:
        return None if all_topics else [
            dict(**named(version, world, name, 10), partition_indexes=[0]) for name in FOUR]

    if version < 8:
        return dict(group_id='group.mine', topics=topics())
    return dict(groups=[dict(group_id=group, topics=topics())
                        for group in ('group.mine', 'group.yours', 'group.absent')])


def find_coordinator(version: int, _world: World, key_type: int, *keys: str) -> dict[str, Any]:
    kind = {'key_type': key_type} if version >= 1 else {}
    return {**kind, 'key': keys[0]} if version < 4 else {**kind, 'coordinator_keys': list(keys)}


def metadata(version: int, names: tuple[str, ...] | None, *, auto_create: bool = False) -> dict[str, Any]:
    fields: dict[str, Any] = dict(topics=[] if names is None and version == 0 else names and [
        dict(name=name) for name in names])
    if version >= 4:
        fields['allow_auto_topic_creation'] = auto_create
    if version >= 8:
        fields['include_topic_authorized_operations'] = True
    if 8 <= version <= 10:
        fields['include_cluster_authorized_operations'] = True
    return fields


def metadata_by_id(_version: int, world: World) -> dict[str, Any]:
    return dict(include_topic_authorized_operations=True, topics=[
        dict(name=None, topic_id=world.topic_id(name)) for name in FOUR])


def member_fields(version: int) -> dict[str, Any]:
    return dict(group_id='group.mine', member_id='nobody') | (
        {'protocol_type': 'consumer', 'protocol_name': 'range'} if version >= 5 else {})


def leave(version: int, _world: World) -> dict[str, Any]:
    if version < 3:
        return dict(group_id='group.mine', member_id='nobody')
    return dict(group_id='group.mine', members=[dict(member_id='nobody')])


def create_topics(version: int, world: World, *, validate_only: bool) -> dict[str, Any]:
    names = [f'made.{world.tag}', f'hidden.{world.tag}', 'data.mine', 'data.yours']
    names += ['hidden.twice', 'hidden.twice']
    return dict(timeout_ms=5000, validate_only=validate_only, topics=[
        dict(name=name, num_partitions=1, replication_factor=1) for name in names])


def delete_topics(version: int, world: World, *, by_id: bool = False) -> dict[str, Any]:
    names = (f'gone.{world.tag}', f'kept.{world.tag}', 'absent.mine', 'hidden')
    if version < 6:
        return dict(timeout_ms=5000, topic_names=list(names))
    return dict(timeout_ms=5000, topics=[
        dict(name=None, topic_id=world.topic_id(name)) if by_id else dict(name=name) for name in names])


def add_partitions(version: int, _world: World) -> dict[str, Any]:
    topics = [dict(name=name, partitions=[0]) for name in (*FOUR, '__consumer_offsets')]
    if version >= 4:
        return dict(transactions=[dict(transactional_id='id.mine', producer_id=7, producer_epoch=0,
                                       verify_only=False, topics=topics)])
    return dict(v3_and_below_transactional_id='id.mine', v3_and_below_producer_id=7, v3_and_below_producer_epoch=0,
                v3_and_below_topics=topics)


def configs(kinds: tuple[tuple[int, str], ...], **resource_fields: Any) -> dict[str, Any]:
    return dict(resources=[dict(resource_type=kind, resource_name=name, **resource_fields) for kind, name in kinds])


RESOURCES = ((2, 'data.mine'), (2, 'data.yours'), (2, 'absent.mine'), (2, 'hidden'), (4, '1'))
CONFIG_NEEDS = 'data.mine', 'absent.mine'
MARKERS = dict(markers=[dict(producer_id=7, producer_epoch=0, transaction_result=True, coordinator_epoch=0, topics=[
    dict(name='absent.mine', partition_indexes=[0, 1])])])
ACL = dict(resource_type=2, resource_name='no.topic', resource_pattern_type=3, principal='User:no.user', host='*',
           operation=3, permission_type=3)
ONE_PARTITION = [dict(name=name, partition_indexes=[0]) for name in FOUR]

CASES = [
    Case('produce', 'Produce', produce, need('WRITE', 'TOPIC', 'log.mine', 'absent.mine'),
         by_version=((1, 0, 12),)),
    Case('produce-forbidden', 'Produce', lambda v, w: produce(v, w, names=('log.yours', 'hidden')), ()),
    Case('produce-transactional', 'Produce',
         lambda v, w: produce(v, w, transactional=True, transactional_id='id.mine', names=('log.mine', 'log.yours')),
         need('WRITE', 'TRANSACTIONAL_ID', 'id.mine') + need('WRITE', 'TOPIC', 'log.mine')),
    Case('produce-without-id', 'Produce', lambda v, w: produce(v, w, transactional=True), ()),
    Case('fetch', 'Fetch', fetch, need('READ', 'TOPIC', 'data.mine', 'absent.mine'), by_version=((1, 0, 12),)),
    Case('fetch-follower', 'Fetch', fetch_as_follower, need('CLUSTER_ACTION', 'CLUSTER')),
    Case('list-offsets', 'ListOffsets', lambda v, w: dict(replica_id=-1, topics=[
        dict(name=name, partitions=[dict(partition_index=0, timestamp=-1)]) for name in FOUR]),
        need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine'), (need('READ', 'TOPIC', 'data.mine', 'absent.mine'),)),
    Case('metadata', 'Metadata', lambda v, w: metadata(v, FOUR), need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine'),
         (need('WRITE', 'TOPIC', 'data.mine', 'absent.mine'), need('DELETE', 'TOPIC', 'data.mine'),
          need('ALTER', 'TOPIC', 'data.mine'), need('CREATE', 'TOPIC', 'data.mine')), first_version=4),
    Case('metadata-all', 'Metadata', lambda v, w: metadata(v, None), need('DESCRIBE', 'TOPIC', 'data.mine')),
    Case('metadata-cluster', 'Metadata', lambda v, w: metadata(v, ('data.mine',)),
         need('DESCRIBE', 'CLUSTER') + need('DESCRIBE', 'TOPIC', 'data.mine'), (need('ALTER', 'CLUSTER'),),
         first_version=8, last_version=10),
    Case('metadata-by-id', 'Metadata', metadata_by_id, need('DESCRIBE', 'TOPIC', 'data.mine'), first_version=12),
    Case('metadata-creates', 'Metadata',
         lambda v, w: metadata(v, (f'new.{w.tag}',), auto_create=True),
         need('DESCRIBE', 'TOPIC', 'new.{tag}') + need('CREATE', 'TOPIC', 'new.{tag}'),
         (need('DESCRIBE', 'TOPIC', 'new.{tag}') + need('CREATE', 'CLUSTER'),)),
    Case('offset-commit', 'OffsetCommit', commit,
         need('READ', 'GROUP', 'group.mine') + need('READ', 'TOPIC', 'data.mine', 'absent.mine'),
         by_version=((2, 0, 9),)),
    Case('offset-fetch', 'OffsetFetch', fetch_offsets,
         need('DESCRIBE', 'GROUP', 'group.mine', 'group.absent')
         + need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine'),
         (need('READ', 'GROUP', 'group.mine') + need('READ', 'TOPIC', 'data.mine'),),
         by_version=((1, 8, 10), (3, 0, 9))),
    Case('offset-fetch-all', 'OffsetFetch', lambda v, w: fetch_offsets(v, w, all_topics=True),
         need('DESCRIBE', 'GROUP', 'group.mine') + need('DESCRIBE', 'TOPIC', 'data.mine'), first_version=2),
    Case('find-group', 'FindCoordinator',
         lambda v, w: find_coordinator(v, w, 0, 'group.mine', 'group.yours', 'group.absent'),
         need('DESCRIBE', 'GROUP', 'group.mine')),
    Case('find-transaction', 'FindCoordinator',
         lambda v, w: find_coordinator(v, w, 1, 'id.mine', 'id.yours', 'id.absent'),
         need('DESCRIBE', 'TRANSACTIONAL_ID', 'id.mine'), first_version=1),
    Case('join-group', 'JoinGroup', lambda v, w: dict(
        group_id='group.mine', session_timeout_ms=30000, rebalance_timeout_ms=5000, member_id='nobody',
        protocol_type='consumer', protocols=[dict(name='range', metadata=b'')]), need('READ', 'GROUP', 'group.mine')),
    Case('heartbeat', 'Heartbeat', lambda v, w: dict(group_id='group.mine', generation_id=1, member_id='nobody'),
         need('READ', 'GROUP', 'group.mine')),
    Case('leave-group', 'LeaveGroup', leave, need('READ', 'GROUP', 'group.mine')),
    Case('sync-group', 'SyncGroup', lambda v, w: member_fields(v) | dict(generation_id=1, assignments=[]),
         need('READ', 'GROUP', 'group.mine')),
    Case('consumer-heartbeat', 'ConsumerGroupHeartbeat', lambda v, w: dict(
        group_id=f'consumers.{w.tag}', member_id='m', member_epoch=0, rebalance_timeout_ms=5000, topic_partitions=[],
        subscribed_topic_names=['data.mine', 'absent.mine']),
        need('READ', 'GROUP', 'consumers.{tag}') + need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('share-heartbeat', 'ShareGroupHeartbeat', lambda v, w: dict(
        group_id=f'sharers.{w.tag}', member_id='m', member_epoch=0,
        subscribed_topic_names=['data.mine', 'absent.mine']),
        need('READ', 'GROUP', 'sharers.{tag}') + need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('describe-sharers', 'ShareGroupDescribe', lambda v, w: dict(
        group_ids=['group.mine', 'group.yours', 'group.absent', 'hidden'], include_authorized_operations=True),
        need('DESCRIBE', 'GROUP', 'group.mine', 'group.absent'),
        (need('READ', 'GROUP', 'group.mine'), need('DELETE', 'GROUP', 'group.mine'))),
    Case('describe-share-offsets', 'DescribeShareGroupOffsets', lambda v, w: dict(groups=[
        dict(group_id=group, topics=[dict(topic_name=name, partitions=[0]) for name in FOUR])
        for group in ('group.absent', 'hidden')]),
        need('DESCRIBE', 'GROUP', 'group.absent') + need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('alter-share-offsets', 'AlterShareGroupOffsets', lambda v, w: dict(
        group_id=f'altered.{w.tag}', topics=[
            dict(topic_name=name, partitions=[dict(partition_index=0, start_offset=0)]) for name in FOUR]),
        need('READ', 'GROUP', 'altered.{tag}') + need('READ', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('delete-share-offsets', 'DeleteShareGroupOffsets', lambda v, w: dict(
        group_id='group.absent', topics=[dict(topic_name=name) for name in FOUR]),
        need('DELETE', 'GROUP', 'group.absent')),
    Case('streams-heartbeat', 'StreamsGroupHeartbeat', lambda v, w: dict(
        group_id=f'streams.{w.tag}', member_id='m', member_epoch=0, endpoint_information_epoch=0,
        rebalance_timeout_ms=5000, active_tasks=[], standby_tasks=[], warmup_tasks=[], process_id='p',
        topology=dict(epoch=0, subtopologies=[dict(
            subtopology_id='0', source_topics=['data.mine', 'absent.mine'], source_topic_regex=[],
            state_changelog_topics=[], repartition_sink_topics=[], repartition_source_topics=[],
            copartition_groups=[])]), shutdown_application=False),
        need('READ', 'GROUP', 'streams.{tag}') + need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('streams-creates', 'StreamsGroupHeartbeat', lambda v, w: dict(
        group_id=f'creating.{w.tag}', member_id='m', member_epoch=0, endpoint_information_epoch=0,
        rebalance_timeout_ms=5000, active_tasks=[], standby_tasks=[], warmup_tasks=[], process_id='p',
        topology=dict(epoch=0, subtopologies=[dict(
            subtopology_id='0', source_topics=['data.mine'], source_topic_regex=[],
            state_changelog_topics=[dict(name=f'{name}.{w.tag}', partitions=0, replication_factor=0, topic_configs=[])
                                    for name in ('first', 'second')],
            repartition_sink_topics=[], repartition_source_topics=[], copartition_groups=[])]),
        shutdown_application=False),
        CREATING + need('CREATE', 'TOPIC', 'first.{tag}', 'second.{tag}'),
        (CREATING + need('CREATE', 'CLUSTER'),), by_version=((4, 1, 0), (5, 1, 0))),
    Case('share-fetch', 'ShareFetch', lambda v, w: dict(
        group_id='group.mine', member_id=w.tag, share_session_epoch=0, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20,
        max_records=1, batch_size=1, topics=[dict(topic_id=w.topic_id(name), partitions=[dict(partition_index=0)])
                                             for name in ('data.mine', 'data.yours')]),
        need('READ', 'GROUP', 'group.mine') + need('READ', 'TOPIC', 'data.mine')),
    Case('share-acknowledge', 'ShareAcknowledge', lambda v, w: dict(
        group_id='group.mine', member_id=w.tag, share_session_epoch=1, topics=[]), need('READ', 'GROUP', 'group.mine')),
    Case('describe-consumers', 'ConsumerGroupDescribe', lambda v, w: dict(
        group_ids=['group.mine', 'group.yours', 'group.absent', 'hidden'], include_authorized_operations=True),
        need('DESCRIBE', 'GROUP', 'group.mine', 'group.absent'),
        (need('READ', 'GROUP', 'group.mine'), need('DELETE', 'GROUP', 'group.mine'))),
    Case('describe-streams', 'StreamsGroupDescribe', lambda v, w: dict(
        group_ids=['group.mine', 'group.yours', 'group.absent', 'hidden'], include_authorized_operations=True),
        need('DESCRIBE', 'GROUP', 'group.mine', 'group.absent'),
        (need('READ', 'GROUP', 'group.mine'), need('DELETE', 'GROUP', 'group.mine'))),
    Case('topology-description', 'StreamsGroupTopologyDescriptionUpdate', lambda v, w: dict(
        group_id='group.mine', member_id='m', topology_epoch=0,
        topology_description=dict(subtopologies=[], global_stores=[])), need('READ', 'GROUP', 'group.mine')),
    Case('unregister-controller', 'UnregisterController', lambda v, w: dict(controller_id=7),
         need('ALTER', 'CLUSTER')),
    Case('describe-groups', 'DescribeGroups', lambda v, w: dict(
        groups=['group.mine', 'group.yours', 'group.absent', 'hidden'],
        **({'include_authorized_operations': True} if v >= 3 else {})),
        need('DESCRIBE', 'GROUP', 'group.mine', 'group.absent'),
        (need('READ', 'GROUP', 'group.mine'), need('DELETE', 'GROUP', 'group.mine'))),
    Case('list-groups', 'ListGroups', lambda v, w: {}, need('DESCRIBE', 'GROUP', 'group.mine'),
         (need('DESCRIBE', 'CLUSTER'),)),
    Case('api-versions', 'ApiVersions', lambda v, w: dict(client_software_name='judge', client_software_version='1')
         if v >= 3 else {}, ()),
    Case('create-topics', 'CreateTopics', lambda v, w: create_topics(v, w, validate_only=True),
         need('CREATE', 'TOPIC', 'made.{tag}', 'data.mine') + need('DESCRIBE_CONFIGS', 'TOPIC', 'made.{tag}'),
         (need('CREATE', 'CLUSTER'),), by_version=((2, 5, 7),)),
    Case('create-topics-really', 'CreateTopics', lambda v, w: create_topics(v, w, validate_only=False),
         need('CREATE', 'TOPIC', 'made.{tag}', 'data.mine') + need('ALTER_CONFIGS', 'TOPIC', 'made.{tag}'),
         first_version=7),
    Case('delete-topics', 'DeleteTopics', delete_topics,
         need('DELETE', 'TOPIC', 'gone.{tag}', 'absent.mine'), topics=('gone.{tag}', 'kept.{tag}')),
    Case('delete-topics-by-id', 'DeleteTopics', lambda v, w: delete_topics(v, w, by_id=True),
         need('DELETE', 'TOPIC', 'gone.{tag}') + need('DESCRIBE', 'TOPIC', 'kept.{tag}'),
         topics=('gone.{tag}', 'kept.{tag}'), first_version=6),
    Case('delete-absent-topics', 'DeleteTopics', lambda v, w: dict(timeout_ms=5000, **(
        dict(topic_names=['absent.mine', 'hidden']) if v < 6 else
        dict(topics=[dict(name='absent.mine'), dict(name='hidden')]))), need('DESCRIBE', 'TOPIC', 'absent.mine'),
        (need('DELETE', 'CLUSTER'),)),
    Case('delete-records', 'DeleteRecords', lambda v, w: dict(timeout_ms=5000, topics=[
        dict(name=name, partitions=[dict(partition_index=0, offset=0)]) for name in FOUR]),
        need('DELETE', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('init-transactional', 'InitProducerId', lambda v, w: dict(
        transactional_id='id.init', transaction_timeout_ms=60000),
        need('WRITE', 'TRANSACTIONAL_ID', 'id.init')),
    Case('init-idempotent', 'InitProducerId', lambda v, w: dict(transactional_id=None, transaction_timeout_ms=60000),
         need('IDEMPOTENT_WRITE', 'CLUSTER'),
         (need('WRITE', 'TOPIC', 'data.mine'), need('READ', 'TOPIC', 'data.mine'))),
    Case('leader-epochs', 'OffsetForLeaderEpoch', lambda v, w: dict(
        **({'replica_id': -1} if v >= 3 else {}), topics=[
            dict(topic=name, partitions=[dict(partition=0, current_leader_epoch=-1, leader_epoch=0)])
            for name in FOUR]),
        need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine'), (need('CLUSTER_ACTION', 'CLUSTER'),)),
    Case('add-partitions', 'AddPartitionsToTxn', add_partitions,
         need('WRITE', 'TRANSACTIONAL_ID', 'id.mine') + need('WRITE', 'TOPIC', *FOUR), last_version=3),
    Case('add-partitions-batched', 'AddPartitionsToTxn', add_partitions, need('CLUSTER_ACTION', 'CLUSTER'),
         first_version=4),
    Case('add-offsets', 'AddOffsetsToTxn', lambda v, w: dict(
        transactional_id='id.mine', producer_id=7, producer_epoch=0, group_id='group.mine'),
        need('WRITE', 'TRANSACTIONAL_ID', 'id.mine') + need('READ', 'GROUP', 'group.mine')),
    Case('end-txn', 'EndTxn', lambda v, w: dict(
        transactional_id='id.mine', producer_id=7, producer_epoch=0, committed=True),
        need('WRITE', 'TRANSACTIONAL_ID', 'id.mine')),
    Case('write-txn-markers', 'WriteTxnMarkers', lambda v, w: MARKERS, need('CLUSTER_ACTION', 'CLUSTER'),
         (need('ALTER', 'CLUSTER'),)),
    Case('txn-offset-commit', 'TxnOffsetCommit', commit_in_transaction,
         need('WRITE', 'TRANSACTIONAL_ID', 'id.mine') + need('READ', 'GROUP', 'group.mine')
         + need('READ', 'TOPIC', 'absent.mine'), by_version=((2, 0, 5),)),
    Case('describe-configs', 'DescribeConfigs', lambda v, w: configs(RESOURCES, configuration_keys=['retention.ms']),
         need('DESCRIBE_CONFIGS', 'TOPIC', *CONFIG_NEEDS) + need('DESCRIBE_CONFIGS', 'CLUSTER'),
         (need('ALTER_CONFIGS', 'TOPIC', 'data.mine'),)),
    Case('alter-configs', 'AlterConfigs', lambda v, w: dict(
        validate_only=True, **configs(RESOURCES[:4], configs=[dict(name='retention.ms', value='1000000')])),
        need('ALTER_CONFIGS', 'TOPIC', *CONFIG_NEEDS)),
    Case('alter-broker-configs', 'IncrementalAlterConfigs', lambda v, w: dict(
        validate_only=True, **configs(RESOURCES[4:], configs=[
            dict(name='log.retention.ms', value='1000000', config_operation=0)])),
        need('ALTER_CONFIGS', 'CLUSTER')),
    Case('incremental-alter-configs', 'IncrementalAlterConfigs', lambda v, w: dict(
        validate_only=True, **configs(RESOURCES[:4], configs=[
            dict(name='retention.ms', value='1000000', config_operation=0)])),
        need('ALTER_CONFIGS', 'TOPIC', *CONFIG_NEEDS)),
    Case('unsound-configs', 'IncrementalAlterConfigs', lambda v, w: dict(
        validate_only=True, **configs(((2, 'hidden'), (2, 'data.yours')), configs=[
            dict(name='retention.ms', value='1000000', config_operation=0)] * 2)), ()),
    Case('unsound-broker-configs', 'IncrementalAlterConfigs', lambda v, w: dict(
        validate_only=True, **configs(RESOURCES[4:], configs=[
            dict(name='log.retention.ms', value='long', config_operation=0)])), need('ALTER_CONFIGS', 'CLUSTER')),
    Case('describe-configs-of-groups', 'DescribeConfigs', lambda v, w: configs(
        ((32, 'group.mine'), (32, 'hidden')), configuration_keys=['share.isolation.level']),
        need('DESCRIBE_CONFIGS', 'GROUP', 'group.mine')),
    Case('alter-configs-of-groups', 'IncrementalAlterConfigs', lambda v, w: dict(
        validate_only=True, **configs(((32, 'group.mine'), (32, 'hidden')), configs=[
            dict(name='share.isolation.level', value='read_committed', config_operation=0)])),
        need('ALTER_CONFIGS', 'GROUP', 'group.mine')),
    Case('update-features', 'UpdateFeatures', lambda v, w: dict(timeout_ms=5000, feature_updates=[
        dict(feature='group.version', max_version_level=1)], **(dict(validate_only=True) if v else {})),
        need('ALTER', 'CLUSTER')),
    Case('describe-log-dirs', 'DescribeLogDirs', lambda v, w: dict(topics=[dict(topic='data.mine', partitions=[0])]),
         need('DESCRIBE', 'CLUSTER'), (need('ALTER', 'CLUSTER'), need('CREATE', 'CLUSTER'))),
    Case('create-partitions', 'CreatePartitions', lambda v, w: dict(timeout_ms=5000, validate_only=True, topics=[
        dict(name=name, count=2, assignments=None) for name in FOUR]),
        need('ALTER', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('delete-groups', 'DeleteGroups', lambda v, w: dict(groups_names=['group.absent', 'hidden']),
         need('DELETE', 'GROUP', 'group.absent')),
    Case('elect-leaders', 'ElectLeaders', lambda v, w: dict(
        timeout_ms=5000, topic_partitions=[dict(topic=name, partitions=[0]) for name in FOUR]),
        need('ALTER', 'CLUSTER')),
    Case('elect-all-leaders', 'ElectLeaders', lambda v, w: dict(timeout_ms=5000, topic_partitions=None), ()),
    Case('alter-reassignments', 'AlterPartitionReassignments', lambda v, w: dict(timeout_ms=5000, topics=[
        dict(name=name, partitions=[dict(partition_index=0, replicas=None)]) for name in FOUR]),
        need('ALTER', 'CLUSTER')),
    Case('list-reassignments', 'ListPartitionReassignments', lambda v, w: dict(timeout_ms=5000, topics=None),
         need('DESCRIBE', 'CLUSTER'), (need('ALTER', 'CLUSTER'), need('CREATE', 'CLUSTER'))),
    Case('alter-log-dirs', 'AlterReplicaLogDirs', lambda v, w: dict(dirs=[
        dict(path='/nowhere', topics=[dict(name=name, partitions=[0]) for name in FOUR])]), need('ALTER', 'CLUSTER')),
    Case('describe-quorum', 'DescribeQuorum', lambda v, w: dict(topics=[
        dict(topic_name='absent.mine', partitions=[dict(partition_index=0)])]),
        need('DESCRIBE', 'CLUSTER'), (need('ALTER', 'CLUSTER'), need('CREATE', 'CLUSTER'))),
    Case('offset-delete', 'OffsetDelete', lambda v, w: dict(group_id='group.gone', topics=[
        dict(name=name, partitions=[dict(partition_index=0)]) for name in FOUR]),
        need('DELETE', 'GROUP', 'group.gone')),
    Case('offset-delete-of-group', 'OffsetDelete', lambda v, w: dict(group_id='group.mine', topics=[
        dict(name=name, partitions=[dict(partition_index=1)]) for name in FOUR]),
        need('DELETE', 'GROUP', 'group.mine') + need('READ', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('describe-cluster', 'DescribeCluster', lambda v, w: dict(include_cluster_authorized_operations=True),
         need('DESCRIBE', 'CLUSTER'), (need('ALTER', 'CLUSTER'), need('CREATE', 'CLUSTER'))),
    Case('describe-producers', 'DescribeProducers', lambda v, w: dict(topics=[
        *ONE_PARTITION, dict(name='no name', partition_indexes=[0])]),
        need('READ', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('describe-transactions', 'DescribeTransactions', lambda v, w: dict(
        transactional_ids=['id.mine', 'id.yours', 'id.absent', 'id.open']),
        need('DESCRIBE', 'TRANSACTIONAL_ID', 'id.mine', 'id.open') + need('DESCRIBE', 'TOPIC', 'open.mine'),
        (need('WRITE', 'TRANSACTIONAL_ID', 'id.open') + need('READ', 'TOPIC', 'open.mine'),)),
    Case('list-transactions', 'ListTransactions', lambda v, w: {}, need('DESCRIBE', 'TRANSACTIONAL_ID', 'id.mine')),
    Case('list-config-resources', 'ListConfigResources', lambda v, w: dict(resource_types=[4]) if v else {},
         need('DESCRIBE_CONFIGS', 'CLUSTER')),
    Case('describe-acls', 'DescribeAcls', lambda v, w: dict(
        resource_type_filter=2, resource_name_filter='no.acl', pattern_type_filter=3, principal_filter=None,
        host_filter=None, operation=1, permission_type=1), need('DESCRIBE', 'CLUSTER'), (need('ALTER', 'CLUSTER'),)),
    Case('create-acls', 'CreateAcls', lambda v, w: dict(creations=[ACL, ACL]), need('ALTER', 'CLUSTER')),
    Case('delete-acls', 'DeleteAcls', lambda v, w: dict(filters=[dict(
        resource_type_filter=2, resource_name_filter=name, pattern_type_filter=3, principal_filter=None,
        host_filter=None, operation=1, permission_type=1) for name in ('no.acl', 'no.acl.either')]),
        need('ALTER', 'CLUSTER')),
    Case('describe-quotas', 'DescribeClientQuotas', lambda v, w: dict(
        strict=False, components=[dict(entity_type='user', match_type=0, match='nobody')]),
        need('DESCRIBE_CONFIGS', 'CLUSTER'), (need('ALTER_CONFIGS', 'CLUSTER'), need('DESCRIBE', 'CLUSTER'))),
    Case('alter-quotas', 'AlterClientQuotas', lambda v, w: dict(validate_only=True, entries=[
        dict(entity=[dict(entity_type='user', entity_name=name)],
             ops=[dict(key='producer_byte_rate', value=1000.0, remove=False)]) for name in ('someone', 'another')]),
        need('ALTER_CONFIGS', 'CLUSTER')),
    Case('describe-scram', 'DescribeUserScramCredentials', lambda v, w: dict(users=[dict(name='someone')]),
         need('DESCRIBE', 'CLUSTER'), (need('ALTER', 'CLUSTER'),)),
    Case('alter-scram', 'AlterUserScramCredentials', lambda v, w: dict(
        deletions=[dict(name=name, mechanism=1) for name in ('someone', 'another')], upsertions=[]),
        need('ALTER', 'CLUSTER')),
    Case('describe-topic-partitions', 'DescribeTopicPartitions', lambda v, w: dict(
        response_partition_limit=100, topics=[dict(name=name) for name in FOUR]),
        need('DESCRIBE', 'TOPIC', 'data.mine', 'absent.mine')),
    Case('describe-all-topic-partitions', 'DescribeTopicPartitions', lambda v, w: dict(
        response_partition_limit=1000, topics=[]), need('DESCRIBE', 'TOPIC', 'data.mine')),
]


class Run(NamedTuple):
    """One request that one user sends."""

    case: Case
    scenario: str
    version: int

    @property
    def tag(self) -> str:
        return self.case.tag(self.scenario, self.version)

    def __str__(self) -> str:
        return f'{self.case.name}, {self.scenario}, v{self.version}'


def runs_of(case: Case, every_version: bool) -> Iterator[Run]:
    """Yield the runs of a case: every scenario in the newest version of the API, and two scenarios in each older
    version.
    """
    *others, newest = case.versions()
    for scenario in case.scenarios():
        for version in others:
            if every_version or scenario in ('all', 'nothing'):
                yield Run(case, scenario, version)
        yield Run(case, scenario, newest)


def acls_of(runs: list[Run]) -> list[dict[str, Any]]:
    """Return all ACLs that the runs need, as fields of CreateAcls."""
    by_user: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_user.setdefault((run.case.name, run.scenario), []).append(run)
    return [acl for same in by_user.values()
            for acl in same[0].case.acls(same[0].scenario, [run.version for run in same])]


def users_of(runs: list[Run]) -> list[str]:
    return sorted({run.case.user(run.scenario) for run in runs})


def prepare(ask: Callable[..., Any], runs: list[Run]) -> dict[str, bytes]:
    """Create the resources that the runs name, as a user with all rights. Return {topic name: id}."""
    names = [*TOPICS, *(name.format(tag=run.tag) for run in runs for name in run.case.topics)]
    for first in range(0, len(names), 50):
        ask('CreateTopics', 7, timeout_ms=30000, topics=[
            dict(name=name, num_partitions=1, replication_factor=1) for name in names[first:first + 50]])
    described = ask('Metadata', 12, topics=[dict(name=name) for name in names], allow_auto_topic_creation=False)
    for name in ('data.mine', 'data.yours'):
        ask('Produce', 12, **produce(12, World({}, ''), names=(name,)))
    for group in GROUPS:
        ask('FindCoordinator', 4, key_type=0, coordinator_keys=[group])
        ask('OffsetCommit', 8, group_id=group, generation_id_or_member_epoch=-1, member_id='', topics=[
            dict(name=name, partitions=[dict(partition_index=0, committed_offset=1)])
            for name in ('data.mine', 'data.yours')])
    for transactional_id in TRANSACTIONAL_IDS:
        ask('FindCoordinator', 4, key_type=1, coordinator_keys=[transactional_id])
        made = ask('InitProducerId', 4, transactional_id=transactional_id, transaction_timeout_ms=600_000)
    ask('AddPartitionsToTxn', 3, v3_and_below_transactional_id=TRANSACTIONAL_IDS[-1],
        v3_and_below_producer_id=made.producer_id, v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=[dict(name=name, partitions=[0]) for name in ('open.mine', 'open.yours')])
    assert {topic.error_code for topic in described.topics} == {0}
    return {topic.name: topic.topic_id for topic in described.topics}
