"""AlterClientQuotas (key 49), versions 0-1 (KIP-546): set and remove quotas of users, client ids and addresses.

Each entry of a request changes the quotas of one entity, or is refused as a whole. The accepted entries are written as
one batch of the metadata log. If several entries name the same entity, Kafka applies the first and refuses the other
ones. kbroker refuses all of them. Kafka also accepts NaN and infinity as quotas, and host names as addresses; kbroker
refuses them.
"""
from __future__ import annotations

import ipaddress
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, counted
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.codec import MAX_STRING_BYTES
from kbroker.protocol.messages import AlterClientQuotasResponse, ClientQuotaRecord
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, ResourceType
from kbroker.security.quotas import IP, LIMITS, Entity, check_key, check_quota

EntityData = AlterClientQuotasResponse.EntityData
EntryData = AlterClientQuotasResponse.EntryData
MOST_TYPES = len(LIMITS)


def handle(request: Request, body: Any) -> Steps:
    refusal: KafkaError | None = None
    try:
        require(request, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as error:
        refusal = error
    times = yield from counted((entity_of(entry) for entry in body.entries), Pace())
    known = request.node.metadata.image.client_quotas
    results: list[Any] = []
    changed: list[Any] = []
    records: list[Any] = []
    for entry in body.entries:
        yield
        entity = entity_of(entry)
        count = times.pop(entity, 0)    # 0: answered already
        if not count:
            continue
        results.append(answered(entry))
        try:
            if refusal is not None:
                raise refusal
            if count > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'the entity is named {count} times')
            records += records_of(entry, entity, known.get(entity, {}))
            changed.append(results[-1])
        except KafkaError as error:
            fail(results[-1], error)
    if records and not body.validate_only:
        try:
            yield from request.node.metadata.commits.write(records)
        except KafkaError as error:
            for result in changed:
                fail(result, error)
    return AlterClientQuotasResponse(entries=results)


def entity_of(entry: Any) -> Entity:
    """Return the (type, name) pairs of an entry, sorted by type. If the entry has more than MOST_TYPES pairs, return
    only MOST_TYPES + 1 of them, because the entry will be refused."""
    return tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity[:MOST_TYPES + 1]),
                        key=lambda part: (part[0], part[1] is not None, part[1] or '')))


def records_of(entry: Any, entity: Entity, quotas: dict[str, float]) -> list[Any]:
    """Return the records of the changes that an entry asks for. `quotas` are the entity's present quotas. Raise
    KafkaError INVALID_REQUEST if a change is invalid."""
    check_entity(entity)
    names = [ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    keys = set()
    records = []
    for change in entry.ops:
        if change.key in keys:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the quota {change.key[:80]!r} twice')
        keys.add(change.key)
        if change.remove:
            check_key(entity[0][0], change.key)
            if change.key in quotas:
                records.append(ClientQuotaRecord(entity=names, key=change.key, value=0.0, remove=True))
        else:
            check_quota(entity[0][0], change.key, change.value)
            if quotas.get(change.key) != change.value:
                records.append(ClientQuotaRecord(entity=names, key=change.key, value=change.value))
    return records


def check_entity(entity: Entity) -> None:
    """Raise KafkaError INVALID_REQUEST unless the broker supports quotas of this kind of entity."""
    kinds = [kind for kind, _ in entity]
    if not entity:
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'found an entity without types')
    for kind, name in entity:
        if kind not in LIMITS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the entity type {kind[:80]!r}, expected one of '
                             f'{", ".join(LIMITS)}')
        if name is not None and not 0 < len(name.encode()) <= MAX_STRING_BYTES:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found a {kind} of {len(name.encode())} bytes, expected 1 to {MAX_STRING_BYTES}')
    if len(kinds) > len(set(kinds)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the entity types {", ".join(kinds)}, expected each once')
    if IP in kinds:
        if len(kinds) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the entity type {IP} beside another one')
        check_address(entity[0][1])


def check_address(address: str | None) -> None:
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found {address[:80]!r}, expected an IP address') from None


def answered(entry: Any) -> Any:
    return EntryData(error_message=None, entity=[EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                             for part in entry.entity[:MOST_TYPES + 1]])


def fail(result: Any, error: KafkaError) -> None:
    result.error_code = int(error.code)
    result.error_message = str(error)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    results = [answered(entry) for entry in body.entries]
    for result in results:
        result.error_code, result.error_message = int(code), message
    return AlterClientQuotasResponse(entries=results)


API = Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, handle, error_response)
