"""ListGroups (key 16), versions 0-5.

Version 4 filters by state (KIP-518), version 5 by type (KIP-848); all groups here are of type classic.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.context import Api, RequestContext
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListGroupsResponse


def handle(context: RequestContext, request: Any) -> Any:
    return ListGroupsResponse(
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.group_type,
            )
            for group in context.broker.groups.list_groups(request.states_filter, request.types_filter)
        ]
    )


API = Api(ApiKey.LIST_GROUPS, 0, 5, handle)
