"""DeleteTopics (key 20), versions 1-6.

Up to version 5 topics are named; version 6 names them or gives their ids (KIP-516). All topics of a request are one
batch of the metadata log. The deletion is durable when it is answered; the files follow after file.delete.delay.ms. The
two internal topics may be deleted too, as in Kafka. A topic that is given twice, be it by name and by id, is answered
once, INVALID_REQUEST.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kbroker.apis.counted_names import counted
from kbroker.apis.long_answers import Pace, Steps
from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DeleteTopicsResponse
from kbroker.topics.topic import Topic

Result = DeleteTopicsResponse.DeletableTopicResult
NO_ID = bytes(16)


def handle(request: Request, body: Any) -> Steps:
    pace = Pace()
    times = yield from counted(wanted_topics(body, request.version), pace)
    named_and_by_id = yield from named_by_id(request, times, pace)
    response = DeleteTopicsResponse(responses=[])
    found: list[Topic] = []
    results: list[Any] = []
    for (name, topic_id), count in times.items():
        yield
        result = Result(name=name, topic_id=topic_id)
        try:
            if count > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'the topic is named {count} times')
            topic = find(request, name, topic_id)
            if name is not None and topic in named_and_by_id:
                continue
            result.name, result.topic_id = topic.name, topic.topic_id
            if topic_id != NO_ID and (topic.name, NO_ID) in times:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'{topic.name} is given by name and by id')
            found.append(topic)
            results.append(result)
        except KafkaError as error:
            fail(result, error)
        response.responses.append(result)
    try:
        yield from request.node.topics.delete_many(found)
    except KafkaError as error:
        for result in results:
            fail(result, error)
            yield
    return response


def named_by_id(request: Request, times: Iterable[tuple[str | None, bytes]], pace: Pace) -> Steps:
    """Return the topics that the request gives by their ids."""
    topics = set()
    for name, topic_id in times:
        if name is None:
            topics.add(request.node.topics.topic_by_id(topic_id))
        if pace.spend():
            yield
    return topics


def fail(result: Any, error: KafkaError) -> None:
    result.error_code = int(error.code)
    result.error_message = str(error)


def wanted_topics(body: Any, version: int) -> Iterator[tuple[str | None, bytes]]:
    if version >= 6:
        return ((topic.name, topic.topic_id) for topic in body.topics)
    return ((name, NO_ID) for name in body.topic_names)


def find(request: Request, name: str | None, topic_id: bytes) -> Topic:
    """Raises KafkaError TOPIC_DELETION_DISABLED, INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID."""
    topics = request.node.topics
    if not request.node.config.delete_topic_enable:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
    if (name is None) == (topic_id == NO_ID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'either the name or the id of a topic expected')
    found: Topic | None = topics.topic_by_id(topic_id) if name is None else topics.topic(name)
    if found is None:
        raise (KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f'no topic has the id {topic_id.hex()}') if name is None
               else KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'topic {name!r} does not exist'))
    return found


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    return DeleteTopicsResponse(responses=[
        Result(name=name, topic_id=topic_id, error_code=int(code), error_message=message)
        for name, topic_id in wanted_topics(body, version)])


API = Api(ApiKey.DELETE_TOPICS, 1, 6, handle, error_response)
