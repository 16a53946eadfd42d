"""DescribeConfigs (key 32), versions 1-4: the configs of topics and of this broker, with where each value comes from.

The broker is asked for by its id and answers with everything; the empty name asks for the defaults of all brokers that
were set at run time. Version 3 adds type and documentation.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.config_resources import CLUSTER_DEFAULT, check_resource, current
from kbroker.apis.request import Api, Request
from kbroker.config import ConfigEntry, Source, describe_topic
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metadata.image import ResourceType
from kbroker.metadata.topic_names import check_topic_name
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeConfigsResponse

Result = DescribeConfigsResponse.DescribeConfigsResult
ResourceResult = DescribeConfigsResponse.DescribeConfigsResourceResult
SynonymResult = DescribeConfigsResponse.DescribeConfigsSynonym


def handle(request: Request, body: Any) -> Any:
    response = DescribeConfigsResponse(results=[])
    for resource in body.resources:
        result = Result(resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[])
        response.results.append(result)
        try:
            wanted = resource.configuration_keys
            result.configs = [
                answer(entry, body.include_synonyms, body.include_documentation)
                for entry in entries(request.node, resource.resource_type, resource.resource_name)
                if not wanted or entry.name in wanted]
        except KafkaError as error:
            result.error_code = int(error.code)
            result.error_message = str(error)
    return response


def entries(node: Any, resource_type: int, name: str) -> list[ConfigEntry]:
    if resource_type == ResourceType.TOPIC:
        check_topic_name(name)
    check_resource(node, resource_type, name)
    described: list[ConfigEntry]
    if resource_type == ResourceType.TOPIC:
        described = describe_topic(node.config, current(node, resource_type, name))
    else:
        described = node.config.describe()
    if resource_type == ResourceType.BROKER and name == CLUSTER_DEFAULT:
        set_at_run_time = current(node, resource_type, name)
        described = [ConfigEntry(entry.name, set_at_run_time[entry.name], Source.DYNAMIC_DEFAULT_BROKER, entry.type,
                                 entry.read_only, entry.documentation, entry.synonyms)
                     for entry in described if entry.name in set_at_run_time]
    return described


def answer(entry: ConfigEntry, include_synonyms: bool, include_documentation: bool) -> Any:
    return ResourceResult(
        name=entry.name, value=entry.value, read_only=entry.read_only, config_source=int(entry.source),
        is_sensitive=entry.is_sensitive, config_type=int(entry.type),
        documentation=entry.documentation if include_documentation else None,
        synonyms=[SynonymResult(name=synonym.name, value=synonym.value, source=int(synonym.source))
                  for synonym in entry.synonyms] if include_synonyms else [])


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return DescribeConfigsResponse(results=[
        Result(error_code=int(code), error_message=message, resource_type=resource.resource_type,
               resource_name=resource.resource_name) for resource in body.resources])


API = Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle, error_response)
