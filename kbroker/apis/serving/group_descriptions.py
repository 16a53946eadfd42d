"""Functions that the handlers of ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe share."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.apis.serving.authorized_operations import NOT_ASKED, authorized_operations, decisions_about
from kbroker.apis.serving.group_protocols import require_group_protocol
from kbroker.apis.serving.long_answers import Pace, Steps, counted, each
from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.security.acl_codes import ResourceType


def describe_each(request: Request, body: Any, protocol: str, response: Any, pace: Pace,
                  describe: Callable[[str], Steps]) -> Steps:
    """Describe each group of a request once. `describe(group_id)` returns the described group as a struct of the
    message class `response`. When the response has its maximum size, the remaining groups get
    COORDINATOR_LOAD_IN_PROGRESS, and clients request them again.
    """
    require_group_protocol(request, protocol)
    groups = []
    for group_id in (yield from counted(body.group_ids, pace)):
        if pace.spend(decisions_about(ResourceType.GROUP, body.include_authorized_operations)):
            yield
        try:
            described = yield from describe(group_id)
        except KafkaError as error:
            groups.append(failed(response, group_id, error.code, str(error)))
            continue
        if body.include_authorized_operations:
            described.authorized_operations = authorized_operations(request, ResourceType.GROUP, group_id)
        groups.append(described)
    return response(groups=groups)


def all_failed(response: Any, body: Any, code: ErrorCode, message: str) -> Steps:
    """Return the response to a request that failed as a whole: every group gets the error."""
    pace = Pace()
    names = yield from counted(body.group_ids, pace)
    return response(groups=(yield from each(
        names, lambda group_id: failed(response, group_id, code, message), pace)))


def failed(response: Any, group_id: str, code: ErrorCode, message: str) -> Any:
    return response.DescribedGroup(
        group_id=group_id, error_code=code, error_message=message, authorized_operations=NOT_ASKED)
