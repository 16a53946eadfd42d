"""The causes that hold a last stable offset. Each cause has an explanation, a forecast and advice.

`judge` is a pure function over the `Facts` of `gatherer`. Its verdict is the first cause in the table `CAUSES` whose
predicate fits. Each cause has occurred on real brokers: `known_as` names the KIPs and issues of Apache Kafka about it.

The reasoning rests on three rules of the protocol (KIP-98, KIP-890):
- The coordinator's row names a partition before the first record of the transaction is appended to it.
- A Complete row is written once every marker is durable. If the coordinator has written it and a transaction is still
  open in a partition, nothing will end this transaction.
- A marker carries the epoch of the transaction that it ends. If each ending bumps the epoch (TV2), the marker carries
  the next epoch.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.base.words import words_for_duration
from kbroker.client.descriptions import TransactionInfo
from kbroker.transaction.state import NEVER_TIMES_OUT_MS
from kbroker_tools.base.render import shell_word, words_for_count, words_for_time
from kbroker_tools.stuck.facts import DECIDED_STATES, IDLE_STATES, Facts, LogEvidence, Marker

MAX_PRODUCER_EPOCH = 32767
CLOCK_TOLERANCE_MS = 1000
"""The largest difference in milliseconds between the clocks of two machines that is not used as evidence."""
SINK_TASK = re.compile(r'(.+)~t\.\d+\.\d+\.\d+\.\d+')
"""Matches the transactional id of a task of the Spark sink. The id begins with the transactionalIdPrefix of the
query."""
SETTLING_MS = 60_000
"""The time in milliseconds in which the markers of a decided transaction are normally written."""


@dataclass(frozen=True, slots=True)
class Verdict:
    cause: str
    is_stuck: bool
    headline: str
    why: str
    next: str
    advice: str
    command: str | None = None
    """A complete command line that is safe to run now, or None."""
    known_as: tuple[str, ...] = ()


class Advice(NamedTuple):
    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    fits: Callable[[Facts], bool]
    headline: Callable[[Facts], str]
    """The function that returns the headline. In the output, `<partition> ` precedes the headline."""
    why: Callable[[Facts], str]
    next: Callable[[Facts], str]
    advice: Callable[[Facts], Advice]
    known_as: tuple[str, ...] = ()
    is_stuck: bool = True


def sink_prefix(transactional_id: str) -> str | None:
    """Return the transactionalIdPrefix of the Spark query to whose task the id belongs. Return None if the id belongs
    to another program."""
    found = SINK_TASK.fullmatch(transactional_id)
    return None if found is None else found[1]


def judge(facts: Facts) -> Verdict:
    """Return the verdict of the first cause in CAUSES that fits the facts."""
    cause = next(cause for cause in CAUSES if cause.fits(facts))
    advice = cause.advice(facts)
    return Verdict(cause.name, cause.is_stuck, f'{facts.name} {cause.headline(facts)}', cause.why(facts),
                   cause.next(facts), advice.text, advice.command, cause.known_as)


# ---- predicates

def _is_known(facts: Facts) -> bool:
    return facts.transaction is not None


def _is_unseen(facts: Facts) -> bool:
    """Return True if some rows of coordinators cannot be read. An unreadable row may show that a coordinator knows the
    transaction and will end it."""
    return not _is_known(facts) and not facts.state_log.is_readable


def _was_forgotten(facts: Facts) -> bool:
    return not _is_known(facts) and bool(facts.state_log.past) and facts.state_log.past[-1].state is None


def _was_replaced(facts: Facts) -> bool:
    past = facts.state_log.past
    return not _is_known(facts) and bool(past) and facts.holder is not None \
        and past[-1].producer_id != facts.holder.producer_id


def _has_lost_state(facts: Facts) -> bool:
    return not _is_known(facts) and not facts.state_log.has_rows


def _is_behind_the_log(facts: Facts) -> bool:
    return facts.epoch > _row(facts).producer_epoch


def _is_decided(facts: Facts) -> bool:
    return facts.is_covered and _row(facts).state in DECIDED_STATES


def _is_fenced_coordinator(facts: Facts) -> bool:
    assert facts.holder is not None
    return _is_decided(facts) and 0 <= facts.state_log.leader_epoch < facts.holder.coordinator_epoch


def _is_overdue_decision(facts: Facts) -> bool:
    """Return True if the transaction was decided more than SETTLING_MS ago. If the time of the decision is unknown, use
    the time at which the transaction times out."""
    decided_at_ms = facts.decided_at_ms if facts.decided_at_ms is not None else facts.expires_at_ms
    return _is_decided(facts) and facts.now_ms - decided_at_ms > SETTLING_MS


def _is_ongoing_here(facts: Facts) -> bool:
    return facts.is_covered and _row(facts).state == 'Ongoing'


def _is_exhausted(facts: Facts) -> bool:
    return _is_ongoing_here(facts) and _row(facts).producer_epoch >= MAX_PRODUCER_EPOCH


def _is_kept(facts: Facts) -> bool:
    return _is_ongoing_here(facts) and facts.kept_by is not None


def _is_two_phase(facts: Facts) -> bool:
    return _is_ongoing_here(facts) and _row(facts).timeout_ms == NEVER_TIMES_OUT_MS


def _is_of_sink(facts: Facts) -> bool:
    return _is_two_phase(facts) and sink_prefix(_row(facts).transactional_id) is not None


def _began_in_the_future(facts: Facts) -> bool:
    return _is_ongoing_here(facts) and _started_ms(facts) > facts.now_ms + CLOCK_TOLERANCE_MS


def _was_cut(facts: Facts) -> bool:
    """Return True if a marker with the epoch of the transaction was appended after the transaction began, although the
    transaction is still open."""
    marker = facts.log.last_marker if facts.log else None
    return (_is_ongoing_here(facts) and marker is not None and marker.producer_epoch == facts.epoch
            and marker.timestamp_ms > _started_ms(facts) + CLOCK_TOLERANCE_MS)


def _is_dated_before_marker(facts: Facts) -> bool:
    log = facts.log
    return (log is not None and log.last_marker is not None
            and log.max_timestamp_ms < log.last_marker.timestamp_ms - CLOCK_TOLERANCE_MS)


def _joined_late(facts: Facts) -> bool:
    """Return True if a record is older than the previous transaction's marker, and both have the same epoch (TV0,
    TV1)."""
    log = facts.log
    return (_is_ongoing_here(facts) and log is not None and log.last_marker is not None and log.has_earlier_data
            and log.last_marker.producer_epoch == facts.epoch and _is_dated_before_marker(facts))


def _begins_mid_sequence(facts: Facts) -> bool:
    log = facts.log
    return log is not None and log.base_sequence > 0 and not log.has_earlier_data and log.is_whole


def _is_overdue(facts: Facts) -> bool:
    """Return True if the coordinator has not ended the transaction at its timeout. For a log directory, return False,
    because no broker may be running."""
    return (_is_ongoing_here(facts) and facts.is_live
            and facts.now_ms > facts.expires_at_ms + 2 * facts.expiry_interval_ms)


def _has_lost_marker(facts: Facts) -> bool:
    """Return True if the coordinator has completed this transaction, but the log has no marker for it. The coordinator
    completes a transaction only after every marker is durable."""
    decision, log = facts.decision, facts.log
    if decision is None or log is None or not log.is_whole:
        return False
    marker = log.last_marker
    if marker is None or marker.producer_epoch < facts.epoch:
        return True
    if decision.bumps_epoch:
        return marker.producer_epoch < decision.producer_epoch
    return marker.timestamp_ms < decision.timestamp_ms - CLOCK_TOLERANCE_MS


def _skipped_add(facts: Facts) -> bool:
    """Return True if the previous transaction's marker bumped the epoch (TV2), and this is the first write with the new
    epoch."""
    log = facts.log
    return (log is not None and log.last_marker is not None and not log.has_earlier_data
            and log.last_marker.producer_epoch == facts.epoch)


def _follows_its_marker(facts: Facts) -> bool:
    log = facts.log
    return log is not None and log.last_marker is not None and log.last_marker.producer_epoch >= facts.epoch


def _was_late(facts: Facts) -> bool:
    return _follows_its_marker(facts) and (
        _is_dated_before_marker(facts) or _marker(facts).producer_epoch > facts.epoch)


def _was_never_added(facts: Facts) -> bool:
    """Return True if the rows from the time of the transaction still exist, and none of them adds the partition to the
    transaction."""
    log = facts.log
    return log is not None and log.is_whole and any(
        row.timestamp_ms <= log.max_timestamp_ms + CLOCK_TOLERANCE_MS for row in facts.state_log.past)


# ---- texts: what is wrong

HANGING = 'its transaction is hanging, and nothing will end it'


def _held(fault: str) -> Callable[[Facts], str]:
    return lambda facts: f'is held at offset {facts.offsets.last_stable_offset} by {_holder_name(facts)}: {fault}'


def _holder_name(facts: Facts) -> str:
    if facts.transactional_id is not None:
        return f'transactional.id {facts.transactional_id!r}'
    assert facts.holder is not None
    return f'producer id {facts.holder.producer_id}'


def _row(facts: Facts) -> TransactionInfo:
    assert facts.transaction is not None
    return facts.transaction


def _started_ms(facts: Facts) -> int:
    return _row(facts).start_timestamp_ms or facts.now_ms


def _log(facts: Facts) -> LogEvidence:
    assert facts.log is not None
    return facts.log


def _marker(facts: Facts) -> Marker:
    marker = _log(facts).last_marker
    assert marker is not None
    return marker


def _coordinator_says(facts: Facts) -> str:
    """Return the text that says why nothing will end the transaction: its coordinator has a different state for the
    transactional.id."""
    row = _row(facts)
    if row.state in IDLE_STATES:
        return f'the coordinator has no open transaction ({row.state}, epoch {row.producer_epoch})'
    return (f'the transaction that the coordinator has ({row.state}, epoch {row.producer_epoch}) is another one, '
            'without this partition')


def _why_healthy(_: Facts) -> str:
    return ('every transaction below the high watermark has ended; if a consumer does not advance, the reason is '
            'elsewhere')


def _why_unreplicated(_: Facts) -> str:
    return 'the marker that ended the last one is not below the high watermark yet: replicas or the disk must catch up'


def _why_forgotten(facts: Facts) -> str:
    forgotten = facts.state_log.past[-1]
    return (f'the coordinator deleted the id at {words_for_time(forgotten.timestamp_ms)}, while a transaction of it '
            'was open here: the id expired (transactional.id.expiration.ms), or its row was deleted')


def _why_replaced(facts: Facts) -> str:
    assert facts.holder is not None
    return (f'the id moved on to producer id {facts.state_log.past[-1].producer_id} when the epochs of '
            f'{facts.holder.producer_id} were used up, and no marker of the old one reached this partition')


def _why_state_lost(_: Facts) -> str:
    return ('__transaction_state is empty: the coordinator lost its state (a lost disk, an unclean election, a '
            'partly restored directory)')


def _why_unseen(facts: Facts) -> str:
    assert facts.holder is not None
    if facts.is_live:
        return (f'no visible transactional.id has producer id {facts.holder.producer_id}, and parts of '
                '__transaction_state could not be read: this user is not authorized, or a leader is missing')
    return (f'no row of producer id {facts.holder.producer_id} is in this directory, which lacks partitions of '
            '__transaction_state: other brokers have them, or they were not copied')


def _why_unknown(facts: Facts) -> str:
    assert facts.holder is not None
    return (f'no row of __transaction_state names producer id {facts.holder.producer_id}: its transactional.id expired '
            'long ago, rows were lost, or this log was copied from another cluster')


def _why_behind(facts: Facts) -> str:
    return (f'its records here have epoch {facts.epoch}, but the coordinator has at most epoch '
            f'{_row(facts).producer_epoch} ({_row(facts).state}): __transaction_state lost its last rows, or this log '
            'was copied from another cluster')


def _why_fenced_coordinator(facts: Facts) -> str:
    assert facts.holder is not None
    return (f'the partition has seen a marker of coordinator epoch {facts.holder.coordinator_epoch}, and refuses those '
            f'of epoch {facts.state_log.leader_epoch}, the present one (TRANSACTION_COORDINATOR_FENCED)')


def _why_prepared(facts: Facts) -> str:
    decided_at_ms = facts.decided_at_ms
    when = '' if decided_at_ms is None else f' {words_for_duration(facts.now_ms - decided_at_ms)} ago'
    decision = 'commit' if _row(facts).state == 'PrepareCommit' else 'abort'
    return f'the coordinator decided to {decision}{when}, and its marker has not reached this partition'


def _why_refused(facts: Facts) -> str:
    others = ', '.join(f'{topic}-{partition}' for topic, partition in facts.marked_elsewhere[:3])
    more = ', ...' if len(facts.marked_elsewhere) > 3 else ''
    return (f'{_why_prepared(facts)}. {others}{more} has its marker already and refuses a second one '
            '(INVALID_PRODUCER_EPOCH), after which the coordinator gives up')


def _why_exhausted(facts: Facts) -> str:
    return (f'epoch {_row(facts).producer_epoch} is the last one of the producer id: brokers before 4.3 cannot abort '
            'it, and leave it Ongoing')


def _why_kept(facts: Facts) -> str:
    assert facts.kept_by is not None
    producer_id, producer_epoch = facts.kept_by
    lasts = ': it never times out, and its' if _row(facts).timeout_ms == NEVER_TIMES_OUT_MS else '. Its'
    return (f'its client came back as producer {producer_id} epoch {producer_epoch} and kept it, as prepared for '
            f'two-phase commit{lasts} external coordinator has to decide')


def _why_two_phase(_: Facts) -> str:
    return ('its producer takes part in two-phase commit: it never times out. If it is prepared, its external '
            'coordinator has to decide')


def _why_of_sink(facts: Facts) -> str:
    prefix = sink_prefix(_row(facts).transactional_id)
    return (f'a task of a Spark query with transactionalIdPrefix {prefix!r} wrote it in two-phase commit: it never '
            'times out. The driver of the query decides, and its ledger has the decision')


def _why_clock(facts: Facts) -> str:
    return (f'it began at {words_for_time(_started_ms(facts))}, which is '
            f'{words_for_duration(_started_ms(facts) - facts.now_ms)} from now: the clock of the coordinator was set '
            'back, and the timeout counts from that time')


def _why_cut(facts: Facts) -> str:
    marker = _marker(facts)
    return (f'the {marker.title} was written {words_for_duration(marker.timestamp_ms - _started_ms(facts))} after it '
            'began, in its epoch: a late or repeated marker of an earlier transaction ended the records before it')


def _why_joined(facts: Facts) -> str:
    marker = _marker(facts)
    return (f'its first records are dated {words_for_time(_log(facts).max_timestamp_ms)}, before the {marker.title} '
            f'({words_for_time(marker.timestamp_ms)}) of the previous transaction: a delayed write of that one is now '
            'part of this one')


def _why_first_missing(facts: Facts) -> str:
    return (f'it begins here with sequence {_log(facts).base_sequence}: earlier batches were refused, and retries of '
            'them end in OUT_OF_ORDER_SEQUENCE_NUMBER')


def _why_overdue(facts: Facts) -> str:
    return (f'it should have been aborted {words_for_duration(facts.now_ms - facts.expires_at_ms)} ago: the '
            'coordinator does not run, or cannot write to __transaction_state')


def _why_open(facts: Facts) -> str:
    began = words_for_duration(facts.now_ms - _started_ms(facts))
    return f'it began {began} ago, and its producer has neither committed nor aborted it'


def _why_marker_lost(facts: Facts) -> str:
    decision = facts.decision
    assert decision is not None
    ending = 'committed' if decision.state == 'PrepareCommit' else 'aborted'
    return (f'the coordinator {ending} the transaction at {words_for_time(decision.timestamp_ms)} and completed it, '
            'but this log has no marker of it: the log was restored from an older copy, it lost its tail, the topic '
            'was deleted and created again, or an Apache Kafka broker was killed before it wrote the marker, and '
            'skipped it after its start')


def _why_add_skipped(facts: Facts) -> str:
    return (f'it is the first write after the {_marker(facts).title}, which raised the epoch to {facts.epoch}, and was '
            f'accepted without being added to a transaction: {_coordinator_says(facts)}')


def _why_late(facts: Facts) -> str:
    marker, log = _marker(facts), _log(facts)
    return (f'a delayed write was appended after the {marker.title} of its transaction: the write has epoch '
            f'{log.producer_epoch} and is dated {words_for_time(log.max_timestamp_ms)}, the marker has epoch '
            f'{marker.producer_epoch} and is dated {words_for_time(marker.timestamp_ms)}; {_coordinator_says(facts)}')


def _why_ended_early(facts: Facts) -> str:
    return (f'its producer kept writing after the {_marker(facts).title}, as if its transaction were open: a '
            f'delayed EndTxn ended it, or the client has a bug; {_coordinator_says(facts)}')


def _why_mid_sequence(facts: Facts) -> str:
    return (f'the partition had no state of the producer when it accepted the batch with sequence '
            f'{_log(facts).base_sequence}; earlier batches are not here, and {_coordinator_says(facts)}')


def _why_never_added(facts: Facts) -> str:
    return f'it was written without being added to a transaction (AddPartitionsToTxn): {_coordinator_says(facts)}'


def _why_hanging(facts: Facts) -> str:
    return (f'{_coordinator_says(facts)}; the rows and records that would show whether it was written late, was never '
            'added, or lost its marker are gone')


# ---- texts: what will happen

def _never(_: Facts) -> str:
    return ('nothing by itself: a transaction that the coordinator does not know cannot time out, so consumers and '
            'compaction keep waiting')


def _unknown_end(_: Facts) -> str:
    return 'not known: if a coordinator has it, its producer or its timeout ends it'


def _as_before(_: Facts) -> str:
    return 'read_committed consumers read all there is'


def _on_replication(_: Facts) -> str:
    return 'the last stable offset follows as soon as the marker is replicated and flushed'


def _at_timeout(facts: Facts) -> str:
    """Return the text that says when the transaction will be ended by its timeout. The coordinator looks for expired
    transactions at an interval."""
    row = _row(facts)
    expires_at = words_for_time(facts.expires_at_ms)
    if row.timeout_ms == NEVER_TIMES_OUT_MS:
        return 'nothing, until its producer commits or aborts, as its external coordinator decides'
    if not facts.is_live:
        return ('while a broker runs on this directory, the producer ends it, or the coordinator aborts it, from '
                f'{expires_at} on (timeout {words_for_duration(row.timeout_ms)})')
    interval = f'it checks every {words_for_duration(facts.expiry_interval_ms)}'
    left_ms = facts.expires_at_ms - facts.now_ms
    if left_ms < 0:
        return f'the coordinator aborts it when it next checks for expired transactions ({interval})'
    return (f'the producer ends it, or the coordinator aborts it at {expires_at}, in {words_for_duration(left_ms)} '
            f'(timeout {words_for_duration(row.timeout_ms)}; {interval})')


def _when_reloaded(_: Facts) -> str:
    return ('nothing, until the coordinator reloads its state and resends all markers: when the broker restarts, or '
            'the leader of its partition of __transaction_state changes')


def _when_epoch_is_reached(_: Facts) -> str:
    return ('nothing, until the coordinator epoch, which is the leader epoch of its partition of __transaction_state, '
            'has caught up: each election raises it by 1')


def _at_next_plan(_: Facts) -> str:
    return 'nothing, until the query ends its micro-batch, or begins another one'


def _in_a_moment(facts: Facts) -> str:
    return 'the marker arrives within moments' if facts.is_live else _when_reloaded(facts)


# ---- texts: what to do

def _nothing(_: Facts) -> Advice:
    return Advice('nothing')


def _ask_the_cluster(facts: Facts) -> Advice:
    """Return advice that does not include `abort`, because the knowledge is incomplete. A coordinator on another broker
    may be about to commit the transaction."""
    command = f'{facts.command} why-stuck {shell_word(facts.topic)}:{facts.partition}'
    if facts.is_live:
        return Advice('ask again as a user who may describe every transactional.id and read __transaction_state')
    return Advice('ask the cluster, not this directory', command)


def _check_replicas(_: Facts) -> Advice:
    return Advice('ask again; if nothing changes, check the in-sync replicas of the partition')


def _abort(facts: Facts) -> Advice:
    """Return the advice to write a marker to this partition only. This is safe if no coordinator will end the
    transaction."""
    assert facts.holder is not None
    first_offset = facts.holder.transaction_first_offset
    command = (f'{facts.command} abort --topic {shell_word(facts.topic)} --partition {facts.partition} '
               f'--start-offset {first_offset}')
    text = (f'abort it here; {_records(facts)} from offset {first_offset} on will not be seen by read_committed '
            'consumers')
    if facts.decision is not None and facts.decision.state == 'PrepareCommit':
        text += (', although the coordinator had committed the transaction: read them first, as read_uncommitted, if '
                 'they are needed')
    return Advice(_once_it_runs(facts, text), command)


def _records(facts: Facts) -> str:
    if facts.log is None:
        return 'its records'
    least = '' if facts.log.is_counted else 'at least '
    return f'its {least}{words_for_count(facts.log.records, "record")}'


def _terminate(facts: Facts) -> Advice:
    """Return the advice to let the coordinator end the transaction. It then ends in the same way in all of its
    partitions.

    A transaction of a Spark query may already be decided. Aborting it would lose its rows.
    """
    if sink_prefix(_row(facts).transactional_id) is not None:
        return _finish(facts)
    command = f'{facts.command} force-terminate --transactional-id {shell_word(_row(facts).transactional_id)}'
    return Advice(_once_it_runs(
        facts, 'if it cannot wait, abort the whole transaction, on all its partitions; its producer is fenced and has '
        'to start again. `abort` is not for this: it would end it on this partition only'), command)


def _complete(facts: Facts) -> Advice:
    """Return the advice to let the external coordinator of the two-phase commit decide. If the transaction is ended
    against the external decision, records are lost or duplicated."""
    producer_id, producer_epoch = _row(facts).producer_id, _row(facts).producer_epoch
    return Advice(_once_it_runs(
        facts, 'let the external coordinator complete it: its client initialises again, keeps the prepared transaction '
        f'{producer_id}:{producer_epoch} and commits or aborts it. Only if no decision will come, abort it on all its '
        'partitions; its producer is fenced. `abort` is not for this: it would end it on this partition only'),
        _terminate(facts).command)


def _finish(facts: Facts) -> Advice:
    """Return the advice to run finish-spark, which reads the ledger of the sink. A transaction that the ledger names
    must not be aborted."""
    prefix = sink_prefix(_row(facts).transactional_id)
    assert prefix is not None
    command = f'{facts.command} finish-spark --prefix {shell_word(prefix)} --dry-run'
    lost = '' if _is_two_phase(facts) else ' Do so before its timeout, which aborts a decided transaction, too.'
    return Advice(_once_it_runs(
        facts, 'if the query runs or will run again, let it: it commits or aborts the transaction. Otherwise end all '
        'that it has left open, as its ledger decides: see with this command what that would be, and run it without '
        f'--dry-run.{lost} Add --ledger-topic if the query sets ledgerTopic: in another ledger, nothing is decided. '
        '`abort` and `force-terminate` are not for this: they would lose the records of a decided transaction'),
        command)


def _wait(facts: Facts) -> Advice:
    return Advice(_once_it_runs(facts, 'wait a moment, and ask again'))


def _reload(facts: Facts) -> Advice:
    """Return the advice to reload the coordinator. A committed transaction must not be aborted in this partition,
    because only this partition would lose its records."""
    text = 'restart the broker that coordinates it, or move the leader of its partition of __transaction_state'
    if _row(facts).state == 'PrepareCommit':
        return Advice(f'{text}. `abort` is not for this: the transaction is committed, and this partition would lose '
                      'its part')
    abort = _abort(facts)
    return Advice(f'{text}. If that does not help, {abort.text}. The decision is to abort, so nothing is lost',
                  abort.command)


def _once_it_runs(facts: Facts, text: str) -> str:
    return text if facts.is_live else f'while a broker runs on this directory: {text}'


# ---- the table, in which the first cause that fits is the verdict

_IN_TIME = (_at_timeout, _terminate)
_FROM_OUTSIDE = (_at_timeout, _complete)
_BY_HAND = (_never, _abort)

CAUSES: tuple[Cause, ...] = (
    Cause('healthy', lambda facts: facts.held_offsets <= 0,
          lambda facts: f'is not held: last stable offset = high watermark = {facts.offsets.high_watermark}',
          _why_healthy, _as_before, _nothing, is_stuck=False),
    Cause('unreplicated', lambda facts: facts.holder is None,
          lambda facts: f'is held at offset {facts.offsets.last_stable_offset}, and yet no transaction is open',
          _why_unreplicated, _on_replication, _check_replicas),
    # The following causes apply if no transactional.id has the producer id now.
    Cause('coordinator-unseen', _is_unseen, _held('it cannot be seen from here whether it hangs'), _why_unseen,
          _unknown_end, _ask_the_cluster),
    Cause('id-forgotten', _was_forgotten, _held(HANGING), _why_forgotten, *_BY_HAND),
    Cause('producer-id-replaced', _was_replaced, _held(HANGING), _why_replaced, *_BY_HAND,
          known_as=('KAFKA-18660', 'KAFKA-20090', 'KAFKA-20310')),
    Cause('state-lost', _has_lost_state, _held(HANGING), _why_state_lost, *_BY_HAND),
    Cause('unknown-producer', lambda facts: not _is_known(facts), _held(HANGING), _why_unknown, *_BY_HAND),
    Cause('coordinator-behind', _is_behind_the_log, _held(HANGING), _why_behind, *_BY_HAND),
    # The following causes apply if the transaction is decided and its marker is missing in this partition.
    Cause('coordinator-fenced', _is_fenced_coordinator, _held('its end is decided, but its marker is refused'),
          _why_fenced_coordinator, _when_epoch_is_reached, _reload, known_as=('KAFKA-9144',)),
    Cause('marker-refused', lambda facts: bool(facts.marked_elsewhere) and _is_overdue_decision(facts),
          _held('its end is decided, but its marker does not arrive'), _why_refused, _when_reloaded, _reload,
          known_as=('KAFKA-19999', 'KIP-1228')),
    Cause('prepared-stuck', _is_overdue_decision, _held('its end is decided, but its marker does not arrive'),
          _why_prepared, _when_reloaded, _reload, known_as=('KAFKA-9777', 'KAFKA-16352', 'KAFKA-18137')),
    Cause('ending', _is_decided, _held('its transaction is just ending'), _why_prepared, _in_a_moment, _wait),
    # The following causes apply if the transaction is open and includes this partition, so that the coordinator can end
    # it.
    Cause('epoch-exhausted', _is_exhausted, _held('its transaction is open, and its epochs are used up'),
          _why_exhausted, *_IN_TIME, known_as=('KAFKA-20090', 'KAFKA-19367')),
    Cause('two-phase-prepared', _is_kept, _held('its transaction is prepared for two-phase commit, and waits for its '
                                                'coordinator outside'),
          _why_kept, *_FROM_OUTSIDE, known_as=('KIP-939',)),
    Cause('two-phase-spark', _is_of_sink, _held('its transaction waits for a Spark query'), _why_of_sink, _at_next_plan,
          _finish, known_as=('KIP-939',)),
    Cause('two-phase', _is_two_phase, _held('its transaction waits for a decision from outside'), _why_two_phase,
          *_FROM_OUTSIDE, known_as=('KIP-939',)),
    Cause('clock-went-back', _began_in_the_future, _held('its transaction is open, and began in the future'),
          _why_clock, *_IN_TIME, known_as=('KAFKA-8803',)),
    Cause('cut-by-stale-marker', _was_cut, _held('its transaction is open, and a stale marker has cut it in two'),
          _why_cut, *_IN_TIME, known_as=('KAFKA-19446', 'KIP-1228')),
    Cause('late-write-joined', _joined_late, _held('its transaction is open, and an older write has joined it'),
          _why_joined, *_IN_TIME, known_as=('KIP-890',)),
    Cause('first-batch-missing', lambda facts: _is_ongoing_here(facts) and _begins_mid_sequence(facts),
          _held('its transaction is open, and its first batches are missing'), _why_first_missing, *_IN_TIME,
          known_as=('KAFKA-14920',)),
    Cause('overdue', _is_overdue, _held('its transaction is open beyond its timeout'), _why_overdue, *_IN_TIME),
    Cause('in-progress', _is_ongoing_here, _held('its transaction is open'), _why_open, *_IN_TIME),
    # The following causes apply if the coordinator knows the producer id but has no such transaction.
    Cause('marker-lost', _has_lost_marker, _held(HANGING), _why_marker_lost, *_BY_HAND),
    Cause('add-skipped', _skipped_add, _held(HANGING), _why_add_skipped, *_BY_HAND,
          known_as=('KAFKA-18575', 'KAFKA-18654')),
    Cause('late-write', _was_late, _held(HANGING), _why_late, *_BY_HAND, known_as=('KIP-890', 'KAFKA-14884')),
    Cause('ended-early', _follows_its_marker, _held(HANGING), _why_ended_early, *_BY_HAND, known_as=('KIP-890',)),
    Cause('mid-sequence', _begins_mid_sequence, _held(HANGING), _why_mid_sequence, *_BY_HAND,
          known_as=('KAFKA-18202',)),
    Cause('never-added', _was_never_added, _held(HANGING), _why_never_added, *_BY_HAND, known_as=('KIP-890',)),
    Cause('hanging', lambda facts: True, _held(HANGING), _why_hanging, *_BY_HAND),
)
