"""Decisions by ACLs equal those of a naive reference, and an Access remembers them."""
import gc
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import access_control

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.repeats import WINDOW_MS
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.authorizer import Authorizer
from kbroker.security.decision_log import MOST_DENIAL_BYTES, MOST_DENIALS, DecisionLog
from kbroker.security.hosts import _host_key, host_key
from kbroker.security.principal import Principal, parse_principal

ALICE, BOB = parse_principal('User:alice'), parse_principal('User:bob')
HERE = '10.0.0.1'
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def acl(number, permission, principal, operation, name, pattern='LITERAL', resource_type=TOPIC, host='*'):
    return AccessControlEntryRecord(
        id=number.to_bytes(16, 'big'), resource_type=resource_type, resource_name=name,
        pattern_type=PatternType[pattern], principal=principal, host=host, operation=operation,
        permission_type=Permission[permission])


def authorizer_of(*entries, **settings):
    authorizer = Authorizer(**settings)
    for number, entry in enumerate(entries):
        authorizer.put(acl(number, *entry))
    return authorizer


# There are few names and hosts, so that several ACLs apply to one request.
NAMES = st.sampled_from(['a', 'ab', 'abc', 'b', '*', 'hardcode', 'ä', '\U0001f600'])
USERS = st.sampled_from(['User:alice', 'User:bob', 'Other:alice', 'User:*', 'User:CN=a,OU=b'])
HOSTS = st.sampled_from(['10.0.0.1', '10.0.0.2', '::1', '0:0:0:0:0:0:0:1', '::ffff:10.0.0.1', 'fe80::1%eth0'])
RANGES = st.sampled_from(['10.0.0.0/31', '10.0.0.1/8', '10.0.0.0/8', '0.0.0.0/0', '::/0', '::1/128', 'fe80::/10',
                          '10.0.0.0/33'])
TYPES = st.sampled_from([TOPIC, GROUP, CLUSTER])
OPERATIONS = st.sampled_from([operation for operation in Operation if operation >= READ])
ENTRIES = st.builds(
    acl, st.integers(0, 30), st.sampled_from(['DENY', 'ALLOW']), USERS, st.one_of(OPERATIONS, st.just(Operation.ALL)),
    NAMES, st.sampled_from(['LITERAL', 'PREFIXED']), TYPES,
    st.one_of(HOSTS, RANGES, st.just('*'), st.just('no address')))
CHANGES = st.lists(st.one_of(ENTRIES, st.integers(0, 30)), max_size=25)


@given(CHANGES, st.sets(USERS, max_size=1), st.booleans(),
       st.lists(st.tuples(USERS, HOSTS, OPERATIONS, TYPES, NAMES), min_size=1, max_size=8))
def test_decisions_are_those_of_the_reference_after_any_changes(changes, super_users, everyone, questions):
    authorizer = Authorizer([parse_principal(text) for text in super_users], everyone)
    entries = {}
    for change in [None, *changes]:
        if isinstance(change, int):
            entries.pop(change.to_bytes(16, 'big'), None)
            authorizer.remove(change.to_bytes(16, 'big'))
        elif change is not None:
            entries[change.id] = change
            authorizer.put(change)
        for who, host, operation, resource_type, name in questions:
            access = authorizer.access_of(parse_principal(who), host)
            expected = access_control.is_allowed(
                entries.values(), super_users, everyone, (who, host, operation, resource_type, name))
            assert access.may(operation, resource_type, name) is expected
            assert access.may(operation, resource_type, name) is expected, 'from memory'
            expected = access_control.is_allowed_by_type(
                entries.values(), super_users, everyone, (who, host, operation, resource_type))
            assert access.may_by_type(operation, resource_type) is expected
    assert len(authorizer) == len(entries)


@given(CHANGES)
def test_an_index_without_entries_holds_nothing(changes):
    authorizer = Authorizer()
    for change in changes:
        if not isinstance(change, int):
            authorizer.put(change)
    for entry_id in list(authorizer.index.entries):
        authorizer.remove(entry_id)
    assert [held for held in vars(authorizer.index).values() if held and not (
        isinstance(held, dict) and not any(held.values()))] == []


@pytest.mark.parametrize(('who', 'operation', 'name', 'expected', 'with_everyone'), [
    (ALICE, READ, 't', True, True), (ALICE, DESCRIBE, 't', True, True), (ALICE, WRITE, 't', False, False),
    (ALICE, WRITE, 'x', False, True), (BOB, DESCRIBE, 't', False, False), (BOB, READ, 'u', False, True)])
def test_the_decisions_that_were_seen_on_apache_kafka(who, operation, name, expected, with_everyone):
    for everyone, wanted in ((False, expected), (True, with_everyone)):
        authorizer = authorizer_of(('ALLOW', 'User:alice', READ, 't'), ('DENY', 'User:*', WRITE, 't', 'PREFIXED'),
                                   allow_if_no_acl=everyone)
        assert authorizer.access_of(who, HERE).may(operation, TOPIC, name) is wanted


@pytest.mark.parametrize(('pattern', 'name', 'expected'), [
    ('PREFIXED', 'a', False), ('PREFIXED', 'abc', True), ('LITERAL', 'ab', True)])
def test_a_right_to_some_resource_is_lost_to_a_denial_that_covers_it(pattern, name, expected):
    authorizer = authorizer_of(('ALLOW', 'User:alice', WRITE, 'ab', 'PREFIXED'),
                               ('DENY', 'User:alice', WRITE, name, pattern))
    assert authorizer.access_of(ALICE, HERE).may_by_type(WRITE, TOPIC) is expected


@pytest.mark.parametrize(('entries', 'host', 'expected'), [
    ([('ALLOW', '10.0.0.0/8')], '10.9.9.9', True),
    ([('ALLOW', '10.0.0.0/8')], '11.0.0.1', False),
    ([('ALLOW', '10.0.0.0/8'), ('DENY', '10.9.0.0/16')], '10.9.9.9', False),
    ([('ALLOW', '10.9.9.9'), ('DENY', '10.0.0.0/8')], '10.9.9.9', False),
    ([('ALLOW', '10.0.0.0/8'), ('DENY', '10.9.9.9')], '10.9.9.9', False),
    ([('ALLOW', '10.0.0.0/8'), ('DENY', '10.9.9.9')], '10.9.9.8', True),
    ([('ALLOW', '*'), ('DENY', '::/0')], '10.9.9.9', True)])
def test_a_denial_for_a_range_overrides_every_right_of_a_host_in_it(entries, host, expected):
    authorizer = authorizer_of(*((permission, 'User:*', READ, 't', 'LITERAL', TOPIC, where)
                                 for permission, where in entries))
    assert authorizer.access_of(ALICE, host).may(READ, TOPIC, 't') is expected
    assert authorizer.access_of(ALICE, host).may_by_type(READ, TOPIC) is expected


def test_a_range_that_comes_or_goes_changes_the_rights_of_connected_clients():
    authorizer = authorizer_of()
    access = authorizer.access_of(ALICE, HERE)
    assert not access.may(READ, TOPIC, 't')
    for number, host in enumerate(('10.0.0.0/8', '10.0.0.1/8')):
        authorizer.put(acl(number, 'ALLOW', 'User:alice', READ, 't', host=host))
    assert access.may(READ, TOPIC, 't')
    authorizer.remove((0).to_bytes(16, 'big'))
    assert access.may(READ, TOPIC, 't'), 'by the other spelling'
    authorizer.remove((1).to_bytes(16, 'big'))
    assert not access.may(READ, TOPIC, 't')


def test_a_resource_without_a_name_is_denied():
    authorizer = authorizer_of(('ALLOW', 'User:*', Operation.ALL, '*', 'LITERAL', ResourceType.TRANSACTIONAL_ID))
    assert authorizer.access_of(ALICE, HERE).may(WRITE, ResourceType.TRANSACTIONAL_ID, 'name') is True
    assert authorizer.access_of(ALICE, HERE).may(WRITE, ResourceType.TRANSACTIONAL_ID, None) is False


# ---- memory

def test_what_is_remembered_is_bounded_over_all_clients():
    authorizer = Authorizer(allow_if_no_acl=True)
    caches = authorizer.caches
    caches.most_bytes, caches.most_bytes_of_one = 40_000, 20_000
    clients = [authorizer.access_of(Principal('User', f'{number}'), HERE) for number in range(10)]
    for number in range(2000):
        for client in clients:
            assert client.may(READ, TOPIC, f'name-{number}')
            assert caches.held_bytes <= 40_000
    assert caches.held_bytes > 10_000
    del clients, client
    gc.collect()
    assert caches.held_bytes == 0


def test_a_name_that_no_memory_is_left_for_is_decided_all_the_same():
    authorizer = authorizer_of(('ALLOW', 'User:alice', READ, 'n', 'PREFIXED'))
    authorizer.caches.most_bytes = 0
    access = authorizer.access_of(ALICE, HERE)
    for _ in range(2):
        assert access.may(READ, TOPIC, 'n' * 30_000)
        assert not access.may(WRITE, TOPIC, 'n' * 30_000)
    assert authorizer.caches.held_bytes == 0


def test_clients_at_one_address_share_their_rights_however_it_is_spelled():
    authorizer = Authorizer()
    assert authorizer.access_of(ALICE, '::1') is authorizer.access_of(ALICE, '0:0:0:0:0:0:0:1')
    assert authorizer.access_of(ALICE, '::ffff:10.0.0.1') is authorizer.access_of(ALICE, '10.0.0.1')
    assert authorizer.access_of(ALICE, '::1') is not authorizer.access_of(BOB, '::1')


# ---- the log of decisions

class Api:
    class key:
        name = 'FETCH'


class Asker:
    api = Api


@pytest.fixture
def timers():
    return Timers(ManualClock())


def advance(timers, clock, ms):
    clock.advance(ms)
    timers.run_due()


def test_decisions_are_logged_at_kafkas_levels(caplog):
    caplog.set_level(1, 'kbroker.authorizer')
    access = authorizer_of(('ALLOW', 'User:alice', READ, 'orders')).access_of(ALICE, HERE)
    access.may(READ, TOPIC, 'orders', Asker)
    access.may(DESCRIBE, TOPIC, 'orders', Asker, quiet=True)
    access.may(WRITE, TOPIC, 'orders', Asker)
    access.may(WRITE, TOPIC, 'orders', Asker, quiet=True)
    access.may_by_type(WRITE, TOPIC, Asker)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.DEBUG, 'allowed principal=User:alice host=10.0.0.1 operation=READ resource=TOPIC:LITERAL:orders '
         'request=FETCH rule="ALLOW User:alice from * READ on TOPIC:LITERAL:orders"'),
        (5, 'allowed principal=User:alice host=10.0.0.1 operation=DESCRIBE resource=TOPIC:LITERAL:orders '
         'request=FETCH rule="ALLOW User:alice from * READ on TOPIC:LITERAL:orders"'),
        (logging.INFO, 'denied principal=User:alice host=10.0.0.1 operation=WRITE resource=TOPIC:LITERAL:orders '
         'request=FETCH rule=DefaultDeny'),
        (5, 'denied principal=User:alice host=10.0.0.1 operation=WRITE resource=TOPIC:LITERAL:orders request=FETCH '
         'rule=DefaultDeny'),
        (5, 'denied principal=User:alice host=10.0.0.1 operation=WRITE resource=TOPIC:LITERAL:hardcode request=FETCH '
         'rule=DefaultDeny')]


def test_equal_denials_become_one_line_a_window(caplog):
    caplog.set_level(logging.INFO, 'kbroker.authorizer')
    clock = ManualClock()
    timers, reported = Timers(clock), []
    access = Authorizer(log=DecisionLog(timers, reported.append)).access_of(ALICE, HERE)

    def lines():
        found = [record.getMessage().rpartition(' ')[2] for record in caplog.records]
        caplog.clear()
        return found

    for _ in range(100):
        access.may(READ, TOPIC, 'orders')
    assert lines() == ['rule=DefaultDeny']
    access.may(READ, TOPIC, 'other')
    assert lines() == ['rule=DefaultDeny']
    advance(timers, clock, WINDOW_MS)
    assert lines() == ['repeated=99']
    access.may(READ, TOPIC, 'orders')
    advance(timers, clock, WINDOW_MS)
    assert lines() == ['repeated=1']
    advance(timers, clock, WINDOW_MS)
    assert (lines(), len(timers)) == ([], 0)
    assert [fields.get('repeated') for fields in reported] == [None, None, 99, 1]


def test_the_table_of_denials_is_bounded_and_nothing_is_lost(caplog):
    caplog.set_level(logging.INFO, 'kbroker.authorizer')
    log = DecisionLog(Timers(ManualClock()))
    access = Authorizer(log=log).access_of(ALICE, HERE)
    for number in range(3 * MOST_DENIALS):
        for _ in range(2):
            access.may(READ, TOPIC, f'{number}')
    assert len(log) == MOST_DENIALS + 1
    assert len(caplog.records) == MOST_DENIALS + 1, 'a client that tries names does not fill the log'
    log.close()
    repeated = [int(found[1]) for record in caplog.records
                if (found := re.search(r'repeated=(\d+)$', record.getMessage()))]
    assert sum(repeated) + MOST_DENIALS + 1 == 6 * MOST_DENIALS
    assert repeated[-1] == 4 * MOST_DENIALS - 1
    assert 'resource=TOPIC:(others)' in caplog.messages[-1]


def test_a_name_cannot_forge_a_log_line(caplog):
    caplog.set_level(logging.INFO, 'kbroker.authorizer')
    access = Authorizer().access_of(Principal('User', 'eve rule=SuperUser'), HERE)
    access.may(READ, TOPIC, 'a\nallowed principal=User:admin\x1b[2J\u202e')
    record, = caplog.records
    assert record.getMessage() == (
        'denied principal="User:eve rule=SuperUser" host=10.0.0.1 operation=READ '
        'resource="TOPIC:LITERAL:a\\nallowed principal=User:admin\\x1b[2J\\u202e" rule=DefaultDeny')


def test_long_hosts_of_acls_are_not_remembered():
    """Before the bound, a thousand of the longest hosts took 268 MB."""
    before = _host_key.cache_info().misses
    for number in range(10):
        text = f'{number}' + 'h' * 30_000
        assert host_key(text) is text
    assert _host_key.cache_info().misses == before
    assert host_key('0:0:0:0:0:0:0:1') == '::1'


def test_denials_of_long_names_are_counted_together_and_nothing_is_lost(caplog):
    caplog.set_level(logging.INFO, 'kbroker.authorizer')
    log = DecisionLog(Timers(ManualClock()))
    access = Authorizer(log=log).access_of(ALICE, HERE)
    for number in range(100):
        access.may(READ, GROUP, f'{number}' + 'g' * 30_000 + '\U0001f600')
    assert 2 < len(log) < 20 and log.held_bytes <= 2 * MOST_DENIAL_BYTES
    written = len(caplog.records)
    log.close()
    assert (len(log), log.held_bytes) == (0, 0)
    repeated = [int(found[1]) for record in caplog.records
                if (found := re.search(r'repeated=(\d+)$', record.getMessage()))]
    assert sum(repeated) + written == 100
