"""Access control as confluent-kafka and kafka-python see it: rights that are given and taken while clients run.

Covers KIP-11 and KIP-290.
"""
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern
from kafka.admin import ResourceType as KafkaPythonType
from support.brokers.broker_process import PROMPT
from support.kafka.authorized_kafka import AuthorizedBroker, login_settings, password_of

from kbroker.base import errors
from kbroker.client import Acl, Admin
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

LIMIT_S = 120
ANY = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
                       AclPermissionType.ANY)


@pytest.fixture
def broker(tmp_path):
    with AuthorizedBroker(tmp_path / 'data', PROMPT, ['admin', 'alice'], ['admin']) as broker:
        yield broker


def settings_of(broker, user):
    return login_settings(broker.address, user)


def rule(operation, name, kind=ResourceType.TOPIC, pattern=ResourcePatternType.LITERAL, user='User:alice',
         permission=AclPermissionType.ALLOW):
    return AclBinding(kind, name, pattern, user, '*', operation, permission)


def done(futures):
    return [future.result(LIMIT_S) for future in futures.values()]


def test_rights_are_given_described_and_taken_while_a_producer_runs(broker):
    admin = AdminClient(settings_of(broker, 'admin'))
    done(admin.create_topics([NewTopic('orders', 1)]))
    write, describe = rule(AclOperation.WRITE, 'orders'), rule(AclOperation.DESCRIBE, 'ord', pattern=(
        ResourcePatternType.PREFIXED))
    done(admin.create_acls([write, describe]))
    assert sorted(map(str, admin.describe_acls(ANY).result(LIMIT_S))) == sorted(map(str, [write, describe]))

    answers = []
    producer = confluent_kafka.Producer(settings_of(broker, 'alice') | {'enable.idempotence': True, 'linger.ms': 0})

    def produced():
        """Produce a record. Return the error code, or None if the record was written."""
        producer.produce('orders', 'text', partition=0, on_delivery=lambda error, _: answers.append(error))
        assert producer.flush(LIMIT_S) == 0
        return None if answers[-1] is None else answers[-1].code()

    assert produced() is None
    refused = rule(AclOperation.WRITE, 'orders', permission=AclPermissionType.DENY, user='User:*')
    done(admin.create_acls([refused]))
    assert produced() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    deleted, = done(admin.delete_acls([AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.DENY)]))
    assert list(map(str, deleted)) == [str(refused)]
    producer = confluent_kafka.Producer(settings_of(broker, 'alice') | {'linger.ms': 0})
    assert produced() is None
    assert len(done(admin.delete_acls([ANY]))[0]) == 2
    assert produced() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert any('denied' in line and 'User:alice' in line and 'PRODUCE' in line for line in broker.lines)


def test_a_consumer_loses_its_topic_at_once(broker):
    """The client keeps the right to find the group's coordinator. Otherwise its FindCoordinator could be refused,
    because it can wait behind a Fetch on the same connection until the rights are removed. Without a coordinator,
    librdkafka defers a commit for 45 s.
    """
    admin = AdminClient(settings_of(broker, 'admin'))
    done(admin.create_topics([NewTopic('orders', 1)]))
    done(admin.create_acls([rule(AclOperation.READ, 'orders'), rule(AclOperation.READ, 'readers', ResourceType.GROUP),
                            rule(AclOperation.DESCRIBE, 'readers', ResourceType.GROUP)]))
    producer = confluent_kafka.Producer(settings_of(broker, 'admin'))
    producer.produce('orders', 'one', partition=0)
    assert producer.flush(LIMIT_S) == 0
    consumer = confluent_kafka.Consumer(settings_of(broker, 'alice') | {
        'group.id': 'readers', 'auto.offset.reset': 'earliest', 'enable.auto.commit': False})
    consumer.assign([TopicPartition('orders', 0, 0)])
    assert consumer.poll(LIMIT_S).value() == b'one'
    consumer.commit(offsets=[TopicPartition('orders', 0, 1)], asynchronous=False)
    deleted, = done(admin.delete_acls([AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.READ, AclPermissionType.ANY)]))
    assert len(deleted) == 2
    producer.produce('orders', 'two', partition=0)
    assert producer.flush(LIMIT_S) == 0
    message = consumer.poll(LIMIT_S)
    while message is not None and message.error() is None:
        message = consumer.poll(LIMIT_S)
    assert message is not None and message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException, match='GROUP_AUTHORIZATION_FAILED'):
        consumer.commit(offsets=[TopicPartition('orders', 0, 1)], asynchronous=False)
    consumer.close()


def test_a_user_without_the_right_to_change_rights_is_refused(broker):
    alice = AdminClient(settings_of(broker, 'alice'))
    for ask in (lambda: done(alice.create_acls([rule(AclOperation.ALL, '*')])), lambda: done(alice.delete_acls([ANY]))):
        with pytest.raises(KafkaException) as refused:
            ask()
        assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    cluster = Cluster(ClientConfig.from_settings(settings_of(broker, 'alice')))
    with pytest.raises(errors.KafkaError) as denied:
        Admin(cluster).describe_acls()
    assert denied.value.code is errors.ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    cluster.close()


def test_kbrokers_client_creates_describes_and_deletes_acls_by_name(broker):
    with Admin(settings=settings_of(broker, 'admin')) as admin:
        rules = [Acl('topic', 'named-', 'prefixed', 'User:alice', '*', 'read', 'allow'),
                 Acl('transactional_id', 'named-id', 'literal', 'User:alice', '*', 'two-phase-commit', 'deny')]
        admin.create_acls(rules)
        rules[1] = rules[1]._replace(operation='two_phase_commit')
        assert sorted(admin.describe_acls(Acl(principal='User:alice', operation='read', pattern_type='prefixed'))
                      + admin.describe_acls(Acl(resource_name='named-id'))) == rules
        assert sorted(admin.delete_acls([Acl('topic', 'named-orders', 'match'), Acl('transactional-id')])) == rules
        assert not set(rules) & set(admin.describe_acls())


def test_kafka_python_creates_describes_and_deletes_acls(broker):
    admin = KafkaAdminClient(bootstrap_servers=broker.address, security_protocol='SASL_PLAINTEXT',
                             sasl_mechanism='PLAIN', sasl_plain_username='admin',
                             sasl_plain_password=password_of('admin'))
    acl = ACL(principal='User:alice', host='*', operation=ACLOperation.READ, permission_type=ACLPermissionType.ALLOW,
              resource_pattern=ResourcePattern(KafkaPythonType.TOPIC, 'orders'))
    created = admin.create_acls([acl])
    assert (created['succeeded'], created['failed']) == ([acl], [])
    every = ACLFilter(principal=None, host=None, operation=ACLOperation.ANY, permission_type=ACLPermissionType.ANY,
                      resource_pattern=acl.resource_pattern)
    found, error = admin.describe_acls(every)
    assert found == [acl]
    (_, deleted, error), = admin.delete_acls([every])
    assert deleted == [acl]
    assert error.errno == 0
    admin.close()
