"""Cases for requests about the placement of replicas and about the quorum."""

from __future__ import annotations

from typing import Any

from cases_records import case
from raw_peer import RawPeer


@case
def reassignments(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)

    def row(index: int, replicas: list[int] | None) -> dict[str, Any]:
        return dict(partition_index=index, replicas=replicas)

    def alter(version: int, *topics: tuple[str, list[Any]]) -> None:
        peer.ask('AlterPartitionReassignments', version, timeout_ms=30000,
                 topics=[dict(name=name, partitions=rows) for name, rows in topics])

    for version in (0, 1):
        for replicas in ([1], None, [], [2], [1, 2], [1, 1], [-1], [2, 1]):
            alter(version, (peer.topic, [row(0, replicas), row(1, [1])]))
        alter(version, (peer.topic, [row(7, [1])]), ('no_such_topic', [row(0, [1]), row(0, None)]), ('', [row(0, [1])]))
        alter(version)
        alter(version, (peer.topic, []))
    peer.ask('AlterPartitionReassignments', 1, timeout_ms=30000, allow_replication_factor_change=False, topics=[
        dict(name=peer.topic, partitions=[row(0, [1])])])
    for topics in (None, [], [dict(name=peer.topic, partition_indexes=[0, 9])],
                   [dict(name='no_such_topic', partition_indexes=[0])]):
        peer.ask('ListPartitionReassignments', 0, timeout_ms=30000, topics=topics)


@case
def replica_log_dirs(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    long_name = f'{peer.topic}_{"x" * 190}'
    peer.create_topic(long_name)
    here = peer.prepare('DescribeLogDirs', 4, topics=[]).results[0].log_dir

    def alter(version: int, *places: tuple[str, str, list[int]]) -> None:
        peer.note = ''
        peer.ask('AlterReplicaLogDirs', version, dirs=[
            dict(path=path, topics=[dict(name=name, partitions=indexes)]) for path, name, indexes in places])
        step = peer.steps[-1]
        for directory in step.request.dirs:
            directory.path = directory.path.replace(here, 'HERE')

    for version in (1, 2):
        alter(version, (here, peer.topic, [0, 1]))
        for path in ('/nowhere', '', here + '/', here.lstrip('/'), here.rpartition('/')[2]):
            alter(version, (path, peer.topic, [0]))
        alter(version, (here, peer.topic, [7]), (here, 'no_such_topic', [0]))
        alter(version, ('/nowhere', 'no_such_topic', [0]))
        alter(version, ('/nowhere', peer.topic, [0]), (here, peer.topic, [0]))
        alter(version, (here, peer.topic, [0]), ('/nowhere', peer.topic, [0]))
        alter(version, (here, long_name, [0]), ('/nowhere', 'y' * 300, [0]))
        alter(version)
        alter(version, (here, peer.topic, []))


@case
def describe_quorum(peer: RawPeer) -> None:
    def ask(version: int, *topics: tuple[str, list[int]]) -> Any:
        return peer.ask('DescribeQuorum', version, topics=[
            dict(topic_name=name, partitions=[dict(partition_index=index) for index in indexes])
            for name, indexes in topics])

    for version in range(3):
        answer = ask(version, ('__cluster_metadata', [0]))
        partition = answer.topics[0].partitions[0]
        assert partition.high_watermark > 0 and partition.leader_epoch > 0
        assert partition.current_voters[0].log_end_offset >= partition.high_watermark
        partition.high_watermark = partition.leader_epoch = partition.current_voters[0].log_end_offset = 0
        partition.current_voters[0].replica_directory_id = partition.current_voters[0].replica_directory_id and b'id'
        for topics in ((), (('__cluster_metadata', []),), (('__cluster_metadata', [1]),),
                       (('__cluster_metadata', [0, 1]),), ((peer.topic, [0]),),
                       (('__cluster_metadata', [0]), (peer.topic, [0])), (('', [0]),)):
            ask(version, *topics)
