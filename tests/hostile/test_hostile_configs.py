"""Attacks with names of settings that do not exist, and with many changes of settings whose value is a list."""
from __future__ import annotations

import pytest

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest

NAMES = [f'log.segment.bytez{number}' for number in range(9_000)]


def replacing(names: list[str]) -> AlterConfigsRequest:
    kind = AlterConfigsRequest
    return kind(resources=[kind.AlterConfigsResource(resource_type=4, resource_name='1', configs=[
        kind.AlterableConfig(name=name, value='1') for name in names])])


def changing(names: list[str], operation: int = 0) -> IncrementalAlterConfigsRequest:
    kind = IncrementalAlterConfigsRequest
    return kind(resources=[kind.AlterConfigsResource(resource_type=4, resource_name='1', configs=[
        kind.AlterableConfig(name=name, config_operation=operation, value='1') for name in names])])


def appending(names: list[str]) -> IncrementalAlterConfigsRequest:
    request = changing(['listeners'], 2)
    request.resources[0].configs += changing(names, 2).resources[0].configs
    return request


@pytest.mark.parametrize(('request_of', 'version'), [(replacing, 2), (changing, 1), (appending, 1)])
def test_many_names_that_resemble_a_setting(besieged, request_of, version):
    broker = besieged()
    request = request_of(NAMES)
    with broker.watched(rss_mb=150), broker.connect() as attacker:
        for _ in range(5):
            answer = attacker.ask(request, version)
            assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_CONFIG]
