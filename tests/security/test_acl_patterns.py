"""The tree of prefixes finds the same prefixes as a walk over a dict. A decision stays short, however many ACLs there
are."""
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runner.attempts import assert_within

from kbroker.base.long_work import PART, Pace
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.acl_patterns import AclsOfPattern, PrefixTree
from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import parse_principal

# The letters take one, two and four bytes of memory. They are few, so that a prefix often begins with another prefix.
PREFIXES = st.text('ab\u0142\U0001f600', max_size=6)


def acls_of(prefix):
    return AclsOfPattern((ResourceType.GROUP, PatternType.PREFIXED, prefix))


@given(st.lists(st.tuples(st.booleans(), PREFIXES), max_size=40), st.lists(PREFIXES, min_size=1, max_size=10))
def test_the_prefixes_that_cover_a_name_are_those_that_it_begins_with(changes, names):
    tree, stored = PrefixTree(), {}
    for is_added, prefix in changes:
        if is_added and prefix not in stored:
            stored[prefix] = acls_of(prefix)
            tree.put(prefix, stored[prefix])
        elif not is_added and prefix in stored:
            del stored[prefix]
            tree.remove(prefix)
        for name in names:
            expected = sorted((prefix for prefix in stored if name.startswith(prefix)), key=len)
            assert [acls.pattern[2] for acls in tree.covering(name)] == expected
        assert len(tree) <= 2 * len(stored)
        assert tree.texts() <= stored.keys(), 'a removed prefix takes no memory'


NAME = 'a' * 20_000
ALICE, BOB = parse_principal('User:alice'), parse_principal('User:bob')
LONGEST_DECISION_S = 0.01

SETS = {
    'of 4,000 lengths, all of which cover the name': lambda: (NAME[:length] for length in range(1, 20_001, 5)),
    'of 4,000 lengths, none of which covers the name': lambda: (NAME[:length] + '!' for length in range(1, 20_001, 5)),
    'of 4,000 lengths, with the widest characters':
        lambda: (NAME[:length] + '\U0001f600' for length in range(1, 20_001, 5)),
}


@pytest.mark.parametrize('prefixes', SETS)
@pytest.mark.parametrize('owner', [ALICE, BOB])
def test_a_decision_is_short_whatever_prefixes_have_acls(prefixes, owner):
    """A decision once hashed the beginning of the name once for each length of a prefix, which took 88 to 180 ms for
    one name."""
    authorizer = Authorizer()
    for number, prefix in enumerate(SETS[prefixes]()):
        authorizer.put(AccessControlEntryRecord(
            id=number.to_bytes(16, 'big'), resource_type=ResourceType.GROUP, resource_name=prefix,
            pattern_type=PatternType.PREFIXED, principal=str(owner), host='*', operation=Operation.WRITE,
            permission_type=Permission.ALLOW))
    times_s = []
    for name in (NAME, NAME + 'b', NAME + '\U0001f600'):
        began_s = time.thread_time()
        decision = authorizer.decide(ALICE, '10.0.0.1', Operation.READ, ResourceType.GROUP, name)
        times_s.append(time.thread_time() - began_s)
        assert not decision.allowed
    print(f'{prefixes}, of {owner}: {1000 * min(times_s):.2f} ms')
    assert_within(max(times_s), LONGEST_DECISION_S)


def test_a_decision_is_short_however_many_ranges_and_prefixes_apply_to_the_client():
    """All 33 ranges of IPv4 that contain the client have ACLs, and each of 4,000 prefixes of the name has one of them,
    or an ACL of another client."""
    authorizer = Authorizer()
    for number in range(4_000):
        principal, host = ('User:alice', f'10.0.0.1/{number % 33}') if number % 2 else (f'User:{number}', '*')
        authorizer.put(AccessControlEntryRecord(
            id=number.to_bytes(16, 'big'), resource_type=ResourceType.GROUP, resource_name=NAME[:5 * number + 1],
            pattern_type=PatternType.PREFIXED, principal=principal, host=host, operation=Operation.WRITE,
            permission_type=Permission.ALLOW))
    assert len(authorizer.index.owners_of('User:alice', '10.0.0.1')) == 2 * (33 + 2)
    times_s = []
    for _ in range(3):
        began_s = time.thread_time()
        decision = authorizer.decide(ALICE, '10.0.0.1', Operation.READ, ResourceType.GROUP, NAME)
        times_s.append(time.thread_time() - began_s)
        assert not decision.allowed
    print(f'{1000 * min(times_s):.2f} ms')
    assert_within(max(times_s), LONGEST_DECISION_S)


def test_a_decision_about_a_long_name_is_more_than_one_element_of_long_work():
    access = Authorizer().access_of(ALICE, '10.0.0.1')
    pace, parts = Pace(), 0
    for number in range(PART):
        access.may(Operation.READ, ResourceType.GROUP, f'{number}{NAME}')
        parts += pace.spend()
    assert parts >= PART * len(NAME) // 1024 // PART // 2
    assert sum(itertools.starmap(pace.spend, [()] * PART)) == 1, 'and nothing is left'
