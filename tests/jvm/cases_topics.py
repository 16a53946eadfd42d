"""Cases for requests about topics, configs and the cluster."""

from __future__ import annotations

from typing import Any

from cases_records import case, list_offsets, produce
from raw_peer import RawPeer, batch

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
NO_ID = bytes(16)
BAD_NAMES = ('', '.', '..', 'a b', 'é', 'x' * 250, 'a/b', '__cluster_metadata')


def create(peer: RawPeer, name: str, version: int = 7, *, partitions: int = 1, replicas: int = 1,
           validate_only: bool = False, assignments: list[Any] | None = None, **configs: str | None) -> Any:
    return peer.ask(
        'CreateTopics', version, timeout_ms=30000, validate_only=validate_only, topics=[dict(
            name=name, num_partitions=partitions, replication_factor=replicas,
            assignments=[dict(partition_index=index, broker_ids=brokers) for index, brokers in assignments or ()],
            configs=[dict(name=key.replace('_', '.'), value=value) for key, value in configs.items()])])


def describe(peer: RawPeer, resource_type: int, name: str, version: int = 4, keys: list[str] | None = None,
             **options: bool) -> Any:
    return peer.ask(
        'DescribeConfigs', version,
        resources=[dict(resource_type=resource_type, resource_name=name, configuration_keys=keys)], **options)


def alter(peer: RawPeer, resource_type: int, name: str, *changes: tuple[str, int, str | None], version: int = 1,
          validate_only: bool = False) -> Any:
    return peer.ask(
        'IncrementalAlterConfigs', version, validate_only=validate_only, resources=[dict(
            resource_type=resource_type, resource_name=name,
            configs=[dict(name=key, config_operation=operation, value=value) for key, operation, value in changes])])


def await_config(peer: RawPeer, resource_type: int, name: str, key: str, value: str, **options: bool) -> None:
    """Wait until the broker describes a config with this value. Only the last answer is compared."""
    peer.ask_until(lambda answer: answer.results[0].configs[0].value == value, 'DescribeConfigs', resources=[
        dict(resource_type=resource_type, resource_name=name, configuration_keys=[key])], **options)


@case
def create_topics_in_each_version(peer: RawPeer) -> None:
    for version in range(2, 8):
        name = f'{peer.topic}_{version}'
        create(peer, name, version, partitions=2, validate_only=True)
        create(peer, name, version, partitions=2, cleanup_policy='compact')
        peer.await_topic(name, 2)
        create(peer, name, version)
        create(peer, name, version, validate_only=True)
    create(peer, peer.topic + '_defaults', partitions=-1, replicas=-1)
    create(peer, peer.topic + '_defaults', 4, partitions=-1, replicas=-1)
    create(peer, peer.topic + '_assigned', partitions=-1, replicas=-1, assignments=[(0, [1]), (1, [1])])
    peer.ask('CreateTopics', topics=[], timeout_ms=1000)


@case
def create_topics_that_are_refused(peer: RawPeer) -> None:
    peer.create_topic(peer.topic)
    for name in BAD_NAMES:
        create(peer, name, validate_only=True)
    create(peer, peer.topic.replace('_', '.'), validate_only=True)
    for partitions in (0, -2, 2**31 - 1):
        create(peer, 'refused', partitions=partitions, validate_only=True)
    for replicas in (0, -2, 2, 3):
        create(peer, 'refused', replicas=replicas, validate_only=True)
    for assignments in (
        [(0, [1]), (0, [1])],
        [(1, [1])],
        [(0, [1]), (2, [1])],
        [(0, [])],
        [(0, [1, 1])],
        [(0, [9])],
        [(0, [1, 2])],
        [(-1, [1])],
        [(0, [-1])],
    ):
        create(peer, 'refused', partitions=-1, replicas=-1, assignments=assignments, validate_only=True)
    create(peer, 'refused', partitions=1, replicas=-1, assignments=[(0, [1])], validate_only=True)
    create(peer, 'refused', partitions=-1, replicas=1, assignments=[(0, [1])], validate_only=True)
    for key, value in (
        ('no.such.config', '1'),
        ('cleanup.policy', 'shred'),
        ('retention.ms', 'x'),
        ('retention.ms', '-2'),
        ('segment.bytes', '1'),
        ('retention.ms', None),
        ('compression.type', 'zip'),
        ('max.message.bytes', '-1'),
        ('message.timestamp.type', 'x'),
        ('min.cleanable.dirty.ratio', '2'),
        ('cleanup.policy', ''),
        ('cleanup.policy', 'compact, delete'),
        ('cleanup.policy', 'delete,delete'),
        ('cleanup.policy', 'none'),
        ('retention.ms', ' 5 '),
        ('preallocate', 'yes'),
        ('preallocate', 'TRUE'),
        ('segment.ms', '0'),
        ('segment.ms', '1'),
        ('index.interval.bytes', '-1'),
        ('flush.messages', '0'),
        ('flush.ms', '-1'),
        ('min.insync.replicas', '0'),
        ('min.insync.replicas', '5'),
        ('message.format.version', '3.0'),
        ('remote.storage.enable', 'true'),
        ('remote.storage.enable', 'false'),
        ('local.retention.ms', '5'),
        ('compression.gzip.level', '10'),
        ('compression.gzip.level', '0'),
        ('compression.gzip.level', '-1'),
        ('compression.lz4.level', '0'),
        ('compression.lz4.level', '17'),
        ('compression.lz4.level', '18'),
        ('compression.zstd.level', '-131072'),
        ('compression.zstd.level', '23'),
        ('segment.jitter.ms', '-1'),
        ('segment.index.bytes', '3'),
        ('segment.index.bytes', '4'),
        ('delete.retention.ms', '-1'),
        ('file.delete.delay.ms', '-1'),
        ('message.timestamp.before.max.ms', '-1'),
        ('retention.bytes', '-5'),
        ('segment.bytes', '1048575'),
        ('segment.bytes', '1048576'),
        ('segment.bytes', '2147483648'),
        ('unclean.leader.election.enable', 'maybe'),
        ('max.compaction.lag.ms', '0'),
        ('min.compaction.lag.ms', '-1'),
        ('follower.replication.throttled.replicas', '1:x'),
        ('leader.replication.throttled.replicas', '*'),
        ('internal.segment.bytes', '1000'),
        ('', '1'),
        ('errors.deadletterqueue.enable', 'true'),
        ('retention.ms', '9223372036854775808'),
        ('retention.ms', '+5'),
        ('retention.ms', '1e3'),
    ):
        create(peer, 'refused', validate_only=True, **{key: value})
    create(peer, 'refused', validate_only=True, min_compaction_lag_ms='10', max_compaction_lag_ms='5')
    create(peer, 'refused', validate_only=True, local_retention_ms='10', retention_ms='5')
    twice = dict(name='refused', num_partitions=1, replication_factor=1)
    peer.ask(
        'CreateTopics', topics=[twice, twice, dict(name='also_good', num_partitions=1, replication_factor=1)],
        timeout_ms=1000, validate_only=True)
    peer.ask(
        'CreateTopics',
        topics=[
            dict(name='col.lide', num_partitions=1, replication_factor=1),
            dict(name='col_lide', num_partitions=1, replication_factor=1)], timeout_ms=1000, validate_only=True)
    peer.ask(
        'CreateTopics', validate_only=True, timeout_ms=1000, topics=[dict(
            name='refused', num_partitions=1, replication_factor=1,
            configs=[dict(name='retention.ms', value='1'), dict(name='retention.ms', value='2')])])


@case
def delete_topics(peer: RawPeer) -> None:
    names = [f'{peer.topic}_{index}' for index in range(8)]
    ids = [peer.create_topic(name) for name in names]
    for version in range(1, 6):
        peer.ask('DeleteTopics', version, topic_names=[names[version], 'no_such_topic'], timeout_ms=30000)
    peer.ask('DeleteTopics', 5, topic_names=['no_such_topic', 'no_such_topic', 'bad name', ''], timeout_ms=30000)
    peer.ask('DeleteTopics', topics=[dict(name=names[0]), dict(name=names[0])], timeout_ms=30000)
    peer.ask('DeleteTopics', topics=[dict(name=names[0], topic_id=ids[0])], timeout_ms=30000)
    peer.ask('DeleteTopics', topics=[dict(name=names[0]), dict(name=None, topic_id=ids[0])], timeout_ms=30000)
    peer.ask(
        'DeleteTopics', topics=[dict(name=None, topic_id=ids[6]), dict(name=None, topic_id=ids[6])], timeout_ms=30000)
    peer.ask(
        'DeleteTopics', topics=[dict(name=None, topic_id=b'\7' * 16), dict(name=None), dict(name='no_such_topic')],
        timeout_ms=30000)
    peer.ask('DeleteTopics', topics=[dict(name=None, topic_id=ids[0])], timeout_ms=30000)
    peer.ask_until(
        lambda answer: answer.topics[0].error_code, 'Metadata', topics=[dict(name=names[0])],
        allow_auto_topic_creation=False)
    peer.ask_until(
        lambda answer: answer.topics[0].error_code, 'Metadata', topics=[dict(name=None, topic_id=ids[0])],
        allow_auto_topic_creation=False)


@case
def create_partitions(peer: RawPeer) -> None:
    peer.create_topic()

    def grow(count: int, version: int = 3, *, name: str | None = None, assignments: list[list[int]] | None = None,
             validate_only: bool = False) -> None:
        peer.ask(
            'CreatePartitions', version, timeout_ms=30000, validate_only=validate_only, topics=[dict(
                name=peer.topic if name is None else name, count=count,
                assignments=None if assignments is None else [dict(broker_ids=brokers) for brokers in assignments])])

    for version in range(4):
        grow(9, version, validate_only=True)
        grow(version + 2, version)
        peer.await_topic(peer.topic, version + 2)
        grow(1, version)
        grow(5, version, name='no_such_topic')
        for count in (0, -1, version + 2):
            grow(count, version)
    for assignments in ([], [[1]], [[1], [1]], [[1], []], [[9], [1]], [[1, 1], [1]], [[1, 2], [1, 2]]):
        grow(7, assignments=assignments, validate_only=True)
    grow(6, name='bad name')
    grow(6, name='')
    peer.ask('CreatePartitions', topics=[dict(name=peer.topic, count=8, assignments=None)] * 2, timeout_ms=1000)
    peer.ask('CreatePartitions', topics=[], timeout_ms=1000)
    peer.ask('Metadata', topics=[dict(name=peer.topic)])


@case
def metadata(peer: RawPeer) -> None:
    topic_id = peer.create_topic(partitions=2)
    for version in range(14):
        peer.ask('Metadata', version, topics=[dict(name=peer.topic)])
        peer.ask('Metadata', version, topics=[dict(name=name) for name in ('bad name', '', 'x' * 250, '.')])
        if version >= 1:
            peer.ask('Metadata', version, topics=[])
        if version >= 4:
            peer.ask('Metadata', version, topics=[dict(name=f'{peer.topic}_absent')], allow_auto_topic_creation=False)
        if version >= 8:
            peer.ask(
                'Metadata', version, topics=[dict(name=peer.topic)], include_topic_authorized_operations=True,
                include_cluster_authorized_operations=version <= 10)
    for version in (10, 11, 12, 13):
        for name, wanted in (
            (None, topic_id),
            (peer.topic, topic_id),
            (None, b'\7' * 16),
            ('other', topic_id),
            (None, NO_ID),
            (peer.topic, b'\7' * 16),
        ):
            peer.ask('Metadata', version, topics=[dict(name=name, topic_id=wanted)], allow_auto_topic_creation=False)
    peer.ask('Metadata', topics=[dict(name=peer.topic), dict(name=peer.topic)])
    peer.ask('Metadata', 12, topics=[dict(name=peer.topic), dict(name='bad name'), dict(name=None, topic_id=topic_id)])


@case
def metadata_creates_topics(peer: RawPeer) -> None:
    for version in (0, 3, 4, 9, 13):
        name = f'{peer.topic}_{version}'
        peer.ask_until(lambda answer: not answer.topics[0].error_code, 'Metadata', version, topics=[dict(name=name)])
    peer.ask_until(lambda answer: not answer.topics[0].error_code, 'Metadata', topics=[dict(name='__consumer_offsets')])
    peer.ask('Metadata', topics=[dict(name='__cluster_metadata')])
    peer.ask('Metadata', topics=[dict(name=peer.topic.replace('_', '.') + '.0')])


@case
def describe_topic_partitions(peer: RawPeer) -> None:
    for index in range(3):
        peer.create_topic(f'{peer.topic}_{index}', partitions=3)
    names = [dict(name=f'{peer.topic}_{index}') for index in (2, 0, 1)]

    def page(limit: int = 2000, cursor: tuple[str, int] | None = None, topics: list[Any] | None = None) -> None:
        peer.ask(
            'DescribeTopicPartitions', topics=names if topics is None else topics, response_partition_limit=limit,
            cursor=None if cursor is None else dict(topic_name=cursor[0], partition_index=cursor[1]))

    page()
    for limit in (-1, 0, 1, 2, 3, 4, 8, 9, 10):
        page(limit)
    for index in (-1, 0, 1, 2, 3, 7):
        page(4, (f'{peer.topic}_1', index))
    page(4, ('a', 1))
    page(4, ('zzz', 0))
    page(4, (f'{peer.topic}_11', 2))
    page(4, (f'{peer.topic}_0x', 0))
    page(topics=[dict(name='no_such_topic'), dict(name='bad name'), dict(name=''), *names])
    page(2, topics=[dict(name='a_topic_that_is_not'), *names])
    page(topics=[*names, *names])
    page(2, ('no_such_topic', 0), [dict(name='no_such_topic')])


@case
def describe_configs_of_topics(peer: RawPeer) -> None:
    peer.create_topic(cleanup_policy='compact', retention_ms='5')
    for version in range(1, 5):
        for options in ({}, {'include_synonyms': True}):
            describe(peer, TOPIC, peer.topic, version, **options)
        describe(peer, TOPIC, peer.topic, version, ['retention.ms', 'no.such.config'], include_synonyms=True)
        describe(peer, TOPIC, peer.topic, version, [])
        for name in ('no_such_topic', 'bad name', ''):
            describe(peer, TOPIC, name, version)
    peer.ask('DescribeConfigs', resources=[])
    peer.ask(
        'DescribeConfigs',
        resources=[dict(resource_type=TOPIC, resource_name=peer.topic, configuration_keys=['retention.ms'])] * 2)


@case
def describe_configs_of_brokers(peer: RawPeer) -> None:
    for name in ('1', '', '2', 'x', '-1', '01'):
        describe(
            peer, BROKER, name, 4, ['log.retention.ms', 'num.partitions', 'message.max.bytes', 'no.such.config'],
            include_synonyms=True)
    for resource_type in (0, 1, 3, 5, 99, -1):
        describe(peer, resource_type, 'x')
    for resource_type in (CLIENT_METRICS, GROUP):
        for name in ('', 'x'):
            describe(peer, resource_type, name)
    describe(peer, BROKER_LOGGER, '2')
    describe(peer, BROKER_LOGGER, '')


@case
def alter_configs(peer: RawPeer) -> None:
    peer.create_topic(retention_ms='5')

    def replace(name: str, version: int = 2, *, resource_type: int = TOPIC, validate_only: bool = False,
                **configs: str | None) -> None:
        peer.ask(
            'AlterConfigs', version, validate_only=validate_only, resources=[dict(
                resource_type=resource_type, resource_name=name,
                configs=[dict(name=key.replace('_', '.'), value=value) for key, value in configs.items()])])

    for version in range(3):
        replace(peer.topic, version, segment_ms='77')
        await_config(peer, TOPIC, peer.topic, 'segment.ms', '77')
        describe(peer, TOPIC, peer.topic, 4, ['segment.ms', 'retention.ms'])
        replace(peer.topic, version, validate_only=True, segment_ms='0')
        replace(peer.topic, version, segment_ms='x')
        replace(peer.topic, version, no_such_config='x')
        replace(peer.topic, version, segment_ms=None)
        for name in ('no_such_topic', 'bad name', ''):
            replace(name, version, segment_ms='77')
    for name in ('2', 'x', '1', ''):
        replace(name, resource_type=BROKER, validate_only=True, message_max_bytes='2000000')
        replace(name, resource_type=BROKER, validate_only=True, node_id='7')
    for resource_type in (0, 8, 16, 32, 99):
        replace('x', resource_type=resource_type, validate_only=True, a='b')
    peer.ask(
        'AlterConfigs', validate_only=True, resources=[dict(
            resource_type=TOPIC, resource_name=peer.topic,
            configs=[dict(name='segment.ms', value='1'), dict(name='segment.ms', value='2')])])


@case
def alter_configs_incrementally(peer: RawPeer) -> None:
    peer.create_topic(retention_ms='5', cleanup_policy='compact')
    changes: list[list[tuple[str, int, str | None]]] = [
        [('segment.ms', SET, '77')],
        [('segment.ms', DELETE, None)],
        [('segment.ms', DELETE, '3')],
        [('cleanup.policy', APPEND, 'delete')],
        [('cleanup.policy', APPEND, 'compact')],
        [('cleanup.policy', APPEND, 'shred')],
        [('cleanup.policy', SUBTRACT, 'compact')],
        [('cleanup.policy', SUBTRACT, 'delete')],
        [('segment.ms', APPEND, '1')],
        [('segment.ms', SUBTRACT, '1')],
        [('no.such.config', SET, '1')],
        [('no.such.config', DELETE, None)],
        [('no.such.config', APPEND, 'x')],
        [('segment.ms', SET, None)],
        [('cleanup.policy', APPEND, None)],
        [('segment.ms', SET, '1'), ('segment.ms', SET, '2')],
        [('segment.ms', SET, '')],
        [('cleanup.policy', SET, '')],
        [('retention.ms', SET, '-1'), ('segment.ms', SET, 'x')],
        [],
        [('leader.replication.throttled.replicas', APPEND, '0:1')],
        [('min.insync.replicas', SET, '1')],
        [('remote.storage.enable', SET, 'true')],
        [('cleanup.policy', APPEND, '')],
        [('cleanup.policy', SUBTRACT, '')],
        [('', SET, 'x')],
        [('retention.ms', DELETE, None), ('segment.ms', SET, '5')],
    ]
    for version in (0, 1):
        for change in changes:
            alter(peer, TOPIC, peer.topic, *change, version=version, validate_only=True)
    for change in changes:
        alter(peer, TOPIC, peer.topic, *change)
    alter(peer, TOPIC, peer.topic, ('segment.ms', SET, '99'))
    await_config(peer, TOPIC, peer.topic, 'segment.ms', '99')
    describe(
        peer, TOPIC, peer.topic, 4, [
            'retention.ms', 'cleanup.policy', 'segment.ms', 'leader.replication.throttled.replicas',
            'min.insync.replicas'])
    for name in ('no_such_topic', 'bad name', ''):
        alter(peer, TOPIC, name, ('segment.ms', SET, '1'))
        alter(peer, TOPIC, name)


@case
def alter_configs_of_brokers(peer: RawPeer) -> None:
    changes: list[tuple[str, int, str | None]] = [
        ('log.retention.ms', SET, '600000'),
        ('message.max.bytes', SET, '2000000'),
        ('message.max.bytes', SET, 'x'),
        ('message.max.bytes', SET, '-1'),
        ('node.id', SET, '3'),
        ('log.dirs', SET, '/x'),
        ('num.partitions', SET, '4'),
        ('no.such.config', SET, '1'),
        ('no.such.config', DELETE, None),
        ('num.partitions', DELETE, None),
        ('log.cleanup.policy', APPEND, 'compact'),
        ('num.io.threads', SET, '9'),
        ('num.io.threads', SET, '100'),
        ('listeners', SET, 'PLAINTEXT://127.0.0.1:1'),
        ('advertised.listeners', SET, 'PLAINTEXT://localhost:1'),
        ('max.connections', SET, '500'),
        ('auto.create.topics.enable', SET, 'false'),
        ('min.insync.replicas', SET, '1'),
        ('min.insync.replicas', DELETE, None),
        ('compression.type', SET, 'gzip'),
        ('log.segment.bytes', SET, '2000000'),
        ('log.segment.bytes', SET, '5'),
        ('segment.bytes', SET, '5000000'),
        ('transaction.max.timeout.ms', SET, '5'),
        ('group.max.size', SET, '5'),
        ('ssl.keystore.password', SET, 'x'),
        ('log.roll.ms', SET, '0'),
        ('log.message.timestamp.type', SET, 'LogAppendTime'),
        ('unclean.leader.election.enable', SET, 'true'),
        ('log.cleaner.threads', SET, '2'),
        ('producer.id.expiration.ms', SET, '1000'),
        ('transaction.partition.verification.enable', SET, 'false'),
        ('remote.log.index.file.cache.total.size.bytes', SET, '5'),
    ]
    for name in ('1', '', '2', 'x'):
        for change in changes:
            alter(peer, BROKER, name, change, validate_only=True)
    for resource_type in (0, 1, 3, 99):
        alter(peer, resource_type, 'x', ('a', SET, 'b'), validate_only=True)
    alter(peer, BROKER_LOGGER, '1', ('root', SET, 'INFO'), validate_only=True)
    for name in ('', 'x'):
        alter(peer, CLIENT_METRICS, name, ('interval.ms', SET, '1000'), validate_only=True)
        alter(peer, CLIENT_METRICS, name, ('no.such', SET, '1000'), validate_only=True)
        alter(peer, GROUP, name, ('consumer.session.timeout.ms', SET, '50000'), validate_only=True)
        alter(peer, GROUP, name, ('no.such', SET, '1000'), validate_only=True)


@case
def configs_of_groups(peer: RawPeer) -> None:
    first, second = f'{peer.topic}-1', f'{peer.topic} 2/é'

    def settle(name: str, key: str, value: str) -> None:
        await_config(peer, GROUP, name, key, value, include_synonyms=True)

    def replace(name: str, *configs: tuple[str, str | None]) -> None:
        resource = dict(resource_type=GROUP, resource_name=name, configs=[dict(name=k, value=v) for k, v in configs])
        peer.ask('AlterConfigs', resources=[resource])

    for version in range(1, 5):
        describe(peer, GROUP, first, version, include_synonyms=True)
    for key, values in {
        'no.such.config': ['1'],
        'group.consumer.session.timeout.ms': ['50000'],
        'consumer.session.timeout.ms': ['', 'x', '0', '-1', '44999', '45000', ' 60000 ', '60001', '99999999999'],
        'consumer.heartbeat.interval.ms': ['0', '4999', '5000', '15000', '15001'],
        'consumer.assignment.interval.ms': ['-1', '0', '15000', '15001'],
        'share.session.timeout.ms': ['44999', '60000', '60001'],
        'share.heartbeat.interval.ms': ['4999', '44999', '45000', '60000', '60001'],
        'share.assignment.interval.ms': ['-1', '0', '15000', '15001'],
        'share.record.lock.duration.ms': ['999', '14999', '15000', '60000', '60001'],
        'share.delivery.count.limit': ['1', '2', '10', '11'],
        'share.partition.max.record.locks': ['99', '100', '4000', '4001'],
        'share.auto.offset.reset': ['', 'none', 'earliest', 'Latest', 'by_duration:', 'by_duration:P', 'by_duration:PT',
                                    'by_duration:PT1H', 'by_duration:-PT1H', 'by_duration:pt1h', 'by_duration:P1Y',
                                    'by_duration:P1DT', 'by_duration:PT0.5S', 'by_duration:PT1.S',
                                    'by_duration:PT.5S', 'by_duration:PT-1H61M', 'by_duration:PT-1H'],
        'share.isolation.level': ['', 'read_committed', 'READ_COMMITTED', 'none'],
        'share.renew.acknowledge.enable': ['false', 'FALSE', '0', ''],
        'streams.session.timeout.ms': ['44999', '60000', '60001'],
        'streams.heartbeat.interval.ms': ['4999', '15000', '15001'],
        'streams.assignment.interval.ms': ['-1', '0', '15000', '15001'],
        'streams.num.standby.replicas': ['-1', '0', '2', '3'],
        'streams.initial.rebalance.delay.ms': ['-1', '0', '100000000'],
        'consumer.assignor.offload.enable': ['true'],
        'errors.deadletterqueue.topic.name': ['t'],
    }.items():
        for value in values:
            alter(peer, GROUP, first, (key, SET, value), validate_only=True)
    for change in (
        ('no.such.config', DELETE, None),
        ('share.isolation.level', DELETE, 'read_committed'),
        ('share.isolation.level', SET, None),
        ('share.isolation.level', APPEND, 'x'),
        ('share.isolation.level', SUBTRACT, 'x'),
        ('share.isolation.level', 9, 'x'),
    ):
        alter(peer, GROUP, first, change)
    alter(peer, GROUP, '', ('share.isolation.level', SET, 'read_committed'))
    describe(peer, GROUP, '')
    peer.ask('ListConfigResources', resource_types=[GROUP])
    alter(peer, GROUP, first, ('share.session.timeout.ms', SET, '50000'))
    settle(first, 'share.session.timeout.ms', '50000')
    alter(peer, GROUP, first, ('share.heartbeat.interval.ms', SET, '50000'))
    alter(peer, GROUP, first, ('share.heartbeat.interval.ms', SET, '49999'))
    settle(first, 'share.heartbeat.interval.ms', '49999')
    alter(peer, GROUP, first, ('share.session.timeout.ms', DELETE, None))
    alter(peer, GROUP, second, ('share.isolation.level', SET, 'read_committed'))
    settle(second, 'share.isolation.level', 'read_committed')
    describe(peer, GROUP, first, include_synonyms=True)
    describe(peer, GROUP, first, 4, ['share.isolation.level', 'no.such.config'])
    peer.ask('ListConfigResources', resource_types=[GROUP])
    replace(first, ('share.delivery.count.limit', '11'))
    replace(first, ('no.such.config', '1'))
    replace(first, ('share.delivery.count.limit', None))
    replace('', ('share.delivery.count.limit', '7'))
    replace(first, ('share.delivery.count.limit', '7'))
    settle(first, 'share.delivery.count.limit', '7')
    describe(peer, GROUP, first, include_synonyms=True)
    for name in (first, second):
        replace(name)
        settle(name, 'share.isolation.level', 'read_uncommitted')
    settle(first, 'share.delivery.count.limit', '5')
    peer.ask('ListConfigResources', resource_types=[GROUP])


@case
def alter_configs_takes_effect(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    large = batch(b'x' * 500)
    produce(peer, large)
    alter(peer, TOPIC, peer.topic, ('max.message.bytes', SET, '100'))
    peer.ask_until(
        lambda answer: answer.responses[0].partition_responses[0].error_code, 'Produce', 12, acks=-1, timeout_ms=1000,
        topic_data=[dict(name=peer.topic, partition_data=[dict(index=1, records=large)])])
    produce(peer, large)
    list_offsets(peer, -1)


@case
def describe_log_dirs(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    produce(peer, batch(b'a'))
    for version in range(1, 5):
        for topics in (
            [],
            [dict(topic=peer.topic, partitions=[0, 1])],
            [dict(topic=peer.topic, partitions=[1, 5])],
            [dict(topic=peer.topic, partitions=[])],
            [dict(topic='no_such_topic', partitions=[0])],
            [dict(topic='', partitions=[0])],
            [dict(topic=peer.topic, partitions=[0])] * 2,
        ):
            peer.ask('DescribeLogDirs', version, topics=topics)


@case
def describe_cluster(peer: RawPeer) -> None:
    for version in range(3):
        for authorized in (False, True):
            peer.ask('DescribeCluster', version, include_cluster_authorized_operations=authorized)
    for version in (1, 2):
        for endpoint_type in (0, 1, 2, 3, -1):
            peer.ask('DescribeCluster', version, endpoint_type=endpoint_type)
    peer.ask('DescribeCluster', 2, include_fenced_brokers=True)


@case
def elect_leaders(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    for version in range(3):
        for election_type in (0, 1) if version else (0,):
            for wanted in (
                [dict(topic=peer.topic, partitions=[0, 1])],
                [dict(topic=peer.topic, partitions=[7])],
                [dict(topic='no_such_topic', partitions=[0])],
                [dict(topic='bad name', partitions=[0])],
                [],
                [dict(topic=peer.topic, partitions=[])],
                [dict(topic=peer.topic, partitions=[0])] * 2,
                None,
            ):
                answer = peer.ask(
                    'ElectLeaders', version, topic_partitions=wanted, timeout_ms=1000,
                    **({'election_type': election_type} if version else {}))
                if wanted is None:
                    answer.replica_election_results = [
                        topic for topic in answer.replica_election_results if topic.topic == peer.topic]
    peer.ask(
        'ElectLeaders', 2, election_type=7, topic_partitions=[dict(topic=peer.topic, partitions=[0])], timeout_ms=1000)
    peer.ask('ElectLeaders', 2, election_type=-1, topic_partitions=None, timeout_ms=1000)


@case
def list_config_resources(peer: RawPeer) -> None:
    peer.ask('ListConfigResources', 0)
    for types in (
        [BROKER],
        [BROKER_LOGGER],
        [CLIENT_METRICS],
        [GROUP],
        [BROKER, BROKER],
        [GROUP, BROKER],
        [0],
        [1],
        [99],
        [BROKER, 99],
        [-1],
    ):
        peer.ask('ListConfigResources', 1, resource_types=types)


@case
def update_features(peer: RawPeer) -> None:
    upgrade, safe, unsafe = 1, 2, 3

    def update(version: int, *updates: tuple[str, int, int], validate_only: bool = False) -> None:
        rows = [
            dict(feature=name, max_version_level=level) | (
                dict(upgrade_type=kind) if version else dict(allow_downgrade=kind != upgrade))
            for name, level, kind in updates]
        trial = dict(validate_only=True) if validate_only else {}
        peer.ask('UpdateFeatures', version, timeout_ms=30000, feature_updates=rows, **trial)

    def settle(**levels: int) -> None:
        """Wait until ApiVersions shows these feature levels. A level of 0 means that it must not show the feature."""
        wanted = {f'{name}.version': level for name, level in levels.items()}
        peer.prepare_until(
            lambda answer: {row.name: row.max_version_level for row in answer.finalized_features
                            if row.name in wanted} == {name: level for name, level in wanted.items() if level},
            'ApiVersions', 4, client_software_name='judge', client_software_version='1')

    for version in range(3):
        for name in (
            'group.version', 'share.version', 'streams.version', 'eligible.leader.replicas.version', 'no.such',
        ):
            for level in (-1, 0, 1, 3):
                for kind in (upgrade, safe, unsafe) if version else (upgrade,):
                    if version or level:
                        update(version, (name, level, kind), validate_only=version > 0)
        update(version)
        update(version, ('group.version', 1, upgrade), ('no.such', 1, upgrade))
        update(version, ('group.version', 1, upgrade), ('share.version', 5, upgrade))
        update(version, ('', 1, upgrade))
    for kind in (-1, 0, 4):
        update(2, ('group.version', 1, kind), validate_only=True)
    for level, kind in (
        (30, upgrade), (30, safe), (29, upgrade), (29, safe), (29, unsafe), (7, safe), (7, unsafe), (6, safe),
        (0, unsafe), (34, upgrade),
    ):
        update(2, ('metadata.version', level, kind), validate_only=True)
    for level, kind in ((2, upgrade), (1, upgrade), (1, safe), (0, unsafe), (3, upgrade)):
        update(1, ('transaction.version', level, kind), validate_only=True)
    update(1, ('group.version', 1, upgrade), ('group.version', 1, upgrade))
    update(2, ('share.version', 0, safe), ('streams.version', 0, unsafe))
    settle(share=0, streams=0)
    update(2, ('share.version', 0, safe))
    update(2, ('share.version', 0, upgrade))
    update(2, ('share.version', 1, safe))
    update(2, ('share.version', 1, unsafe))
    update(2, ('share.version', 1, upgrade), ('streams.version', 1, upgrade))
    settle(share=1, streams=1)


@case
def api_versions(peer: RawPeer) -> None:
    for name, version in (
        ('', '1'),
        ('kafka', ''),
        ('bad name', '1'),
        ('-x', '1'),
        ('x-', '1'),
        ('x.', '1'),
        ('a', '1.0-beta'),
        ('a', '1_0'),
        ('é', '1'),
    ):
        for wanted in (3, 4):
            answer = peer.ask('ApiVersions', wanted, client_software_name=name, client_software_version=version)
            if answer.error_code == 0:
                answer.api_keys, answer.supported_features, answer.finalized_features = [], [], []


@case
def unknown_requests_close_the_connection(peer: RawPeer) -> None:
    for key, version in ((999, 0), (-1, 0), (4, 0), (3, 99), (3, -1), (2, 0), (1, 3), (10, 7), (52, 0)):
        peer.note = f'key {key} version {version}'
        peer.send_bytes(b''.join(number.to_bytes(2, 'big', signed=True) for number in (key, version))
                        + b'\0\0\0\1\0\1x' + bytes(20))
    for peer.note, body in (
        ('short', b'\0\3'),
        ('no body', b'\0\3\0\5\0\0\0\1\0\1x'),
        ('client id', b'\0\3\0\0\0\0\0\1\x7f\xff'),
        ('count', b'\0\3\0\0\0\0\0\1\0\1x\x7f\xff\xff\xff'),
        ('empty', b''),
    ):
        peer.send_bytes(body)
