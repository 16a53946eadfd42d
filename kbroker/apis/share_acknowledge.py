"""ShareAcknowledge (key 79), versions 1-2: acknowledge records that a member of a share group has acquired (KIP-932).
Version 2 can renew the acquisition locks of records (KIP-1222). The answer is sent when all acknowledgements are
durable. The last request of a session, with epoch -1, releases all records that the member still holds.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.long_answers import Pace
from kbroker.apis.serving.request import Api, Request
from kbroker.apis.serving.share_requests import (
    VERSION_WITH_RENEWAL,
    Acknowledgements,
    Steps,
    check_count,
    end_session,
    lock_timeout_ms,
    session_key,
    start,
)
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.share.sessions import FIRST_EPOCH, LAST_EPOCH
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey


def handle(request: Request, body: Any) -> None:
    start(request, body, steps(request, body))


def steps(request: Request, body: Any) -> Steps:
    check_count(body.topics)
    key = session_key(request, body)
    if body.share_session_epoch == FIRST_EPOCH:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, 'a session begins with a ShareFetch')
    session = request.node.share_sessions.find(key, body.share_session_epoch)
    if body.share_session_epoch != LAST_EPOCH:
        request.node.share_sessions.change(session, (), ())
    pace = Pace()
    acknowledgements = Acknowledgements(request, key, request.version >= VERSION_WITH_RENEWAL and body.is_renew_ack)
    yield from acknowledgements.begin(body.topics, pace)
    yield from acknowledgements.wait()
    if body.share_session_epoch == LAST_EPOCH:
        yield from end_session(request, session)
    response = messages.ShareAcknowledgeResponse
    topics: dict[bytes, Any] = {}
    for (topic_id, index), result in acknowledgements.results.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = response.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=[])
        topic.partitions.append(response.PartitionData(
            partition_index=index, error_code=result.code, error_message=result.message,
            current_leader=response.LeaderIdAndEpoch(leader_id=0, leader_epoch=0)))
        if pace.spend():
            yield
    return response(responses=list(topics.values()), node_endpoints=[],
                    acquisition_lock_timeout_ms=lock_timeout_ms(request, key))


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    return messages.ShareAcknowledgeResponse(error_code=code, error_message=message, responses=[], node_endpoints=[])


API = Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, handle, error_response)
