"""The row encoder of the transaction coordinator writes the same bytes as the codec for the messages of these rows."""
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.errors import KafkaError
from kbroker.protocol.messages import TransactionLogKey, TransactionLogValue
from kbroker.protocol.rows import encode_row_key, encode_row_value
from kbroker.transaction.row_encoder import encode_key, encode_value
from kbroker.transaction.state import STORED, TransactionRow, TransactionState

INT64 = st.integers(-1, 2**63 - 1)
TEXT = st.text(max_size=40) | st.text('x', min_size=120, max_size=140)
PARTITIONS = st.frozensets(st.tuples(TEXT, st.integers(0, 2**31 - 1)), max_size=12) | st.integers(1, 300).map(
    lambda count: frozenset(('orders', index) for index in range(count)))
ROWS = st.builds(TransactionRow, st.sampled_from(sorted(STORED)), INT64, st.integers(-1, 32767),
                 st.integers(0, 2**31 - 1), INT64, INT64, PARTITIONS, INT64, INT64,
                 st.integers(-1, 32767), client_transaction_version=st.integers(0, 3),
                 next_producer_epoch=st.integers(-1, 32767))


def through_messages(row, version):
    topics = defaultdict(list)
    for topic, partition in sorted(row.partitions):
        topics[topic].append(partition)
    value = TransactionLogValue(
        producer_id=row.producer_id, producer_epoch=row.producer_epoch, transaction_timeout_ms=row.timeout_ms,
        transaction_status=int(row.state),
        transaction_partitions=None if row.state is TransactionState.EMPTY else [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()],
        transaction_last_update_timestamp_ms=row.last_update_timestamp_ms,
        transaction_start_timestamp_ms=row.start_timestamp_ms)
    if version > 0:
        value.previous_producer_id = row.previous_producer_id
        value.next_producer_id = row.next_producer_id
        value.client_transaction_version = row.client_transaction_version
        value.next_producer_epoch = row.next_producer_epoch
        if row.state is TransactionState.EMPTY:
            value.last_producer_epoch = row.last_producer_epoch
    return encode_row_value(value, version)


@given(row=ROWS, version=st.sampled_from([0, 1]))
def test_a_value_is_what_its_message_would_be(row, version):
    assert encode_value(row, version) == through_messages(row, version)


@given(transactional_id=TEXT)
def test_a_key_is_what_its_message_would_be(transactional_id):
    assert encode_key(transactional_id) == encode_row_key(TransactionLogKey(transactional_id=transactional_id))


def test_an_id_that_no_row_can_hold_is_refused():
    assert len(encode_key('x' * 32767)) == 32771
    with pytest.raises(KafkaError, match='32768 bytes'):
        encode_key('x' * 32768)
