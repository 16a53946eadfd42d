"""DeleteTopics (key 20), versions 1-6.

Requests give topics by name, or, from version 6 on, by name or id (KIP-516). All topics of a request are one batch of
the metadata log. The deletion is durable when the answer is sent. The files are deleted after file.delete.delay.ms. As
in Kafka, internal topics may be deleted, too. A topic that is given twice, even by name and by id, gets one result,
INVALID_REQUEST.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kbroker.apis.serving.authorization import may_on_cluster, missing_right, require
from kbroker.apis.serving.long_answers import Pace, Steps, counted
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DeleteTopicsResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.topics.topic import Topic

Result = DeleteTopicsResponse.DeletableTopicResult
NO_ID = bytes(16)
STRICT_SINCE = 5
"""The first version in which a request above the quota is refused. In earlier versions, the request is served and its
client is throttled afterwards (KIP-599)."""


def handle(request: Request, body: Any) -> Steps:
    pace = Pace()
    times = yield from counted(wanted_topics(body, request.version), pace)
    rights = Rights(request)
    named_and_by_id = yield from named_by_id(request, times, rights, pace)
    response = DeleteTopicsResponse(responses=[])
    found: list[Topic] = []
    results: list[Any] = []
    for (name, topic_id), count in times.items():
        yield
        result = Result(name=name, topic_id=topic_id)
        try:
            if count > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'the topic is named {count} times')
            check_form(request, name, topic_id)
            topic = (rights.named(name) if name is not None else rights.with_id(topic_id, result))
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
        refused = yield from request.node.topics.delete_many(found, request.charge_mutations(STRICT_SINCE))
        while found:            # taken from the list, the topics are freed in parts
            topic, result = found.pop(), results.pop()
            if topic.name in refused:
                fail(result, refused[topic.name])
            if pace.spend():
                yield
    except KafkaError as error:
        for result in results:
            fail(result, error)
            yield
    return response


class Rights:
    """Finds the topics that the client may delete. The answer has the name of a topic only if the client may describe
    the topic."""

    def __init__(self, request: Request):
        self._request = request
        self._topics = request.node.topics
        self._may_delete_all = may_on_cluster(request, Operation.DELETE, quiet=True)

    def named(self, name: str) -> Topic:
        """Return the topic with this name. Raise KafkaError TOPIC_AUTHORIZATION_FAILED or
        UNKNOWN_TOPIC_OR_PARTITION."""
        if not self._may_delete_all:
            require(self._request, Operation.DESCRIBE, ResourceType.TOPIC, name)
        topic: Topic | None = self._topics.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'topic {name!r} does not exist')
        if not self.may_delete(topic):
            raise missing_right(self._request, Operation.DELETE, ResourceType.TOPIC, name)
        return topic

    def with_id(self, topic_id: bytes, result: Any) -> Topic:
        """Return the topic with this id. Raise KafkaError UNKNOWN_TOPIC_ID or TOPIC_AUTHORIZATION_FAILED. If the client
        may describe the topic but not delete it, put the name into `result` before raising.
        """
        topic: Topic | None = self._topics.topic_by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f'no topic has the id {topic_id.hex()}')
        if not self.may_describe(topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if not self.may_delete(topic):
            result.name = topic.name
            raise missing_right(self._request, Operation.DELETE, ResourceType.TOPIC, topic.name)
        return topic

    def may_describe(self, topic: Topic) -> bool:
        return self._may_delete_all or self._request.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)

    def may_delete(self, topic: Topic) -> bool:
        return self._may_delete_all or self._request.may(Operation.DELETE, ResourceType.TOPIC, topic.name)


def named_by_id(request: Request, times: Iterable[tuple[str | None, bytes]], rights: Rights, pace: Pace) -> Steps:
    """Return the topics that the request gives by id and that the client may delete."""
    topics = set()
    for name, topic_id in times:
        topic = request.node.topics.topic_by_id(topic_id) if name is None else None
        if topic is not None and rights.may_describe(topic) and rights.may_delete(topic):
            topics.add(topic)
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


def check_form(request: Request, name: str | None, topic_id: bytes) -> None:
    """Raise KafkaError TOPIC_DELETION_DISABLED if topics must not be deleted, or INVALID_REQUEST unless the request
    gives the topic either by name or by id."""
    if not request.node.config.delete_topic_enable:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
    if (name is None) == (topic_id == NO_ID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'either the name or the id of a topic expected')


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    return DeleteTopicsResponse(responses=[
        Result(name=name, topic_id=topic_id, error_code=int(code), error_message=message)
        for name, topic_id in wanted_topics(body, version)])


API = Api(ApiKey.DELETE_TOPICS, 1, 6, handle, error_response)
