"""The writer of a history. All threads share one writer. It also assigns numbers to transactions, records and
readers."""
from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from kbroker_tools.verify.lines import FORMAT, NOT_ACKNOWLEDGED, Outcome

Reads = Sequence[tuple[int, Sequence[int], Sequence[int]]]
"""The result of a poll: a list of (partition, offsets of the records, numbers of the records)."""

Deliveries = Sequence[tuple[int, Sequence[int], Sequence[int], int]]
"""The result of a poll of a share group: a list of (partition, offsets of the records, numbers of the records, delivery
count)."""


class Recorder:
    """A writer of the lines of a history. It counts records and transactions for the progress of the run."""

    def __init__(self, out: IO[str], partitions: Sequence[str], run: Mapping[str, Any],
                 clock_ns: Callable[[], int] = time.monotonic_ns):
        self._out = out
        self._lock = threading.Lock()
        self._clock_ns = clock_ns
        self._began_ns = clock_ns()
        self._transactions = itertools.count()
        self._records = itertools.count()
        self._producers = itertools.count()
        self._readers = itertools.count()
        self._sharers = itertools.count()
        self.counts = {'written': 0, 'read': 0, 'committed': 0, 'aborted': 0, 'unknown': 0, 'faults': 0}
        self.active_clients: set[str] = set()
        """The clients of which at least one record was acknowledged."""
        self._client_of: dict[int, str] = {}
        self._write({'type': 'start', 'format': FORMAT, 'partitions': list(partitions), 'run': dict(run)})

    def now(self) -> int:
        """Return the number of microseconds since the start of the history."""
        return (self._clock_ns() - self._began_ns) // 1000

    def new_transaction(self) -> int:
        return next(self._transactions)

    def new_record(self) -> int:
        return next(self._records)

    def new_producer(self) -> int:
        return next(self._producers)

    def producer(self, number: int, transactional_id: str | None, client: str, begin: int) -> None:
        """Record that a producer has claimed its transactional id. The claim lasted from `begin` until now."""
        self._client_of[number] = client
        self._write({'type': 'producer', 'producer': number, 'transactional_id': transactional_id, 'client': client,
                     'begin': begin, 'end': self.now()})

    def transaction(self, number: int, producer: int, begin: int, commit: int | None, outcome: Outcome,
                    writes: Sequence[int], **transform: Any) -> None:
        """Record a transaction that ends now. Only a transform passes `group`, `consumed` and `sources`."""
        self._note_acknowledged(producer, writes)
        name = outcome.name.lower()
        self._write({'type': 'transaction', 'transaction': number, 'producer': producer, 'begin': begin,
                     'commit': commit, 'end': self.now(), 'outcome': name, 'writes': list(writes), **transform},
                    written=len(writes) // 4, **{name: 1})

    def sends(self, producer: int, writes: Sequence[int]) -> None:
        self._note_acknowledged(producer, writes)
        self._write({'type': 'sends', 'producer': producer, 'writes': list(writes)}, written=len(writes) // 4)

    def reader(self, isolation: str, client: str, *, is_final: bool = False) -> int:
        number = next(self._readers)
        self._write({'type': 'reader', 'reader': number, 'isolation': isolation, 'client': client,
                     'is_final': is_final})
        return number

    def poll(self, reader: int, begin: int, reads: Reads, *, seek: Sequence[int] = (),
             transaction: int | None = None) -> None:
        """Record a poll that ends now. `seek` has the positions that the reader has set since its previous poll."""
        self._write({'type': 'poll', 'reader': reader, 'transaction': transaction, 'begin': begin, 'end': self.now(),
                     'seek': list(seek), 'reads': reads}, read=sum(len(offsets) for _, offsets, _ in reads))

    def end(self, reader: int, ends: Sequence[int]) -> None:
        self._write({'type': 'end', 'reader': reader, 'ends': list(ends)})

    def stable(self, partition: int, stable: int, high: int) -> None:
        self._write({'type': 'stable', 'partition': partition, 'stable': stable, 'high': high})

    def committed(self, group: str, offsets: Mapping[int, int]) -> None:
        flat = [number for pair in offsets.items() for number in pair]
        self._write({'type': 'committed', 'group': group, 'offsets': flat})

    def unstable(self, group: str) -> None:
        self._write({'type': 'unstable', 'group': group})

    def sharer(self, group: str, client: str) -> int:
        number = next(self._sharers)
        self._write({'type': 'sharer', 'sharer': number, 'group': group, 'client': client})
        return number

    def deliveries(self, sharer: int, since: int, reads: Deliveries) -> int:
        """Record the deliveries of a share group that a poll returns now. Return the present time."""
        end = self.now()
        self._write({'type': 'deliveries', 'sharer': sharer, 'since': since, 'end': end, 'reads': reads},
                    read=sum(len(offsets) for _, offsets, _, _ in reads))
        return end

    def outcomes(self, sharer: int, begin: int, settled: Sequence[int], *, is_confirmed: bool) -> None:
        """Record that records were accepted or rejected, and whether the broker has confirmed it. `settled` has the
        partition and the offset of each record, one after the other."""
        self._write({'type': 'outcomes', 'sharer': sharer, 'begin': begin, 'end': self.now(),
                     'is_confirmed': is_confirmed, 'settled': list(settled)})

    def shared(self, group: str, limit: int, starts: Mapping[int, int]) -> None:
        flat = [number for pair in starts.items() for number in pair]
        self._write({'type': 'shared', 'group': group, 'limit': limit, 'starts': flat})

    def fault(self, name: str, begin: int, detail: str) -> None:
        """Record a fault that began at `begin` and ends now."""
        self._write({'type': 'fault', 'fault': name, 'begin': begin, 'end': self.now(), 'detail': detail}, faults=1)

    def finish(self) -> None:
        """Record that the run is complete."""
        self._write({'type': 'finish'})
        self._out.flush()

    def _note_acknowledged(self, producer: int, writes: Sequence[int]) -> None:
        if any(offset != NOT_ACKNOWLEDGED for offset in writes[2::4]):
            self.active_clients.add(self._client_of[producer])

    def _write(self, row: dict[str, Any], **counted: int) -> None:
        line = json.dumps(row, separators=(',', ':')) + '\n'
        with self._lock:
            self._out.write(line)
            for name, count in counted.items():
                self.counts[name] += count
