"""Kafka's Admin operations on a cluster.

An operation on several topics, partitions or other objects returns a dict from each object to its result. If an object
can fail separately, its value is a KafkaError; if it succeeds without a result, None. Transient errors (a leader that
moved, a coordinator that is loading) are retried; all other errors are raised.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.acl import Acl, codes_of, named
from kbroker.client.admin_requests import (
    AdminRequests,
    Resource,
    ResourceType,
    error_in,
    indexes_by_topic,
    only_one,
    raise_transient,
    words_of,
)
from kbroker.client.arguments import by_partition, list_of, names_of, number_of
from kbroker.client.cluster import KEYS_AT_ONCE, KeyType
from kbroker.client.code_names import code_named
from kbroker.client.connection import Connection
from kbroker.client.description_rows import (
    classic_group_of,
    config_of,
    consumer_group_of,
    group_listing_of,
    log_directory_of,
    mechanism_code,
    producer_of,
    scram_credential_of,
    share_group_of,
    share_offset_of,
    streams_group_of,
    transaction_listing_of,
    transaction_of,
)
from kbroker.client.descriptions import (
    ConfigEntry,
    GroupInfo,
    GroupListing,
    LogDirectory,
    ProducerInfo,
    ScramCredentialInfo,
    ShareOffset,
    StreamsGroupInfo,
    TransactionInfo,
    TransactionListing,
)
from kbroker.client.errors import check
from kbroker.client.opening import as_text
from kbroker.protocol import messages

Described = TypeVar('Described')

# The special timestamps of ListOffsets. SPECIAL_SINCE has the request version that introduced a timestamp.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
OFFSETS_BY_NAME = {'latest': LATEST, 'earliest': EARLIEST, 'max_timestamp': MAX_TIMESTAMP}
SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
ISOLATION_SINCE = 2

OFFSET_NAMES_BEFORE_IDS = 9
"""The last version of OffsetFetch and OffsetCommit that identifies topics by name."""


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class AlterOp(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ListedOffset(NamedTuple):
    offset: int
    """The offset of the record that was found; -1 if no record was found."""
    timestamp_ms: int
    leader_epoch: int


class OffsetAndMetadata(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ''


def as_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit as OffsetAndMetadata.

    Raise TypeError for an offset that is neither an integer nor an OffsetAndMetadata, ValueError for an offset below 0.
    """
    found = {}
    for at, given in by_partition(offsets, 'offset').items():
        offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        number_of(offset.offset, f'the offset of {words_of(at)}')
        if offset.offset < 0:
            raise ValueError(f'found offset {offset.offset} of {words_of(at)}, expected 0 or more')
        found[at] = offset
    return found


class NewTopic(NamedTuple):
    """A topic to create. For a number of partitions or a replication factor of -1, the broker chooses the number.

    `assignments` maps each partition to its brokers, and replaces both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Collection[int]] | None = None
    configs: Mapping[str, str] | None = None


class ScramCredentialUpsertion(NamedTuple):
    """A SCRAM credential to store: the salted password, never the password."""

    mechanism: str
    """SCRAM-SHA-256 or SCRAM-SHA-512."""
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f'ScramCredentialUpsertion({self.mechanism}, iterations={self.iterations})'


class Admin(AdminRequests):
    """Kafka's Admin API. The methods raise KafkaError for an error that a broker returns, ClientError for a network
    failure.

    `servers` is the value of bootstrap.servers, or a cluster that several clients share. `settings` has settings under
    Kafka's names (`{'client.id': 'c'}`), `options` with underscores (`client_id='c'`). Only one thread of one process
    may use an Admin.
    """

    # ---- topics

    def create_topics(self, topics: Iterable[NewTopic] | Mapping[str, int],
                      validate_only: bool = False) -> dict[str, KafkaError | None]:
        """Create topics, given as NewTopics or as {topic: number of partitions}. For -1 the broker chooses the
        number.
        """
        request = messages.CreateTopicsRequest
        if isinstance(topics, Mapping):
            topics = [NewTopic(name, partitions) for name, partitions in topics.items()]
        topics = list_of(topics, 'topic', NewTopic)
        for topic in topics:
            number_of(topic.partitions, f'the partitions of {names_of([topic.name], "topic")[0]}')
        rows = [request.CreatableTopic(
            name=topic.name, num_partitions=topic.partitions, replication_factor=topic.replication_factor,
            assignments=[request.CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
                         for partition, brokers in (topic.assignments or {}).items()],
            configs=[request.CreatableTopicConfig(name=name, value=value)
                     for name, value in (topic.configs or {}).items()]) for topic in topics]
        answer = self._ask_controller(request(topics=rows, timeout_ms=self._timeout_ms, validate_only=validate_only),
                                      'creating topics')
        return {row.name: error_in(row, f'topic {row.name}') for row in answer.topics}

    def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        request = messages.DeleteTopicsRequest
        names = names_of(names, 'topic')
        answer = self._ask_controller(request(topics=[request.DeleteTopicState(name=name) for name in names],
                                              topic_names=names, timeout_ms=self._timeout_ms), 'deleting topics')
        return {row.name: error_in(row, f'topic {row.name}') for row in answer.responses}

    def create_partitions(self, counts: Mapping[str, int],
                          assignments: Mapping[str, Collection[Collection[int]]] | None = None,
                          validate_only: bool = False) -> dict[str, KafkaError | None]:
        """Increase each topic to the number of partitions in `counts`.

        `assignments` maps a topic to the broker ids of each of its new partitions. Raise TypeError if `counts` is not a
        mapping from topics to numbers.
        """
        request = messages.CreatePartitionsRequest
        if not isinstance(counts, Mapping):
            raise TypeError(f'found {type(counts).__name__} as counts, expected a dict from topics to counts')
        for name, count in counts.items():
            number_of(count, f'the partitions of {name}')
        given = assignments or {}
        rows = [request.CreatePartitionsTopic(name=name, count=count, assignments=None if name not in given else [
            request.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in given[name]])
            for name, count in counts.items()]
        answer = self._ask_controller(request(topics=rows, timeout_ms=self._timeout_ms, validate_only=validate_only),
                                      'creating partitions')
        return {row.name: error_in(row, f'topic {row.name}') for row in answer.results}

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | KafkaError]:
        """Delete the records of each partition before the given offset. -1 means the high watermark.

        Return the new log start offset of each partition.
        """
        request = messages.DeleteRecordsRequest
        offsets = {at: number_of(offset, f'the offset of {words_of(at)}')
                   for at, offset in by_partition(offsets, 'offset').items()}

        def ask(connection: Connection, topics: dict[str, list[int]]) -> Iterable[tuple[str, Any]]:
            rows = [request.DeleteRecordsTopic(name=topic, partitions=[
                request.DeleteRecordsPartition(partition_index=partition, offset=offsets[topic, partition])
                for partition in partitions]) for topic, partitions in topics.items()]
            answer = connection.call(request(topics=rows, timeout_ms=self._timeout_ms))
            return ((topic.name, row) for topic in answer.topics for row in topic.partitions)

        rows = self._ask_leaders(offsets, ask, 'deleting records')
        return {at: error_in(row, words_of(at)) or row.low_watermark for at, row in rows.items()}

    # ---- configurations

    def describe_config(self, kind: str, name: str) -> dict[str, str | None]:
        """Return {setting: value} of a topic, broker or group. The value of a secret is None.

        `kind` is the type of the resource, such as `topic`. The name of a broker is its id. The broker name '' selects
        the dynamic settings that apply to all brokers. Raise KafkaError if the broker returns an error, ValueError for
        an unknown `kind`.
        """
        resource = (code_named(ResourceType, kind, 'as the type of a resource'), name)
        found = self.describe_configs([resource])[resource]
        if isinstance(found, KafkaError):
            raise found
        return {row.name: row.value for row in found}

    def alter_config(self, kind: str, name: str, changes: Mapping[str, object], validate_only: bool = False) -> None:
        """Change settings of a topic, broker or group. The value None resets a setting to its default.

        Raise KafkaError if the broker returns an error, ValueError for an unknown `kind`.
        """
        resource = (code_named(ResourceType, kind, 'as the type of a resource'), name)
        operations = [(setting, AlterOp.DELETE, None) if value is None else (setting, AlterOp.SET, as_text(value))
                      for setting, value in changes.items()]
        error = self.incremental_alter_configs({resource: operations}, validate_only)[resource]
        if error is not None:
            raise error

    def describe_configs(self, resources: Iterable[Resource], include_synonyms: bool = False,
                         include_documentation: bool = False) -> dict[Resource, list[ConfigEntry] | KafkaError]:
        """Return {resource: settings}. Each setting has its source and type. The value for a resource that failed is a
        KafkaError.
        """
        request = messages.DescribeConfigsRequest
        found: dict[Resource, list[ConfigEntry] | KafkaError] = {}
        for resource in resources:
            row = request.DescribeConfigsResource(resource_type=resource[0], resource_name=resource[1],
                                                  configuration_keys=None)
            answer = self._ask_owner(resource, request(resources=[row], include_synonyms=include_synonyms,
                                                       include_documentation=include_documentation),
                                     'describing configurations')
            result = only_one(answer.results, words_of(resource))
            found[resource] = error_in(result, words_of(resource)) or [config_of(row) for row in result.configs]
        return found

    def incremental_alter_configs(self, changes: Mapping[Resource, Iterable[tuple[str, AlterOp, str | None]]],
                                  validate_only: bool = False) -> dict[Resource, KafkaError | None]:
        """Apply changes (setting, operation, value) to each resource, and keep its other settings (KIP-339)."""
        request = messages.IncrementalAlterConfigsRequest
        found: dict[Resource, KafkaError | None] = {}
        for resource, operations in changes.items():
            row = request.AlterConfigsResource(resource_type=resource[0], resource_name=resource[1], configs=[
                request.AlterableConfig(name=name, config_operation=operation, value=value)
                for name, operation, value in operations])
            answer = self._ask_owner(resource, request(resources=[row], validate_only=validate_only),
                                     'altering configurations')
            found[resource] = error_in(only_one(answer.responses, words_of(resource)), words_of(resource))
        return found

    def describe_client_quotas(self, components: Iterable[tuple[str, str | None, bool]] = (),
                               strict: bool = False) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
        """Return {entity: {quota: value}} (KIP-546). An entity is a tuple of (type, name); the name None means the
        default.

        A component (type, name, any) selects the entities whose part of this type has this name, or any name if `any`
        is true. `strict` excludes entities with parts of types that no component has.
        """
        request = messages.DescribeClientQuotasRequest
        rows = [request.ComponentData(entity_type=kind, match_type=2 if is_any else int(name is None), match=name)
                for kind, name, is_any in components]
        answer = self._ask_controller(request(components=rows, strict=strict), 'describing quotas')
        check(answer.error_code, 'describing quotas', answer.error_message)
        return {tuple((part.entity_type, part.entity_name) for part in entry.entity):
                {value.key: value.value for value in entry.values} for entry in answer.entries}

    def alter_client_quotas(self, entity: Iterable[tuple[str, str | None]],
                            changes: Mapping[str, float | None]) -> KafkaError | None:
        """Set the quotas of one entity in `changes`. Remove a quota whose value is None."""
        request = messages.AlterClientQuotasRequest
        row = request.EntryData(
            entity=[request.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[request.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()])
        answer = self._ask_controller(request(entries=[row]), 'altering quotas')
        return error_in(only_one(answer.entries, 'altering quotas'), 'altering quotas')

    def describe_scram_credentials(
            self, users: Iterable[str] | None = None) -> dict[str, list[ScramCredentialInfo] | KafkaError]:
        """Return the credentials of the given users, or of all users, without their secrets (KIP-554)."""
        request = messages.DescribeUserScramCredentialsRequest
        rows = None if users is None else [request.UserName(name=name) for name in names_of(users, 'user')]
        answer = self._ask_controller(request(users=rows), 'describing SCRAM credentials')
        check(answer.error_code, 'describing SCRAM credentials', answer.error_message)
        return {row.user: error_in(row, f'user {row.user}') or [
            scram_credential_of(info.mechanism, info.iterations) for info in row.credential_infos]
                for row in answer.results}

    def alter_scram_credentials(self, user: str, deletions: Iterable[str] = (),
                                upsertions: Iterable[ScramCredentialUpsertion] = ()) -> KafkaError | None:
        """Delete the user's credentials for the mechanisms in `deletions`, and store `upsertions`.

        Each mechanism may occur only once in both together.
        """
        request = messages.AlterUserScramCredentialsRequest
        answer = self._ask_controller(request(
            deletions=[request.ScramCredentialDeletion(name=user, mechanism=mechanism_code(mechanism))
                       for mechanism in names_of(deletions, 'mechanism')],
            upsertions=[request.ScramCredentialUpsertion(
                name=user, mechanism=mechanism_code(each.mechanism), iterations=each.iterations, salt=each.salt,
                salted_password=each.salted_password) for each in upsertions]), 'altering SCRAM credentials')
        return error_in(only_one(answer.results, f'user {user}'), f'user {user}')

    def list_config_resources(self, resource_types: Collection[ResourceType] = ()) -> list[tuple[int, str]]:
        """Return (type, name) of each resource that has configs. Brokers older than Kafka 4.1 list only client
        metrics.
        """
        request = messages.ListConfigResourcesRequest(resource_types=list(resource_types))
        least = 1 if set(resource_types) - {ResourceType.CLIENT_METRICS} else 0
        answer = self._retrying(lambda: self.cluster.any().call(request, min_version=least), 'listing configurations')
        check(answer.error_code, 'listing configurations', api='ListConfigResources')
        return [(row.resource_type, row.resource_name) for row in answer.config_resources]

    def list_log_directories(self) -> list[str]:
        """Return the paths of the log directories of all brokers. The paths are valid on the brokers' machines."""
        return [directory.path for directory in self.describe_log_dirs(())]

    def describe_log_dirs(self, partitions: Collection[TopicPartition] | None = None,
                          broker_ids: Collection[int] | None = None) -> list[LogDirectory]:
        """Return the log directories of all brokers, or of `broker_ids`. They have the sizes of all partitions, or only
        of `partitions` (KIP-113).
        """
        request = messages.DescribeLogDirsRequest
        rows = None if partitions is None else [request.DescribableLogDirTopic(topic=topic, partitions=indexes)
                                                for topic, indexes in indexes_by_topic(partitions).items()]
        found = []
        for node_id, answer in self._ask_all(request(topics=rows), 'describing log directories', 1, broker_ids):
            check(answer.error_code, f'describing the log directories of broker {node_id}', api='DescribeLogDirs')
            found += [log_directory_of(node_id, row) for row in answer.results]
        return found

    # ---- access control

    def describe_acls(self, wanted: Acl | None = None) -> list[Acl]:
        """Return the ACLs that match a filter, or all ACLs."""
        code = codes_of(wanted or Acl())
        request = messages.DescribeAclsRequest(
            resource_type_filter=code.resource_type, resource_name_filter=code.resource_name,
            pattern_type_filter=code.pattern_type, principal_filter=code.principal, host_filter=code.host,
            operation=code.operation, permission_type=code.permission_type)
        answer = self._retrying(lambda: self.cluster.any().call(request), 'describing ACLs')
        check(answer.error_code, 'describing ACLs', answer.error_message)
        return [named(found.resource_type, found.resource_name, found.pattern_type, acl)
                for found in answer.resources for acl in found.acls]

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create ACLs. If some ACLs cannot be created, raise the KafkaError of the first of them."""
        creation = messages.CreateAclsRequest.AclCreation
        request = messages.CreateAclsRequest(creations=[creation(
            resource_type=code.resource_type, resource_name=code.resource_name,
            resource_pattern_type=code.pattern_type, principal=code.principal, host=code.host,
            operation=code.operation, permission_type=code.permission_type) for code in map(codes_of, acls)])
        for result in self._ask_controller(request, 'creating ACLs').results:
            check(result.error_code, 'creating ACLs', result.error_message)

    def delete_acls(self, filters: Iterable[Acl]) -> list[Acl]:
        """Delete the ACLs that match at least one of the filters, and return them. If filters fail, raise the error of
        the first.
        """
        one = messages.DeleteAclsRequest.DeleteAclsFilter
        request = messages.DeleteAclsRequest(filters=[one(
            resource_type_filter=code.resource_type, resource_name_filter=code.resource_name,
            pattern_type_filter=code.pattern_type, principal_filter=code.principal, host_filter=code.host,
            operation=code.operation, permission_type=code.permission_type) for code in map(codes_of, filters)])
        deleted: dict[Acl, None] = {}
        for result in self._ask_controller(request, 'deleting ACLs').filter_results:
            for row in (result, *result.matching_acls):
                check(row.error_code, 'deleting ACLs', row.error_message)
            deleted |= dict.fromkeys(named(acl.resource_type, acl.resource_name, acl.pattern_type, acl)
                                     for acl in result.matching_acls)
        return list(deleted)

    # ---- offsets and producers

    def list_offsets(
            self, times: Mapping[TopicPartition, int | str],
            isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> dict[TopicPartition, ListedOffset]:
        """Return an offset for each partition, with the timestamp and the leader epoch of its record.

        A time is a timestamp in ms, which selects the first record at or after it, or `earliest`, `latest` or
        `max_timestamp`. `latest` is the high watermark; with READ_COMMITTED, the last stable offset.
        """
        timestamps = {at: _timestamp_of(time) for at, time in by_partition(times, 'time').items()}
        request = messages.ListOffsetsRequest
        least = max((SPECIAL_SINCE.get(timestamp, 0) for timestamp in timestamps.values()), default=0)
        if isolation_level == IsolationLevel.READ_COMMITTED:
            least = max(least, ISOLATION_SINCE)

        def ask(connection: Connection, topics: dict[str, list[int]]) -> Iterable[tuple[str, Any]]:
            rows = [request.ListOffsetsTopic(name=topic, partitions=[
                request.ListOffsetsPartition(partition_index=partition, timestamp=timestamps[topic, partition])
                for partition in partitions]) for topic, partitions in topics.items()]
            answer = connection.call(request(replica_id=-1, isolation_level=isolation_level, topics=rows,
                                             timeout_ms=self._timeout_ms), min_version=least)
            return ((topic.name, row) for topic in answer.topics for row in topic.partitions)

        rows = self._ask_leaders(timestamps, ask, 'listing offsets')
        for at, row in rows.items():
            check(row.error_code, f'listing offsets of {words_of(at)}', api='ListOffsets')
        return {at: ListedOffset(row.offset, row.timestamp, row.leader_epoch) for at, row in rows.items()}

    def describe_producers(self, partitions: Collection[TopicPartition],
                           broker_id: int | None = None) -> dict[TopicPartition, list[ProducerInfo]]:
        """Return the active producers of each partition, reported by its leader, or by the replica on `broker_id`."""
        request = messages.DescribeProducersRequest

        def ask(connection: Connection, topics: dict[str, list[int]]) -> Iterable[tuple[str, Any]]:
            answer = connection.call(request(topics=[request.TopicRequest(name=topic, partition_indexes=indexes)
                                                     for topic, indexes in topics.items()]))
            return ((topic.name, row) for topic in answer.topics for row in topic.partitions)

        rows = self._ask_leaders(partitions, ask, 'describing producers', broker_id)
        for at, row in rows.items():
            check(row.error_code, f'describing producers of {words_of(at)}', row.error_message)
        return {at: [producer_of(found) for found in row.active_producers] for at, row in rows.items()}

    # ---- transactions

    def list_transactions(self, state_filters: Collection[str] = (), producer_id_filters: Collection[int] = (),
                          duration_filter_ms: int = -1,
                          transactional_id_pattern: str | None = None) -> list[TransactionListing]:
        """Return the transactional ids of all brokers, sorted by broker id.

        Raise KafkaError(INVALID_REQUEST) if a broker does not know one of `state_filters`.
        """
        request = messages.ListTransactionsRequest(
            state_filters=names_of(state_filters, 'state'), producer_id_filters=list(producer_id_filters),
            duration_filter=duration_filter_ms, transactional_id_pattern=transactional_id_pattern)
        least = 2 if transactional_id_pattern is not None else 1 if duration_filter_ms >= 0 else 0
        found = []
        for node_id, answer in self._ask_all(request, 'listing transactions', least):
            check(answer.error_code, f'listing transactions of broker {node_id}')
            if answer.unknown_state_filters:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'broker {node_id} knows no transaction state '
                                 f'{", ".join(answer.unknown_state_filters)}')
            found += [transaction_listing_of(node_id, row) for row in answer.transaction_states]
        return found

    def describe_transactions(self, transactional_ids: Collection[str]) -> dict[str, TransactionInfo | KafkaError]:
        found: dict[str, TransactionInfo | KafkaError] = {}
        left = dict.fromkeys(names_of(transactional_ids, 'transactional.id'))

        def ask() -> None:
            while names := list(islice(left, KEYS_AT_ONCE)):
                for node_id, owned in self.cluster.coordinator_ids(KeyType.TRANSACTION, names).items():
                    answer = self.cluster.node(node_id).call(
                        messages.DescribeTransactionsRequest(transactional_ids=owned))
                    rows = {row.transactional_id: row for row in answer.transaction_states}
                    for name in owned:
                        what = f'transactional.id {name!r}'
                        row = only_one([rows[name]] if name in rows else [], what)
                        raise_transient(row, what)
                        found[name] = error_in(row, what) or transaction_of(node_id, row)
                        del left[name]

        self._retrying(ask, f'describing {len(left)} transactional.ids')
        return found

    def abort_transaction(self, topic: str, partition: int, producer_id: int, producer_epoch: int,
                          coordinator_epoch: int) -> None:
        """Write an abort marker to one partition without its transaction coordinator (WriteTxnMarkers, KIP-664)."""
        request = messages.WriteTxnMarkersRequest
        marker = request.WritableTxnMarker(
            producer_id=producer_id, producer_epoch=producer_epoch, transaction_result=False,
            coordinator_epoch=max(coordinator_epoch, 0),
            topics=[request.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])])

        def ask(connection: Connection, topics: dict[str, list[int]]) -> Iterable[tuple[str, Any]]:
            answer = connection.call(request(markers=[marker]))
            return ((part.name, row) for result in answer.markers for part in result.topics for row in part.partitions)

        rows = self._ask_leaders([(topic, partition)], ask, 'aborting')
        check(rows[topic, partition].error_code, f'writing an abort marker of producer id {producer_id} to '
                                                 f'{topic}-{partition}', api='WriteTxnMarkers')

    def fence_producers(self, transactional_ids: Collection[str]) -> dict[str, Any]:
        """Abort the open transactions of the transactional ids, and fence their producers by InitProducerId.

        Return (producer id, producer epoch) or a KafkaError for each transactional.id. The command `force-terminate`
        calls this.
        """
        found: dict[str, Any] = {}
        for transactional_id in names_of(transactional_ids, 'transactional.id'):
            what = f'transactional.id {transactional_id!r}'

            def ask(name: str = transactional_id, what: str = what) -> Any:
                answer = self.cluster.coordinator(KeyType.TRANSACTION, name, '').call(messages.InitProducerIdRequest(
                    transactional_id=name, transaction_timeout_ms=self._timeout_ms))
                raise_transient(answer, what, {ErrorCode.CONCURRENT_TRANSACTIONS})
                return answer

            answer = self._retrying(ask, f'fencing {what}', {ErrorCode.CONCURRENT_TRANSACTIONS})
            found[transactional_id] = error_in(answer, what) or (answer.producer_id, answer.producer_epoch)
        return found

    # ---- groups

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers that have one of `states` and one of `types`. An empty collection selects
        all.
        """
        request = messages.ListGroupsRequest(states_filter=names_of(states, 'state'),
                                             types_filter=names_of(types, 'type'))
        least = 5 if types else 4 if states else 0
        found = []
        for node_id, answer in self._ask_all(request, 'listing groups', least):
            check(answer.error_code, f'listing groups of broker {node_id}')
            found += [group_listing_of(node_id, row) for row in answer.groups]
        return found

    def describe_classic_groups(self, group_ids: Collection[str]) -> dict[str, GroupInfo | KafkaError]:
        """Describe groups of the classic protocol. Brokers before Kafka 4.0 return a missing group in the state Dead;
        later brokers return a KafkaError for it.
        """
        return self._describe_groups(messages.DescribeGroupsRequest, 'groups', group_ids, classic_group_of)

    def describe_consumer_groups(self, group_ids: Collection[str]) -> dict[str, GroupInfo | KafkaError]:
        """Describe groups of the consumer protocol (KIP-848)."""
        return self._describe_groups(messages.ConsumerGroupDescribeRequest, 'group_ids', group_ids, consumer_group_of)

    def describe_share_groups(self, group_ids: Collection[str]) -> dict[str, GroupInfo | KafkaError]:
        """Describe share groups (KIP-932)."""
        return self._describe_groups(messages.ShareGroupDescribeRequest, 'group_ids', group_ids, share_group_of)

    def describe_streams_groups(self, group_ids: Collection[str],
                                include_topology_description: bool = False
                                ) -> dict[str, StreamsGroupInfo | KafkaError]:
        """Describe streams groups (KIP-1071).

        With `include_topology_description`, also ask for the nodes of each topology (KIP-1331). Raise KafkaError
        UNSUPPORTED_VERSION if the broker is older than Kafka 4.4.
        """
        def request(**fields: Any) -> Any:
            return messages.StreamsGroupDescribeRequest(
                include_topology_description=include_topology_description, **fields)

        return self._describe_groups(request, 'group_ids', group_ids, streams_group_of,
                                     min_version=1 if include_topology_description else 0)

    def list_share_group_offsets(self, group_id: str) -> dict[TopicPartition, ShareOffset]:
        """Return {partition: offset} for the partitions that have a start offset in the share group."""
        request = messages.DescribeShareGroupOffsetsRequest
        what = f'offsets of group {group_id!r}'

        def ask() -> Any:
            answer = self._group_coordinator(group_id).call(request(
                groups=[request.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)]))
            found = only_one(answer.groups, what)
            check(found.error_code, what)
            for topic in found.topics:
                for row in topic.partitions:
                    check(row.error_code, f'{what} on {topic.topic_name}-{row.partition_index}')
            return found

        found = self._retrying(ask, f'fetching {what}')
        return {(topic.topic_name, row.partition_index): share_offset_of(topic.topic_name, row)
                for topic in found.topics for row in topic.partitions}

    def alter_share_group_offsets(self, group_id: str,
                                  offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, KafkaError | None]:
        """Set the start offsets of a share group without members. Create the group if it does not exist."""
        request = messages.AlterShareGroupOffsetsRequest
        rows = [request.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[
            request.AlterShareGroupOffsetsRequestPartition(partition_index=partition,
                                                           start_offset=offsets[topic, partition])
            for partition in partitions]) for topic, partitions in indexes_by_topic(offsets).items()]
        answer = self._ask_group(group_id, request(group_id=group_id, topics=rows), 'changing offsets')
        check(answer.error_code, f'changing offsets of group {group_id!r}', answer.error_message)
        return {(topic.topic_name, row.partition_index): error_in(row, f'{topic.topic_name}-{row.partition_index}')
                for topic in answer.responses for row in topic.partitions}

    def delete_share_group_offsets(self, group_id: str, topics: Collection[str]) -> dict[str, KafkaError | None]:
        """Delete the start offsets that a share group has in the given topics. The group must not have members."""
        request = messages.DeleteShareGroupOffsetsRequest
        rows = [request.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names_of(topics, 'topic')]
        answer = self._ask_group(group_id, request(group_id=group_id, topics=rows), 'deleting offsets')
        check(answer.error_code, f'deleting offsets of group {group_id!r}')
        return {row.topic_name: error_in(row, row.topic_name) for row in answer.responses}

    def _describe_groups(self, request_class: Any, field: str, group_ids: Collection[str],
                         described: Callable[[int, Any], Described],
                         min_version: int = 0) -> dict[str, Described | KafkaError]:
        found: dict[str, Described | KafkaError] = {}
        for group_id in names_of(group_ids, 'group.id'):
            what = f'group {group_id!r}'

            def ask(name: str = group_id, what: str = what) -> Any:
                node_id = self.cluster.coordinator_id(KeyType.GROUP, name)
                answer = self.cluster.node(node_id).call(request_class(**{field: [name]}), min_version=min_version)
                row = only_one(answer.groups, what)
                raise_transient(row, what)
                return node_id, row

            node_id, row = self._retrying(ask, f'describing {what}')
            found[group_id] = error_in(row, what) or described(node_id, row)
        return found

    def list_group_offsets(self, group_id: str,
                           require_stable: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return {partition: offset} for all committed offsets of a group.

        With `require_stable`, wait while an open transaction has pending offsets (KIP-447).
        """
        request = messages.OffsetFetchRequest
        what = f'offsets of group {group_id!r}'

        def ask() -> Any:
            connection = self._group_coordinator(group_id)
            answer = connection.call(request(
                group_id=group_id, topics=None, require_stable=require_stable,
                groups=[request.OffsetFetchRequestGroup(group_id=group_id, topics=None)]),
                max_version=OFFSET_NAMES_BEFORE_IDS, min_version=7 if require_stable else 2)
            found = only_one(answer.groups, what) if answer.groups else answer
            check(found.error_code, what)
            for topic in found.topics:
                for row in topic.partitions:
                    check(row.error_code, f'{what} on {topic.name}-{row.partition_index}')
            return found

        found = self._retrying(ask, f'fetching {what}', {ErrorCode.UNSTABLE_OFFSET_COMMIT})
        return {(topic.name, row.partition_index): OffsetAndMetadata(row.committed_offset, row.committed_leader_epoch,
                                                                     row.metadata or '')
                for topic in found.topics for row in topic.partitions if row.committed_offset >= 0}

    def alter_group_offsets(
            self, group_id: str,
            offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a group that has no members."""
        wanted = as_offsets(offsets)
        request = messages.OffsetCommitRequest
        rows = [request.OffsetCommitRequestTopic(name=topic, partitions=[
            request.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=wanted[topic, partition].offset,
                committed_leader_epoch=wanted[topic, partition].leader_epoch,
                committed_metadata=wanted[topic, partition].metadata) for partition in partitions])
            for topic, partitions in indexes_by_topic(wanted).items()]
        answer = self._ask_group(group_id, request(group_id=group_id, member_id='', topics=rows), 'committing offsets',
                                 OFFSET_NAMES_BEFORE_IDS)
        return {(topic.name, row.partition_index): error_in(row, f'{topic.name}-{row.partition_index}')
                for topic in answer.topics for row in topic.partitions}

    def delete_group_offsets(self, group_id: str,
                             partitions: Collection[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
        request = messages.OffsetDeleteRequest
        rows = [request.OffsetDeleteRequestTopic(name=topic, partitions=[
            request.OffsetDeleteRequestPartition(partition_index=index) for index in indexes])
            for topic, indexes in indexes_by_topic(partitions).items()]
        answer = self._ask_group(group_id, request(group_id=group_id, topics=rows), 'deleting offsets')
        check(answer.error_code, f'deleting offsets of group {group_id!r}', api='OffsetDelete')
        return {(topic.name, row.partition_index): error_in(row, f'{topic.name}-{row.partition_index}')
                for topic in answer.topics for row in topic.partitions}

    def delete_groups(self, group_ids: Collection[str]) -> dict[str, KafkaError | None]:
        found = {}
        for group_id in names_of(group_ids, 'group.id'):
            answer = self._ask_group(group_id, messages.DeleteGroupsRequest(groups_names=[group_id]), 'deleting')
            found[group_id] = error_in(only_one(answer.results, f'group {group_id!r}'), f'group {group_id!r}')
        return found


def _timestamp_of(time: int | str) -> int:
    if not isinstance(time, str):
        return number_of(time, 'a time in ms')
    if time not in OFFSETS_BY_NAME:
        raise ValueError(f'found {time!r} as a time, expected milliseconds or {", ".join(OFFSETS_BY_NAME)}')
    return OFFSETS_BY_NAME[time]
