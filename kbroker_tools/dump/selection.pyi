class Selection:
    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    producer_id: int | None
    transactional: bool
    control: bool
    def __init__(self) -> None: ...
    def holds(self, offset: int, timestamp_ms: int) -> bool: ...
