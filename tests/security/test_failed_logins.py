"""The broker slows the logins of an address whose logins have failed."""
import pytest

from kbroker.security.failed_logins import (
    LONGEST_WAIT_MS,
    MOST_ADDRESSES,
    MOST_AT_ONCE,
    PACE_MS,
    REFILL_MS,
    FailedLogins,
    network_of,
)


@pytest.fixture
def failed(clock):
    return FailedLogins(clock)


def fail(failed, address, times):
    for _ in range(times):
        failed.note(address)


def test_a_few_failures_do_not_count(failed):
    fail(failed, '10.0.0.1', MOST_AT_ONCE - 1)
    assert [failed.wait_ms('10.0.0.1') for _ in range(3)] == [0, 0, 0]


def test_logins_of_an_address_that_guesses_begin_one_after_the_other_and_others_at_once(failed, clock):
    fail(failed, '10.0.0.1', MOST_AT_ONCE + 5)
    assert [failed.wait_ms('10.0.0.1') for _ in range(3)] == [0, PACE_MS, 2 * PACE_MS]
    assert failed.wait_ms('10.0.0.2') == 0
    clock.advance(REFILL_MS)
    assert [failed.wait_ms('10.0.0.1') for _ in range(3)] == [0, 0, 0]
    failed.note('10.0.0.1')
    assert [failed.wait_ms('10.0.0.1') for _ in range(2)] == [0, PACE_MS]


def test_a_login_that_would_wait_too_long_is_refused(failed):
    fail(failed, '10.0.0.1', MOST_AT_ONCE)
    waits = [failed.wait_ms('10.0.0.1') for _ in range(LONGEST_WAIT_MS // PACE_MS + 2)]
    assert waits[-2:] == [LONGEST_WAIT_MS, None]


@pytest.mark.parametrize(('address', 'network'), [
    ('10.0.0.1', '10.0.0.1'), ('2001:db8::1', '20010db800000000::'), ('2001:db8:0:0:ffff::', '20010db800000000::'),
    ('fe80::1%eth0', 'fe80000000000000::'), ('::1', '0::'), ('no:address', 'no:address')])
def test_one_client_may_have_a_whole_network(address, network):
    assert network_of(address) == network


def test_the_addresses_are_bounded(failed):
    for number in range(MOST_ADDRESSES + 5):
        failed.note(f'10.{number >> 16}.{number >> 8 & 255}.{number & 255}')
    assert len(failed) == MOST_ADDRESSES
