"""Compares producer snapshots and transaction indexes with the batches, while the batches are read.

A broker may rebuild its state from the log start offset. Its files then do not include batches below this offset:
batches that only the first segment's snapshot describes, and batches that DeleteRecords has hidden.
`ProducerStateCheck` therefore replays the batches twice, once all known batches and once only the visible batches. A
file is sound if its content is between the two results.
"""
from kbroker.log.producer_entry import ProducerEntry
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.transaction_index import AbortedTransaction
from kbroker.record.batch import BatchHeader

NOT_OPEN = -1
NO_TRANSACTION = (1 << 63) - 1


class ProducerStateCheck:
    """The two producer states that follow from the batches: one from all known batches, one from only the visible
    batches.
    """

    def __init__(self, first_offset: int, log_start_offset: int, snapshot: bytes | None):
        """Create. `snapshot` is the content of the snapshot at `first_offset`, the base offset of the first segment.
        Raise CorruptLogError if `snapshot` is damaged.
        """
        self.all = ProducerStateTable()
        if snapshot is not None:
            self.all.load_snapshot(snapshot, first_offset, 0)
        is_all_visible = not self.all.entries and log_start_offset <= first_offset
        self.first_offset = first_offset
        self._start_offset = max(first_offset, log_start_offset)
        self._visible = self.all if is_all_visible else ProducerStateTable()
        self.begin_segment()

    def begin_segment(self) -> None:
        self._rows: dict[int, AbortedTransaction] = {}
        self._visible_rows: dict[int, AbortedTransaction] = self._rows if self._visible is self.all else {}

    def replay(self, header: BatchHeader, batch: memoryview) -> None:
        """Replay a batch into both states. Raise CorruptBatchError if it is a marker that cannot be read."""
        self._note(self._rows, self.all.replay_batch(batch))
        if self._visible is not self.all and header.last_offset >= self._start_offset:
            self._note(self._visible_rows, self._visible.replay_batch(batch))

    @staticmethod
    def _note(rows: dict[int, AbortedTransaction], row: AbortedTransaction | None) -> None:
        if row is not None:
            rows[row.last_offset] = row

    # ---- snapshots ----

    def find_fault(self, found: ProducerStateTable) -> str | None:
        """Return a description of what is wrong in `found`, a snapshot at the current offset, or None. Missing
        producers are no fault, because they may have expired.
        """
        for producer_id, entry in found.entries.items():
            expected = self.all.get(producer_id)
            if expected is None or not _agrees(entry, expected):
                return (f'found {_last_state(entry)} for producer {producer_id}, the log says '
                        f'{_last_state(expected) if expected else "nothing"}')
        found_first = {producer_id: offset for offset, producer_id in found.unstable.ongoing.items()}
        visible_first = {producer_id: offset for offset, producer_id in self._visible.unstable.ongoing.items()}
        expected_first = {producer_id: offset for offset, producer_id in self.all.unstable.ongoing.items()}
        for producer_id in found_first.keys() | expected_first.keys():
            offset = found_first.get(producer_id, NOT_OPEN)
            if not self._may_be_first(offset, expected_first.get(producer_id, NOT_OPEN),
                                      visible_first.get(producer_id, NOT_OPEN)):
                return f'found open transactions {found.unstable.ongoing}, the log says {self.all.unstable.ongoing}'
        return None

    def _may_be_first(self, found: int, expected: int, visible: int) -> bool:
        """Return whether a file may correctly say that a transaction begins at `found`. `expected` is the transaction's
        first offset in all known batches, `visible` its first offset in the visible batches.
        """
        if found in (expected, visible):
            return True
        return 0 <= expected < found < (visible if visible >= 0 else self._start_offset)

    # ---- transaction indexes ----

    def find_wrong_row(self, rows: list[AbortedTransaction]) -> AbortedTransaction | None:
        """Return a row of the segment's transaction index that contradicts the markers, or None.

        A follower of Apache Kafka writes a row after it has replayed a whole append, in which the same producer may
        have begun the next transaction. The last stable offset of the row is then too high. A reader that stops at this
        row loses nothing if no aborted or open transaction begins below that offset.
        """
        begins = min(self.all.unstable.ongoing, default=NO_TRANSACTION)
        for row in reversed(rows):
            expected = self._rows.get(row.last_offset)
            visible = self._visible_rows.get(row.last_offset)
            if expected is None or row.producer_id != expected.producer_id or not self._may_be_first(
                    row.first_offset, expected.first_offset, visible.first_offset if visible else NOT_OPEN):
                return row
            if row.last_stable_offset != expected.last_stable_offset and (
                    expected.last_stable_offset >= self._start_offset) and not (
                    expected.last_stable_offset < row.last_stable_offset <= begins):
                return row
            begins = min(begins, row.first_offset)
        return None

    def find_missing_row(self, rows: list[AbortedTransaction]) -> AbortedTransaction | None:
        """Return the row of an aborted transaction that has visible batches but is missing in `rows`, or None."""
        markers = {row.last_offset for row in rows}
        return next((row for row in self._visible_rows.values() if row.last_offset not in markers), None)

    @property
    def rows(self) -> list[AbortedTransaction]:
        """The transaction index rows of the segment that follow from all known batches."""
        return list(self._rows.values())


def _agrees(found: ProducerEntry, expected: ProducerEntry) -> bool:
    """Return whether two entries agree. An entry in a snapshot has no batch if the producer had expired and later
    received only markers; then only the epochs are compared.
    """
    if found.last_sequence < 0:
        return found.producer_epoch == expected.producer_epoch
    return _last_batch(found) == _last_batch(expected)


def _last_batch(entry: ProducerEntry) -> tuple[int, int, int]:
    return entry.producer_epoch, entry.last_sequence, entry.last_offset


def _last_state(entry: ProducerEntry) -> tuple[int, int, int, int]:
    return entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.transaction_first_offset
