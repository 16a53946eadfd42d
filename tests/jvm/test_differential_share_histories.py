"""Random histories of share partitions run on Apache Kafka 4.3 and on kbroker. Answers and states agree at each step.

Covers KIP-932.
"""
from __future__ import annotations

import pytest
from comparisons import Comparison
from hypothesis import given
from hypothesis import strategies as st
from share_histories import (
    ACCEPT,
    FIRST,
    GAP,
    LAST,
    REJECT,
    RELEASE,
    RENEW,
    SETTINGS,
    Configure,
    Disconnect,
    Fetch,
    Offsets,
    PartitionSide,
    Produce,
    Said,
    Say,
)
from support.kafka.beside_kafka import repeated

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DIFFERENCES = {
    r"^Fetch\(.*: answer: .*\(\d+, \d+, ([4-9]|10)\)":
        'which records Kafka delivers alone in their last tries depends on the batches that it has delivered together',
}
"""Maps a pattern to the reason for accepting the differences whose text it matches."""

SLOTS = st.sampled_from('AABC')
KINDS = st.sampled_from([ACCEPT, ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, GAP])
SHIFTS = st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1])
EPOCHS = st.sampled_from([None, None, None, None, None, FIRST, LAST])
SAID = st.builds(Said, KINDS, st.integers(0, 3), st.integers(0, 20), st.sampled_from([1, 1, 2, 5, 30]), st.just(0),
                 st.booleans())
STRANGE = st.builds(Said, st.sampled_from([ACCEPT, RELEASE, RENEW, 5]), st.integers(0, 3), st.integers(0, 20),
                    st.sampled_from([1, 5]), st.sampled_from([0, -3, 4, 50]))


def said(most, strategy=SAID):
    return st.lists(strategy, max_size=most).map(tuple)


LIMITED = st.builds(Fetch, SLOTS, said(1), st.sampled_from([1, 3, 10, 500]), st.sampled_from([500, 1, 4]), st.just(1),
                    SHIFTS)
WHOLE = st.builds(Fetch, SLOTS, said(1), st.just(500), st.sampled_from([500, 500, 1, 4]), st.just(0), SHIFTS,
                  st.just(None), st.sampled_from([2, 2, 1]))
"""Fetches of whole batches. Their limits are far above the number of records: near a limit, Kafka continues to the end
of records that it has once delivered together.
"""


def operations(*fetches):
    """Return a strategy for operations. A third of them are the given fetches."""
    return st.one_of(*fetches, *fetches, *OTHERS)


OTHERS = (
    *[st.builds(Say, SLOTS, said(3))] * 4,
    st.builds(Fetch, SLOTS, said(1), st.just(500), st.just(500), st.just(1), st.just(0), EPOCHS),
    st.builds(Say, SLOTS, said(2), SHIFTS, EPOCHS),
    st.builds(Say, SLOTS, said(2, STRANGE), st.just(0), st.just(None), st.booleans()),
    st.builds(Say, SLOTS, said(2), st.just(0), st.just(None), st.just(False), SLOTS),
    st.builds(Disconnect, SLOTS),
    *[st.builds(Produce, st.integers(1, 12))] * 3,
    st.just(Offsets()),
)
"""The operations of a session. The fetches among them begin or end it."""


@st.composite
def histories(draw):
    """Draw a history: appends of records, followed by random operations. The delivery limit does not change during a
    history. If it did, the records that Kafka delivers one by one would depend on the records that it has delivered
    together.
    """
    first, fetches = draw(st.sampled_from([
        ([], (WHOLE, LIMITED)), ([Configure('share.delivery.count.limit', '2')], (WHOLE, LIMITED)),
        ([Configure('share.delivery.count.limit', '10')], (WHOLE, LIMITED)),
        ([Configure('share.partition.max.record.locks', '100')], (LIMITED, LIMITED))]))
    produced = draw(st.lists(st.builds(Produce, st.integers(1, 40)), min_size=1, max_size=6))
    return [*first, *produced, *draw(st.lists(operations(*fetches), min_size=10, max_size=40))]


COMPARISON = Comparison(PartitionSide, SETTINGS, DIFFERENCES)


@repeated(12)
@given(histories())
def test_kbroker_and_kafka_answer_a_share_history_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.parametrize('then', [[], [Disconnect('C')], [Disconnect('A')]], ids=['open', 'closed', 'other closed'])
def test_the_last_session_ends_while_records_past_the_limit_are_tracked(addresses, then):
    """Four records of the last batch are beyond `share.partition.max.record.locks`. The broker tracks them until the
    connection closes.
    """
    history = [Configure('share.partition.max.record.locks', '100'), Produce(64), Produce(40), Offsets(),
               Fetch('A', (), 1, 1, 1, 0, FIRST), Say('A', (), 0, LAST), Fetch('C', (), 500, 500, 1, 0, FIRST),
               Say('C', (), 0, LAST), *then, Fetch('B', (), 500, 500, 1)]
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_share_histories_are_answered_alike(addresses, soak_count, tally):
    COMPARISON.soak(addresses, histories(), soak_count(500), tally)
