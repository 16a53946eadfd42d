"""Verdicts from facts: the cause, the next event and the safe command."""
import subprocess
from dataclasses import replace

import pytest
from support.worlds.in_memory_view import InMemoryLog

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import replace as changed
from kbroker.client.descriptions import GroupMemberInfo, ProducerInfo, TransactionInfo, TransactionListing
from kbroker.record.batch import iter_batches
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import PartitionInfo, PartitionOffsets, TopicInfo
from kbroker_tools.stuck.causes import CAUSES, judge
from kbroker_tools.stuck.facts import Facts, HeldGroup, LogEvidence, Marker, PastRow, StateLog, Writer
from kbroker_tools.stuck.gatherer import Gatherer
from kbroker_tools.stuck.report import as_json, show, show_many

NOW_MS = 1_800_000_000_000
HERE = ('orders', 0)
MEMBER = GroupMemberInfo('m-1', None, 'client-1', '/10.0.0.7', (HERE,))

OPEN = Facts(
    *HERE, NOW_MS, PartitionOffsets(0, 30, 10), holder=ProducerInfo(7, 3, 4, NOW_MS - 5000, -1, 10),
    log=LogEvidence(3, 0, NOW_MS - 5000, 20),
    transaction=TransactionInfo('billing', 1, 7, 3, 'Ongoing', 60_000, NOW_MS - 5000, (HERE,)),
    command='kbroker-transactions --bootstrap-server b:9092')
BEFORE = PastRow('billing', 'Empty', NOW_MS - 10_000, 7, 3)
IDLE = replace(OPEN, state_log=StateLog(past=(BEFORE,)),
               transaction=changed(OPEN.transaction, state='CompleteAbort', partitions=()))
DECIDED = replace(OPEN, transaction=changed(OPEN.transaction, state='PrepareCommit', producer_epoch=4),
                  state_log=StateLog(past=(PastRow('billing', 'PrepareCommit', NOW_MS - 3_600_000, 7, 4),)))


def test_each_cause_has_a_name_of_its_own_and_the_last_fits_all():
    names = [cause.name for cause in CAUSES]
    assert len(set(names)) == len(names)
    assert CAUSES[-1].fits(IDLE)


def test_the_expiry_is_reported_with_the_time_left_and_the_interval_of_the_coordinator():
    verdict = judge(replace(OPEN, expiry_interval_ms=200))
    assert verdict.cause == 'in-progress'
    assert verdict.next == ('the producer ends it, or the coordinator aborts it at 2027-01-15 08:00:55.000Z, in 55.0 s '
                            '(timeout 1 min; it checks every 200 ms)')


def test_between_the_timeout_and_the_next_look_it_is_about_to_be_aborted():
    verdict = judge(replace(OPEN, now_ms=NOW_MS + 60_000))
    assert verdict.cause == 'in-progress'
    assert verdict.next.startswith('the coordinator aborts it when it next checks')


def test_two_looks_after_the_timeout_the_coordinator_is_at_fault():
    late = replace(OPEN, now_ms=NOW_MS + 90_000)
    assert judge(late).cause == 'overdue'
    assert judge(replace(late, is_live=False)).cause == 'in-progress'


def test_offline_nothing_happens_and_the_command_is_for_later():
    verdict = judge(replace(OPEN, is_live=False))
    assert verdict.next.startswith('while a broker runs on this directory')
    assert verdict.advice.startswith('while a broker runs on this directory')


def test_a_transaction_that_the_coordinator_has_is_ended_as_a_whole():
    assert judge(OPEN).command == 'kbroker-transactions --bootstrap-server b:9092 force-terminate --transactional-id ' \
                                  'billing'
    odd = replace(OPEN, transaction=changed(OPEN.transaction, transactional_id="it's; rm -rf /"))
    assert judge(odd).command.endswith("""--transactional-id 'it'"'"'s; rm -rf /'""")


@pytest.mark.parametrize('transactional_id', ['\n', '\x1b[31mred\x1b]0;title\x07', '\u202egnp.exe', "it's\\\t\x01f"])
def test_a_command_with_characters_that_a_terminal_obeys_is_copied_whole(transactional_id):
    facts = replace(OPEN, transaction=changed(OPEN.transaction, transactional_id=transactional_id))
    command = judge(facts).command
    assert command.isprintable()
    word = command.partition('--transactional-id ')[2]
    assert subprocess.run(['bash', '-c', f'printf %s {word}'], capture_output=True,
                          check=True).stdout.decode() == transactional_id


def test_a_committed_transaction_is_never_aborted():
    verdict = judge(DECIDED)
    assert (verdict.cause, verdict.command) == ('prepared-stuck', None)
    assert '`abort` is not for this' in verdict.advice


def test_a_marker_below_the_high_watermark_is_missing_though_nothing_is_open():
    verdict = judge(replace(OPEN, holder=None, log=None, transaction=None))
    assert (verdict.cause, verdict.is_stuck) == ('unreplicated', True)


def test_what_cannot_be_read_is_not_claimed_to_be_lost():
    hidden = replace(OPEN, transaction=None, state_log=StateLog(is_readable=False, has_rows=False))
    verdict = judge(hidden)
    assert (verdict.cause, verdict.command) == ('coordinator-unseen', None)
    assert 'could not be read' in verdict.why
    assert judge(replace(hidden, is_live=False)).command.endswith(' why-stuck orders:0')
    assert judge(replace(hidden, state_log=StateLog(has_rows=False))).cause == 'state-lost'


def test_what_is_not_seen_whole_is_never_aborted():
    past = (PastRow('billing', 'CompleteAbort', NOW_MS - 9000, 8, 1),)
    for state_log in (StateLog(is_readable=False), StateLog(is_readable=False, past=past)):
        for is_live in (True, False):
            verdict = judge(replace(OPEN, transaction=None, state_log=state_log, is_live=is_live))
            assert verdict.cause == 'coordinator-unseen'
            assert ' abort ' not in (verdict.command or '')


def test_a_log_that_was_read_in_part_is_no_evidence_of_absence():
    partial = replace(OPEN.log, base_sequence=9, is_whole=False)
    assert judge(replace(IDLE, log=partial)).cause == 'hanging'
    assert judge(replace(IDLE, log=replace(partial, is_whole=True))).cause == 'mid-sequence'


def test_clocks_that_differ_a_little_are_no_evidence():
    marker = Marker(9, 3, True, NOW_MS - 4500)
    log = replace(OPEN.log, last_marker=marker, has_earlier_data=True)
    assert judge(replace(OPEN, log=log)).cause == 'in-progress'
    assert judge(replace(IDLE, log=log)).cause == 'ended-early'
    older = replace(log, max_timestamp_ms=NOW_MS - 60_000)
    assert judge(replace(IDLE, log=older)).cause == 'late-write'


def test_a_decision_of_another_epoch_is_not_that_of_this_transaction():
    past = (PastRow('billing', 'PrepareAbort', NOW_MS - 9000, 7, 1, frozenset({HERE}), True),
            PastRow('billing', 'CompleteAbort', NOW_MS - 8000, 7, 1, frozenset(), True))
    assert judge(replace(IDLE, state_log=StateLog(past=past))).cause == 'never-added'


def test_without_rows_of_its_time_a_write_is_not_called_never_added():
    assert judge(IDLE).cause == 'never-added'
    verdict = judge(replace(IDLE, state_log=StateLog()))
    assert verdict.cause == 'hanging'
    assert verdict.command.endswith('abort --topic orders --partition 0 --start-offset 10')


# ---- output

def shown(facts, tmp_path):
    path = tmp_path / 'shown'
    with open(path, 'w', encoding='utf-8') as stream:
        show(Output(stream=stream), facts, judge(facts))
    return path.read_text(encoding='utf-8')


def test_the_report_opens_with_the_verdict_and_has_the_facts_below_the_command(tmp_path):
    facts = replace(OPEN, groups=(HeldGroup('readers', 10, 20, (MEMBER,)), HeldGroup('slow', 4, 26),
                                  HeldGroup('dirty', 25, 5)),
                    writers=(Writer('app', (MEMBER,)),), behind=(ProducerInfo(8, 0, 0, NOW_MS, -1, 12),))
    assert shown(facts, tmp_path) == '''\
orders-0 is held at offset 10 by transactional.id 'billing': its transaction is open
  why          it began 5.0 s ago, and its producer has neither committed nor aborted it
  next         the producer ends it, or the coordinator aborts it at 2027-01-15 08:00:55.000Z, in
               55.0 s (timeout 1 min; it checks every 10.0 s)
  do           if it cannot wait, abort the whole transaction, on all its partitions; its producer
               is fenced and has to start again. `abort` is not for this: it would end it on this
               partition only

  kbroker-transactions --bootstrap-server b:9092 force-terminate --transactional-id billing

  producer     id 7, epoch 3; transactional.id 'billing'
  client       it commits offsets of group 'app': client-1 at 10.0.0.7
  open since   2027-01-15 07:59:55.000Z (5.0 s ago), offset 10; 20 records since then
  held back    20 offsets (records and markers): last stable offset 10, high watermark 30
  consumers    readers: at 10, lag 20; waits here if it reads committed records only (client-1 at
               10.0.0.7)
               slow: at 4, lag 26; has 6 to go, and then waits if it reads committed records only
               dirty: at 25, lag 5; is past it, as it reads uncommitted records too
  coordinator  broker 1: 'billing' is Ongoing, epoch 3, timeout 1 min, began 2027-01-15
               07:59:55.000Z; orders-0
  behind it    producer id 8 from offset 12: open too, and next to hold it
'''


def test_an_offset_behind_the_end_of_the_log_needs_a_reset(tmp_path):
    """The report once said that such a group is past the transaction because it reads uncommitted records."""
    text = ' '.join(shown(replace(OPEN, groups=(HeldGroup('lost', 40, 0, is_past_end=True),)), tmp_path).split())
    assert ('lost: at 40, lag 0; the log ends below it, at 30, so it needs a reset once it has no members: '
            'kbroker-groups --bootstrap-server b:9092 --reset-offsets --group lost --topic orders:0 --to-latest '
            '--execute') in text


def test_of_many_partitions_five_are_shown_in_full_and_those_with_the_same_command_in_a_line(tmp_path):
    found = [replace(OPEN, partition=number, transaction=changed(
        OPEN.transaction, transactional_id=transactional_id, partitions=(('orders', number),)))
        for number, transactional_id in enumerate('aabcdefa')]
    path = tmp_path / 'shown'
    with open(path, 'w', encoding='utf-8') as stream:
        show_many(Output(stream=stream), [(facts, judge(facts)) for facts in found])
    lines = path.read_text(encoding='utf-8').splitlines()
    assert [line.split()[0] for line in lines if line.startswith('orders-')] == [f'orders-{n}' for n in range(8)]
    assert sum(line.startswith('  why ') for line in lines) == 5
    assert [line.split()[-1] for line in lines if line.startswith('  kbroker-transactions ')] == list('abcdef')


def test_what_the_protocol_does_not_tell_is_said_to_be_so(tmp_path):
    text = shown(IDLE, tmp_path)
    assert 'client       id and address not reported by the protocol' in text
    assert 'no group has committed an offset here' in text
    assert 'by the time of its records' in text


def test_what_could_not_be_read_is_named(tmp_path):
    text = shown(replace(OPEN, log=None, unread_groups=('secret',)), tmp_path)
    assert 'its records could not be read' in text
    assert 'could not read the offsets of secret' in text


def test_on_the_offsets_topic_it_is_the_groups_that_wait(tmp_path):
    text = shown(replace(OPEN, topic='__consumer_offsets', writers=(Writer('app', ()),)), tmp_path)
    assert "members of 'app' that ask for stable offsets get UNSTABLE_OFFSET_COMMIT" in text


def test_the_json_has_what_the_text_has():
    found = as_json(OPEN, judge(OPEN))
    assert (found['cause'], found['held_offsets'], found['coordinator']['expires_at_ms']) == (
        'in-progress', 20, NOW_MS + 55_000)
    healthy = replace(OPEN, offsets=PartitionOffsets(0, 30, 30), holder=None, transaction=None, log=None)
    assert as_json(healthy, judge(healthy))['producer'] is None


# ---- a cluster that changes meanwhile

class MovingView:
    """A view of a partition. After the first request, the open transaction has ended and a new one has begun."""

    place, is_live = 'b:9092', True

    def __init__(self):
        self.asked = 0

    def now_ms(self):
        return NOW_MS

    def topics(self):
        return {'orders': TopicInfo('orders', bytes(16), False, (PartitionInfo('orders', 0, 1),))}

    def partition_offsets(self, topic, partition):
        return PartitionOffsets(0, 30, 20)

    def producers(self, topic, partition):
        self.asked += 1
        return [ProducerInfo(7, 3, 4, NOW_MS, -1, 10 if self.asked == 1 else 20)]

    def transactions(self):
        return [TransactionListing('billing', 1, 7, 'Ongoing')]

    def transaction(self, transactional_id):
        ended = self.asked == 1
        return TransactionInfo('billing', 1, 7, 3, 'CompleteAbort' if ended else 'Ongoing', 60_000, NOW_MS,
                               () if ended else (HERE,))

    def batches(self, topic, partition, start_offset=0, end_offset=None):
        return iter(())

    def groups(self):
        return []


def test_what_may_not_be_read_leaves_a_verdict(monkeypatch):
    def refuse(*_):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    view = MovingView()
    view.groups, view.group, view.group_offsets, view.batches = lambda: ['secret'], refuse, refuse, refuse
    facts = Gatherer(view, '').facts(*HERE)
    assert (facts.unread_groups, facts.log, judge(facts).cause) == (('secret',), None, 'in-progress')


def looked_at(view):
    """Gather the facts. Return (the facts, the number of pauses before the gatherer repeated its requests)."""
    pauses = []
    return Gatherer(view, '', sleep=pauses.append).facts(*HERE), len(pauses)


def test_a_transaction_that_ends_while_it_is_looked_at_is_not_called_hanging():
    facts, pauses = looked_at(MovingView())
    assert (facts.holder.transaction_first_offset, judge(facts).cause, pauses) == (20, 'in-progress', 1)


def test_an_id_that_is_new_since_the_ids_were_listed_is_asked_for():
    view = MovingView()
    view.asked = 1
    listings = iter([[], [TransactionListing('billing', 1, 7, 'Ongoing')]])
    view.transactions = lambda: next(listings)
    facts, _ = looked_at(view)
    assert facts.transactional_id == 'billing'


def test_a_last_stable_offset_that_comes_to_the_high_watermark_is_not_held():
    view = MovingView()
    offsets = iter([PartitionOffsets(0, 30, 20), PartitionOffsets(0, 45, 40)])
    view.producers, view.partition_offsets = lambda *_: [], lambda *_: next(offsets)
    facts, pauses = looked_at(view)
    assert (judge(facts).cause, facts.offsets, pauses) == ('healthy', PartitionOffsets(0, 30, 30), 1)


def test_a_last_stable_offset_that_no_producer_holds_is_given_time_for_a_flush():
    view = MovingView()
    view.producers = lambda *_: []
    facts, pauses = looked_at(view)
    assert judge(facts).cause == 'unreplicated'
    assert pauses == 49


def test_a_marker_that_arrives_while_the_log_is_read_has_it_looked_at_again():
    view = MovingView()
    view.asked = 1
    log = InMemoryLog(20)
    log.write(7, 3)
    log.end(7, 3)
    reads = iter([list(iter_batches(log.data)), list(iter_batches(log.data))[:1]])
    view.batches = lambda *_: iter(next(reads)) if _[0] == 'orders' else iter(())
    facts, pauses = looked_at(view)
    assert (facts.log.records, facts.log.is_ended, pauses) == (1, False, 1)


@pytest.mark.parametrize('facts', [OPEN, IDLE, DECIDED])
def test_every_verdict_is_of_whole_sentences(facts):
    verdict = judge(facts)
    for text in (verdict.headline, verdict.why, verdict.next, verdict.advice):
        assert text and '  ' not in text and not text.endswith((' ', ',', ':'))
