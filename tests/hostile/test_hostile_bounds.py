"""Attacks that each fill one structure of the broker: ids, transactions, share sessions, topologies, rights, denials,
long answers."""
from __future__ import annotations

import itertools
import struct
from collections import Counter

import pytest
from hostile.guarded import Guarded
from hostile.siege import create, replies_to
from support.brokers.in_process_broker import frame_of, read_answer
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import InitProducerIdRequest
from kbroker.security.decision_log import MOST_DENIAL_BYTES
from kbroker.security.quotas import MOST_METER_BYTES

AUTHORIZER = 'org.apache.kafka.metadata.authorizer.StandardAuthorizer'
SHARE_SESSIONS = 100
EMOJI = '\U0001f600'
"""A string with this character takes four bytes for each of its characters, however many are ASCII."""


@pytest.mark.parametrize('last', ['t', EMOJI])
def test_transactional_ids_of_thirty_thousand_characters(besieged, last):
    broker = besieged()
    broker.find_coordinator(1, 'id')
    requests = [InitProducerIdRequest(transactional_id=f'{number}' + 't' * 30_000 + last, transaction_timeout_ms=60_000)
                for number in range(4_600)]
    with broker.watched(rss_mb=350), broker.connect() as attacker:
        codes = Counter(read_answer(requests[0], 4, reply).error_code
                        for reply in replies_to(attacker, (frame_of(request, 4) for request in requests)))
    assert set(codes) == {ErrorCode.NONE, ErrorCode.POLICY_VIOLATION}
    assert codes[ErrorCode.NONE] * (6 if last == EMOJI else 2) * 30_000 <= 256 << 20


def test_transactions_of_as_many_partitions_as_one_may_have(besieged):
    broker = besieged()
    with broker.connect() as client:
        create(client, 'wide', 9_000)
        create(client, 'more', 1_001)
    broker.find_coordinator(1, 'id')
    with broker.watched(rss_mb=250), broker.connect() as attacker:
        for number in range(10):
            name = f'transaction {number}'
            found = attacker.ask(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4)
            codes = Counter()
            for topic, partitions in (('wide', range(9_000)), ('more', range(1_000)), ('more', (1_000,))):
                answer = attacker.ask(build(
                    'AddPartitionsToTxnRequest', v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=found.producer_id, v3_and_below_producer_epoch=found.producer_epoch,
                    v3_and_below_topics=[{'name': topic, 'partitions': list(partitions)}]), 3)
                codes.update(row.partition_error_code for topic in answer.results_by_topic_v3_and_below
                             for row in topic.results_by_partition)
            assert codes[ErrorCode.NONE] == 10_000 and len(codes) == 2, codes


def test_share_sessions_without_end(besieged):
    broker = besieged({'group.share.max.share.sessions': str(SHARE_SESSIONS),
                       'group.share.max.size': str(SHARE_SESSIONS)})
    with broker.connect() as client:
        create(client, 'shared', 200)
        topic_id = client.ask(build('MetadataRequest', topics=[{'name': 'shared'}]), 12).topics[0].topic_id
    broker.find_coordinator()
    requests = [build('ShareFetchRequest', group_id=f'group {number}', member_id=f'member-{number:022}',
                      share_session_epoch=0, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, max_records=1, batch_size=1,
                      topics=[{'topic_id': topic_id, 'partitions': [
                          {'partition_index': index, 'acknowledgement_batches': []} for index in range(200)]}])
                for number in range(SHARE_SESSIONS + 200)]
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        codes = Counter(read_answer(requests[0], 1, reply).error_code
                        for reply in replies_to(attacker, (frame_of(request, 1) for request in requests)))
    assert codes == {ErrorCode.NONE: SHARE_SESSIONS, ErrorCode.SHARE_SESSION_LIMIT_REACHED: 200}


def test_topologies_of_as_many_subtopologies_as_a_group_may_have(besieged):
    broker = besieged()
    broker.find_coordinator()

    def join(group, subtopologies):
        return build('StreamsGroupHeartbeatRequest', group_id=group, member_id='member', member_epoch=0,
                     endpoint_information_epoch=0, shutdown_application=False, rebalance_timeout_ms=60_000,
                     process_id='process', active_tasks=[], standby_tasks=[], warmup_tasks=[], topology={
                         'epoch': 0, 'subtopologies': [
                             {'subtopology_id': str(number), 'source_topics': ['t'], 'source_topic_regex': [],
                              'repartition_sink_topics': [], 'repartition_source_topics': [], 'copartition_groups': [],
                              'state_changelog_topics': []} for number in range(subtopologies)]})

    with broker.watched(rss_mb=200), broker.connect() as attacker:
        for number in range(20):
            for subtopologies, code in ((1_000, ErrorCode.NONE), (3_000, ErrorCode.STREAMS_INVALID_TOPOLOGY)):
                answer = attacker.ask(join(f'group {number} of {subtopologies}', subtopologies), 0)
                assert answer.error_code == code, answer


def test_rights_without_end(besieged):
    broker = besieged({'authorizer.class.name': AUTHORIZER, 'super.users': 'User:ANONYMOUS'})
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        for turn in range(20):
            answer = attacker.ask(build('CreateAclsRequest', creations=[
                {'resource_type': 2, 'resource_name': f'{turn} {number}' + 'r' * 200, 'resource_pattern_type': 3,
                 'principal': f'User:{number}', 'host': '*', 'operation': 3, 'permission_type': 3}
                for number in range(1_000)]), 3)
            assert {row.error_code for row in answer.results} == {ErrorCode.NONE}


def test_denials_of_ever_new_names(besieged):
    guarded = Guarded(besieged, authorizer_class_name=AUTHORIZER, super_users='User:ANONYMOUS')
    with guarded.broker.watched(rss_mb=200), guarded.log_in() as attacker:
        for turn in range(100):
            answer = attacker.ask(build('DescribeConfigsRequest', resources=[
                {'resource_type': 2, 'resource_name': f'{turn} {number}' + 'r' * 200, 'configuration_keys': None}
                for number in range(100)]), 4)
            assert {row.error_code for row in answer.results} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert guarded.broker.held('different denials in the log') <= 2 * MOST_DENIAL_BYTES
    assert guarded.broker.held('remembered decisions') <= 64 << 20


def test_denials_of_the_names_that_take_the_most_memory(besieged):
    """Before the bound, a thousand denials took 286 MB, which the broker kept after the connection had closed."""
    guarded = Guarded(besieged, authorizer_class_name=AUTHORIZER, super_users='User:ANONYMOUS')
    requests = [build('FindCoordinatorRequest', key_type=0, coordinator_keys=[widest(f'{turn} {number}')
                                                                            for number in range(10)])
                for turn in range(150)]
    with guarded.broker.watched(rss_mb=150):
        with guarded.log_in() as attacker:
            codes = Counter(row.error_code for request in requests
                            for row in attacker.ask(request, 4).coordinators)
        assert codes == {ErrorCode.GROUP_AUTHORIZATION_FAILED: 1_500}
        assert MOST_DENIAL_BYTES // 2 < guarded.broker.held('different denials in the log') <= 2 * MOST_DENIAL_BYTES


def test_client_ids_that_take_the_most_memory_where_clients_have_quotas(besieged):
    """Before the bound, 10,000 client ids took 1,292 MB and were never freed. The attack needs no login."""
    broker = besieged()
    with broker.connect() as client:
        answer = client.ask(build('AlterClientQuotasRequest', entries=[
            {'entity': [{'entity_type': 'client-id', 'entity_name': None}],
             'ops': [{'key': key, 'value': 1e9} for key in ('producer_byte_rate', 'request_percentage')]}]), 1)
        assert answer.entries[0].error_code == ErrorCode.NONE
    names = [widest(f'{number}') for number in range(10_000)]
    with broker.watched(rss_mb=150):
        with broker.connect() as attacker:
            for reply in replies_to(attacker, (with_client_id(name) for name in names)):
                assert reply
        assert broker.held('clients with quotas') <= MOST_METER_BYTES
        assert broker.held('counters of quotas') > MOST_METER_BYTES // 2


def widest(name):
    """Return a name with as many bytes as a string of the protocol may have. In memory, each of its characters takes
    four bytes."""
    return name + 'x' * (32_700 - len(name)) + EMOJI


def with_client_id(name):
    """Return the frame of an ApiVersions request of version 0 from a client of this name."""
    encoded = name.encode()
    return struct.pack('>hhih', ApiKey.API_VERSIONS, 0, 0, len(encoded)) + encoded


def test_fetches_of_as_many_partitions_as_one_may_name(besieged):
    broker = besieged()

    def fetch(partitions):
        return frame_of(build('FetchRequest', max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=[
            {'topic': 'unknown', 'partitions': [{'partition': number, 'fetch_offset': 0, 'partition_max_bytes': 1 << 20}
                                                for number in range(partitions)]}]), 12)

    request = build('FetchRequest')
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        for reply in replies_to(attacker, [fetch(99_999)] * 2, at_once=1):    # with the topic, these are 100,000
            assert read_answer(request, 12, reply).error_code == ErrorCode.NONE
        assert read_answer(request, 12, attacker.exchange(fetch(100_000))).error_code == ErrorCode.INVALID_REQUEST


def test_answers_about_groups_with_long_metadata(besieged):
    broker = besieged()
    broker.find_coordinator()
    groups = [f'group {number}' for number in range(6)]
    with broker.connect() as client:
        create(client, 'wide', 2_000)
        for group, first in itertools.product(groups, range(0, 2_000, 200)):
            partitions = [{'partition_index': number, 'committed_offset': 1, 'committed_metadata': 'm' * 4_000}
                          for number in range(first, first + 200)]
            answer = client.ask(build('OffsetCommitRequest', group_id=group, generation_id_or_member_epoch=-1,
                                      topics=[{'name': 'wide', 'partitions': partitions}]), 8)
            assert {row.error_code for topic in answer.topics for row in topic.partitions} == {ErrorCode.NONE}
    request = build('OffsetFetchRequest', groups=[{'group_id': group, 'topics': None} for group in groups])
    with broker.watched(rss_mb=250), broker.connect() as attacker:
        for _ in range(5):
            reply = attacker.exchange(frame_of(request, 9))
            assert len(reply) <= 40 << 20
            codes = Counter(group.error_code for group in read_answer(request, 9, reply).groups)
            assert codes == {ErrorCode.NONE: 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: 1}


def test_groups_of_producers_from_before_kip_890(besieged):
    broker = besieged()
    with broker.connect() as client:
        create(client, 'orders', 1)
    broker.find_coordinator()
    broker.find_coordinator(1, 'id')
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        found = attacker.ask(InitProducerIdRequest(transactional_id='id', transaction_timeout_ms=60_000), 3)
        for number in range(1_000):     # of each partition of `__consumer_offsets`
            assert attacker.ask(build('AddOffsetsToTxnRequest', transactional_id='id', group_id=f'group {number}',
                                      producer_id=found.producer_id, producer_epoch=found.producer_epoch), 3
                                ).error_code == 0
        topics = [{'name': 'orders', 'partitions': [
            {'partition_index': 0, 'committed_offset': 1, 'committed_metadata': ''}]}]
        requests = [build('TxnOffsetCommitRequest', transactional_id='id', group_id=f'group {number}', topics=topics,
                          producer_id=found.producer_id, producer_epoch=found.producer_epoch)
                    for number in range(12_000)]
        codes = Counter(read_answer(requests[0], 3, reply).topics[0].partitions[0].error_code
                        for reply in replies_to(attacker, (frame_of(request, 3) for request in requests)))
    assert codes == {0: 12_000}
    assert broker.held('groups of transactional producers') == 10_000


def changed_resources(kind, count):
    return build(kind, resources=[{'resource_type': 2, 'resource_name': f'{number}', 'configs': []}
                                  for number in range(count)])


def changed_configs(kind, count):
    return build(kind, resources=[{'resource_type': 4, 'resource_name': '1', 'configs': [
        {'name': f'{number}', 'value': '1'} for number in range(count)]}])


def described_resources(_kind, count):
    return build('DescribeConfigsRequest', resources=[
        {'resource_type': 32, 'resource_name': f'{number}', 'configuration_keys': ['x']}
        for number in range(count // 2)])


def described_configs(_kind, count):
    return build('DescribeConfigsRequest', resources=[
        {'resource_type': 4, 'resource_name': '1', 'configuration_keys': [f'{number}' for number in range(count - 1)]}])


def deleted_credentials(kind, count):
    return build(kind, upsertions=[], deletions=[{'name': f'{number}', 'mechanism': 1} for number in range(count)])


def shared_topics(kind, count):
    return build(kind, group_id='group', member_id='member', share_session_epoch=0, max_wait_ms=0, max_bytes=1,
                 max_records=1, topics=[{'topic_id': number.to_bytes(16, 'big'), 'partitions': [{'partition_index': 0}]}
                                        for number in range(count)])


@pytest.mark.parametrize(('api', 'request_of', 'version', 'most'), [
    ('AlterConfigs', changed_resources, 2, 10_000), ('IncrementalAlterConfigs', changed_resources, 1, 10_000),
    ('AlterConfigs', changed_configs, 2, 10_000), ('DescribeConfigs', described_resources, 4, 50_000),
    ('DescribeConfigs', described_configs, 4, 50_000), ('AlterUserScramCredentials', deleted_credentials, 0, 10_000),
    ('ShareFetch', shared_topics, 2, 20_000)])
def test_requests_of_as_many_elements_as_one_may_have_and_of_far_more(besieged, api, request_of, version, most):
    broker = besieged()
    broker.find_coordinator()
    requests = [request_of(f'{api}Request', count) for count in (most, 200_000)]
    with broker.watched(rss_mb=300), broker.connect() as attacker:
        for _ in range(2):
            for request in requests:
                attacker.exchange(frame_of(request, version))
