"""kbroker serves what the newest Apache Kafka serves: the same APIs, versions and features. It knows all settings.

SKIPPED.md lists the APIs, the versions and the levels that are left out on purpose. Covers KIP-35, KIP-511 and KIP-584.
"""
from __future__ import annotations

import fnmatch
from typing import Any

import pytest
from cases_topics import BROKER, GROUP, TOPIC
from raw_peer import RawPeer
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import CLUSTER_ID, KafkaProcess, run_tools
from support.kafka.beside_kafka import running
from support.kafka.skipped_apis import skipped_keys, skipped_versions

from kbroker.apis.serving.served import served_apis
from kbroker.log.fs import FileSystem
from kbroker.metadata.directory import format_directory
from kbroker.metadata.features import RELEASES
from kbroker.settings.table import IGNORED, REFUSED, SETTINGS

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

RELEASE = '4.4'
"""The release of Apache Kafka that decides."""
PENDING: set[str] = set()
"""The APIs and features whose newest versions kbroker does not serve yet. With a new release of Apache Kafka, this set
gets what the release adds. It becomes empty before kbroker claims to serve the release."""

NAMES = {int(api.key): api.request_class.__name__.removesuffix('Request') for api in served_apis()}


@pytest.fixture(scope='module', params=RELEASES)
def brokers(tmp_path_factory, request):
    """Apache Kafka and kbroker, each with a directory that has the levels of the parameter's release."""
    directory = tmp_path_factory.mktemp('brokers')
    kafka, ours = KafkaProcess(directory / 'kafka', release=RELEASE, dynamic=True), BrokerProcess(directory / 'kbroker')
    formatted, = run_tools('kafka.tools.StorageTool', [
        'format', '--cluster-id', CLUSTER_ID, '--standalone', '--release-version', request.param, '--config',
        str(kafka.write_settings())], release=RELEASE)
    assert formatted.code == 0, formatted
    format_directory(FileSystem(), str(ours.directory), node_id=1, timestamp_ms=0, features=RELEASES[request.param])
    with running(kafka, ours) as both:
        yield both


@pytest.fixture(scope='module')
def answers(brokers):
    """The answers of Apache Kafka and of kbroker to ApiVersions in version 4 and in the newest one."""
    return [[asked(broker.address, version) for version in (4, None)] for broker in brokers]


def asked(address: str, version: int | None) -> Any:
    peer = RawPeer(address, '')
    try:
        return peer.ask('ApiVersions', version, client_software_name='judge', client_software_version='1')
    finally:
        peer.close()


def versions(answer: Any) -> dict[str, set[int]]:
    """Return {API: versions} of the APIs that kbroker knows, without the versions that SKIPPED.md lists."""
    left_out = skipped_versions()
    return {name: set(range(entry.min_version, entry.max_version + 1)) - left_out.get(name, set())
            for entry in answer.api_keys if (name := NAMES.get(entry.api_key)) is not None}


def levels(answer: Any) -> dict[str, set[int]]:
    """Return {feature: supported levels}, without the levels that SKIPPED.md lists."""
    left_out = skipped_versions()
    return {entry.name: set(range(entry.min_version, entry.max_version + 1)) - left_out.get(entry.name, set())
            for entry in answer.supported_features}


def described(address: str, resource_type: int, name: str) -> set[str]:
    """Return the names of the settings that a broker describes for a resource. A topic is created first."""
    peer = RawPeer(address, name)
    try:
        if resource_type == TOPIC:
            peer.create_topic()
        answer = peer.ask('DescribeConfigs', resources=[dict(
            resource_type=resource_type, resource_name=name, configuration_keys=None)])
        return {entry.name for entry in answer.results[0].configs}
    finally:
        peer.close()


def finalized(answer: Any) -> dict[str, tuple[int, int]]:
    return {entry.name: (entry.min_version_level, entry.max_version_level) for entry in answer.finalized_features}


def different(kafka: dict[str, set[int]], ours: dict[str, set[int]]) -> dict[str, tuple[set[int], set[int]]]:
    """Return {name: (numbers of Kafka, numbers of kbroker)} of the names of both whose numbers differ."""
    return {name: (kafka[name], ours[name]) for name in kafka.keys() & ours.keys() if kafka[name] != ours[name]}


def test_each_api_of_kafka_is_served_or_left_out_with_a_reason(answers):
    kafka, ours = ({entry.api_key for entry in newest.api_keys} for _, newest in answers)
    assert ours <= kafka
    assert kafka - ours <= skipped_keys()
    assert not skipped_keys() & ours


def test_each_version_of_an_api_is_served_or_left_out_with_a_reason(answers):
    for kafka, ours in zip(*answers, strict=True):
        found = different(versions(kafka), versions(ours))
        assert {name: numbers for name, numbers in found.items() if name not in PENDING} == {}


def test_each_level_of_a_feature_is_supported_or_left_out_with_a_reason(answers):
    for kafka, ours in zip(*answers, strict=True):
        assert levels(kafka).keys() - levels(ours).keys() <= skipped_versions().keys()
        found = different(levels(kafka), levels(ours))
        assert {name: numbers for name, numbers in found.items() if name not in PENDING} == {}


def test_both_finalize_the_same_levels_for_one_release(answers):
    for kafka, ours in zip(*answers, strict=True):
        assert finalized(ours) == finalized(kafka)


def test_nothing_counts_as_pending_that_is_served(answers):
    (_, kafka), (_, ours) = answers
    assert {*different(versions(kafka), versions(ours)), *different(levels(kafka), levels(ours))} == PENDING


@pytest.mark.parametrize(('resource_type', 'name'), [(TOPIC, 'described'), (GROUP, 'described')])
def test_topics_and_groups_have_the_settings_of_kafka(brokers, resource_type, name):
    kafka, ours = (described(broker.address, resource_type, name) for broker in brokers)
    assert ours == kafka


def test_each_setting_of_a_broker_has_a_meaning_or_a_reason(brokers):
    kafka = described(brokers[0].address, BROKER, '1')
    explained = [*IGNORED, *REFUSED]
    assert [name for name in sorted(kafka - SETTINGS.keys())
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in explained)] == []
