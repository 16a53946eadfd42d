"""UpdateFeatures: feature levels change immediately, are kept over a restart, and determine which group protocols the
broker serves."""
from typing import NamedTuple

import pytest
from api_client import ApiClient
from support.brokers.in_process_broker import InProcessBroker

from kbroker.apis.serving.group_protocols import FEATURES, require_group_protocol
from kbroker.apis.update_features import MOST_UPDATES
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.features import DEFAULT_FEATURES

UPGRADE, SAFE = 1, 2


class RequestTo(NamedTuple):
    """A stand-in for a request, with the one field that `require_group_protocol` reads."""

    node: InProcessBroker


def update(client, *updates, version=2, validate_only=False):
    return client.ask('UpdateFeatures', version, validate_only=validate_only, timeout_ms=1000, feature_updates=[
        {'feature': name, 'max_version_level': level, 'upgrade_type': kind} for name, level, kind in updates])


def levels(node):
    return dict(node.metadata.image.features)


def test_a_start_changes_no_level(tmp_path):
    with InProcessBroker(tmp_path) as node:
        assert levels(node) == DEFAULT_FEATURES
        update(ApiClient(node), ('share.version', 0, SAFE))
    with InProcessBroker(tmp_path) as node:
        assert levels(node) == {name: level for name, level in DEFAULT_FEATURES.items() if name != 'share.version'}


def test_all_updates_of_a_request_take_effect_or_none(node, client):
    answer = update(client, ('share.version', 0, SAFE), ('group.version', 7, UPGRADE))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION and 'group.version' in answer.error_message
    assert levels(node) == DEFAULT_FEATURES
    assert update(client, ('share.version', 0, SAFE), ('group.version', 0, SAFE)).error_code == 0
    assert 'share.version' not in levels(node) and 'group.version' not in levels(node)
    assert update(client, ('share.version', 1, UPGRADE), ('group.version', 1, UPGRADE)).error_code == 0
    assert levels(node) == DEFAULT_FEATURES


def test_a_trial_changes_nothing(node, client):
    end_offset = node.metadata.end_offset
    assert update(client, ('share.version', 0, SAFE), validate_only=True).error_code == 0
    refused = update(client, ('share.version', 9, UPGRADE), validate_only=True)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert (levels(node), node.metadata.end_offset) == (DEFAULT_FEATURES, end_offset)


def test_levels_that_are_in_force_already_are_not_written_again(node, client):
    end_offset = node.metadata.end_offset
    assert update(client, *((name, level, UPGRADE) for name, level in DEFAULT_FEATURES.items())).error_code == 0
    assert node.metadata.end_offset == end_offset


@pytest.mark.parametrize(('version', 'results'), [(0, ['share.version', 'group.version']),
                                                  (1, ['share.version', 'group.version']), (2, [])])
def test_old_versions_answer_for_each_feature(client, version, results):
    kinds = {'upgrade_type': UPGRADE} if version else {'allow_downgrade': False}
    answer = client.ask('UpdateFeatures', version, timeout_ms=1000, feature_updates=[
        {'feature': name, 'max_version_level': 1, **kinds} for name in ('share.version', 'group.version')])
    assert (answer.error_code, answer.error_message) == (0, None)
    assert [row.feature for row in answer.results] == results
    assert {(row.error_code, row.error_message) for row in answer.results} <= {(0, 'NONE')}


def test_version_0_allows_downgrades_with_a_flag(node, client):
    for is_allowed in (False, True):
        answer = client.ask('UpdateFeatures', 0, timeout_ms=1000, feature_updates=[
            {'feature': 'share.version', 'max_version_level': 0, 'allow_downgrade': is_allowed}])
        assert answer.error_code == (0 if is_allowed else ErrorCode.INVALID_UPDATE_VERSION)
        assert ('share.version' in levels(node)) is not is_allowed


def test_a_request_of_too_many_updates_is_refused(client):
    updates = [(f'feature.{number}', 1, UPGRADE) for number in range(MOST_UPDATES + 1)]
    assert update(client, *updates).error_code == ErrorCode.INVALID_REQUEST


def test_the_transaction_coordinator_follows_its_level(node, client, producer):
    update(client, ('transaction.version', 0, SAFE))
    producer.add_partition()
    refused = producer.begin_end(True, version=5).answer
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
    update(client, ('transaction.version', 2, UPGRADE))
    producer.end(True, version=5)


def test_eligible_leaders_bring_the_setting_that_they_need(tmp_path):
    with InProcessBroker(tmp_path, {'min.insync.replicas': '1'}) as node:
        client = ApiClient(node)
        feature = 'eligible.leader.replicas.version'
        assert update(client, (feature, 0, SAFE)).error_code == 0
        client.alter(4, '', min_insync_replicas=None)
        assert 'min.insync.replicas' not in node.metadata.image.configs.get((4, ''), {})
        assert update(client, (feature, 1, UPGRADE)).error_code == 0
        assert node.metadata.image.configs[4, '']['min.insync.replicas'] == '1'


@pytest.mark.parametrize(('kind', 'feature'), FEATURES.items())
def test_groups_of_a_kind_need_the_level_of_their_feature(node, client, kind, feature):
    require_group_protocol(RequestTo(node), kind)
    update(client, (feature, 0, SAFE))
    with pytest.raises(KafkaError, match=kind) as refused:
        require_group_protocol(RequestTo(node), kind)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    update(client, (feature, 1, UPGRADE))
    require_group_protocol(RequestTo(node), kind)


def test_groups_of_a_kind_need_their_protocol_but_share_groups_do_not(start_node):
    node = start_node(group_coordinator_rebalance_protocols='classic')
    require_group_protocol(RequestTo(node), 'share')
    for kind in ('consumer', 'streams'):
        with pytest.raises(KafkaError, match=kind) as refused:
            require_group_protocol(RequestTo(node), kind)
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
