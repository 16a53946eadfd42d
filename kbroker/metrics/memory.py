"""Memory by room: the lines of the ledger, with their bounds."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from kbroker.base.ledger import Line
from kbroker.metrics.table import Metric, Sample

HELD = Metric('kbroker_memory_held_bytes', 'gauge', 'Memory of a structure that clients can grow.', 'bytes', ('what',),
              'lines of the ledger')
BOUND = Metric('kbroker_memory_bound_bytes', 'gauge', 'The most memory of a structure that clients can grow.', 'bytes',
               ('what',), 'lines of the ledger')
ENTRIES = Metric('kbroker_entries', 'gauge', 'Entries of a structure that clients can grow.', labels=('what',),
                 series='lines of the ledger')
MOST_ENTRIES = Metric('kbroker_entries_bound', 'gauge', 'The most entries of a structure that clients can grow.',
                      labels=('what',), series='lines of the ledger')

METRICS = (HELD, BOUND, ENTRIES, MOST_ENTRIES)


def collect(ledger: Iterable[Line]) -> Iterator[Sample]:
    """Yield the size and the bound of each line. A structure that only the disk bounds has no bound."""
    lines = list(ledger)
    for metric, most, is_memory in ((HELD, BOUND, True), (ENTRIES, MOST_ENTRIES, False)):
        found = [line for line in lines if (line.unit == 'bytes') == is_memory]
        for line in found:
            yield metric, (line.what,), line.now()
        for line in found:
            bound = line.bound()
            if bound is not None:
                yield most, (line.what,), bound
