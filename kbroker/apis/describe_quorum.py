"""DescribeQuorum (key 55), versions 0-2 (KIP-595, KIP-836, KIP-853): describe the metadata quorum, whose only voter and
leader is this node.

As in Kafka, a request must name exactly one partition, that of the metadata log. Any other request gets
UNKNOWN_TOPIC_OR_PARTITION. If the request succeeds, the error message is empty, not null.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, each_topic
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeQuorumResponse as Response
from kbroker.security.acl_codes import Operation, ResourceType

METADATA_TOPIC = '__cluster_metadata'


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.DESCRIBE, ResourceType.CLUSTER)
    names_the_log = [(topic.topic_name, [partition.partition_index for partition in topic.partitions[:2]])
                     for topic in body.topics[:2]] == [(METADATA_TOPIC, [0])]
    if not names_the_log:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Response(topics=(yield from failed_topics(body, code, code.message)))
    metadata = request.node.metadata
    now_ms = request.node.clock.wall_ms()
    voters = {voter.voter_id: voter for voter in metadata.image.voters}
    voter = voters.get(metadata.node_id)
    partition = Response.PartitionData(
        leader_id=metadata.node_id, leader_epoch=metadata.log.epoch,
        high_watermark=metadata.end_offset, current_voters=[Response.ReplicaState(
            replica_id=metadata.node_id, replica_directory_id=bytes(16) if voter is None else voter.voter_directory_id,
            log_end_offset=metadata.end_offset, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms)])
    return Response(
        topics=[Response.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[Response.Node(node_id=metadata.node_id, listeners=[] if voter is None else [
            Response.Listener(name=endpoint.name, host=endpoint.host, port=endpoint.port)
            for endpoint in voter.endpoints])])


def failed_topics(body: Any, code: ErrorCode, message: str | None) -> Steps:
    return (yield from each_topic(
        body.topics, 'partitions',
        lambda partition: Response.PartitionData(partition_index=partition.partition_index, error_code=int(code),
                                                 error_message=message),
        lambda topic, found: Response.TopicData(topic_name=topic.topic_name, partitions=found), Pace()))


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return Response(error_code=int(code), error_message=message)


API = Api(ApiKey.DESCRIBE_QUORUM, 0, 2, handle, error_response)
