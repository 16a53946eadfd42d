"""Functions that ShareFetch and ShareAcknowledge share: checks, acknowledgements, and the end of a session."""
from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.group_protocols import require_group_protocol
from kbroker.apis.serving.long_answers import Pace
from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.long_work import Pause
from kbroker.group.share.partition import ACKNOWLEDGE_TYPES
from kbroker.group.share.rows import ShareKey
from kbroker.group.share.sessions import MOST_OF_A_SESSION, SessionKey, SessionPartition, ShareSession
from kbroker.protocol.slices import free_in_slices
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.topics.partition import Partition

logger = logging.getLogger(__name__)

Steps = Generator[Any, None, Any]
"""A generator that does a part of a request as long work. It may yield a `Pause` to wait."""

VERSION_WITH_RENEWAL = 2
RENEW = 4
MOST_ACKNOWLEDGED = 20_000
"""The most acknowledgement types for a partition in one request, where a batch counts for at least one. No partition
can have more records in flight."""
MOST_NAMED = 2 * MOST_OF_A_SESSION
"""The most topics and partitions, counted together, in one request: every partition of a session may belong to a
different topic."""


def start(request: Request, body: Any, steps: Steps) -> None:
    """Run `steps` as long work, and answer the request with the response that it returns."""
    request.start_work(_answer(request, body, steps))


def _answer(request: Request, body: Any, steps: Steps) -> Steps:
    try:
        response = yield from steps
    except KafkaError as error:
        response = request.api.failure(None, error.code, str(error), request.version)
    except Exception:
        logger.exception('%r failed', request)
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        response = request.api.failure(None, code, code.message, request.version)
    request.reply(response)
    yield from free_in_slices(body)


def check_count(topics: Iterable[Any]) -> None:
    """Raise KafkaError INVALID_REQUEST if there are more than MOST_NAMED topics and partitions together."""
    count = 0
    for topic in topics:
        count += 1 + len(topic.partitions)
        if count > MOST_NAMED:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found more than {MOST_NAMED} topics and partitions: ask for less at once')


def session_key(request: Request, body: Any) -> SessionKey:
    """Return the key of the member's session. Raise KafkaError if share groups are not served, the client may not read
    the group, or the member id is empty."""
    require_group_protocol(request, 'share')
    group_id = body.group_id or ''
    require(request, Operation.READ, ResourceType.GROUP, group_id)
    if not body.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'the member id is empty')
    return SessionKey(group_id, body.member_id)


def partition_of(request: Request, topic_id: bytes, index: int) -> Partition:
    """Return a partition whose records the client may read.

    Raise KafkaError UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED or UNKNOWN_TOPIC_OR_PARTITION if there is none.
    """
    topic = request.node.topics.topic_by_id(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID.message)
    require(request, Operation.READ, ResourceType.TOPIC, topic.name)
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                         f'partition {index} of {len(topic.partitions)} does not exist')
    partition: Partition = topic.partitions[index]
    return partition


@dataclass(frozen=True, slots=True)
class PartitionError:
    """The error of a partition in an answer. NONE means success."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Acknowledgements:
    """The acknowledgements of one request. After `wait`, `results` maps each acknowledged partition to its outcome."""

    def __init__(self, request: Request, key: SessionKey, is_renewal: bool):
        self.results: dict[SessionPartition, PartitionError] = {}
        self._request = request
        self._key = key
        self._is_renewal = is_renewal
        self._missing = 0
        self._waits_for: Pause | None = None

    def begin(self, topics: Iterable[Any], pace: Pace) -> Steps:
        """Begin to acknowledge the records that the request names for each partition."""
        for topic in topics:
            for partition in topic.partitions:
                if partition.acknowledgement_batches:
                    yield from self._begin_partition((topic.topic_id, partition.partition_index),
                                                     partition.acknowledgement_batches, pace)
                if pace.spend():
                    yield
            if pace.spend():
                yield

    def _begin_partition(self, place: SessionPartition, batches: Sequence[Any], pace: Pace) -> Steps:
        node, key = self._request.node, ShareKey(self._key.group_id, *place)
        self._missing += 1
        done = self._done_with(place)
        try:
            checked = yield from self._checked(batches, pace)
            partition_of(self._request, *place)
            live = node.share_partitions.find(key)
        except KafkaError as error:
            done(error)
        else:
            node.share_partitions.acknowledge(live, self._key.member_id, checked, done)

    def _checked(self, batches: Sequence[Any], pace: Pace) -> Steps:
        """Return a list with (first offset, last offset, types) for each acknowledgement batch of a partition.

        Raise KafkaError INVALID_REQUEST if a batch is malformed, or INVALID_RECORD_STATE if it renews locks and the
        group does not allow that.
        """
        left = MOST_ACKNOWLEDGED
        previous = -1
        checked = []
        for batch in batches:
            first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
            left -= max(1, len(types))
            if left < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found more than {MOST_ACKNOWLEDGED} acknowledgements of '
                                 'a partition')
            if first > last or first < previous:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the batch {first}-{last} behind {previous}, '
                                 'expected sorted batches that end behind their first offset')
            if not types or len(types) not in (1, last - first + 1):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found {len(types)} types for {first}-{last}, expected 1 '
                                 'or one for each offset')
            if not ACKNOWLEDGE_TYPES.issuperset(types):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found the types {sorted(set(types))}')
            if RENEW in types:
                self._check_renewal()
            previous = last
            checked.append((first, last, types))
            if pace.spend(1 + len(types) // 8):
                yield
        return checked

    def _check_renewal(self) -> None:
        if not self._is_renewal:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the request renews locks without IsRenewAck')
        config = self._request.node.share_partitions.config_of(self._key.group_id)
        if not config.share_renew_acknowledge_enable:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, 'share.renew.acknowledge.enable is false')

    def _done_with(self, place: SessionPartition) -> Callable[[KafkaError | None], None]:
        def done(error: KafkaError | None) -> None:
            self.results[place] = PartitionError() if error is None else PartitionError(error.code, str(error))
            self._missing -= 1
            if self._waits_for is not None and not self._missing:
                self._waits_for.end()

        return done

    def wait(self) -> Steps:
        """Wait until the outcomes of all acknowledgements are known."""
        if self._missing:
            self._waits_for = Pause()
            yield from self._waits_for.wait()


def end_session(request: Request, session: ShareSession) -> Steps:
    """End a session, and wait until all records that the member holds are released."""
    node = request.node
    node.share_sessions.end(session)
    pause = Pause()
    node.share_partitions.release_session(session, pause.end)
    yield from pause.wait()


def lock_timeout_ms(request: Request, key: SessionKey) -> int:
    timeout_ms: int = request.node.share_partitions.config_of(key.group_id).share_record_lock_duration_ms
    return timeout_ms
