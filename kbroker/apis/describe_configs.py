"""DescribeConfigs (key 32), versions 1-4: return the configs of topics, of groups and of this broker, with their
sources.

The BROKER resource with this broker's id has all configs of the broker. The BROKER resource with an empty name has the
defaults for all brokers that were set at run time. A group need not exist, because its configs can be set before the
group is created. From version 3 on, the answer has the type and the documentation of each config. A resource that is
named twice is described once.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require_on_config
from kbroker.apis.serving.config_resources import CLUSTER_DEFAULT, current, refuse_each
from kbroker.apis.serving.long_answers import PART, Pace, ReplyRoom, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.image import ResourceType
from kbroker.metadata.topic_names import check_topic_name
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeConfigsResponse
from kbroker.security.acl_codes import Operation
from kbroker.settings.entries import ConfigEntry, Source, Synonym
from kbroker.settings.group_resources import describe_group
from kbroker.settings.topic_config import describe_topic

Result = DescribeConfigsResponse.DescribeConfigsResult
ResourceResult = DescribeConfigsResponse.DescribeConfigsResourceResult
MOST_DESCRIBED = 50_000
"""The most resources and keys, counted together, in one request."""
ID_SETTINGS = ('node.id', 'broker.id')

SynonymResult = DescribeConfigsResponse.DescribeConfigsSynonym


def handle(request: Request, body: Any) -> Steps:
    """Describe each resource once, with the keys of all entries that name it. An entry without keys asks for all keys.
    Raise KafkaError INVALID_REQUEST if the request has more than MOST_DESCRIBED resources and keys.
    """
    pace, count = Pace(), 0
    wanted: dict[tuple[int, str], set[str] | None] = {}
    for resource in body.resources:
        count += 1 + len(resource.configuration_keys or ())
        if count > MOST_DESCRIBED:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found more than {MOST_DESCRIBED} resources and keys: describe less at once')
        key = resource.resource_type, resource.resource_name
        known = wanted.setdefault(key, set())
        if not resource.configuration_keys:
            wanted[key] = None
        elif known is not None:
            known.update(resource.configuration_keys)
        if pace.spend(1 + len(resource.configuration_keys or ())):
            yield
    results, answers = [], Answers(request, body)
    for (resource_type, name), keys in wanted.items():
        results.append(answers.result(resource_type, name, keys))
        if pace.spend(PART // 2):
            yield
    return DescribeConfigsResponse(results=results)


class Answers:
    """Creates the results of one request. Topics with equal configs share one list of described configs, and so do
    groups."""

    def __init__(self, request: Request, body: Any):
        self._request = request
        self._node = request.node
        self._include_synonyms = body.include_synonyms
        self._include_documentation = body.include_documentation
        self._room = ReplyRoom()
        self._shared: dict[tuple[int, str, frozenset[tuple[str, str]]], tuple[list[Any], int]] = {}

    def result(self, resource_type: int, name: str, keys: set[str] | None) -> Any:
        """Return the result of one resource. Once the answer has its maximum size, the result is INVALID_REQUEST."""
        result = Result(resource_type=resource_type, resource_name=name, configs=[])
        try:
            require_on_config(self._request, Operation.DESCRIBE_CONFIGS, resource_type, name)
            self._room.check(ErrorCode.INVALID_REQUEST)
            configs, string_bytes = self._configs(resource_type, name)
            result.configs = configs if keys is None else [config for config in configs if config.name in keys]
            self._room.take(1, string_bytes * len(result.configs) // max(1, len(configs)))
        except KafkaError as error:
            result.error_code = int(error.code)
            result.error_message = str(error)
        self._room.take(1, len(name))
        return result

    def _configs(self, resource_type: int, name: str) -> tuple[list[Any], int]:
        """Return all configs of a resource, and their approximate size in the response in bytes. Raise KafkaError if
        the broker does not have the resource."""
        if resource_type == ResourceType.TOPIC:
            check_topic_name(name)
        own = current(self._node, resource_type, name)
        key = resource_type, name if resource_type == ResourceType.BROKER else '', frozenset(own.items())
        found = self._shared.get(key)
        if found is None:
            configs = [answer(entry, self._include_synonyms, self._include_documentation)
                       for entry in entries(self._node, resource_type, name)]
            self._room.take(len(configs))
            found = self._shared[key] = configs, sum(map(encoded_bytes, configs))
        return found


def encoded_bytes(config: Any) -> int:
    return (len(config.name) + len(config.value or '') + len(config.documentation or '') + 16
            + sum(len(synonym.name) + len(synonym.value or '') + 8 for synonym in config.synonyms))


def entries(node: Any, resource_type: int, name: str) -> list[ConfigEntry]:
    described: list[ConfigEntry]
    if resource_type == ResourceType.TOPIC:
        described = describe_topic(node.config, current(node, resource_type, name))
    elif resource_type == ResourceType.GROUP:
        described = describe_group(node.config, current(node, resource_type, name))
    else:
        described = node.config.describe()
    if resource_type == ResourceType.BROKER and name == CLUSTER_DEFAULT:
        set_at_run_time = current(node, resource_type, name)
        described = [for_all_brokers(entry, set_at_run_time[entry.name])
                     for entry in described if entry.name in set_at_run_time]
    elif resource_type == ResourceType.BROKER:
        described = [static_id(entry, node.metadata.node_id) if entry.name in ID_SETTINGS else entry
                     for entry in described]
    return described


def for_all_brokers(entry: ConfigEntry, text: str) -> ConfigEntry:
    """Return a copy of a setting's entry for the BROKER resource with an empty name: its value is `text`, and its only
    source is the default for all brokers."""
    source = Source.DYNAMIC_DEFAULT_BROKER
    return ConfigEntry(entry.name, text, source, entry.type, entry.read_only, entry.documentation,
                       [synonym for synonym in entry.synonyms if synonym.source is source])


def static_id(entry: ConfigEntry, node_id: int) -> ConfigEntry:
    """Return the entry of node.id or broker.id. As in Kafka, its source is always the broker's static settings."""
    return ConfigEntry(entry.name, str(node_id), Source.STATIC_BROKER, entry.type, entry.read_only,
                       entry.documentation, [Synonym(entry.name, str(node_id), Source.STATIC_BROKER)])


def answer(entry: ConfigEntry, include_synonyms: bool, include_documentation: bool) -> Any:
    return ResourceResult(
        name=entry.name, value=entry.value, read_only=entry.read_only, config_source=int(entry.source),
        is_sensitive=entry.is_sensitive, config_type=int(entry.type),
        documentation=entry.documentation if include_documentation else None,
        synonyms=[SynonymResult(name=synonym.name, value=synonym.value, source=int(synonym.source))
                  for synonym in entry.synonyms] if include_synonyms else [])


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    return DescribeConfigsResponse(results=(yield from refuse_each(body, Result, code, message)))


API = Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle, error_response)
