"""Apache Kafka 4.3 and kbroker get the same requests, byte for byte. Their answers agree, field by field.

Each case is a script (tests/jvm/cases_*.py) that sends a sequence of requests. It runs on both brokers, and the answers
are compared step by step, except for the fields that need not agree (raw_peer.py lists them). A difference means that
kbroker is wrong, unless DIFFERENCES has a reason for it.
"""

from __future__ import annotations

import functools

import cases_configs
import cases_groups
import cases_placement
import cases_records
import cases_topics
import cases_transactions
import cases_waiting
import nullable_texts
import pytest
from raw_peer import RawPeer, comparable, differences
from support.kafka.beside_kafka import both_brokers, unexplained_lines

from kbroker.settings import table as settings

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SETTINGS = {
    'group.initial.rebalance.delay.ms': '0',
    'group.min.session.timeout.ms': '1000',
    'group.share.max.heartbeat.interval.ms': '60000',
    'offsets.topic.num.partitions': '1',
    'transaction.state.log.num.partitions': '1',
    'transaction.abort.timed.out.transaction.cleanup.interval.ms': '200',
    # These settings are defaults, written in unusual forms:
    'log.cleaner.min.cleanable.ratio': '.50',
    'log.cleanup.policy': 'delete , delete',
    'log.preallocate': 'False',
    'log.retention.minutes': '+10080',
    'log.roll.hours': '0168',
    'message.max.bytes': '+1048588',
}

CASES = {
    name: case
    for module in (
        cases_records, cases_topics, cases_configs, cases_groups, cases_transactions, cases_waiting, cases_placement
    )
    for name, case in vars(module).items()
    if getattr(case, 'is_case', False)
}

DIFFERENCES: dict[tuple[str, str], str] = {
    (
        'produce_of_bad_batches',
        '^more behind',
    ): 'bytes behind a batch are refused, Kafka cuts them off: what is written is what was sent',
    (
        'fetch_in_each_version',
        r'v1[3-8] .*topics=\[\(partitions',
    ): 'the id of no topic is unknown, no fault of the server',
    ('fetch_with_limits', 'partition_max_bytes=-1'): 'a negative limit is one of 0 bytes, no fault of the server',
    (
        'list_offsets_in_each_version',
        'isolation_level=7',
    ): 'an isolation level that does not exist counts as read_uncommitted, no fault of the server',
    ('create_topics_that_are_refused', 'replication_factor=[23]'): 'kbroker.replication.factor.accept=any',
    (
        'describe_configs_of_topics',
        r"DescribeConfigsRequest.*resource_name='describe_configs_of_topics'.*resource_name='describe_configs_of_topics'",
    ): 'a name that is repeated is answered once',
    (
        'describe_and_list_groups',
        r"groups=\['describe_and_list_groups', 'describe_and_list_groups'\]",
    ): 'a name that is repeated is answered once',
    (
        'describe_and_list_transactions',
        "DescribeTransactionsRequest.*transactional_ids=.*'describe_and_list_transactions'.*'describe_and_list_trans",
    ): 'a name that is repeated is answered once',
    (
        'describe_and_list_transactions',
        "DescribeProducersRequest.*name='describe_and_list_transactions'.*name='describe_and_list_transactions'",
    ): 'a name that is repeated is answered once',
    (
        'elect_leaders',
        r"ElectLeadersRequest.*topic='elect_leaders'.*topic='elect_leaders'",
    ): 'a name that is repeated is answered once',
    (
        'create_topics_that_are_refused',
        r'internal\.segment\.bytes',
    ): 'internal settings are not described, even where they are set',
    ('create_topics_that_are_refused', 'col.lide'): 'names that collide do so within a request, too',
    ('create_partitions', r'broker_ids=\[(9|1, 2)\]'): 'kbroker.replication.factor.accept=any',
    ('metadata', r'topics=\[\(name=None\)\]'): 'a topic without name and id is a fault of the client',
    (
        'metadata_creates_topics',
        "Kafka 'UNKNOWN_TOPIC_OR_PARTITION'",
    ): 'a topic is created before the answer, so that the answer says why it cannot be',
    (
        'describe_topic_partitions',
        r"topics=\[\(name='no_such_topic'\), \(name='bad name'\), \(\)",
    ): 'an empty name is a fault of that topic alone',
    (
        'describe_configs_of_topics',
        r'log\.local\.retention',
    ): 'no tiered storage: the topic settings are known, the broker settings are not',
    ('describe_configs_of_brokers', "resource_name='01'"): 'the broker is 1',
    ('describe_configs_of_brokers', 'resource_type=16'): 'configs of client metrics are not served',
    (
        'alter_configs',
        "Kafka 'INVALID_CONFIG', kbroker 'INVALID_REQUEST'",
    ): 'configs of client metrics are not served',
    ('alter_configs_of_brokers', 'resource_type=16'): 'configs of client metrics are not served',
    ('configs_of_groups', 'config_operation=9'): 'an operation that does not exist is a fault of the client',
    ('alter_configs_of_brokers', 'resource_type=8'): 'the levels of loggers are not set by clients',
    ('alter_configs_of_brokers', "kbroker 'INVALID_CONFIG'"): 'a name without a meaning is refused',
    ('alter_configs_of_brokers', r"error_message: Kafka None, kbroker '\*'"): 'goes with the error code',
    ('alter_configs_of_brokers', r'min\.insync\.replicas.*config_operation=1'): 'removing what is not set is no change',
    (
        'partitions_added_in_batches',
        'partition_error_code: Kafka 0, kbroker 51',
    ): 'the first of two changes of a transaction is still being written',
    (
        'transactions_that_take_too_long',
        "Kafka 'INVALID_TXN_STATE', kbroker 'PRODUCER_FENCED'",
    ): 'KAFKA-20785: the coordinator has fenced this producer',
    (
        'update_features',
        r"feature='group\.version', max_version_level=1\), \(feature='group\.version'",
    ): 'a name that is repeated is refused',
    ('write_txn_markers', "Kafka 'UNKNOWN_SERVER_ERROR'"): 'a producer id or epoch below 0 is a fault of the client',
}
"""Maps (case, pattern in the text of a difference) to the reason for accepting the difference."""

SETTINGS_THAT_DIFFER = {
    'broker.id': 'node.id names the broker',
    'controller.listener.names': 'the test gives it to Kafka, which needs it',
    'listener.security.protocol.map': 'listeners are fixed while the broker runs',
    'socket.receive.buffer.bytes': 'the system sizes the buffers by use',
    'socket.send.buffer.bytes': 'the system sizes the buffers by use',
    'listeners': 'each broker has its own, and they are fixed while the broker runs',
    'log.dir': 'no data under /tmp',
    'log.dirs': 'each broker has its own',
    'node.id': 'the test gives it to Kafka, which needs it',
    'offsets.topic.replication.factor': 'a single node has one replica',
    'queued.max.request.bytes': 'memory is bounded by default',
    'sasl.enabled.mechanisms': 'GSSAPI is not served, so there is no default',
    'socket.listen.backlog.size': 'a storm of connects is served without retries',
    'principal.builder.class': 'there is one builder',
    'process.roles': 'the test gives it to Kafka, which needs it',
    'share.coordinator.state.topic.min.isr': 'a single node has one replica',
    'transaction.state.log.min.isr': 'a single node has one replica',
    'transaction.state.log.replication.factor': 'a single node has one replica',
    **{name: 'read once, at the start, and in PEM' for name in settings.SETTINGS if name.startswith('ssl.')},
}
"""Maps each broker setting that kbroker describes differently from Kafka to the reason."""

UNKNOWN_TO_KAFKAS_TABLE = {'super.users', 'allow.everyone.if.no.acl.found', 'ssl.crl.location', 'metrics.listen',
                           'metrics.token.file'}
"""Settings that Kafka does not describe: its authorizer reads two of them, and Kafka does not have the third."""


@pytest.fixture(scope='module')
def addresses(tmp_path_factory):
    """The addresses of Kafka and kbroker."""
    with both_brokers(tmp_path_factory.mktemp('differential'), SETTINGS) as brokers:
        yield [broker.address for broker in brokers]


@pytest.mark.parametrize('name', CASES)
def test_kbroker_answers_as_kafka_does(addresses, name):
    assert unexplained(addresses, name) == []


@functools.cache
def played(address, name):
    """Return the steps of a case on a broker. A repeated call does not run the case again."""
    peer = RawPeer(address, name)
    try:
        CASES[name](peer)
    finally:
        peer.close()
    return peer.steps


def unexplained(addresses, name):
    """Run a case on both brokers. Return the differences that DIFFERENCES does not explain."""
    transcripts = [played(address, name) for address in addresses]
    reasons = [pattern for case, pattern in DIFFERENCES if case == name]
    lines = [
        f'{kafka}\n    {line}'
        for kafka, ours in zip(*transcripts, strict=True)
        for line in differences(comparable(kafka.answer), comparable(ours.answer))
    ]
    return unexplained_lines(lines, reasons)


COMPARED_ELSEWHERE = {
    'test_differential_authorization': (
        'AlterClientQuotas', 'AlterUserScramCredentials', 'CreateAcls', 'DeleteAcls', 'DescribeAcls',
        'DescribeClientQuotas', 'DescribeUserScramCredentials', 'AlterShareGroupOffsets', 'DeleteShareGroupOffsets',
        'DescribeShareGroupOffsets',
    ),
    'test_differential_groups': ('ConsumerGroupDescribe', 'ConsumerGroupHeartbeat'),
    'test_differential_share': ('ShareAcknowledge', 'ShareFetch'),
    'test_differential_share_members': ('ShareGroupDescribe', 'ShareGroupHeartbeat'),
    'test_differential_streams': ('StreamsGroupDescribe', 'StreamsGroupHeartbeat'),
    'test_sasl_answers': ('SaslAuthenticate',),
}
"""Maps each module of tests to the responses that it compares. No case of this module requests them."""

NOT_ON_ONE_NODE = {
    'node_endpoints.rack': 'responses name other leaders',
    'replica_election_results.partition_result.error_message': 'no election is ever needed',
    'responses.partition_responses.record_errors.batch_index_error_message': 'there only with an error',
}
"""Maps each string that no successful answer of a single node contains to the reason."""

NEVER_A_SUCCESS = {
    'StreamsGroupTopologyDescriptionUpdateResponse': 'no broker without a plugin of Java stores a description',
    'UnregisterControllerResponse': 'the only controller of a cluster is never unregistered',
}
"""Maps each response that is always an error to the reason."""


def test_each_nullable_text_of_a_success_is_compared_in_each_served_version(addresses):
    """In an earlier version, the error messages in successful answers were empty where Kafka has null, and clients
    treated them as errors.
    """
    seen = set()
    for name in CASES:
        for step in played(addresses[0], name):
            if hasattr(step.answer, 'schema'):
                seen |= nullable_texts.of_an_answer(step.answer, step.version)
    elsewhere = {f'{api}Response' for apis in COMPARED_ELSEWHERE.values() for api in apis}
    assert [
        text for text in sorted(nullable_texts.of_the_tables() - seen)
        if text[0] not in elsewhere and text[0] not in NEVER_A_SUCCESS and text[2] not in NOT_ON_ONE_NODE
    ] == []


def test_each_setting_of_the_broker_is_described_as_kafka_describes_it(addresses):
    described = []
    for address in addresses:
        peer = RawPeer(address, '')
        answer = peer.ask(
            'DescribeConfigs',
            include_synonyms=True,
            resources=[{'resource_type': cases_topics.BROKER, 'resource_name': '1', 'configuration_keys': None}],
        )
        described.append({entry.name: comparable(entry) for entry in answer.results[0].configs})
        peer.close()
    kafka, ours = described
    assert {name for name in ours if not name.startswith('kbroker.')} - UNKNOWN_TO_KAFKAS_TABLE <= kafka.keys()
    assert {
        name: found
        for name in kafka.keys() & ours.keys()
        if (found := differences(kafka[name], ours[name])) and name not in SETTINGS_THAT_DIFFER
    } == {}
