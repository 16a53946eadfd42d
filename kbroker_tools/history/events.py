"""The history of a transactional.id: its events, its faults, and the facts that the rows do not show."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.base.topic_partition import TopicPartition
from kbroker.base.words import words_for_duration
from kbroker.transaction.state import NEVER_TIMES_OUT_MS, TransactionRow, TransactionState
from kbroker_tools.base.render import words_for_count
from kbroker_tools.history.transaction_lives import CLOCK_SKEW_MS, Evidence, Hanging, Life, Part, add_evidence, lives_in
from kbroker_tools.rows.transaction_rows import StoredRow
from kbroker_tools.timeline.transactions_of_partition import Marker, Outcome

UNFINISHED_AFTER_MS = 10_000
"""The time in milliseconds after which a decided transaction counts as torn if it lacks a marker."""

_WORDS = {Outcome.COMMITTED: 'commit', Outcome.ABORTED: 'abort'}


class Event(NamedTuple):
    timestamp_ms: int
    transaction: int | None
    """The number of the transaction, counted from 1. None for an event that belongs to no transaction."""
    since_begin_ms: int | None
    kind: str
    where: str
    offset: int | None
    details: str
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    transactional_id: str
    events: list[Event] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unknowns: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    """A short text for each transaction, in the order of their numbers."""

    @property
    def transactions(self) -> int:
        return len(self.titles)


def history_of(transactional_id: str, rows: list[StoredRow], evidence: list[Evidence], unread: Iterable[str],
               now_ms: int, command: str = 'kbroker-transactions') -> History:
    """Return the history of a transactional.id. `unread` names the unreadable partitions. `command` is the beginning of
    the command lines in the advice."""
    lives, hanging = add_evidence(lives_in(rows), evidence)
    builder = _HistoryBuilder(transactional_id, evidence, now_ms, lives[-1] if lives else None, command)
    for number, life in enumerate(lives, 1):
        builder.add_life(number, life)
    builder.add_rows(rows)
    for one in hanging:
        builder.add_hanging(one)
    history = builder.history
    history.events.sort(key=lambda event: (event.timestamp_ms, event.transaction or 0, _ORDER[event.kind]))
    unknowns = [*_unknown_rows(rows), *unread, *builder.unknowns()]
    return History(transactional_id, history.events, history.faults, unknowns, [_title(life, now_ms) for life in lives])


_ORDER = {kind: order for order, kind in enumerate((
    'initialised', 'producer id', 'fenced', 'begin', 'partitions', 'records', 'kept', 'prepare', 'marker', 'repeated',
    'complete', 'hanging', 'forgotten'))}
"""The order of events that happened in the same millisecond."""


class _HistoryBuilder:
    def __init__(self, transactional_id: str, evidence: list[Evidence], now_ms: int, youngest: Life | None,
                 command: str):
        self.history = History(transactional_id)
        self._evidence = {found.topic_partition: found for found in evidence}
        self._now_ms = now_ms
        self._youngest = youngest
        self._command = command
        self._unknowns: dict[str, list[int]] = {}

    def _add(self, timestamp_ms: int, life: tuple[int, Life] | None, kind: str, where: str, offset: int | None,
             details: str, fault: str | None = None) -> None:
        number, since = None, None
        if life is not None:
            number, since = life[0], timestamp_ms - life[1].begin_ms
        self.history.events.append(Event(timestamp_ms, number, since, kind, where, offset, details, fault))
        if fault is not None:
            at = where if offset is None else f'{where} offset {offset}'
            self.history.faults.append((f'transaction {number}, ' if number else '') + f'{at}: {fault}')

    def _add_unknown(self, number: int, what: str) -> None:
        self._unknowns.setdefault(what, []).append(number)

    def unknowns(self) -> list[str]:
        """Return the facts that are unknown. A fact that concerns several transactions is returned once."""
        return [_transactions(numbers) + what for what, numbers in self._unknowns.items()]

    # -- rows outside of transactions

    def add_rows(self, rows: list[StoredRow]) -> None:
        before: TransactionRow | None = None
        for stored in rows:
            if stored.row is None:
                self._add_row(stored, 'forgotten', 'tombstone: the id expired')
            elif stored.row.state is TransactionState.EMPTY:
                kind, details = _initialisation(before, stored.row)
                self._add_row(stored, kind, details)
            elif before is not None and before.producer_id != stored.row.producer_id:
                self._add_row(stored, 'producer id', f'{before.producer_id} to {stored.row.producer_id}: the epochs '
                                                      'of the old one were used up')
            before = stored.row

    def _add_row(self, stored: StoredRow, kind: str, details: str) -> None:
        self._add(stored.timestamp_ms, None, kind, f'{TRANSACTION_STATE}-{stored.partition}', stored.offset, details)

    # -- one transaction

    def add_life(self, number: int, life: Life) -> None:
        numbered = (number, life)
        self._add_rows_of(numbered)
        complete_ms = life.complete_ms
        for (topic, partition), part in sorted(life.parts.items()):
            name = f'{topic}-{partition}'
            if part.transaction is not None:
                one = part.transaction
                self._add(one.begin_timestamp_ms, numbered, 'records', name, one.first_offset,
                          f'{one.records} to offset {one.last_offset}, producer {one.producer_id} epoch '
                          f'{one.producer_epoch}')
            if part.marker is not None:
                self._add_marker(numbered, name, part, part.marker)
            elif life.decision is not None:
                self._add_missing_marker(numbered, (topic, partition), part)
            for marker in part.repeated:
                late_by = None if complete_ms is None else _late(marker, complete_ms)
                self._add(marker.timestamp_ms, numbered, 'repeated', name, marker.offset, _marker_words(marker)
                          + '; written again, as after a restart of the coordinator', late_by)

    def _add_rows_of(self, numbered: tuple[int, Life]) -> None:
        _, life = numbered
        if not life.rows:
            self._add_unknown(numbered[0], ': when it was prepared and completed, and whether it had more partitions '
                                           'than are shown; its rows were compacted away, or it was ended by hand')
        known: frozenset[TopicPartition] = frozenset()
        for position, stored in enumerate(life.rows):
            row = stored.row
            assert row is not None
            where = f'{TRANSACTION_STATE}-{stored.partition}'
            if position == 0 and row.state is not TransactionState.ONGOING:
                self._add_compacted(numbered, row)
            if row.state is TransactionState.ONGOING and row.is_kept:
                self._add(stored.timestamp_ms, numbered, 'kept', where, stored.offset,
                          f'prepared for two-phase commit; its client goes on as producer {row.client_producer_id} '
                          f'epoch {row.client_producer_epoch}')
                known = row.partitions
            elif row.state is TransactionState.ONGOING:
                names = ', '.join(f'{topic}-{partition}' for topic, partition in sorted(row.partitions - known))
                self._add(stored.timestamp_ms, numbered, 'partitions' if position else 'begin', where, stored.offset,
                          names + ('' if position else f'; producer {row.producer_id} epoch '
                                                                      f'{row.producer_epoch}'))
                known = row.partitions
            elif row.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
                self._add(stored.timestamp_ms, numbered, 'prepare', where, stored.offset,
                          _prepare_words(row, life), self._unfinished(life))
            else:
                self._add(stored.timestamp_ms, numbered, 'complete', where, stored.offset,
                          'commit' if row.state is TransactionState.COMPLETE_COMMIT else 'abort')

    def _add_compacted(self, numbered: tuple[int, Life], row: TransactionRow) -> None:
        number, life = numbered
        if row.state is TransactionState.PREPARE_ABORT and not row.partitions:
            return
        self._add(life.begin_ms, numbered, 'begin', TRANSACTION_STATE, None,
                  f'as its {row.state.title} row says; the rows of it before were compacted away')
        if life.partitions is None:
            self._add_unknown(number, ': which partitions its rows named, so whether a marker is missing')

    def _unfinished(self, life: Life) -> str | None:
        if life.complete is not None:
            return None
        lacking = ', '.join(f'{topic}-{partition}' for (topic, partition), part in sorted(life.parts.items())
                            if part.marker is None)
        if life is not self._youngest:
            return 'torn: no Complete row follows it'
        age_ms = self._now_ms - life.earliest_marker_ms
        if age_ms < UNFINISHED_AFTER_MS:
            return None
        return (f'torn: not completed for {words_for_duration(age_ms)}'
                + (f', no marker in {lacking}' if lacking else ', though every partition has its marker'))

    def _add_marker(self, numbered: tuple[int, Life], name: str, part: Part, marker: Marker) -> None:
        life = numbered[1]
        complete_ms = life.complete_ms
        fault = None
        if life.decision is not marker.outcome:
            says = _WORDS[life.decision] if life.decision else 'nothing'
            fault = f'torn: the rows say {says}, the marker says {_WORDS[marker.outcome]}'
        elif complete_ms is not None:
            fault = _late(marker, complete_ms)
        nothing = '' if part.transaction is not None else '; no records of it are here'
        self._add(marker.timestamp_ms, numbered, 'marker', name, marker.offset, _marker_words(marker) + nothing, fault)

    def _add_missing_marker(self, numbered: tuple[int, Life], topic_partition: TopicPartition, part: Part) -> None:
        number, life = numbered
        name = '{}-{}'.format(*topic_partition)
        complete_ms = life.complete_ms
        if complete_ms is None:
            return  # the event of the Prepare row reports a missing marker: it may still arrive
        found = self._evidence.get(topic_partition)
        if found is None:
            reason: str | None = 'that partition could not be read'
        elif found.first_timestamp_ms is None or found.first_timestamp_ms > complete_ms:
            reason = f'its log begins later, at offset {found.log_start_offset}'
        else:
            reason = 'its log was compacted' if found.has_gaps else None
        if reason is not None:
            self._add_unknown(number, f', {name}: whether it had its marker; {reason}')
            return
        fault = 'missing: the transaction is complete and there is no marker'
        if part.transaction is not None:
            fault += f'; it is open from offset {part.transaction.first_offset} on. {self._remedy(*topic_partition)}'
        self._add(complete_ms, numbered, 'marker', name, None, 'none', fault)

    def add_hanging(self, hanging: Hanging) -> None:
        one = hanging.transaction
        self._add(one.begin_timestamp_ms, None, 'hanging', f'{hanging.topic}-{hanging.partition}', one.first_offset,
                  f'{words_for_count(one.records, "record")}, producer {one.producer_id} epoch {one.producer_epoch}, '
                  'no marker',
                  f'hanging: open for {words_for_duration(self._now_ms - one.begin_timestamp_ms)} and no row names it. '
                  f'{self._remedy(hanging.topic, hanging.partition)}')

    def _remedy(self, topic: str, partition: int) -> str:
        """Return advice to run why-stuck. Only why-stuck can judge which remedy is safe."""
        return f'To see what to do: {self._command} why-stuck {topic}:{partition}'


def _title(life: Life, now_ms: int) -> str:
    if not life.rows:
        return f'{life.decision.value}, as its markers say' if life.decision else 'as its records say'
    if life.decision is None:
        return f'open for {words_for_duration(now_ms - life.begin_ms)}'
    if life.complete_ms is None:
        return f'{_WORDS[life.decision]} decided, not complete'
    return f'{life.decision.value}, {words_for_duration(life.complete_ms - life.begin_ms)} in all'


def _transactions(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f'transaction {numbers[0]}'
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f'transactions {numbers[0]} to {numbers[-1]}'
    return 'transactions ' + ', '.join(map(str, numbers))


def _initialisation(before: TransactionRow | None, row: TransactionRow) -> tuple[str, str]:
    timeout = 'never' if row.timeout_ms == NEVER_TIMES_OUT_MS else f'after {words_for_duration(row.timeout_ms)}'
    details = f'producer {row.producer_id} epoch {row.producer_epoch}, times out {timeout}'
    if before is None:
        return 'initialised', details
    if before.producer_id != row.producer_id:
        return 'producer id', f'{before.producer_id} to {row.producer_id}, ' + details
    if before.producer_epoch < row.producer_epoch:
        return 'fenced', f'epoch {before.producer_epoch} may not write any more: initialised again, ' + details
    return 'initialised', details


def _prepare_words(row: TransactionRow, life: Life) -> str:
    words = f'{"commit" if row.state is TransactionState.PREPARE_COMMIT else "abort"}, epoch {row.producer_epoch}'
    first = life.rows[0].row
    assert first is not None
    if first.state is TransactionState.ONGOING and not row.bumps_epoch and row.producer_epoch > first.producer_epoch:
        words += f'; epoch {first.producer_epoch} is fenced'
    waited_ms = row.last_update_timestamp_ms - row.start_timestamp_ms
    if row.state is TransactionState.PREPARE_ABORT and row.partitions and waited_ms >= row.timeout_ms:
        words += f'; after its timeout of {words_for_duration(row.timeout_ms)}'
    if row.state is TransactionState.PREPARE_ABORT and not row.partitions:
        words += '; of nothing: it ends the epoch'
    if row.is_kept:
        words += f'; its client goes on as producer {row.client_producer_id} epoch {row.client_producer_epoch}'
    elif row.next_producer_id >= 0:
        words += f'; producer {row.next_producer_id} is to follow'
    return words


def _marker_words(marker: Marker) -> str:
    return f'{_WORDS[marker.outcome]}, epoch {marker.producer_epoch}, coordinator epoch {marker.coordinator_epoch}'


def _late(marker: Marker, complete_ms: int) -> str | None:
    late_ms = marker.timestamp_ms - complete_ms
    if late_ms <= CLOCK_SKEW_MS:
        return None
    return f'late: {words_for_duration(late_ms)} after the transaction was complete'


def _unknown_rows(rows: list[StoredRow]) -> Iterator[str]:
    if not rows:
        return
    first = rows[0].row
    if first is None or first.state is not TransactionState.EMPTY or first.producer_epoch > 0:
        left = 'a tombstone' if first is None else f'{first.state.title} at epoch {first.producer_epoch}'
        yield (f'what happened before: compaction has left no row before offset {rows[0].offset} of '
               f'{TRANSACTION_STATE}-{rows[0].partition} ({left})')

