"""The exact bytes of control records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.record.batch import (
    CorruptBatchError,
    check_crc,
    encode_batch,
    read_header,
    set_base_offset,
    set_partition_leader_epoch,
)
from kbroker.record.control import (
    ControlType,
    EndTxnMarker,
    encode_control_key,
    encode_end_txn_marker,
    read_control_type,
    read_end_txn_marker,
)

T = 1_700_000_000_000
ABORT = bytes.fromhex(
    '000000000000002a000000420000000002590cda830030000000000000018bcfe568000000018bcfe5680000000000000003e80003ffffffff000000012000'
    '000008000000000c00000000000700'
)
COMMIT = bytes.fromhex(
    '000000000000002a0000004200000000026d7b90e60030000000000000018bcfe568000000018bcfe5680000000000000003e80004ffffffff000000012000'
    '000008000000010c00000000000700'
)


@pytest.mark.parametrize(('commit', 'producer_epoch', 'golden'), [(False, 3, ABORT), (True, 4, COMMIT)])
def test_a_marker_is_written_to_the_byte(commit, producer_epoch, golden):
    marker = encode_end_txn_marker(
        commit=commit, producer_id=1000, producer_epoch=producer_epoch, coordinator_epoch=7, timestamp_ms=T
    )
    set_base_offset(marker, 42)
    set_partition_leader_epoch(marker, 0)
    assert marker == golden


@pytest.mark.parametrize(('golden', 'control_type'), [(ABORT, ControlType.ABORT), (COMMIT, ControlType.COMMIT)])
def test_a_marker_is_read(golden, control_type):
    header = read_header(golden)
    check_crc(golden, header)
    assert header.is_control and header.is_transactional and header.size_bytes == 78
    assert read_end_txn_marker(golden) == EndTxnMarker(control_type, 7)


@pytest.mark.parametrize('control_type', [control_type for control_type in ControlType if control_type >= 0])
def test_every_control_type_is_read_again(control_type):
    assert read_control_type(encode_control_key(control_type)) is control_type


def test_an_unknown_type_is_unknown():
    assert read_control_type(bytes([0, 0, 0, 99])) is ControlType.UNKNOWN


def test_a_later_version_of_a_key_is_read_by_its_first_four_bytes():
    assert read_control_type(bytes([0, 5, 0, 1, 7, 7, 7])) is ControlType.COMMIT


@pytest.mark.parametrize('key', [None, b'', b'\0\0\0', b'\xff\xff\0\0'])
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(CorruptBatchError):
        read_control_type(key)


def marker(key: bytes | None = b'\0\0\0\1', value: bytes | None = b'\0\0\0\0\0\7', records: int = 1) -> bytearray:
    return encode_batch([(T, key, value)] * records, control=True, transactional=True, producer_id=1, producer_epoch=0)


def test_a_later_version_of_a_marker_is_read_by_its_first_six_bytes():
    assert read_end_txn_marker(marker(value=b'\0\1\0\0\0\7more')) == EndTxnMarker(ControlType.COMMIT, 7)


@pytest.mark.parametrize(
    'batch',
    [
        marker(key=None),
        marker(key=b'\0\0\0\2'),
        marker(key=b'\0\0\0\x63'),
        marker(value=None),
        marker(value=b'\0\0\0\0\0'),
        marker(value=b'\xff\xff\0\0\0\7'),
        marker(records=2),
    ],
)
def test_what_is_no_marker_is_refused(batch):
    with pytest.raises(CorruptBatchError):
        read_end_txn_marker(batch)


@given(
    commit=st.booleans(),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
)
def test_a_marker_always_has_78_bytes(commit, producer_id, producer_epoch, coordinator_epoch):
    batch = encode_end_txn_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=T,
    )
    header = read_header(batch)
    assert len(batch) == 78
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, producer_epoch, -1)
    assert read_end_txn_marker(batch).coordinator_epoch == coordinator_epoch
