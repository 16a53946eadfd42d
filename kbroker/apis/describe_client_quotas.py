"""DescribeClientQuotas (key 48), versions 0-1 (KIP-546): return the quotas of the entities that match a filter.

A component of the filter has an entity type, such as user or client id. It matches either one name of this type, the
default entity, or all names and the default entity. An entity matches the filter if all components match. A strict
filter excludes entities that have further types.
"""
from __future__ import annotations

import enum
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeClientQuotasResponse
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, ResourceType
from kbroker.security.quotas import IP, LIMITS

EntityData = DescribeClientQuotasResponse.EntityData
EntryData = DescribeClientQuotasResponse.EntryData
ValueData = DescribeClientQuotasResponse.ValueData


class Match(enum.IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    pace = Pace()
    wanted: dict[str, Any] = {}
    for component in body.components:
        check(component, wanted)
        wanted[component.entity_type] = component
    entries = []
    for entity, quotas in list(request.node.metadata.image.client_quotas.items()):
        if matches(dict(entity), wanted, body.strict):
            entries.append(EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=value) for key, value in quotas.items()]))
        if pace.spend():
            yield
    return DescribeClientQuotasResponse(error_message='', entries=entries)


def check(component: Any, others: dict[str, Any]) -> None:
    """Raise KafkaError INVALID_REQUEST or UNSUPPORTED_VERSION if the component is invalid, or is in conflict with the
    other components."""
    kind = component.entity_type
    if not kind:
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'found an empty entity type')
    if kind in others:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the entity type {kind[:80]!r} twice')
    if kind not in LIMITS:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'found the entity type {kind[:80]!r}, expected one of '
                         f'{", ".join(LIMITS)}')
    if others and IP in (kind, *others):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the entity type {IP} beside another one')
    if component.match_type not in list(Match):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'found match type {component.match_type}, expected 0 to 2')
    if (component.match is not None) != (component.match_type == Match.EXACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'expected a name to match with match type 0, and none otherwise')


def matches(names: dict[str, str | None], wanted: dict[str, Any], strict: bool) -> bool:
    """Return whether the components match an entity. `names` maps each type of the entity to its name."""
    if strict and names.keys() != wanted.keys():
        return False
    return all(kind in names and (component.match_type == Match.ANY or names[kind] == component.match)
               for kind, component in wanted.items())


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return DescribeClientQuotasResponse(error_code=int(code), error_message=message, entries=None)


API = Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, handle, error_response)
