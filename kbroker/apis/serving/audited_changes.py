"""Lines about administrative requests. The audit has one for each changed resource, with the outcome. The broker's log
has one for each request that changed something, unless the audit is in the log.

`Api` wraps the handlers of administrative APIs with `with_audit`, so the handlers themselves do not deal with the
lines.
"""
from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from kbroker.apis.serving.long_answers import Pace, Steps, call_handler
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType, name_of
from kbroker.security.audit import outcome_of
from kbroker.security.escape import shown
from kbroker.settings.groups import GROUP_SETTINGS
from kbroker.settings.rows import Type
from kbroker.settings.table import SETTINGS, TOPIC_SETTINGS

HIDDEN = '(hidden)'
LINE_ELEMENTS, CHANGE_ELEMENTS = 8, 2
"""Writing one audit line counts as this many elements of work, and looking at a change without writing as the second
number.
"""
MOST_DETAILS = 100
"""The most configs of a resource that one audit line shows."""
CONFIG_TYPES = {2: 'topic', 4: 'broker', 8: 'broker-logger', 16: 'client-metrics', 32: 'group'}
MECHANISMS = {1: 'SCRAM-SHA-256', 2: 'SCRAM-SHA-512'}


@dataclass(frozen=True, slots=True)
class Change:
    """One requested change of a resource. `code` is its error code, or None if the answer does not have the outcome of
    this change."""

    resource: str
    code: int | None
    details: Mapping[str, Any] = MappingProxyType({})


Changes = Iterator[Change | None]
"""The changes of a request. None stands for an element of work without a change: a request may name very many
resources.
"""


def _topics_created(body: Any, answer: Any) -> Changes:
    wanted: dict[str, Any] = {}
    for topic in body.topics:
        wanted[topic.name] = topic
        yield None
    for row in answer.topics:
        topic = wanted.get(row.name)
        details = {} if topic is None else {'partitions': topic.num_partitions,
                                            'configs': _values((config.name, config.value) for config in topic.configs)}
        yield Change(f'topic:{row.name}', row.error_code, details)


def _topics_deleted(_body: Any, answer: Any) -> Changes:
    for row in answer.responses:
        yield Change(f'topic:{row.name or row.topic_id}', row.error_code)


def _partitions_created(body: Any, answer: Any) -> Changes:
    wanted: dict[str, int] = {}
    for topic in body.topics:
        wanted[topic.name] = topic.count
        yield None
    for row in answer.results:
        yield Change(f'topic:{row.name}', row.error_code, {'partitions': wanted.get(row.name)})


def _configs_changed(body: Any, answer: Any) -> Changes:
    codes: dict[tuple[int, str], int] = {}
    for row in answer.responses:
        codes[row.resource_type, row.resource_name] = row.error_code
        yield None
    for resource in body.resources:
        name = f'{CONFIG_TYPES.get(resource.resource_type, resource.resource_type)}:{resource.resource_name}'
        values = _values((config.name, _config_value(config)) for config in resource.configs)
        yield Change(name, codes.get((resource.resource_type, resource.resource_name)), {'configs': values})


def _config_value(config: Any) -> str | None:
    """Return the value to which a request sets a config, or None if the request deletes it."""
    return None if getattr(config, 'config_operation', 0) == 1 else config.value


def _values(configs: Iterator[tuple[str, str | None]]) -> dict[str, str | None]:
    """Return the configs with their secret values hidden. The value of an unknown config is hidden, too, because it may
    be a secret."""
    values: dict[str, str | None] = {}
    for name, value in configs:
        if len(values) == MOST_DETAILS:
            values[f'more than {MOST_DETAILS}'] = None
            break
        row = TOPIC_SETTINGS.get(name) or SETTINGS.get(name)
        is_open = name in GROUP_SETTINGS or (row is not None and row.type is not Type.PASSWORD)
        values[shown(name)] = value if value is None else shown(value) if is_open else HIDDEN
    return values


def _acls_created(body: Any, answer: Any) -> Changes:
    for acl, row in zip_longest(body.creations, answer.results):
        if acl is not None:
            yield Change(f'acl:{_acl(acl, acl.resource_pattern_type)}', None if row is None else row.error_code)


def _acls_deleted(_body: Any, answer: Any) -> Changes:
    for row in answer.filter_results:
        if row.error_code or not row.matching_acls:
            yield Change('acls', row.error_code, {'matching': 0})
        for acl in row.matching_acls:
            yield Change(f'acl:{_acl(acl, acl.pattern_type)}', acl.error_code)


def _acl(acl: Any, pattern: int) -> str:
    return (f'{name_of(Permission, acl.permission_type)} {acl.principal} {name_of(Operation, acl.operation)} on '
            f'{name_of(ResourceType, acl.resource_type)}:{name_of(PatternType, pattern)}:{acl.resource_name} '
            f'from {acl.host}')


def _credentials_changed(body: Any, answer: Any) -> Changes:
    codes: dict[str, int] = {}
    for row in answer.results:
        codes[row.user] = row.error_code
        yield None
    for row in body.deletions:
        yield Change(f'user:{row.name}', codes.get(row.name),
                     {'deleted': MECHANISMS.get(row.mechanism, row.mechanism)})
    for row in body.upsertions:
        yield Change(f'user:{row.name}', codes.get(row.name),
                     {'credential': MECHANISMS.get(row.mechanism, row.mechanism), 'iterations': row.iterations})


def _quotas_changed(body: Any, answer: Any) -> Changes:
    for entry, row in zip_longest(body.entries, answer.entries):
        if entry is not None:
            entity = ','.join(f'{part.entity_type}={"<default>" if part.entity_name is None else part.entity_name}'
                              for part in entry.entity)
            quotas = {shown(op.key): None if op.remove else op.value for op in entry.ops[:MOST_DETAILS]}
            yield Change(f'quota:{entity}', None if row is None else row.error_code, {'quotas': quotas})


def _groups_deleted(_body: Any, answer: Any) -> Changes:
    for row in answer.results:
        yield Change(f'group:{row.group_id}', row.error_code)


def _records_deleted(body: Any, answer: Any) -> Changes:
    wanted: dict[tuple[str, int], int] = {}
    for topic in body.topics:
        yield None
        for part in topic.partitions:
            wanted[topic.name, part.partition_index] = part.offset
            yield None
    for topic in answer.topics:
        yield None
        for part in topic.partitions:
            yield Change(f'partition:{topic.name}-{part.partition_index}', part.error_code,
                         {'before': wanted.get((topic.name, part.partition_index))})


def _share_offsets_altered(body: Any, answer: Any) -> Changes:
    offsets: dict[tuple[str, int], int] = {}
    for topic in body.topics:
        yield None
        for partition in topic.partitions:
            offsets[topic.topic_name, partition.partition_index] = partition.start_offset
            yield None
    if answer.error_code or not answer.responses:
        yield Change(f'group:{body.group_id}', answer.error_code)
    for topic in answer.responses:
        yield None
        for partition in topic.partitions:
            place = topic.topic_name, partition.partition_index
            yield Change(f'group:{body.group_id}', partition.error_code,
                         {'partition': f'{place[0]}-{place[1]}', 'start_offset': offsets.get(place)})


def _share_offsets_deleted(body: Any, answer: Any) -> Changes:
    if answer.error_code or not answer.responses:
        yield Change(f'group:{body.group_id}', answer.error_code)
    for topic in answer.responses:
        yield Change(f'group:{body.group_id}', topic.error_code, {'topic': topic.topic_name})


def _offsets_deleted(body: Any, answer: Any) -> Changes:
    if answer.error_code:
        yield Change(f'group:{body.group_id}', answer.error_code)
    for topic in answer.topics:
        yield None
        for part in topic.partitions:
            yield Change(f'group:{body.group_id}', part.error_code,
                         {'partition': f'{topic.name}-{part.partition_index}'})


def _features_updated(body: Any, answer: Any) -> Changes:
    for update in body.feature_updates:
        yield Change(f'feature:{update.feature}', answer.error_code, {'level': update.max_version_level})


def _controller_unregistered(body: Any, answer: Any) -> Changes:
    yield Change(f'controller:{body.controller_id}', answer.error_code)


def _markers_written(body: Any, answer: Any) -> Changes:
    for marker, row in zip(body.markers, answer.markers, strict=True):
        result = 'commit' if marker.transaction_result else 'abort'
        yield None
        for topic in row.topics:
            yield None
            for part in topic.partitions:
                yield Change(f'partition:{topic.name}-{part.partition_index}', part.error_code,
                             {'result': result, 'producer_id': marker.producer_id, 'epoch': marker.producer_epoch})


CHANGES: dict[ApiKey, Callable[[Any, Any], Changes]] = {
    ApiKey.CREATE_TOPICS: _topics_created,
    ApiKey.DELETE_TOPICS: _topics_deleted,
    ApiKey.CREATE_PARTITIONS: _partitions_created,
    ApiKey.DELETE_RECORDS: _records_deleted,
    ApiKey.ALTER_CONFIGS: _configs_changed,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs_changed,
    ApiKey.CREATE_ACLS: _acls_created,
    ApiKey.DELETE_ACLS: _acls_deleted,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _credentials_changed,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas_changed,
    ApiKey.DELETE_GROUPS: _groups_deleted,
    ApiKey.OFFSET_DELETE: _offsets_deleted,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _share_offsets_altered,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _share_offsets_deleted,
    ApiKey.UPDATE_FEATURES: _features_updated,
    ApiKey.UNREGISTER_CONTROLLER: _controller_unregistered,
    ApiKey.WRITE_TXN_MARKERS: _markers_written,
}
"""Maps each administrative API to a function that returns the changes, given the request and the answer."""


def with_audit(handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Steps]:
    """Return a handler that calls `handle` and writes the lines about its changes. If `handle` answers later, the
    lines are written when `Request.reply` calls `request.audit_answer`.
    """
    def handle_and_audit(request: Any, body: Any) -> Steps:
        if not request.node.audit.is_on and getattr(body, 'validate_only', False):
            return (yield from call_handler(handle, request, body))
        return (yield from _audited(handle, request, body))

    return handle_and_audit


def _audited(handle: Callable[[Any, Any], Any], request: Any, body: Any) -> Steps:
    request.audit_answer = partial(_audit_later, request, body)
    try:
        answer = yield from call_handler(handle, request, body)
    except Exception as error:
        request.audit_answer = None
        if not request.node.audit.is_on:
            raise
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        failure = request.api.failure(body, code, code.message, request.version)
        if isinstance(failure, Generator):
            failure = yield from failure
        yield from _write_each(request, body, failure)
        raise
    if answer is not None:
        request.audit_answer = None
        yield from _write_each(request, body, answer)
    return answer


def _audit_later(request: Any, body: Any, answer: Any) -> None:
    request.audit_answer = None
    request.node.long_work.start(_write_each(request, body, answer))


def _write_each(request: Any, body: Any, answer: Any) -> Steps:
    from kbroker.apis.serving.change_log import ChangedResources, ChangeLog  # a start makes no changes

    audit, node = request.node.audit, request.node
    pace, changed = Pace(), ChangedResources()
    is_dry = getattr(body, 'validate_only', False)
    cost = LINE_ELEMENTS if audit.is_on else CHANGE_ELEMENTS
    for change in CHANGES[request.api.key](body, answer):
        if change is None:
            if pace.spend():
                yield
            continue
        if audit.is_on:
            _write(request, change, is_dry)
        if change.code == 0 and not is_dry:
            changed.add(change.resource, change.details)
        if pace.spend(cost):
            yield
    line = None if audit.is_in_log else changed.line(request)
    if line is not None:
        if node.change_log is None:
            node.change_log = ChangeLog(node.timers)
        node.change_log.write(line)


def _write(request: Any, change: Change, is_dry: bool) -> None:
    outcome = 'unknown' if change.code is None else outcome_of(change.code)
    request.node.audit.write(
        'change', outcome=outcome, principal=str(request.principal), host=request.client_host,
        listener=request.connection.listener_name, client_id=request.client_id, api=request.api.key.name,
        resource=change.resource, validate_only=True if is_dry else None, **change.details)
