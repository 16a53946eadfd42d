"""Cases for requests to the group coordinator, from consumers and administrators."""

from __future__ import annotations

from typing import Any

from cases_records import case
from raw_peer import RawPeer

GROUP, TRANSACTION, SHARE = 0, 1, 2


def find(peer: RawPeer, group: str, key_type: int = GROUP) -> None:
    """Wait until the coordinator of a group or transactional id has loaded its partition."""
    peer.prepare('FindCoordinator', coordinator_keys=[group], key_type=key_type)
    if key_type == GROUP:
        peer.prepare('DescribeGroups', 5, groups=[group])
    else:
        peer.prepare('DescribeTransactions', transactional_ids=[group])


def join(peer: RawPeer, group: str, version: int = 5, *, member_id: str = '', protocol_type: str = 'consumer',
         prepare: bool = False, protocols: tuple[str, ...] = ('range',), session_timeout_ms: int = 30000,
         instance: str | None = None) -> Any:
    fields = dict(
        group_id=group, session_timeout_ms=session_timeout_ms, rebalance_timeout_ms=5000, member_id=member_id,
        protocol_type=protocol_type, protocols=[dict(name=name, metadata=b'meta') for name in protocols])
    if version >= 5:
        fields['group_instance_id'] = instance
    return (peer.prepare if prepare else peer.ask)('JoinGroup', version, **fields)


def member(peer: RawPeer, group: str, version: int = 3, **options: Any) -> tuple[str, int]:
    """Join a group as its only member, and sync. Return the member id and the generation."""
    joined = join(peer, group, version, **options)
    peer.ask(
        'SyncGroup', 3, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        assignments=[dict(member_id=joined.member_id, assignment=b'assigned')])
    return joined.member_id, joined.generation_id


def commit(peer: RawPeer, group: str, version: int = 8, *, member_id: str = '', generation: int = -1,
           topic: str | None = None, partition: int = 0, offset: int = 5, metadata: str | None = 'note',
           **options: Any) -> Any:
    return peer.ask(
        'OffsetCommit', version, group_id=group, generation_id_or_member_epoch=generation, member_id=member_id,
        topics=[dict(
            name=topic or peer.topic,
            partitions=[dict(partition_index=partition, committed_offset=offset, committed_metadata=metadata)])],
        **options)


@case
def find_coordinator(peer: RawPeer) -> None:
    for key_type in (GROUP, TRANSACTION):
        find(peer, peer.topic, key_type)
    peer.ask('FindCoordinator', 0, key=peer.topic)
    for version in range(1, 7):
        for key_type in (GROUP, TRANSACTION, SHARE, 3, -1):
            for key in (peer.topic, ''):
                if (version >= 6 or key_type != SHARE) and version >= 4:
                    peer.ask('FindCoordinator', version, key_type=key_type, coordinator_keys=[key, 'other'])
                elif version < 4:
                    peer.ask('FindCoordinator', version, key_type=key_type, key=key)
    peer.ask('FindCoordinator', coordinator_keys=[])


@case
def join_group(peer: RawPeer) -> None:
    find(peer, peer.topic)
    for version in range(10):
        group = f'{peer.topic}_{version}'
        joined = join(peer, group, version)
        if version >= 4:
            joined = join(peer, group, version, member_id=joined.member_id)
        for wrong in (
            dict(member_id='nobody'),
            dict(protocol_type='connect', member_id=joined.member_id),
            dict(protocols=('other',), member_id=joined.member_id),
            dict(session_timeout_ms=10),
            dict(session_timeout_ms=2**31 - 1),
            dict(protocols=()),
            dict(protocol_type=''),
        ):
            join(peer, group, version, **wrong)
        join(peer, '', version)
        sync = dict(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
        low = min(version, 5)
        for wrong in (
            dict(member_id='nobody'),
            dict(generation_id=99),
            dict(group_id='no_such_group'),
            dict(group_id=''),
        ):
            peer.ask('SyncGroup', low, **sync | wrong)
            peer.ask('Heartbeat', min(version, 4), **sync | wrong)
        if version == 9:
            for wrong in (
                dict(protocol_type='x'),
                dict(protocol_name='x'),
                dict(protocol_type='consumer', protocol_name='range'),
            ):
                peer.ask('SyncGroup', 5, **sync | wrong)
        peer.ask('SyncGroup', low, **sync, assignments=[dict(member_id=joined.member_id, assignment=b'assigned')])
        peer.ask('SyncGroup', low, **sync)
        peer.ask('Heartbeat', min(version, 4), **sync)
        peer.ask('DescribeGroups', min(version, 6), groups=[group, 'no_such_group'])
        if version < 3:
            peer.ask('LeaveGroup', version, group_id=group, member_id='nobody')
            peer.ask('LeaveGroup', version, group_id=group, member_id=joined.member_id)
            peer.ask('LeaveGroup', version, group_id=group, member_id=joined.member_id)
            peer.ask('LeaveGroup', version, group_id='', member_id=joined.member_id)
        else:
            members = [
                dict(member_id='nobody'), dict(member_id=joined.member_id),
                dict(member_id='', group_instance_id='no_instance')]
            peer.ask('LeaveGroup', low, group_id=group, members=members)
            peer.ask('LeaveGroup', low, group_id=group, members=[])
            peer.ask('LeaveGroup', low, group_id='', members=members)
            peer.ask('LeaveGroup', low, group_id='no_such_group', members=members)
        peer.ask('DescribeGroups', min(version, 6), groups=[group])


@case
def static_members(peer: RawPeer) -> None:
    find(peer, peer.topic)
    first, generation = member(peer, peer.topic, 5, instance='one')
    join(peer, peer.topic, member_id='nobody', instance='one')
    join(peer, peer.topic, member_id='nobody', instance='two')
    again = join(peer, peer.topic, instance='one')
    for member_id in (first, again.member_id):
        who = dict(group_id=peer.topic, generation_id=generation, member_id=member_id, group_instance_id='one')
        peer.ask('Heartbeat', 3, **who)
        peer.ask('SyncGroup', 3, **who)
        commit(peer, peer.topic, member_id=member_id, generation=generation, group_instance_id='one')
        peer.ask('Heartbeat', 3, **who | {'group_instance_id': 'two'})
        peer.ask('LeaveGroup', 3, group_id=peer.topic, members=[dict(member_id=member_id, group_instance_id='two')])
    peer.ask('LeaveGroup', 3, group_id=peer.topic, members=[dict(member_id=first, group_instance_id='one')])
    peer.ask('DescribeGroups', 5, groups=[peer.topic])
    peer.ask('LeaveGroup', 3, group_id=peer.topic, members=[dict(member_id='', group_instance_id='one')])
    peer.ask('DescribeGroups', 5, groups=[peer.topic])


@case
def offset_commit(peer: RawPeer) -> None:
    topic_id = peer.create_topic(partitions=2)
    find(peer, peer.topic)
    for version in range(2, 10):
        group = f'{peer.topic}_{version}'
        commit(peer, group, version)
        commit(peer, group, version, offset=-1)
        commit(peer, group, version, metadata=None)
        commit(peer, group, version, metadata='x' * 5000)
        commit(peer, group, version, metadata='x' * 4096, partition=1)
        commit(peer, group, version, partition=9)
        commit(peer, group, version, topic='no_such_topic')
        commit(peer, group, version, topic='bad name')
        commit(peer, group, version, member_id='nobody')
        commit(peer, group, version, generation=1)
        commit(peer, group, version, member_id='nobody', generation=1)
        commit(peer, '', version)
        peer.ask('OffsetCommit', version, group_id=group, topics=[])
    for wanted in (topic_id, b'\7' * 16, bytes(16)):
        peer.ask(
            'OffsetCommit', 10, group_id=peer.topic, topics=[dict(
                topic_id=wanted, partitions=[
                    dict(partition_index=index, committed_offset=3, committed_metadata='') for index in (0, 8)])])
    member_id, generation = member(peer, peer.topic + '_members')
    for wrong in (
        dict(member_id=member_id, generation=generation),
        dict(member_id=member_id, generation=generation + 1),
        dict(member_id='x', generation=generation),
        dict(),
        dict(member_id=member_id),
        dict(generation=generation),
    ):
        commit(peer, peer.topic + '_members', **wrong)
    join(peer, peer.topic + '_joining')
    commit(peer, peer.topic + '_joining')
    retention = peer.topic + '_retention'
    for retention_ms in (-1, 0, 100000):
        commit(peer, retention, 4, retention_time_ms=retention_ms)


@case
def offset_fetch(peer: RawPeer) -> None:
    topic_id = peer.create_topic(partitions=3)
    find(peer, peer.topic)
    peer.prepare(
        'OffsetCommit', 8, group_id=peer.topic, topics=[dict(
            name=peer.topic, partitions=[
                dict(
                    partition_index=index, committed_offset=3 + index, committed_leader_epoch=0,
                    committed_metadata='note') for index in (0, 1)])])
    for version in range(1, 8):
        for group in (peer.topic, 'no_such_group', ''):
            for topics in (
                [dict(name=peer.topic, partition_indexes=[0, 2, 9])],
                [dict(name='no_such_topic', partition_indexes=[0])],
                [],
                *([None] if version >= 2 else []),
            ):
                peer.ask('OffsetFetch', version, group_id=group, topics=topics)
    for version in (8, 9):
        for topics in (
            [dict(name=peer.topic, partition_indexes=[0, 2, 9])],
            [dict(name='no_such_topic', partition_indexes=[0])],
            [],
            None,
        ):
            peer.ask(
                'OffsetFetch', version, require_stable=True,
                groups=[dict(group_id=group, topics=topics) for group in (peer.topic, 'no_such_group', '')])
    for topics in ([dict(topic_id=wanted, partition_indexes=[0, 2, 9]) for wanted in (topic_id, b'\7' * 16)], [], None):
        peer.ask('OffsetFetch', 10, groups=[dict(group_id=peer.topic, topics=topics)])
    for epoch in (0, 5):
        peer.ask(
            'OffsetFetch', 9, groups=[dict(group_id=peer.topic, member_id='nobody', member_epoch=epoch, topics=None)])
    peer.ask('OffsetFetch', 9, groups=[])


@case
def delete_groups_and_offsets(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    find(peer, peer.topic)

    def delete_offsets(group: str, topic: str | None = None) -> None:
        peer.ask(
            'OffsetDelete', group_id=group,
            topics=[dict(name=topic or peer.topic, partitions=[dict(partition_index=index) for index in (0, 1, 7)])])

    member(peer, peer.topic + '_members')
    for version in range(4):
        peer.ask('DeleteGroups', version, groups_names=['no_such_group', peer.topic + '_members', ''])
        commit(peer, peer.topic)
        peer.ask('DeleteGroups', version, groups_names=[peer.topic])
        peer.ask('OffsetFetch', 7, group_id=peer.topic, topics=None)
    commit(peer, peer.topic + '_members')
    for group in ('no_such_group', '', peer.topic + '_members', peer.topic):
        delete_offsets(group)
    commit(peer, peer.topic)
    delete_offsets(peer.topic, 'no_such_topic')
    delete_offsets(peer.topic)
    delete_offsets(peer.topic)
    peer.ask('OffsetFetch', 7, group_id=peer.topic, topics=None)
    peer.ask('DeleteGroups', groups_names=[])
    peer.ask('DeleteGroups', groups_names=[peer.topic, peer.topic])


@case
def describe_and_list_groups(peer: RawPeer) -> None:
    peer.create_topic()
    find(peer, peer.topic)
    commit(peer, peer.topic)
    for version in range(7):
        peer.ask('DescribeGroups', version, groups=['no_such_group', '', peer.topic])
        if version >= 3:
            peer.ask('DescribeGroups', version, groups=[peer.topic], include_authorized_operations=True)
    peer.ask('DescribeGroups', groups=[])
    peer.ask('DescribeGroups', groups=[peer.topic, peer.topic])
    for states, types in (
        (['Empty'], []),
        (['empty'], []),
        (['NoSuchState'], []),
        ([], ['classic']),
        ([], ['Consumer']),
        ([], ['x']),
        (['Dead'], ['classic']),
    ):
        answer = peer.ask('ListGroups', 5, states_filter=states, types_filter=types)
        answer.groups = [group for group in answer.groups if group.group_id == peer.topic]
    for version in range(6):
        answer = peer.ask('ListGroups', version)
        answer.groups = [group for group in answer.groups if group.group_id == peer.topic]
