"""The checker finds every kind of anomaly that is planted into a sound history, and no anomaly in a sound history.

Covers promises 1, 2 and 4 of docs/design.md.
"""
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds.modelled_histories import GROUPS, INPUT, LISTS, ModelledRun

from kbroker_tools.verify.anomalies import Kind
from kbroker_tools.verify.checker import check
from kbroker_tools.verify.history import HistoryError, read

STEPS = 500


def verdict_of(rows):
    return check(read(json.dumps(row) for row in rows))


def kinds_in(rows):
    return {kind for kind, _ in verdict_of(rows).found}


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_a_sound_history_has_no_anomaly(seed):
    verdict = verdict_of(ModelledRun(seed, STEPS).rows())
    assert [(kind.title, found.evidence.text) for kind, found in verdict.found] == []
    assert verdict.is_conclusive


# ---- plants: each one changes the rows of a sound history

class Plants:
    """Changes of a history. Each method breaks one promise."""

    def __init__(self, rows, rng):
        self.rows = rows
        self.rng = rng
        self.final = {reader['isolation']: reader['reader'] for reader in rows
                      if reader['type'] == 'reader' and reader['is_final']}

    def of_type(self, name):
        return [row for row in self.rows if row['type'] == name]

    def transactions(self, outcome, least_writes=1):
        return [row for row in self.of_type('transaction')
                if row['outcome'] == outcome and len(row['writes']) >= 4 * least_writes]

    def final_chunks(self, isolation):
        return [chunk for poll in self.of_type('poll') if poll['reader'] == self.final[isolation]
                for chunk in poll['reads']]

    def remove(self, number, *isolations):
        for isolation in isolations:
            for _, offsets, numbers in self.final_chunks(isolation):
                if number in numbers:
                    del offsets[numbers.index(number)]
                    numbers.remove(number)

    def insert(self, isolation, partition, offset, number):
        chunks = [chunk for chunk in self.final_chunks(isolation) if chunk[0] == partition]
        chunk = next((chunk for chunk in chunks if chunk[1] and chunk[1][-1] > offset), chunks[-1])
        place = next((place for place, at in enumerate(chunk[1]) if at > offset), len(chunk[1]))
        chunk[1].insert(place, offset)
        chunk[2].insert(place, number)

    def followers(self, least):
        """Return polls with at least `least` records of one partition. The first and the final poll of a reader are
        excluded.
        """
        seen = set()
        found = []
        for poll in self.of_type('poll'):
            for chunk in poll['reads']:
                key = poll['reader'], chunk[0]
                if len(chunk[1]) >= least and key in seen and not poll['seek'] \
                        and poll['reader'] not in self.final.values():
                    found.append((poll, chunk))
                seen.add(key)
        return found

    def lost_write(self):
        row = self.rng.choice(self.transactions('committed'))
        self.remove(row['writes'][0], *self.final)

    def duplicate(self):
        row = self.rng.choice(self.transactions('committed'))
        number, partition = row['writes'][:2]
        for isolation in self.final:
            self.insert(isolation, partition, 10**5, number)

    def transformed_by_two_members(self):
        group = self.rng.choice(GROUPS)
        first, second = self.rng.sample([row for row in self.transactions('committed') if row.get('group') == group], 2)
        second['sources'][1:3] = first['sources'][1:3]

    def aborted_read(self):
        row = self.rng.choice(self.transactions('aborted'))
        number, partition, offset, _ = row['writes'][:4]
        self.insert('read_committed', partition, offset, number)

    def torn(self):
        row = self.rng.choice(self.transactions('committed', 2))
        self.remove(row['writes'][0], 'read_committed')

    def precommitted_read(self):
        readers = {row['reader'] for row in self.of_type('reader') if row['isolation'] == 'read_committed'}
        poll = self.rng.choice([poll for poll in self.of_type('poll') if poll['reader'] in readers and poll['reads']
                                and poll['reads'][0][0] in LISTS and poll['reader'] not in self.final.values()])
        number = poll['reads'][0][2][0]
        for row in self.of_type('transaction'):
            if number in row['writes'][::4]:
                row['commit'] = row['end'] = max(other['end'] for other in self.of_type('poll')) + 1

    def inconsistent_offset(self):
        _, chunk = self.rng.choice(self.followers(2))
        chunk[2][0], chunk[2][1] = chunk[2][1], chunk[2][0]

    def offset_without_output(self):
        row = self.rng.choice([row for row in self.transactions('committed') if 'sources' in row])
        for number in row['writes'][::4]:
            self.remove(number, 'read_committed')
        row['outcome'] = 'aborted'

    def output_without_offset(self):
        row = self.rng.choice(self.of_type('committed'))
        assert row['group'] in GROUPS and row['offsets'][0] == INPUT
        row['offsets'][1] -= 1

    def internal_skip(self):
        _, chunk = self.rng.choice(self.followers(3))
        del chunk[1][1], chunk[2][1]

    def external_skip(self):
        _, chunk = self.rng.choice(self.followers(2))
        del chunk[1][0], chunk[2][0]

    def non_monotonic_poll(self):
        poll, _ = self.rng.choice(self.followers(1))
        self.rows.insert(self.rows.index(poll) + 1, json.loads(json.dumps(poll)))

    def non_monotonic_send(self):
        row = self.rng.choice([row for row in self.of_type('sends') if -1 not in row['writes'][2::4]])
        row['writes'][2], row['writes'][6] = row['writes'][6], row['writes'][2]

    def circular_reads(self):
        first, second = self.rng.sample(self.transactions('committed'), 2)
        reader = next(iter(self.of_type('reader')))['reader']
        for reads, writes in ((first, second), (second, first)):
            number, partition, offset, _ = writes['writes'][:4]
            self.rows.append({'type': 'poll', 'reader': reader, 'transaction': reads['transaction'], 'begin': 0,
                              'end': 10**9, 'seek': [partition, offset], 'reads': [[partition, [offset], [number]]]})

    def stable_offset(self):
        self.rng.choice(self.of_type('stable'))['stable'] -= 1

    def held_offsets(self):
        self.rng.choice(self.of_type('committed'))['type'] = 'unstable'

    def zombie(self):
        fenced = [row for row in self.of_type('producer') if row['transactional_id'] == 'fenced'][:-1]
        row = self.rng.choice([row for row in self.transactions('committed')
                               if row['producer'] in {producer['producer'] for producer in fenced}])
        row['writes'][3] = 10**9

    def zombie_commit(self):
        fenced = [row for row in self.of_type('producer') if row['transactional_id'] == 'fenced'][:-1]
        row = self.rng.choice([row for row in self.transactions('committed')
                               if row['producer'] in {producer['producer'] for producer in fenced}])
        row['commit'] = row['end'] = 10**9

    def confirmed_settlements(self):
        return [row for row in self.of_type('outcomes') if row['is_confirmed']]

    def redelivered(self):
        settled = self.rng.choice(self.confirmed_settlements())
        (delivery,) = (row for row in self.of_type('deliveries') if row['sharer'] == settled['sharer']
                       and row['end'] == settled['begin'])
        later = json.loads(json.dumps(delivery))
        later['since'] = later['end'] = settled['end'] + 1
        partition, offset = settled['settled'][:2]
        later['reads'] = [read for read in later['reads'] if read[:2] == [partition, [offset]]]
        assert later['reads']
        self.rows.append(later)

    def passed_over(self):
        row = self.rng.choice(self.confirmed_settlements())
        del row['settled'][:2]

    def share_group_that_stands(self):
        row = self.rng.choice(self.confirmed_settlements())
        partition, offset = row['settled'][:2]
        del row['settled'][:2]
        (shared,) = self.of_type('shared')
        shared['starts'][shared['starts'][::2].index(partition) * 2 + 1] = offset

    def shared_before_its_commit(self):
        number = self.rng.choice(self.of_type('deliveries'))['reads'][0][2][0]
        for row in self.transactions('committed'):
            if number in row['writes'][::4]:
                row['commit'] = row['end'] = max(other['end'] for other in self.of_type('poll')) + 10**6
                return
        self.precommitted_read()     # a transaction with an unknown end

    def shared_aborted(self):
        row = self.rng.choice(self.transactions('aborted'))
        number, partition, offset, _ = row['writes'][:4]
        self.rng.choice(self.of_type('deliveries'))['reads'].append([partition, [offset], [number], 1])

    def shared_twice_numbered(self):
        read = self.rng.choice(self.of_type('deliveries'))['reads'][0]
        other = self.rng.choice([row for row in self.of_type('deliveries') if row['reads'][0][2] != read[2]])
        read[2] = other['reads'][0][2]

    def foreign_record(self):
        chunk = self.rng.choice([chunk for chunk in self.final_chunks('read_uncommitted') if chunk[2]])
        chunk[2][0] = -1

    def unreadable_end(self):
        self.rng.choice(self.of_type('end'))['ends'][1] -= 1


PLANTS = {
    Plants.lost_write: Kind.LOST_WRITE, Plants.duplicate: Kind.DUPLICATE,
    Plants.transformed_by_two_members: Kind.DUPLICATE, Plants.aborted_read: Kind.ABORTED_READ,
    Plants.torn: Kind.TORN, Plants.precommitted_read: Kind.PRECOMMITTED_READ,
    Plants.inconsistent_offset: Kind.OFFSET_CONFLICT, Plants.offset_without_output: Kind.OFFSET_WITHOUT_OUTPUT,
    Plants.output_without_offset: Kind.OUTPUT_WITHOUT_OFFSET, Plants.internal_skip: Kind.INTERNAL_SKIP,
    Plants.external_skip: Kind.EXTERNAL_SKIP, Plants.non_monotonic_poll: Kind.NON_MONOTONIC_POLL,
    Plants.non_monotonic_send: Kind.NON_MONOTONIC_SEND, Plants.circular_reads: Kind.READ_CYCLE,
    Plants.stable_offset: Kind.STABLE_OFFSET, Plants.held_offsets: Kind.STABLE_OFFSET, Plants.zombie: Kind.ZOMBIE,
    Plants.zombie_commit: Kind.ZOMBIE,
    Plants.redelivered: Kind.REDELIVERED, Plants.passed_over: Kind.PASSED_OVER,
    Plants.share_group_that_stands: Kind.UNREADABLE, Plants.shared_before_its_commit: Kind.PRECOMMITTED_READ,
    Plants.shared_aborted: Kind.ABORTED_READ, Plants.shared_twice_numbered: Kind.OFFSET_CONFLICT,
    Plants.foreign_record: Kind.FOREIGN_RECORD, Plants.unreadable_end: Kind.UNREADABLE,
}


@pytest.mark.parametrize('plant', PLANTS, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize('seed', range(2))
def test_a_planted_anomaly_is_found(plant, seed):
    rows = ModelledRun(seed, STEPS).rows()
    plant(Plants(rows, random.Random(seed)))
    assert PLANTS[plant] in kinds_in(rows)


def test_records_behind_a_stable_offset_that_stands_still_are_not_called_lost():
    rows = ModelledRun(1, STEPS).rows()
    plants = Plants(rows, random.Random(1))
    (stable,) = (row for row in plants.of_type('stable') if row['partition'] == 0)
    stable['stable'] = 5
    for row in plants.of_type('end'):
        if row['reader'] == plants.final['read_committed']:
            row['ends'][1:3] = 5, 5
    for partition, offsets, numbers in plants.final_chunks('read_committed'):
        if partition == 0:
            kept = sum(offset < 5 for offset in offsets)
            del offsets[kept:], numbers[kept:]
    assert kinds_in(rows) == {Kind.STABLE_OFFSET}


def test_records_that_both_final_readers_did_not_reach_are_not_called_torn():
    rows = ModelledRun(1, STEPS).rows()
    plants = Plants(rows, random.Random(1))
    for row in plants.of_type('end'):
        row['ends'][1] = 5
    for isolation in plants.final:
        for partition, offsets, numbers in plants.final_chunks(isolation):
            if partition == 0:
                kept = sum(offset < 5 for offset in offsets)
                del offsets[kept:], numbers[kept:]
    assert kinds_in(rows) == {Kind.UNREADABLE}


def test_what_an_interrupted_run_did_not_record_is_no_fault_of_the_broker():
    rows = ModelledRun(1, STEPS).rows()
    row = next(row for row in Plants(rows, random.Random(1)).transactions('committed') if 'sources' in row)
    rows = [other for other in rows if other is not row and other['type'] != 'finish']
    assert kinds_in(rows) == set()


def test_a_client_without_an_acknowledged_record_leaves_the_verdict_open():
    rows = ModelledRun(1, 300).rows()
    rows.insert(1, {'type': 'reader', 'reader': 10**6, 'isolation': 'read_committed', 'client': 'idle',
                    'is_final': False})
    verdict = verdict_of(rows)
    assert len(verdict.found) == 0
    assert verdict.idle_clients == ('idle',) and not verdict.is_conclusive


def test_each_kind_of_anomaly_has_a_plant():
    assert set(PLANTS.values()) == set(Kind)


def test_a_history_that_was_interrupted_is_not_conclusive():
    rows = [row for row in ModelledRun(1, 300).rows() if row['type'] != 'finish']
    assert not verdict_of(rows).is_conclusive


@pytest.mark.parametrize('line', ['{"type":"pol', '{"type":"unknown"}', '{"type":"poll","reader":3}', '[]'])
def test_a_line_that_is_wrong_is_named(line):
    with pytest.raises(HistoryError, match='line 2: found'):
        read([json.dumps(ModelledRun(1, 10).rows()[0]), line])
