"""Quotas: rates and token buckets by a manual clock, which quota applies to a client, and which clients share a
counter."""

import contextlib
import math

import pytest

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IDLE_MS,
    MOST_COUNTER_BYTES,
    MOST_METER_BYTES,
    MOST_METERS,
    MOST_THROTTLE_MS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    Counters,
    Rate,
    TokenBucket,
    Window,
    check_quota,
)

WINDOW = Window()
USER, CLIENT = ('user', 'alice'), ('client-id', 'app')
ANY_USER, ANY_CLIENT = ('user', None), ('client-id', None)
BYTES = PRODUCER_BYTE_RATE


def throttled(rate, quota, amount, now_ms):
    rate.record(amount, now_ms)
    return rate.throttle_ms(quota, now_ms)


def quotas_of(*rows, clock=None):
    quotas = ClientQuotas(clock or ManualClock(), WINDOW, WINDOW)
    for entity, key, quota in rows:
        quotas.put(entity, key, quota)
    return quotas


def test_a_first_burst_is_measured_over_the_missing_windows():
    rate = Rate(WINDOW)
    assert throttled(rate, 1048576, 20971520, 0) == 10000
    assert rate.measure(0) == (2097152, 10000)
    assert throttled(rate, 1048576, 1048576, 10000) == 11000


def test_a_sample_without_events_for_all_windows_is_cleared():
    rate = Rate(WINDOW)
    rate.record(20971520, 0)
    rate.record(1048576, 10000)
    assert throttled(rate, 1048576, 1048576, 20500) == 0
    found, elapsed_ms = rate.measure(20500)
    assert (round(found, 2), elapsed_ms) == (199728.76, 10500)


def test_a_rate_recovers_as_kafka_computes_it():
    rate = Rate(WINDOW)
    assert [throttled(rate, 1000000, 1000000, at_ms) for at_ms in (0, 500, 1500)] == [0, 0, 0]
    assert throttled(rate, 1000000, 9000000, 3000) == 2000
    assert throttled(rate, 1000000, 1000000, 12000) == 500


def test_elapsed_time_within_the_first_windows_counts_on_top():
    rate = Rate(WINDOW)
    for number in range(11):
        found = throttled(rate, 1048576, 1000100, 85 * number // 10)
    assert found == 406


def test_a_ring_has_one_sample_more_than_windows():
    rate = Rate(Window(2, 1000))
    for at_ms in (0, 1000, 2000):
        rate.record(10, at_ms)
        assert rate.throttle_ms(100, at_ms) == 0
    assert rate.measure(2000) == (20.0, 1000)       # the sample of time 0 is gone
    rate.record(10, 3000)
    assert rate.measure(3000) == (20.0, 1000)


def test_what_is_undone_does_not_count():
    rate = Rate(WINDOW)
    rate.record(5000, 0)
    rate.record(-5000, 0)
    assert rate.throttle_ms(1, 0) == 0


def test_a_throttle_time_fits_into_an_answer():
    assert throttled(Rate(WINDOW), 1, 10**15, 0) == MOST_THROTTLE_MS


@pytest.mark.parametrize('quota', [5e-324, 1e-300, 0.0, -1.0])
def test_a_quota_of_next_to_nothing_throttles_and_raises_nothing(quota):
    quotas = quotas_of(*(((USER,), key, quota) for key in (
        PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)),
        ((('ip', '10.0.0.1'),), CONNECTION_CREATION_RATE, quota))
    meter = quotas.meter('alice', 'app')
    assert meter.record_produced(1) == meter.record_fetched(1) == MOST_THROTTLE_MS
    assert meter.most_fetched_bytes == 0
    assert meter.record_time(1) == quotas.record_connection('10.0.0.1') == WINDOW.window_ms
    for is_strict in (True, False):
        mutations = meter.mutations(is_strict=is_strict)
        for _ in range(2):
            with contextlib.suppress(KafkaError):
                mutations.charge(1)
        assert mutations.throttle_ms == MOST_THROTTLE_MS


@pytest.mark.parametrize('quota', [math.nan, math.inf, 1e308])
def test_a_quota_beyond_all_numbers_throttles_nothing(quota):
    quotas = quotas_of(((USER,), CONTROLLER_MUTATION_RATE, quota), ((USER,), REQUEST_PERCENTAGE, quota),
                       ((USER,), CONSUMER_BYTE_RATE, 1))
    meter = quotas.meter('alice', 'app')
    mutations = meter.mutations(is_strict=True)
    for _ in range(3):
        mutations.charge(10**6)
    assert (mutations.throttle_ms, meter.record_time(10**9)) == (0, 0)


def test_a_bucket_is_full_at_first_and_may_owe_tokens():
    bucket = TokenBucket(WINDOW)
    bucket.record(200, 10, 5000)
    assert bucket.measure(10, 5000) == -90
    assert bucket.throttle_ms(10, 5000) == 9000
    assert bucket.throttle_ms(10, 14000) == 0
    assert bucket.measure(10, 10**9) == 110


@pytest.mark.parametrize(('entities', 'found', 'counter'), [
    ([(USER, CLIENT), (USER, ANY_CLIENT)], (USER, CLIENT), ('alice', 'app')),
    ([(USER, ANY_CLIENT), (USER,)], (USER, ANY_CLIENT), ('alice', 'app')),
    ([(USER,), (ANY_USER, CLIENT)], (USER,), ('alice', None)),
    ([(ANY_USER, CLIENT), (ANY_USER, ANY_CLIENT)], (ANY_USER, CLIENT), ('alice', 'app')),
    ([(ANY_USER, ANY_CLIENT), (ANY_USER,)], (ANY_USER, ANY_CLIENT), ('alice', 'app')),
    ([(ANY_USER,), (CLIENT,)], (ANY_USER,), ('alice', None)),
    ([(CLIENT,), (ANY_CLIENT,)], (CLIENT,), (None, 'app')),
    ([(ANY_CLIENT,), (('user', 'bob'),)], (ANY_CLIENT,), (None, 'app')),
])
def test_the_most_specific_entity_wins_and_says_who_shares_a_counter(entities, found, counter):
    quotas = quotas_of(*((entity, BYTES, 1 + number) for number, entity in enumerate(entities))).quotas
    limit = quotas.find(BYTES, 'alice', 'app')
    assert limit.quota == 1 + entities.index(found)
    assert limit.counter == (BYTES, *counter)


def test_each_key_is_searched_by_itself():
    quotas = quotas_of(((USER, CLIENT), BYTES, 1), ((USER,), CONSUMER_BYTE_RATE, 2)).quotas
    assert quotas.find(BYTES, 'alice', 'app').counter == (BYTES, 'alice', 'app')
    assert quotas.find(CONSUMER_BYTE_RATE, 'alice', 'app').counter == (CONSUMER_BYTE_RATE, 'alice', None)
    assert quotas.find(BYTES, 'alice', 'other') is None


def test_an_empty_client_id_does_not_meet_the_quota_of_a_user():
    quotas = quotas_of(((USER,), BYTES, 1)).quotas
    assert quotas.find(BYTES, 'alice', '').counter == (BYTES, 'alice', None)


def test_a_changed_quota_acts_on_what_was_measured():
    quotas = quotas_of(((USER,), BYTES, 1000))
    assert quotas.meter('alice', 'app').record_produced(10000) == 0
    quotas.put((USER,), BYTES, 500)
    assert quotas.meter('alice', 'other').record_produced(0) == 10000
    quotas.put((USER,), BYTES, None)
    assert quotas.meter('alice', 'app') is None


def test_the_broker_is_notified_of_the_first_quota_and_of_the_last():
    quotas = quotas_of()
    seen = []
    quotas.on_switch.append(seen.append)
    quotas.put((USER,), BYTES, 1)
    quotas.put((CLIENT,), BYTES, 1)
    quotas.put((USER,), BYTES, None)
    assert seen == [quotas]
    quotas.put((CLIENT,), BYTES, None)
    assert seen == [quotas, None]


def test_quotas_of_unknown_keys_and_types_are_ignored():
    quotas = quotas_of(((USER,), 'key', 1), ((('rack', 'r'),), BYTES, 1), ((('ip', '::1'), USER), BYTES, 1),
                       ((), BYTES, 1))
    assert not quotas.quotas and not quotas.addresses


def test_an_address_has_its_own_quota_or_the_default():
    quotas = quotas_of(((('ip', '10.0.0.1'),), CONNECTION_CREATION_RATE, 5))
    assert [quotas.connection_quota(address) for address in ('10.0.0.1', '10.0.0.2')] == [5, None]
    quotas.put((('ip', None),), CONNECTION_CREATION_RATE, 7)
    assert [quotas.connection_quota(address) for address in ('10.0.0.1', '10.0.0.2')] == [5, 7]
    quotas.put((('ip', '10.0.0.1'),), CONNECTION_CREATION_RATE, None)
    assert quotas.connection_quota('10.0.0.1') == 7


def test_addresses_are_compared_as_addresses():
    quotas = quotas_of(((('ip', '0:0:0:0:0:0:0:1'),), CONNECTION_CREATION_RATE, 5))
    assert quotas.connection_quota('::1') == 5


def test_time_is_a_percentage_of_one_thread_and_throttles_for_a_window_at_most():
    clock = ManualClock()
    meter = quotas_of(((USER,), REQUEST_PERCENTAGE, 1.0), clock=clock).meter('alice', 'app')
    assert meter.measures_time
    assert meter.record_time(100_000) == 0          # 100 ms in 10 s
    assert meter.record_time(5_000) == 500
    assert meter.record_time(1_000_000) == 1000


def test_a_fetch_is_cut_to_what_the_quota_allows_in_its_windows():
    quotas = quotas_of(((USER,), CONSUMER_BYTE_RATE, 1000))
    assert quotas.meter('alice', 'app').most_fetched_bytes == 10000
    quotas.put((USER,), BYTES, 1)
    quotas.put((USER,), CONSUMER_BYTE_RATE, None)
    assert quotas.meter('alice', 'app').most_fetched_bytes is None


def test_strict_mutations_are_refused_while_tokens_are_owed():
    clock = ManualClock()
    quotas = quotas_of(((USER,), CONTROLLER_MUTATION_RATE, 10), clock=clock)
    request = quotas.meter('alice', 'app').mutations(is_strict=True)
    request.charge(200)
    assert request.throttle_ms == 0
    with pytest.raises(KafkaError) as caught:
        request.charge(1)
    assert (caught.value.code, request.throttle_ms) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 9000)
    clock.advance(9000)
    request = quotas.meter('alice', 'app').mutations(is_strict=True)
    request.charge(1)
    assert request.throttle_ms == 0


def test_permissive_mutations_are_done_and_throttled_afterwards():
    quotas = quotas_of(((USER,), CONTROLLER_MUTATION_RATE, 10))
    request = quotas.meter('alice', 'app').mutations(is_strict=False)
    request.charge(200)
    request.charge(10)
    assert request.throttle_ms == 10000


def test_counters_that_are_idle_or_too_many_are_forgotten():
    clock = ManualClock()
    counters = Counters(clock, most=3)
    for key in 'abcad':
        counters.get(key, list)[0].append(key)
    assert len(counters) == 3
    assert counters.get('a', list)[0] == ['a', 'a']
    assert counters.get('b', list)[0] == []         # used longest ago when d came
    clock.advance(IDLE_MS)
    assert counters.get('a', list)[0] == []
    assert len(counters) == 1


def test_meters_of_made_up_client_ids_are_bounded():
    quotas = quotas_of(((ANY_CLIENT,), BYTES, 1))
    for number in range(MOST_METERS + 10):
        quotas.meter('alice', f'client-{number}')
    assert quotas.meters_count <= MOST_METERS


def test_meters_and_counters_of_wide_client_ids_are_bounded_by_their_memory():
    """Before the bound, 10,000 of the longest client ids took 1,292 MB. One emoji makes each character take four
    bytes."""
    quotas = quotas_of(((ANY_CLIENT,), BYTES, 1))
    for number in range(1_000):
        quotas.meter('alice', f'{number}' + 'x' * 32_000 + '\U0001f600').record_produced(1)
    assert 50 < quotas.meters_count < 110 and quotas.meters_bytes <= MOST_METER_BYTES
    assert 100 < len(quotas.counters) < 160 and quotas.counters.held_bytes <= MOST_COUNTER_BYTES


@pytest.mark.parametrize(('kind', 'key', 'value'), [
    ('user', 'key', 1), ('ip', BYTES, 1), ('client-id', CONNECTION_CREATION_RATE, 1), ('user', BYTES, 0),
    ('user', BYTES, -1), ('user', REQUEST_PERCENTAGE, math.nan), ('user', REQUEST_PERCENTAGE, math.inf),
    ('user', BYTES, 1.5), ('user', BYTES, 5e-324), ('user', BYTES, 1.1e19), ('ip', CONNECTION_CREATION_RATE, 2.0**31),
])
def test_a_quota_that_makes_no_sense_is_refused(kind, key, value):
    with pytest.raises(KafkaError) as caught:
        check_quota(kind, key, value)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(('kind', 'key', 'value'), [
    ('user', BYTES, 1e6), ('user', REQUEST_PERCENTAGE, 25.5), ('client-id', CONTROLLER_MUTATION_RATE, 0.1),
    ('ip', CONNECTION_CREATION_RATE, 5), ('user', BYTES, 3.0000001)])
def test_a_quota_that_makes_sense_passes(kind, key, value):
    check_quota(kind, key, value)
