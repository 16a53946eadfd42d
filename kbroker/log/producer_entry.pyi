"""Types of producer_entry.pyx, which has the documentation."""

class ProducerEntry:
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    transaction_first_offset: int
    last_sequence: int
    last_offset: int
    batches: list[tuple[int, int, int, int]]
