"""ListGroups (key 16), versions 0-5.

Version 4 filters by state (KIP-518), version 5 by type (KIP-848); all groups here are of type classic.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListGroupsResponse


def handle(request: Request, body: Any) -> Any:
    return ListGroupsResponse(
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.group_type,
            )
            for group in request.node.groups.list_groups(body.states_filter, body.types_filter)
        ]
    )


API = Api(ApiKey.LIST_GROUPS, 0, 5, handle)
