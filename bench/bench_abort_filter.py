"""The abort filter against the reference's heap: 1000 batches by 50 producers, every other transaction aborted."""
import pytest
from reference import record as reference

from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import encode_batch, read_header, set_base_offset
from kbroker.record.control import encode_end_txn_marker

T = 1_700_000_000_000
PRODUCERS = 50
TRANSACTIONS = 10


def fetched() -> tuple[list[bytes], list[tuple[int, int]]]:
    batches, aborted, offset = [], [], 0
    for transaction in range(TRANSACTIONS):
        commit = transaction % 2 == 0
        for producer_id in range(PRODUCERS):
            if not commit:
                aborted.append((producer_id, offset))
            batches.append(
                encode_batch(
                    [(T, b'k', b'v')],
                    base_offset=offset,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=transaction,
                    transactional=True,
                )
            )
            offset += 1
        for producer_id in range(PRODUCERS):
            marker = encode_end_txn_marker(
                commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=T
            )
            set_base_offset(marker, offset)
            batches.append(marker)
            offset += 1
    return [bytes(batch) for batch in batches], aborted


def filter_with_kbroker(batches, aborted) -> list[int]:
    abort_filter = AbortFilter(aborted)
    return [header.base_offset for header, batch in batches if abort_filter.admits(header, batch)]


@pytest.mark.parametrize('name', ['kbroker', 'reference'])
def test_abort_filter(benchmark, name):
    """Both sides use headers that are parsed before the measurement."""
    benchmark.group = 'abort filter over 1000 batches'
    batches, aborted = fetched()
    decoded = [reference.decode_batch(batch) for batch in batches]
    if name == 'kbroker':
        found = benchmark(filter_with_kbroker, [(read_header(batch), batch) for batch in batches], aborted)
    else:
        found = benchmark(reference.delivered, decoded, aborted)
    assert found == reference.delivered(decoded, aborted)
