"""A reset makes a broker as empty as it was when it started."""
import time

from support.brokers.in_process_broker import InProcessBroker
from support.runner.attempts import assert_within

from kbroker.base.long_work import run_to_end
from kbroker.control.reset import reset
from kbroker.metadata.image import ResourceType
from kbroker.protocol.messages import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    RemoveAccessControlEntryRecord,
    UserScramCredentialRecord,
)

OURS, THEIRS = b'o' * 16, b't' * 16


def write(broker, *records):
    broker.metadata.at_once(broker.metadata.commits.write(records))


def broker_config(value):
    return ConfigRecord(resource_type=ResourceType.BROKER, resource_name='', name='log.retention.ms', value=value)


def quota(name, value, remove=False):
    return ClientQuotaRecord(entity=[ClientQuotaRecord.EntityData(entity_type='user', entity_name=name)],
                             key='producer_byte_rate', value=value, remove=remove)


def acl(entry_id):
    return AccessControlEntryRecord(id=entry_id, resource_type=2, resource_name='payments', pattern_type=3,
                                    principal='User:a', host='*', operation=3, permission_type=3)


def credential(name, iterations):
    return UserScramCredentialRecord(name=name, mechanism=1, salt=b's', stored_key=b'k', server_key=b'k',
                                     iterations=iterations)


def settings_of(image):
    return (image.configs, image.client_quotas, image.access_control_entries,
            {key: record.iterations for key, record in image.scram_credentials.items()})


def test_topics_and_the_state_of_coordinators_are_gone(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        before = broker.metadata.image
        for name in ('payments', '__consumer_offsets', '__transaction_state'):
            broker.topics.ensure_internal(name) if name.startswith('__') else broker.topics.create(name, 2, {})
        run_to_end(reset(broker, before))
        assert broker.topics.topics() == []
        assert broker.metadata.image.topics == {}
        broker.turn()
        assert [path.name for path in (tmp_path / 'data').iterdir() if path.name[0] == 'p'] == []
        broker.topics.create('payments', 1, {})
        assert broker.topics.ensure_internal('__consumer_offsets').partitions


def test_a_reset_of_twenty_topics_takes_at_most_20_ms(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        before = broker.metadata.image
        for number in range(20):
            broker.topics.create(f'topic-{number}', 1, {})
        for name in ('__consumer_offsets', '__transaction_state'):
            broker.topics.ensure_internal(name)
        broker.turn()
        began_s = time.thread_time()
        run_to_end(reset(broker, before))
        assert_within(time.thread_time() - began_s, 0.02)


def test_settings_that_were_added_are_removed(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        before = broker.metadata.image
        default = broker.config.log_retention_ms
        write(broker, broker_config('5000'), quota('a', 1000.0), acl(THEIRS), credential('a', 4096),
              ConfigRecord(resource_type=ResourceType.GROUP, resource_name='g', name='share.auto.offset.reset',
                           value='earliest'))
        run_to_end(broker.reconfigure())
        assert broker.config.log_retention_ms == 5000
        run_to_end(reset(broker, before))
        assert settings_of(broker.metadata.image) == settings_of(before)
        assert broker.config.log_retention_ms == default


def test_settings_that_were_changed_or_removed_are_as_at_the_start(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        write(broker, broker_config('5000'), quota('a', 1000.0), acl(OURS), credential('a', 4096))
        before = broker.metadata.image
        write(broker, broker_config('6000'), quota('a', 0.0, remove=True), quota('b', 2000.0), credential('a', 8192),
              RemoveAccessControlEntryRecord(id=OURS))
        run_to_end(reset(broker, before))
        assert settings_of(broker.metadata.image) == settings_of(before)
        assert broker.config.log_retention_ms == 5000
