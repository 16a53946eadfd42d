"""ListGroups (key 16), versions 0-5.

Requests can filter by state from version 4 on (KIP-518), and by type from version 5 on (KIP-848).
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import may_on_cluster
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListGroupsResponse
from kbroker.security.acl_codes import Operation, ResourceType

NOT_READY, SPELLED = 'notready', 'not_ready'
"""The group state NotReady in lower case, and its different spelling in the filters of Kafka's clients."""


def handle(request: Request, body: Any) -> Steps:
    """List the groups that have one of the requested states and one of the requested types, ignoring case. An empty
    filter accepts every group."""
    pace = Pace()
    states = yield from lower(body.states_filter, pace)
    if SPELLED in states:
        states.add(NOT_READY)
    types = yield from lower(body.types_filter, pace)
    may_all = may_on_cluster(request, Operation.DESCRIBE, quiet=True)
    listed = []
    for group in request.node.groups.list_groups():
        is_asked_for = (not states or group.state_name.lower() in states) and (not types or group.group_type in types)
        if is_asked_for and (may_all or request.may(
                Operation.DESCRIBE, ResourceType.GROUP, group.group_id, quiet=True)):
            listed.append(ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or '',
                group_state=group.state_name,
                group_type=group.group_type,
            ))
        if pace.spend():
            yield
    return ListGroupsResponse(groups=listed)


def lower(names: list[str], pace: Pace) -> Steps:
    """Return the set of the names in lower case."""
    found = set()
    for name in names:
        found.add(name.lower())
        if pace.spend():
            yield
    return found


API = Api(ApiKey.LIST_GROUPS, 0, 5, handle)
