"""From a frame to a handler, and from a response to the bytes that answer it.

A frame whose key or version nobody serves, or that does not parse, closes the connection with one log line: no
response could be addressed (Kafka does the same). ApiVersions is the exception: an unknown version of it is answered
in version 0, so that a newer client can step down.
"""
from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Protocol

from kbroker.apis.context import NO_REPLY, Api, RequestContext
from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version
from kbroker.protocol.codec import EncodeError, decode_prefix, encode_segments

logger = logging.getLogger('kbroker.apis')

FILES = (
    'add_offsets_to_txn', 'add_partitions_to_txn', 'alter_configs', 'api_versions', 'create_partitions',
    'create_topics', 'delete_groups', 'delete_records', 'delete_topics', 'describe_cluster', 'describe_configs',
    'describe_groups', 'describe_log_dirs', 'describe_producers', 'describe_topic_partitions', 'describe_transactions',
    'elect_leaders', 'end_txn', 'fetch', 'find_coordinator', 'heartbeat', 'incremental_alter_configs',
    'init_producer_id', 'join_group', 'leave_group', 'list_config_resources', 'list_groups', 'list_offsets',
    'list_transactions', 'metadata', 'offset_commit', 'offset_delete', 'offset_fetch', 'offset_for_leader_epoch',
    'produce', 'sync_group', 'txn_offset_commit', 'write_txn_markers',
)
"""The files of this room that declare an Api."""

HEADER = Struct('>hhih')
"""Api key, api version, correlation id, length of the client id: what every request header begins with."""


class Connection(Protocol):
    """What dispatch needs of a connection."""

    connection_id: int
    client_host: str

    def reply(self, sequence: int, segments: list[Any] | None) -> None: ...
    def let_next_pass(self, sequence: int) -> None: ...
    def close(self, reason: str) -> None: ...


@functools.cache
def served_apis() -> list[Api]:
    """Every Api that a file of this room declares, by key."""
    return sorted((importlib.import_module(f'kbroker.apis.{name}').API for name in FILES), key=lambda api: api.key)


def read_client_id(frame: memoryview, length: int) -> str | None:
    if length < 0:
        return None
    if len(frame) < HEADER.size + length:
        raise ProtocolError(f'client id: {length} bytes expected, {len(frame) - HEADER.size} left')
    try:
        return str(frame[HEADER.size:HEADER.size + length], 'utf-8')
    except UnicodeDecodeError as error:
        raise ProtocolError(f'client id is not UTF-8: {error}') from None


def skip_tags(frame: memoryview, position: int) -> int:
    """The position after the tag block at `position`. Tags in a request header carry nothing that a broker reads."""
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise ProtocolError(f'header tag of {size} bytes ends {position - len(frame)} bytes behind the frame')
    return position


def read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(frame):
            raise ProtocolError('the frame ends in a varint of the request header')
        group = frame[position]
        position += 1
        value |= (group & 0x7f) << shift
        if not group & 0x80:
            return value, position
    raise ProtocolError('a varint of the request header is longer than 5 bytes')


class Served:
    """One Api with what dispatch needs at hand: message classes and header versions."""

    __slots__ = ('api', 'request_class', 'response_class')

    def __init__(self, api: Api):
        name = api.key.name.title().replace('_', '')
        self.api = api
        self.request_class = getattr(messages, f'{name}Request')
        self.response_class = getattr(messages, f'{name}Response')


class Dispatcher:
    """Calls the handler of each frame. `broker` is what handlers see as `context.broker`."""

    def __init__(self, broker: Any, apis: Iterable[Api]):
        self._broker = broker
        self._served: dict[int, Served] = {}
        self._apis = list(apis)

    def handle(self, connection: Connection, sequence: int, frame: memoryview) -> None:
        """Handle one frame without its size prefix; `frame` is valid during the call only."""
        try:
            self._handle(connection, sequence, frame)
        except ProtocolError as error:
            connection.close(f'{describe_frame(frame)}: {error}')

    def _handle(self, connection: Connection, sequence: int, frame: memoryview) -> None:
        if len(frame) < HEADER.size:
            raise ProtocolError(f'request header of at least {HEADER.size} bytes expected, found {len(frame)}')
        key, version, correlation_id, client_id_length = HEADER.unpack_from(frame)
        served = self._served.get(key) or self._find(key)
        api = served.api
        if not api.min_version <= version <= api.max_version:
            if key != ApiKey.API_VERSIONS:
                raise ProtocolError(f'version {version} is not served, only {api.min_version}-{api.max_version}')
            self._reply_unsupported_api_versions(connection, sequence, served, correlation_id)
            return
        client_id = read_client_id(frame, client_id_length)
        position = HEADER.size + max(client_id_length, 0)
        if request_header_version(key, version) >= 2:
            position = skip_tags(frame, position)
        # Kafka ignores bytes behind a request, and librdkafka puts three there when it asks for all topics.
        request, _ = decode_prefix(served.request_class, frame, version, position)
        context = RequestContext(self._broker, api.key, version, correlation_id, client_id, connection.client_host,
                                 connection.connection_id, self._replier(connection, sequence, served),
                                 lambda: connection.let_next_pass(sequence), connection.close)
        response = self._call(served, context, request)
        if response is NO_REPLY:
            connection.reply(sequence, None)
        elif response is not None:
            context.reply(response)

    def _find(self, key: int) -> Served:
        api = next((api for api in self._apis if api.key == key), None)
        if api is None:
            raise ProtocolError(f'api key {key} is not served')
        served = self._served[key] = Served(api)
        return served

    def _call(self, served: Served, context: RequestContext, request: Any) -> Any:
        try:
            return served.api.handle(context, request)
        except KafkaError as error:
            return error_response(served, request, error.code, str(error), context.version)
        except ProtocolError:
            raise
        except Exception:
            logger.exception('%s v%d from %s failed', served.api.key.name, context.version, context.client_id)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            return error_response(served, request, code, code.message, context.version)

    def _replier(self, connection: Connection, sequence: int,
                 served: Served) -> Callable[[RequestContext, Any], None]:
        def reply(context: RequestContext, response: Any) -> None:
            if response is NO_REPLY:
                connection.reply(sequence, None)
                return
            prefix = context.correlation_id.to_bytes(4, 'big', signed=True)
            if response_header_version(served.api.key, context.version) >= 1:
                prefix += b'\0'
            try:
                segments = encode_segments(response, context.version, prefix)
            except EncodeError:
                logger.exception('the answer to %s v%d cannot be encoded', served.api.key.name, context.version)
                connection.close('its answer cannot be encoded')
            else:
                connection.reply(sequence, segments)
        return reply

    def _reply_unsupported_api_versions(self, connection: Connection, sequence: int, served: Served,
                                        correlation_id: int) -> None:
        # KIP-511: a broker that does not know the version answers in version 0 with the range that it serves.
        assert served.api.error_response is not None
        code = ErrorCode.UNSUPPORTED_VERSION
        response = served.api.error_response(None, code, code.message, 0)
        connection.reply(sequence, encode_segments(response, 0, correlation_id.to_bytes(4, 'big', signed=True)))


def error_response(served: Served, request: Any, code: ErrorCode, message: str, version: int) -> Any:
    """The answer to a request that failed as a whole: the Api's own, or a response with a top-level error code."""
    if served.api.error_response is not None:
        return served.api.error_response(request, code, message, version)
    response = served.response_class(error_code=int(code))
    if hasattr(response, 'error_message'):
        response.error_message = message
    return response


def describe_frame(frame: memoryview) -> str:
    """Key, version and client of a frame, for the log line of a connection that is closed for it."""
    if len(frame) < HEADER.size:
        return f'frame of {len(frame)} bytes'
    key, version, _, _ = HEADER.unpack_from(frame)
    name = ApiKey(key).name if key in ApiKey.__members__.values() else f'api key {key}'
    return f'{name} v{version}, {len(frame)} bytes'
