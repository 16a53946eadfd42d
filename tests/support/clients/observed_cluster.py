"""The state of a broker as its clients see it, as plain values. A restart must not change it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

Ask = Callable[[Any, int], Any]
"""The type of a function that sends a request in a version and returns the response."""

FETCHED_BYTES = 1 << 24
TOPIC, GROUP = 2, 32
"""The resource types of configs."""
OWN_CONFIGS = {1, 8}
"""The sources of configs that were set for a topic or for a group."""
ANY = {'resource_type_filter': 1, 'resource_name_filter': None, 'pattern_type_filter': 1, 'principal_filter': None,
       'host_filter': None, 'operation': 1, 'permission_type': 1}
GROUP_FIELDS = 'group_id', 'group_epoch', 'assignment_epoch', 'assignor_name'
MEMBER_FIELDS = 'member_id', 'instance_id', 'member_epoch', 'client_id', 'topology_epoch', 'process_id'


def observe(ask: Ask) -> dict[str, Any]:
    """Return the topics with all records, the groups, transactions, rights, credentials, quotas and configs."""
    topics = {topic.name: topic for topic in ask(build('MetadataRequest', topics=None), 12).topics}
    groups = groups_of(ask)
    return {
        'topics': {name: {'id': topic.topic_id.hex(), 'partitions': [] if topic.is_internal else [
            partition_of(ask, name, index) for index in range(len(topic.partitions))]}
            for name, topic in sorted(topics.items())},
        'configs': {name: configs_of(ask, kind, name) for kind, names in ((TOPIC, topics), (GROUP, groups))
                    for name in sorted(names)},
        'groups': groups,
        'transactions': transactions_of(ask),
        'acls': sorted([resource.resource_type, resource.resource_name, resource.pattern_type, acl.principal, acl.host,
                        acl.operation, acl.permission_type]
                       for resource in ask(build('DescribeAclsRequest', **ANY), 3).resources for acl in resource.acls),
        'credentials': sorted([result.user, found.mechanism, found.iterations] for result in ask(
            build('DescribeUserScramCredentialsRequest', users=None), 0).results for found in result.credential_infos),
        'quotas': quotas_of(ask),
    }


def quotas_of(ask: Ask) -> list[Any]:
    answer = ask(build('DescribeClientQuotasRequest', components=[], strict=False), 1)
    return sorted([[[part.entity_type, part.entity_name] for part in entry.entity],
                   [[value.key, value.value] for value in entry.values]] for entry in answer.entries)


def partition_of(ask: Ask, topic: str, index: int) -> dict[str, Any]:
    """Return the offsets, producers and records of a partition. The records include those of aborted transactions."""
    request = build('FetchRequest', max_wait_ms=0, min_bytes=0, max_bytes=FETCHED_BYTES, isolation_level=1,
                    session_epoch=-1, topics=[{'topic': topic, 'partitions': [
                        {'partition': index, 'fetch_offset': 0, 'partition_max_bytes': FETCHED_BYTES}]}])
    start = offset_of(ask, topic, index, -2)
    request.topics[0].partitions[0].fetch_offset = start
    committed = ask(request, 12).responses[0].partitions[0]
    request.isolation_level = 0
    everything = ask(request, 12).responses[0].partitions[0]
    assert committed.error_code == everything.error_code == 0, (committed, everything)
    return {
        'start': start, 'end': everything.high_watermark, 'last_stable': committed.last_stable_offset,
        'aborted': sorted([one.producer_id, one.first_offset] for one in committed.aborted_transactions or ()),
        'producers': producers_of(ask, topic, index), 'records': records_in(everything.records or b'')}


def offset_of(ask: Ask, topic: str, index: int, timestamp: int) -> int:
    request = build('ListOffsetsRequest', replica_id=-1, topics=[{'name': topic, 'partitions': [
        {'partition_index': index, 'timestamp': timestamp}]}])
    found = ask(request, 7).topics[0].partitions[0]
    assert found.error_code == 0, found
    return int(found.offset)


def producers_of(ask: Ask, topic: str, index: int) -> list[list[int]]:
    request = build('DescribeProducersRequest', topics=[{'name': topic, 'partition_indexes': [index]}])
    return sorted([one.producer_id, one.producer_epoch, one.last_sequence, one.current_txn_start_offset]
                  for one in ask(request, 0).topics[0].partitions[0].active_producers)


def records_in(data: bytes) -> list[list[Any]]:
    """Return (offset, timestamp, key, value, producer id, epoch, whether it is a marker) of all records."""
    return [[record.offset, record.timestamp_ms, text(record.key), text(record.value), header.producer_id,
             header.producer_epoch, header.is_control]
            for header, batch in iter_batches(data) for record in decode_records(batch)]


def text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode('latin-1')


def configs_of(ask: Ask, kind: int, name: str) -> dict[str, str]:
    request = build('DescribeConfigsRequest', resources=[{'resource_type': kind, 'resource_name': name,
                                                          'configuration_keys': None}])
    result = ask(request, 4).results[0]
    assert result.error_code == 0, result
    return {config.name: config.value for config in result.configs if config.config_source in OWN_CONFIGS}


def groups_of(ask: Ask) -> dict[str, Any]:
    """Return the type, description and offsets of each group."""
    return {group.group_id: {'type': group.group_type, **DESCRIPTIONS[group.group_type](ask, group.group_id)}
            for group in sorted(ask(build('ListGroupsRequest'), 5).groups, key=lambda group: group.group_id)}


def classic(ask: Ask, group_id: str) -> dict[str, Any]:
    group = ask(build('DescribeGroupsRequest', groups=[group_id]), 5).groups[0]
    return {'protocol': group.protocol_data, 'offsets': offsets_of(ask, group_id), 'members': sorted(
        [member.member_id, member.client_id, text(member.member_assignment)] for member in group.members)}


def modern(kind: str, version: int, offsets: Callable[[Ask, str], Any]) -> Callable[[Ask, str], dict[str, Any]]:
    """Return a function that describes groups whose partitions the coordinator assigns: consumer, share or streams
    groups.
    """
    def described(ask: Ask, group_id: str) -> dict[str, Any]:
        group = ask(build(f'{kind}DescribeRequest', group_ids=[group_id]), version).groups[0]
        assert group.error_code == 0, group
        return {**picked(group, GROUP_FIELDS), 'offsets': offsets(ask, group_id), 'members': sorted(
            (picked(member, MEMBER_FIELDS) | {'assignment': assignment_of(member.assignment)}
             for member in group.members), key=lambda member: member['member_id'])}
    return described


def picked(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def assignment_of(assignment: Any) -> list[Any]:
    if hasattr(assignment, 'active_tasks'):
        return sorted([task.subtopology_id, sorted(task.partitions)] for task in assignment.active_tasks)
    return sorted([topic.topic_name, sorted(topic.partitions)] for topic in assignment.topic_partitions)


def offsets_of(ask: Ask, group_id: str) -> list[Any]:
    request = build('OffsetFetchRequest', groups=[{'group_id': group_id, 'topics': None}])
    return sorted([topic.name, row.partition_index, row.committed_offset, row.metadata]
                  for topic in ask(request, 9).groups[0].topics for row in topic.partitions)


def share_offsets_of(ask: Ask, group_id: str) -> list[Any]:
    request = build('DescribeShareGroupOffsetsRequest', groups=[{'group_id': group_id, 'topics': None}])
    return sorted([topic.topic_name, row.partition_index, row.start_offset, row.lag]
                  for topic in ask(request, 1).groups[0].topics for row in topic.partitions)


DESCRIPTIONS = {
    'classic': classic, 'consumer': modern('ConsumerGroup', 1, offsets_of),
    'share': modern('ShareGroup', 1, share_offsets_of), 'streams': modern('StreamsGroup', 0, offsets_of)}


def transactions_of(ask: Ask) -> dict[str, Any]:
    """Return the state, producer and partitions of each transactional id."""
    ids = sorted(one.transactional_id for one in ask(build('ListTransactionsRequest'), 1).transaction_states)
    found = ask(build('DescribeTransactionsRequest', transactional_ids=ids), 0).transaction_states
    assert all(one.error_code == ErrorCode.NONE for one in found), found
    return {one.transactional_id: {
        'state': one.transaction_state, 'producer': [one.producer_id, one.producer_epoch],
        'timeout_ms': one.transaction_timeout_ms, 'start_ms': one.transaction_start_time_ms,
        'partitions': sorted([topic.topic, sorted(topic.partitions)] for topic in one.topics)} for one in found}
