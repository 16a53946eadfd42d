"""UnregisterController, and StreamsGroupTopologyDescriptionUpdate without a plugin: what a single node answers."""
from kbroker.base.errors import ErrorCode


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
