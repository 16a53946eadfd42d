"""The facts of the page, taken from the rooms of the broker."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker import __version__
from kbroker.base.long_work import Pause
from kbroker.metrics import groups, log, transactions
from kbroker.page.facts import Certificate, Disk, GroupLag, HeldPartition, Offline, OpenTransaction, PageFacts, Series
from kbroker.page.outputs import is_installed
from kbroker.transaction.state import NEVER_TIMES_OUT_MS, TransactionState

if TYPE_CHECKING:
    from kbroker.base.clock import Clock
    from kbroker.daemon.node import Node
    from kbroker.metadata.changes import Steps
    from kbroker.network.connection import Commons
    from kbroker.security import certificates

FRESH_MS = 1000
"""The milliseconds for which facts serve further requests for the page."""
SAMPLE_MS = 10_000
SAMPLES = 60
MOST_TRANSACTIONS = 100_000
"""The most open transactions of the page, the oldest ones."""
MOST_HELD = 100_000
"""The most partitions of the page whose readers wait, those that wait for most records."""
MOST_OFFLINE, MOST_REASON = 100, 1000
"""The most offline partitions with their reasons, and the most characters of a reason."""
FACTS_AT_ONCE = 256
TIMED = TransactionState.ONGOING.title
"""The state in which the coordinator aborts a transaction after its timeout. Later states only wait for markers."""


class Throughput:
    """Samples of the bytes and of the transactions of a broker. Call `sample` every SAMPLE_MS."""

    def __init__(self, node: Node, commons: Commons):
        self._node = node
        self._commons = commons
        self._last = self._totals()
        self._rates: deque[tuple[float, ...]] = deque(maxlen=SAMPLES)

    def _totals(self) -> tuple[int, ...]:
        store = self._node.transactions.store
        return (self._commons.received_bytes, self._commons.sent_bytes, self._commons.requests,
                store.committed + store.aborted)

    def sample(self) -> None:
        """Add the rates since the last sample."""
        last, self._last = self._last, self._totals()
        self._rates.append(tuple((new - old) * 1000 / SAMPLE_MS for new, old in zip(self._last, last, strict=True)))

    def series(self) -> list[Series]:
        """Return the rates, none before the first sample."""
        names = (('received', 'bytes'), ('sent', 'bytes'), ('requests', 'requests'),
                 ('transactions ended', 'transactions'))
        return [Series(name, unit, [rates[place] for rates in self._rates], SAMPLE_MS / 1000)
                for place, (name, unit) in enumerate(names) if self._rates]


class PageSource:
    """The facts of the page. Requests that come together share one collection.

    `title` is the address of the broker. `certificates()` returns the certificates of the listeners with TLS.
    """

    def __init__(self, node: Node, title: str, throughput: Throughput,
                 certificates: Callable[[], Mapping[str, Sequence[certificates.Certificate]]]):
        self._node = node
        self._clock: Clock = node.clock
        self._title = title
        self._throughput = throughput
        self._certificates = certificates
        self._has_pages = is_installed()
        self._facts: PageFacts | None = None
        self._collecting: Pause | None = None

    def current(self) -> Steps[PageFacts]:
        """Return facts that are at most FRESH_MS old, as long work."""
        while self._collecting is not None:
            yield from self._collecting.wait()
        if self._facts is not None and 0 <= self._clock.wall_ms() - self._facts.now_ms < FRESH_MS:
            return self._facts
        pause = self._collecting = Pause()
        try:
            self._facts = yield from self._collect()
        finally:
            self._collecting = None
            pause.end()
        return self._facts

    def _collect(self) -> Steps[PageFacts]:
        node: Any = self._node      # it has the rooms that the collectors name, as attributes
        opened = yield from _in_parts(_open_transaction, (
            yield from transactions.oldest_open(node, MOST_TRANSACTIONS)))
        began = {each.transactional_id: each.began_ms for each in opened}
        held = yield from _in_parts(lambda each: HeldPartition(
            each.topic, each.partition, each.last_stable_offset, each.high_watermark, each.transactional_id or None,
            began.get(each.transactional_id)), (
                yield from transactions.held_partitions(node, MOST_HELD)))
        found = yield from groups.survey(node)
        lags = yield from _in_parts(lambda each: GroupLag(
            each.group_id, each.kind, each.state, each.members, each.partitions, each.to_end, each.to_stable),
            found.lags)
        disk = log.survey(node)
        offline = node.logs.verification.offline()
        return PageFacts(
            self._title, f'kbroker {__version__}', node.metadata.cluster_id, self._clock.wall_ms(), node.started_ms,
            opened, held, lags, self._throughput.series(),
            [Disk(node.directory, disk.free_bytes, disk.size_bytes, disk.failure)], self._certificates_of_page(),
            [Offline(note.key[0], note.key[1], str(note.damages[0])[:MOST_REASON])
             for note in offline[:MOST_OFFLINE]], len(offline),
            place_options=('--bootstrap-server', self._title), has_pages_of_commands=self._has_pages)

    def _certificates_of_page(self) -> list[Certificate]:
        return [Certificate(listener, f'{each.subject} ({each.kind})', each.not_after_s * 1000)
                for listener, found in self._certificates().items() for each in found if each.not_after_s is not None]


def _in_parts(convert: Callable[[Any], Any], rows: Sequence[Any]) -> Steps[list[Any]]:
    """Return the converted rows, as long work."""
    found = []
    for number, row in enumerate(rows, 1):
        found.append(convert(row))
        if number % FACTS_AT_ONCE == 0:
            yield
    return found


def _open_transaction(found: transactions.OpenTransaction) -> OpenTransaction:
    is_timed = found.state == TIMED and found.timeout_ms != NEVER_TIMES_OUT_MS
    return OpenTransaction(
        found.transactional_id, found.state, found.producer_id, found.start_ms,
        found.start_ms + found.timeout_ms if is_timed else None, tuple(found.partitions), found.partitions_count,
        found.held_offsets)
