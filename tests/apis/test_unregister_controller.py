"""UnregisterController, and StreamsGroupTopologyDescriptionUpdate without a plugin: what a single node answers."""
from api_client import ApiClient
from support.brokers.in_process_broker import InProcessBroker

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import RegisterControllerRecord


def unregister(client, controller_id):
    answer = client.ask('UnregisterController', 0, controller_id=controller_id)
    return answer.error_code, answer.error_message


def test_the_active_controller_does_not_unregister_itself(node, client):
    assert unregister(client, node.metadata.node_id) == (
        ErrorCode.INVALID_REQUEST, 'Controller cannot unregister itself while it is active.')


def test_below_level_33_of_metadata_version_no_controller_is_unregistered(client):
    assert unregister(client, 7) == (
        ErrorCode.UNSUPPORTED_VERSION, 'The current MetadataVersion is too old to support controller unregistration.')


def test_a_topology_description_is_refused_because_no_plugin_stores_it(client):
    node = {'name': 'S', 'node_type': 1, 'source_topics': ['in'], 'sink_topic': None, 'stores': [], 'successors': []}
    answer = client.ask('StreamsGroupTopologyDescriptionUpdate', 0, group_id='app', member_id='m', topology_epoch=0,
                        topology_description={'subtopologies': [{'subtopology_id': '0', 'nodes': [node]}],
                                              'global_stores': []})
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.UNSUPPORTED_VERSION, 'The broker has no streams group topology description plugin configured.')


def test_a_controller_that_left_the_cluster_is_unregistered_for_good(tmp_path):
    with InProcessBroker(tmp_path) as node:
        client = ApiClient(node)
        raise_to_level_33(client)
        commits = node.metadata.commits
        commits.at_once(commits.write([RegisterControllerRecord(controller_id=7)]))
        assert unregister(client, 7) == (ErrorCode.NONE, None)
        assert unregister(client, 7) == (
            ErrorCode.CONTROLLER_ID_NOT_REGISTERED, 'Controller ID 7 is not currently registered.')
    with InProcessBroker(tmp_path) as node:
        assert 7 not in node.metadata.image.controllers


def raise_to_level_33(client):
    answer = client.ask('UpdateFeatures', 2, validate_only=False, timeout_ms=1000, feature_updates=[
        {'feature': 'metadata.version', 'max_version_level': 33, 'upgrade_type': 1}])
    assert answer.error_code == ErrorCode.NONE
