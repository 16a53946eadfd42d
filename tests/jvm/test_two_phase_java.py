"""Two-phase commit (KIP-939) works for a Java producer that dies after it has prepared. Clients without two-phase
commit, and Apache Kafka on the same directory, still work.
"""
import json
import time
from contextlib import suppress

import confluent_kafka
import pytest
from click.testing import CliRunner
from late_commits import (
    EXECUTED,
    NEWER_OFFSETS_COUNT,
    OLDER_OFFSETS_COUNT,
    REFUSED,
    effect_of_a_late_commit,
    effect_of_late_offsets,
)
from raw_peer import RawPeer
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.brokers.killing_broker import PREPARE, KillingBroker, Point
from support.clients.librdkafka import LIMIT_S, create_topics, values_of
from support.clients.raw_client import RawClient
from support.clients.two_phase_application import BUSY, TwoPhaseApplication, find_coordinators
from support.kafka.apache_kafka import KafkaProcess, run_several_tools, run_tools
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.client import Producer
from kbroker.daemon.main import main

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SETTINGS = {**PROMPT, 'transaction.two.phase.commit.enable': 'true', 'transaction.state.log.num.partitions': '1',
            'offsets.topic.num.partitions': '1'}
TOOL = 'org.apache.kafka.tools.TransactionsCommand'
NEVER_MS = 2147483647


@pytest.fixture(scope='module')
def broker(tmp_path_factory):
    with KillingBroker(tmp_path_factory.mktemp('two-phase') / 'data', SETTINGS) as broker:
        create_topics(broker.address, java=1, wrong=1, others=1, moved=1, orders=2)
        yield broker


def java_step(broker, step, transactional_id='tx', topic='java', token=''):
    """Run a step of the Java producer. Return {name: value} of the values that it prints."""
    done, = run_several_tools([['kbroker.TwoPhase', broker.address, step, transactional_id, topic, token]])
    assert done.code == 0, done.errors
    return dict(line.split(' ', 1) for line in done.output.splitlines())


def await_values(address, topic, expected, partition=0):
    """Read until the committed values are the expected values. Brokers answer before they write the markers."""
    deadline = time.monotonic() + LIMIT_S
    while (found := values_of(address, topic, [partition])) != expected:
        assert time.monotonic() < deadline, f'found {found}, expected {expected}'


def five(value):
    return [f'{value} {number}' for number in range(5)]


def test_version_6_of_init_producer_id_is_still_unstable_in_kafka(broker):
    """Kafka's clients do not use version 6 by default, so TwoPhase.java patches them, and the broker needs a setting to
    serve it. When this test fails, neither is needed any longer.
    """
    assert java_step(broker, 'unstable')['unstable'] == 'true'


def test_clients_without_two_phase_commit_see_no_difference(broker):
    java_step(broker, 'ordinary', 'java', 'others')
    producer = confluent_kafka.Producer({'bootstrap.servers': broker.address, 'transactional.id': 'librdkafka'})
    producer.init_transactions(LIMIT_S)
    for number in range(2):
        producer.begin_transaction()
        producer.produce('others', f'librdkafka {number}')
        producer.commit_transaction(LIMIT_S)
    await_values(broker.address, 'others', [*five('ordinary'), 'librdkafka 0', 'librdkafka 1'])


def test_a_transaction_that_a_java_producer_prepared_outlives_both_and_is_committed_by_the_next_one(broker):
    token = java_step(broker, 'prepare')['token']
    broker.kill9()
    broker.start()
    assert values_of(broker.address, 'java', [0]) == []
    assert java_step(broker, 'recover', token=token) == {'prepared': 'true', 'token': token}
    await_values(broker.address, 'java', [*five('prepared tx'), *five('after tx')])
    assert java_step(broker, 'zombie')['zombie'] == 'ProducerFencedException'
    assert java_step(broker, 'recover', token=token) == {'prepared': 'false'}


def test_a_transaction_that_was_not_decided_is_aborted_by_its_token(broker):
    java_step(broker, 'prepare', 'tx-2', 'wrong')
    assert java_step(broker, 'recover', 'tx-2', 'wrong', '4711:0')['prepared'] == 'true'
    await_values(broker.address, 'wrong', five('after tx-2'))


def answers_without_a_keep(address, transactional_id):
    """Send InitProducerId requests of version 6 that Apache Kafka also serves. Return the error codes, epochs and
    ongoing transactions in the answers, and the timeout.
    """
    peer = RawPeer(address, 'moved')
    try:
        peer.prepare('FindCoordinator', 4, coordinator_keys=[transactional_id], key_type=1)

        def init(timeout_ms, settles=True, **fields):
            ask = peer.ask_settled if settles else peer.ask
            answer = ask('InitProducerId', 6, **{'transactional_id': transactional_id, **fields},
                         transaction_timeout_ms=timeout_ms)
            return (answer.error_code, answer.producer_epoch, answer.ongoing_txn_producer_id,
                    answer.ongoing_txn_producer_epoch), answer.producer_id

        found = [init(timeout_ms, enable2_pc=True)[0] for timeout_ms in (60_000, 3_600_000, -5)]
        found += [init(timeout_ms)[0] for timeout_ms in (NEVER_MS, 3_600_000)]
        found += [init(60_000, enable2_pc=True, **fields)[0] for fields in (
            dict(producer_id=5), dict(transactional_id=None))]
        (_, epoch, *_), producer_id = init(60_000, enable2_pc=True)
        peer.ask_settled('AddPartitionsToTxn', 3, v3_and_below_transactional_id=transactional_id,
                         v3_and_below_producer_id=producer_id, v3_and_below_producer_epoch=epoch,
                         v3_and_below_topics=[dict(name='moved', partitions=[0])])
        described = peer.ask('DescribeTransactions', 0, transactional_ids=[transactional_id]).transaction_states[0]
        found += [(described.transaction_state, described.transaction_timeout_ms)]
        found += [init(60_000, enable2_pc=True, settles=settles)[0] for settles in (False, True)]
        return found
    finally:
        peer.close()


@pytest.mark.parametrize(('is_checked', 'effect_of_commit', 'effect_of_offsets'), [
    ('true', REFUSED, NEWER_OFFSETS_COUNT), ('false', EXECUTED, OLDER_OFFSETS_COUNT)])
def test_late_requests_change_a_transaction_unless_they_are_refused(tmp_path, is_checked, effect_of_commit,
                                                                    effect_of_offsets):
    """A late request changes a transaction unless the broker checks for stale requests. Apache Kafka executes late
    requests, which another test checks on its broker.
    """
    settings = {**PROMPT, 'kbroker.transaction.stale.request.check.enable': is_checked}
    with BrokerProcess(tmp_path / 'data', settings) as broker:
        assert effect_of_a_late_commit(broker.address, 'late') == effect_of_commit
        assert effect_of_late_offsets(broker.address, 'late-offsets') == effect_of_offsets


def keep_another(broker):
    """Prepare and keep a transaction that writes to the topic `others`. Return its token."""
    with (Producer(broker.address, transactional_id='left', two_phase_commit=True) as producer,
          producer.transaction() as transaction):
        producer.send('others', b'left', partition=0)
        token = str(transaction.prepare())
    with Producer(broker.address, transactional_id='left', two_phase_commit=True) as heir:
        assert str(heir.prepared) == token
    return token


def write_and_prepare(broker, name, keeps=0):
    """Let a client prepare a transaction, and further clients keep it. Return the application of the last client."""
    with RawClient.at(broker.address, LIMIT_S) as client:
        find_coordinators(client)
        application = TwoPhaseApplication(name, is_to_commit=True, keeps=keeps)
        application.write(client)
        for _ in range(keeps):
            assert application.initialize(client, keeps=True) == application.token
    return application


def end(address, name, pair):
    """Commit a transaction with a client's producer id and epoch. Repeat the request until the coordinator is loaded.
    Return the error code.
    """
    deadline = time.monotonic() + LIMIT_S
    request = build('EndTxnRequest', transactional_id=name, producer_id=pair[0], producer_epoch=pair[1], committed=True)
    with RawClient.at(address, LIMIT_S) as client:
        while (code := client.ask(request, 5).error_code) in BUSY:
            assert time.monotonic() < deadline, code
    return code


def check_ends(kafka, prepared, kept):
    """Check that Kafka executes a commit of the client that prepared a transaction, even if another one has kept it."""
    assert end(kafka.address, prepared.name, prepared.pair) == ErrorCode.NONE
    assert end(kafka.address, kept.name, kept.pair) == ErrorCode.PRODUCER_FENCED
    assert end(kafka.address, kept.name, kept.producer) == ErrorCode.NONE


def hand_over(broker):
    """Bring the directory of a killed broker to rest. Return {transactional id: is kept} of the transactions in
    two-phase commit that stay open.
    """
    result = CliRunner().invoke(main, ['hand-over', '--data-dir', str(broker.directory), '--json'])
    assert result.exit_code == 0, result.stderr
    return {each['transactional_id']: each['is_kept'] for each in json.loads(result.stdout)['open_transactions']
            if each['is_two_phase']}


def kill_after_a_decision(broker):
    """Let the broker kill itself when a client decides a kept transaction, before it writes the first marker."""
    with RawClient.at(broker.address, LIMIT_S) as client:
        find_coordinators(client)
    broker.stop()
    broker.point, broker.transactional_id = Point('__transaction_state-0', PREPARE, 1, 'after'), 'decided'
    broker.start()
    application = TwoPhaseApplication('decided', is_to_commit=True, keeps=1)
    with RawClient.at(broker.address, LIMIT_S) as client, suppress(ConnectionError):
        application.run(client)
    broker.wait_killed()
    broker.point = None


def test_kafka_opens_a_killed_directory_with_kept_transactions_and_loses_none(broker):
    """Kafka answers InitProducerId 6 as kbroker does, except that it refuses a client that keeps a transaction. The
    client that has prepared a transaction can commit it on Kafka. Kafka does not know the client that has kept one, and
    executes a commit of the client before it. `kbroker hand-over` completes the decided transactions before Kafka
    starts, and kbroker continues the other transactions afterwards.
    """
    token = java_step(broker, 'prepare', 'moved', 'moved')['token']
    with Producer(broker.address, transactional_id='moved', two_phase_commit=True) as heir:
        assert str(heir.prepared) == token
    answers = answers_without_a_keep(broker.address, 'compared-1')
    others_before = values_of(broker.address, 'others', [0])
    left = keep_another(broker)
    prepared, kept = write_and_prepare(broker, 'prepared'), write_and_prepare(broker, 'kept', keeps=1)
    kill_after_a_decision(broker)
    assert hand_over(broker) == {'moved': True, 'left': True, 'prepared': False, 'kept': True}
    with KafkaProcess(broker.directory, {'transaction.two.phase.commit.enable': 'true',
                                         'unstable.api.versions.enable': 'true'}) as kafka:
        place = ['--bootstrap-server', kafka.address]
        described, forced, listed, others = run_tools(
            TOOL, [*place, 'describe', '--transactional-id', 'moved'],
            [*place, 'forceTerminateTransaction', '--transactionalId', 'moved'],
            [*place, 'describe', '--transactional-id', 'moved'], [*place, 'describe', '--transactional-id', 'left'])
        assert others.output.splitlines()[1].split()[1:6] == ['left', *left.split(':'), 'Ongoing', str(NEVER_MS)]
        fields = described.output.splitlines()[1].split()
        assert fields[1:6] == ['moved', *token.split(':'), 'Ongoing', str(NEVER_MS)], described
        assert forced.code == 0, forced
        assert 'Ongoing' not in listed.output
        assert values_of(kafka.address, 'moved', [0]) == []
        assert answers_without_a_keep(kafka.address, 'compared-2') == answers
        assert effect_of_a_late_commit(kafka.address, 'late') == EXECUTED
        assert effect_of_late_offsets(kafka.address, 'late-offsets') == OLDER_OFFSETS_COUNT
        check_ends(kafka, prepared, kept)
        for partition in (0, 1):
            await_values(kafka.address, 'orders', ['prepared', 'kept', 'decided'], partition)
        assert kafka.errors() == []
        kafka.stop()
    broker.start()
    with Producer(broker.address, transactional_id='left', two_phase_commit=True) as heir:
        assert str(heir.prepared) == left
        assert heir.complete(left)
    with Producer(broker.address, transactional_id='decided', two_phase_commit=True) as heir:
        assert heir.prepared is None
        with heir.transaction():
            for partition in (0, 1):
                heir.send('orders', b'after', partition=partition)
    await_values(broker.address, 'others', [*others_before, 'left'])
    for partition in (0, 1):
        await_values(broker.address, 'orders', ['prepared', 'kept', 'decided', 'after'], partition)
    broker.stop()


def test_kafka_4_4_ends_the_transactions_of_a_killed_directory_as_4_3_does(tmp_path):
    with KillingBroker(tmp_path / 'data', SETTINGS) as broker:
        create_topics(broker.address, orders=2)
        prepared, kept = write_and_prepare(broker, 'prepared'), write_and_prepare(broker, 'kept', keeps=1)
        kill_after_a_decision(broker)
        assert hand_over(broker) == {'prepared': False, 'kept': True}
        with KafkaProcess(broker.directory, {'transaction.two.phase.commit.enable': 'true'}, '4.4') as kafka:
            check_ends(kafka, prepared, kept)
            for partition in (0, 1):
                await_values(kafka.address, 'orders', ['prepared', 'kept', 'decided'], partition)
            assert kafka.errors() == []
            kafka.stop()
