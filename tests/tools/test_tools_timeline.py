"""The timeline of a partition: the replay, and its picture as text and in a browser."""
import io
import json
import random
import re
from itertools import permutations

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.written_transactions import write_transactions
from support.runner.browser import OpenPage, dump_dom, screenshot
from support.runner.command_runner import run_command, run_in_process
from support.worlds.in_memory_view import START_MS, InMemoryLog, InMemoryView

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig
from kbroker_tools.base.render import Output
from kbroker_tools.commands import timeline as command
from kbroker_tools.timeline.html import page
from kbroker_tools.timeline.layout import lanes_of, scale_of
from kbroker_tools.timeline.reading import Bounds, read_timeline
from kbroker_tools.timeline.text import ASCII, TIME_STEPS_MS, UNICODE, draw, glyphs_for, ticks
from kbroker_tools.timeline.transactions_of_partition import Outcome, replay

COMMITTED, ABORTED, OPEN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.OPEN
NASTY = '</script><script>document.title = "broken"</script>'


def small_view():
    """Return a view with ten transactions of three producers. The last transaction of payments-2 is open."""
    view = InMemoryView()
    for producer_id, transactional_id in ((1000, 'payments-1'), (1001, 'payments-2'), (1002, NASTY)):
        view.write_row(transactional_id, 'EMPTY', producer_id, 0, at_ms=0)
    log = view.log('orders')
    log.write(records=4)
    log.write(1000, 0, 10, 5)
    log.write(1001, 0, 30, 2)
    log.write(1000, 0, 40, 3)
    log.end(1000, 1, True, 100)
    log.write(1001, 0, 120, 4)
    log.end(1001, 1, False, 300)
    log.write(1000, 1, 320, 6)
    log.write(1002, 0, 350, 3)
    log.end(1000, 2, True, 400)
    log.end(1002, 1, True, 500)
    log.write(1000, 5, 600, 8)
    log.write(1001, 1, 700, 2)
    log.end(1000, 6, True, 900)
    log.end(1001, 2, True, 1000)
    log.write(1002, 1, 1100, 5)
    log.end(1002, 2, False, 1400)
    log.write(1001, 2, 1500, 9)
    log.write(1000, 6, 1600, 4)
    log.end(1000, 7, True, 1900)
    log.write(1000, 7, 2000, 4)
    log.end(1000, 8, True, 2100)
    return view


def large_view(transactions=10_000, producers=8, seed=5):
    """Return a view with transactions of concurrent producers. One transaction is open. In a part of the time, every
    third transaction is aborted."""
    chance = random.Random(seed)
    view = InMemoryView()
    log = view.log('orders')
    epochs = dict.fromkeys(range(1000, 1000 + producers), 0)
    for producer_id in epochs:
        view.write_row(f'stream-{producer_id - 1000}', 'EMPTY', producer_id, 0, at_ms=0)
    opened = set()
    ended = at_ms = 0
    while ended < transactions - 1:
        at_ms += chance.randrange(1, 40)
        producer_id = chance.choice(list(epochs))
        if producer_id not in opened:
            log.write(producer_id, epochs[producer_id], at_ms, chance.randrange(1, 6))
            opened.add(producer_id)
        elif producer_id != 1003 or ended < transactions * 0.9:
            epochs[producer_id] += 1
            is_outage = 0.6 < ended / transactions < 0.65
            log.end(producer_id, epochs[producer_id], chance.random() > (0.3 if is_outage else 0.01), at_ms)
            opened.discard(producer_id)
            ended += 1
    for producer_id in opened - {1003}:
        log.end(producer_id, epochs[producer_id] + 1, True, at_ms + 1)
    view.clock_ms = START_MS + at_ms + 1
    return view


def read(view, **bounds):
    return read_timeline(view, 'orders', 0, Bounds(**bounds))


def text_of(view, axis='offset', width=100, glyphs=UNICODE, **bounds):
    return [''.join(piece for piece, _ in line) for line in draw(read(view, **bounds), axis, width, glyphs)]


def lane(lines, title):
    return next(line for line in lines if line.startswith(title))


# ---- replay

def test_a_transaction_reaches_from_its_first_batch_to_its_marker():
    log = InMemoryLog()
    log.write(7, 3, 10, records=2, size_bytes=100)
    log.write(7, 3, 30, records=3)
    log.end(7, 4, True, 50, coordinator_epoch=9)
    [one] = replay(log.batches()).transactions
    assert (one.producer_id, one.producer_epoch, one.first_offset, one.last_offset) == (7, 3, 0, 4)
    assert (one.records, one.outcome, one.marker.offset, one.marker.producer_epoch) == (5, COMMITTED, 5, 4)
    assert (one.begin_timestamp_ms, one.last_timestamp_ms) == (START_MS + 10, START_MS + 30)
    assert (one.marker.coordinator_epoch, one.duration_ms) == (9, 40)
    assert one.size_bytes == len(log.data) - 78


def test_producers_that_write_at_once_have_transactions_of_their_own():
    log = InMemoryLog()
    log.write(1, 0)
    log.write(2, 0)
    log.end(1, 0, False)
    log.write(3, 0)
    log.end(2, 0, True)
    assert [(one.producer_id, one.outcome, one.end_offset) for one in replay(log.batches()).transactions] == [
        (1, ABORTED, 2), (2, COMMITTED, 4), (3, OPEN, 3)]


def test_a_marker_that_ends_nothing_is_kept_apart():
    log = InMemoryLog()
    log.end(1, 0, True)
    log.write(1, 1)
    log.end(1, 2, True)
    log.end(1, 2, True)
    found = replay(log.batches())
    assert [marker.offset for marker in found.lone_markers] == [0, 3]
    assert len(found.transactions) == 1


def test_an_epoch_that_no_marker_announced_is_a_restart():
    log = InMemoryLog()
    log.write(1, 0)
    log.end(1, 1, True)   # as transaction.version 2 does
    log.write(1, 1)
    log.end(1, 1, False)  # as 0 and 1 do
    log.write(1, 5)
    assert [one.epoch_before for one in replay(log.batches()).transactions] == [None, None, 1]


def test_plain_records_are_counted_and_batches_that_compaction_emptied_say_nothing():
    log = InMemoryLog()
    log.write(records=3)
    log.write(5, 0, records=2, transactional=False)
    log.append(encode_batch([], producer_id=1, producer_epoch=0, transactional=True, last_offset_delta=2))
    log.append(encode_batch([], producer_id=1, producer_epoch=0, transactional=True, control=True, last_offset_delta=0))
    found = replay(log.batches())
    assert (found.plain_records, found.transactions, found.lone_markers) == (5, [], [])


def test_a_control_batch_of_another_kind_ends_nothing():
    log = InMemoryLog()
    log.write(1, 0)
    log.append(encode_batch([(START_MS, b'\0\0\0\2', b'')], producer_id=1, producer_epoch=0, transactional=True,
                            control=True))
    assert [one.outcome for one in replay(log.batches()).transactions] == [OPEN]


def test_an_end_offset_leaves_out_what_begins_behind_it_and_not_the_endings():
    log = InMemoryLog()
    log.write(1, 0)
    log.write(2, 0)
    log.end(1, 0, False)
    [one] = replay(log.batches(), end_offset=1).transactions
    assert (one.producer_id, one.outcome) == (1, ABORTED)


# ---- bounds

def test_bounds_leave_out_transactions():
    view = small_view()
    everything = [one.first_offset for one in read(view).transactions]
    assert everything == [4, 9, 20, 26, 31, 39, 43, 49, 58, 63]
    assert [one.first_offset for one in read(view, from_offset=39, to_offset=50).transactions] == [39, 43, 49]
    assert [one.first_offset for one in read(view, since_ms=START_MS + 1900).transactions] == [49, 58, 63]


def test_what_is_open_since_before_the_bound_is_shown_with_its_true_first_offset():
    found = read(small_view(), from_offset=58)
    assert [(one.first_offset, one.outcome) for one in found.transactions] == [
        (49, OPEN), (58, COMMITTED), (63, COMMITTED)]
    assert found.start_offset == 49


# ---- lanes

def test_lanes_are_producers_by_their_transactional_id_where_it_is_known():
    lanes = lanes_of(read(small_view()), 10)
    assert [lane.title for lane in lanes] == ['payments-1', 'payments-2', NASTY]
    assert lanes[0].detail == 'producer 1000, epoch 0 to 7'
    assert lanes[0].restarts == {31}


def test_an_id_that_changed_its_producer_id_keeps_its_lane_and_that_counts_as_a_restart():
    view = InMemoryView()
    view.write_row('pay', 'EMPTY', 1, 32766, at_ms=0)
    view.write_row('pay', 'EMPTY', 2, 0, at_ms=1, previous=1)
    log = view.log('orders')
    for producer_id, epoch in ((1, 32766), (2, 0)):
        log.write(producer_id, epoch)
        log.end(producer_id, epoch + 1, True)
    [lane] = lanes_of(read(view), 10)
    assert (lane.title, lane.detail, lane.restarts) == ('pay', 'producers 1 to 2, epoch 32766 to 0', {2})


def test_too_many_producers_share_a_lane_but_those_with_something_open_keep_theirs():
    view = InMemoryView()
    log = view.log('orders')
    for producer_id in range(50):
        log.write(producer_id, 0)
    for producer_id in range(50):
        if producer_id != 42:
            log.end(producer_id, 0, producer_id != 17)
    lanes = lanes_of(read(view), 5)
    assert len(lanes) == 5
    assert {'producer 17', 'producer 42'} <= {lane.title for lane in lanes}
    assert lanes[-1].title == '46 other producers'
    assert sum(len(lane.transactions) for lane in lanes) == 50


# ---- text

def test_outcomes_markers_restarts_and_rules_have_characters_of_their_own():
    lines = text_of(small_view(), width=108)
    first, second, third = (lane(lines, title) for title in ('payments-1', 'payments-2', '</script>'))
    assert first.count('C') >= 5 and '█' in first and '↑' in first and first.rstrip().endswith('5C')
    assert re.search('\u2573+─*A', second) and re.search('░{10,}▶│', second) and second.rstrip().endswith('1C 1A 1▶')
    assert re.search('█─*C', third) and re.search('\u2573+─*A', third)
    assert any('high watermark 68 │' in line for line in lines)
    assert any('last stable offset 49' in line and '┊' in line for line in lines)
    assert '19 offsets held back from read_committed consumers' in '\n'.join(lines)
    assert any(line.startswith('open: payments-2, producer 1001 epoch 2, from offset 49 on, 9 records, for 58.5 s')
               for line in lines)


def test_the_last_stable_offset_stands_at_its_column_in_every_lane():
    lines = text_of(small_view(), width=108)
    column = next(line for line in lines if 'last stable offset 49 ┊' in line).index('┊')
    assert lane(lines, 'payments-2')[column] == '░'
    assert lane(lines, 'payments-1')[column] == '┊'


@pytest.mark.parametrize('axis', ['offset', 'time'])
@pytest.mark.parametrize('width', [60, 80, 120, 200])
def test_ten_thousand_transactions_fit_the_width(axis, width):
    lines = text_of(large_view(3000), axis, width)
    assert max(map(len, lines)) <= width
    crowded = lane(lines, 'stream-1')
    assert '█' in crowded and '▂' in crowded and 'C' in crowded
    assert re.search(r'at most \d+ transactions in one', '\n'.join(lines))


def test_columns_with_many_aborts_differ_from_those_with_few():
    view = InMemoryView()
    log = view.log('orders')
    for number in range(4000):
        log.write(1, 0)
        log.end(1, 0, number % (2 if 1000 <= number < 1500 else 100) != 0)
    bar = lane(text_of(view), 'producer 1').removeprefix('producer 1')
    assert 4 <= bar.count('▄') <= 12 and bar.count('▂') > 20


class Terminal(io.StringIO):
    encoding = 'utf-8'

    def isatty(self):
        return True


@pytest.mark.parametrize(('settings', 'has_colour'), [({}, True), ({'NO_COLOR': '1'}, False)])
def test_a_terminal_has_colours_unless_it_wants_none_and_its_width_is_kept(monkeypatch, settings, has_colour):
    for name, value in ({'TERM': 'xterm-256color', 'COLUMNS': '90'} | settings).items():
        monkeypatch.setenv(name, value)
    if has_colour:
        monkeypatch.delenv('NO_COLOR', raising=False)
    terminal = Terminal()
    command.show(read(small_view()), 'offset', Output(stream=terminal))
    assert ('38;5;33' in terminal.getvalue()) is has_colour
    plain = re.sub(r'\x1b\[[0-9;]*m', '', terminal.getvalue())
    assert [line.rstrip() for line in plain.splitlines()] == [
        line.rstrip() for line in text_of(small_view(), width=90)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(['write', 'commit', 'abort', 'plain']),
                          st.integers(-1, 5000)), max_size=60),
       st.sampled_from(['offset', 'time']), st.integers(60, 160))
def test_any_log_is_replayed_as_the_reference_does_and_fits_its_width(steps, axis, width):
    view = InMemoryView()
    log = view.log('orders')
    opened, expected = {}, []
    for producer_id, epoch, step, at_ms in steps:
        if step == 'plain':
            log.write(at_ms=at_ms)
        elif step == 'write':
            offset = log.write(producer_id, epoch, at_ms)
            if producer_id not in opened:
                opened[producer_id] = [producer_id, offset, OPEN]
                expected.append(opened[producer_id])
        else:
            log.end(producer_id, epoch, step == 'commit', at_ms)
            if producer_id in opened:
                opened.pop(producer_id)[2] = COMMITTED if step == 'commit' else ABORTED
    found = read(view)
    assert [[one.producer_id, one.first_offset, one.outcome] for one in found.transactions] == expected
    assert all(len(''.join(piece for piece, _ in line)) <= width for line in draw(found, axis, width))
    assert '"rows"' in page(found)


def test_an_output_without_line_drawing_gets_plain_characters():
    assert glyphs_for('utf-8') is UNICODE
    assert glyphs_for('latin-1') is glyphs_for(None) is glyphs_for('no-such-encoding') is ASCII
    assert '\n'.join(text_of(small_view(), glyphs=glyphs_for('ascii'))).isascii()


def test_a_name_with_control_characters_cannot_paint_the_terminal():
    view = InMemoryView()
    view.write_row('\x1b[31mred', 'EMPTY', 1, 0, at_ms=0)
    view.log('orders').write(1, 0)
    assert '\x1b' not in '\n'.join(text_of(view))


def test_an_empty_partition_and_one_without_transactions_say_so():
    view = InMemoryView()
    view.log('orders')
    assert text_of(view)[-1] == 'The partition is empty.'
    view.log('orders').write(records=3)
    assert text_of(view)[-1] == 'No transactions here: 3 records outside of any.'
    view.log('orders').write(at_ms=500)
    assert text_of(view, since_ms=START_MS + 400)[-1] == 'No transactions here: 1 record outside of any.'
    assert text_of(view, since_ms=START_MS + 600)[-1] == 'No transactions here: 0 records outside of any.'


@settings(deadline=None)
@given(st.integers(0, 10**15), st.integers(0, 10**13), st.integers(2, 20), st.sampled_from(['offset', 'time']))
def test_ticks_are_round_few_and_in_range(start, span, count, axis):
    scale = scale_of(read(small_view()), axis).__class__(axis, start, start + span)
    found = [value for value, _ in ticks(scale, count)]
    assert len(found) <= count + 1 or axis == 'time'
    assert all(start <= value <= start + span for value in found)
    assert list(TIME_STEPS_MS) == sorted(TIME_STEPS_MS)


# ---- the command

@pytest.fixture
def tool(monkeypatch):
    """Return a function that runs the command on a view."""
    def run(view, *arguments):
        monkeypatch.setattr(command, 'open_view', lambda *_: view)
        return CliRunner().invoke(command.timeline, ['orders:0', '--data-dir', '/', *arguments] if not arguments or
                                  arguments[0].startswith('-') else [*arguments, '--data-dir', '/'])
    return run


def test_json_has_a_row_for_each_transaction(tool):
    rows = [json.loads(line) for line in tool(small_view(), '--json').stdout.splitlines()]
    assert len(rows) == 10
    assert rows[1] == {
        'topic': 'orders', 'partition': 0, 'outcome': 'aborted', 'transactional_id': 'payments-2', 'producer_id': 1001,
        'producer_epoch': 0, 'first_offset': 9, 'last_offset': 18, 'records': 6, 'size_bytes': rows[1]['size_bytes'],
        'begin_timestamp_ms': START_MS + 30, 'last_timestamp_ms': START_MS + 120, 'epoch_before': None,
        'marker_offset': 19, 'marker_timestamp_ms': START_MS + 300, 'marker_epoch': 1, 'coordinator_epoch': 0,
        'duration_ms': 270}
    assert rows[7]['outcome'] == 'open' and rows[7]['marker_offset'] is None


@pytest.mark.parametrize(('arguments', 'code', 'words'), [
    (['orders:x'], 2, "found 'orders:x', expected TOPIC:PARTITION"),
    ([':0'], 2, "found ':0', expected TOPIC:PARTITION"),
    (['nothing:0'], 1, "found no topic 'nothing' in nowhere, expected one of its 2"),
    (['orders:7'], 1, "found no partition 7 of topic 'orders' in nowhere, expected one of its 1"),
    (['orders:0', '--html', '/no/such/place/x.html'], 1, '/no/such/place/x.html: there is no directory /no/such/place'),
    (['orders:0', '--html', '/dev/full'], 1, '/dev/full: No space left on device'),
    (['orders:0', '--html', '/'], 2, "Invalid value for '--html'"),
    (['orders:0', '--from-offset', '5', '--to-offset', '5'], 2, 'found --to-offset 5, expected one above'),
    (['orders:0', '--since', 'yesterday'], 2, "found 'yesterday', expected a time such as"),
])
def test_bad_input_ends_with_one_clear_line(tool, arguments, code, words):
    result = tool(small_view(), *arguments)
    assert (result.exit_code, result.stdout) == (code, '')
    assert words in result.stderr
    assert 'Traceback' not in result.stderr


def test_who_may_not_read_the_transaction_state_gets_a_picture_without_names(tool, monkeypatch):
    view = small_view()
    batches = view.batches

    def allowed(topic, *bounds):
        if topic == '__transaction_state':
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 'found no READ on __transaction_state')
        return batches(topic, *bounds)
    monkeypatch.setattr(view, 'batches', allowed)
    result = tool(view)
    assert result.exit_code == 0 and 'producer 1000' in result.stdout
    assert result.stderr.startswith('without transactional ids: ')


def test_since_is_a_time_or_how_long_ago(tool):
    view = small_view()
    for since in ('2023-11-14T22:13:21.900Z', '2023-11-14T22:13:21.900', '58100ms'):
        rows = [json.loads(line) for line in tool(view, '--json', '--since', since).stdout.splitlines()]
        assert [row['first_offset'] for row in rows] == [49, 58, 63]


def test_live_and_offline_show_the_same(broker, tmp_path):
    write_transactions(broker.address)
    live = run_command('transactions', '--bootstrap-server', broker.address, 'timeline', 'orders:0', '--json')
    assert live.returncode == 0, live.stderr
    broker.stop()
    offline = run_command('transactions', 'timeline', 'orders:0', '--json', '--data-dir', broker.directory)
    assert live.stdout == offline.stdout
    outcomes = [json.loads(line)['outcome'] for line in live.stdout.splitlines()]
    assert outcomes == ['committed', 'aborted', 'committed', 'open']
    assert {json.loads(line)['transactional_id'] for line in live.stdout.splitlines()} == {'pay', 'hold'}
    picture = run_command('transactions', 'timeline', 'orders:0', '--data-dir', broker.directory)
    assert picture.returncode == 0 and '▶│' in picture.stdout


# ---- the page

def test_a_page_needs_nothing_else_and_no_text_is_markup():
    made = page(read(small_view()))
    assert not re.search(r'(src|href)\s*=|@import|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)', made)
    assert made.count('<script') == 2 and NASTY not in made
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', made, re.S)[1])
    assert data['ids']['1002'] == NASTY and len(data['rows']) == 10


def test_a_page_is_written_by_the_command(tool, tmp_path):
    result = tool(small_view(), '--html', str(tmp_path / 'page.html'))
    assert (result.exit_code, result.stdout) == (0, '')
    assert (tmp_path / 'page.html').read_text('utf-8').startswith('<!DOCTYPE html>')
    assert result.stderr == f'wrote {tmp_path / "page.html"}: 10 transactions\n'


@pytest.fixture
def shown(tmp_path):
    def write(view):
        path = tmp_path / 'page.html'
        path.write_text(page(read(view)), 'utf-8')
        return path
    return write


def counted(dom, *classes):
    return len(re.findall(f'<rect class="{" ".join(classes)}"', dom.split('id="lanes"')[1]))


@pytest.mark.browser
def test_a_browser_draws_a_bar_for_each_transaction_on_both_axes(shown):
    path = shown(small_view())
    for fragment in ('', '#axis=time'):
        dom = dump_dom(path, fragment)
        assert [counted(dom, 'bar', kind) for kind in ('committed', 'aborted', 'open')] == [7, 2, 1]
        assert [counted(dom, 'marker', kind) for kind in ('committed', 'aborted')] == [7, 2]
        assert dom.count('class="restart"') == 2, 'one in the lanes, one in the legend'
        assert '>high watermark 68</text>' in dom and '>last stable offset 49</text>' in dom
        assert '<title>orders-0: transactions</title>' in dom
        assert '&lt;/script&gt;&lt;script&gt;' in dom
    assert '22:13:21' in dom


@pytest.mark.browser
def test_a_browser_tells_all_ids_of_the_chosen_transaction(shown):
    dom = dump_dom(shown(small_view()), '#select=9')
    said = re.search(r'<p id="announcement"[^>]*>(.*?)</p>', dom)[1]
    for words in ('payments-2: aborted', 'producer 1001, epoch 0', 'offsets 9 to 18', 'records 6',
                  'marker offset 19, epoch 1', 'duration 270 ms', 'began 2023-11-14 22:13:20.030Z'):
        assert words in said
    assert counted(dom, 'chosen') == 1


@pytest.mark.browser
def test_ten_thousand_transactions_are_drawn_together_and_apart_when_looked_at_closely(shown):
    path = shown(large_view())
    dom = dump_dom(path)
    assert len(re.findall('class="many committed"', dom)) == 8
    assert counted(dom, 'bar', 'open') == 1
    assert len(dom.split('id="lanes"')[1].split('</svg>')[0]) < 1_000_000
    close = dump_dom(path, '#from=30000&to=30200')
    assert counted(close, 'bar', 'committed') > 15 and 'class="many' not in close
    assert 'class="window"' in close


@pytest.mark.browser
@pytest.mark.parametrize(('dark', 'ground', 'committed', 'aborted'), [
    (False, (0xfb, 0xfb, 0xfa), (0x2f, 0x74, 0xc0), (0xc4, 0x4e, 0x0a)),
    (True, (0x14, 0x18, 0x1b), (0x5b, 0x9f, 0xe3), (0xee, 0x7f, 0x3d)),
])
def test_a_browser_shows_the_bars_in_their_colours_in_light_and_in_dark(shown, tmp_path, dark, ground, committed,
                                                                        aborted):
    colours = screenshot(shown(small_view()), tmp_path / 'page.png', size=(1000, 600), dark=dark).colours()
    assert colours.most_common(1)[0][0] == ground
    assert colours[committed] > 5000
    assert colours[aborted] > 500


PLACE_OF = """(() => { const place = document.querySelector('#lanes %s').getBoundingClientRect();
                       return [place.x + place.width / 2, place.y + place.height / 2]; })()"""
STATE = '[state.axis, Math.round(state.from), Math.round(state.to), state.chosen && state.chosen[2]]'


@pytest.mark.browser
def test_a_hand_on_the_page_finds_ids_moves_and_zooms(shown):
    with OpenPage(shown(small_view())) as opened:
        opened.hover(*opened.value(PLACE_OF % '.bar.aborted'))
        shown_text = opened.value("document.getElementById('detail').innerText")
        for words in ('payments-2: aborted', '1001, epoch 0', '9 to 18', 'offset 19, epoch 1', '270 ms'):
            assert words in shown_text
        opened.hover(*opened.value(PLACE_OF % '.bar.open'))
        assert 'payments-2: open' in opened.value("document.getElementById('detail').innerText")
        opened.hover(5, 5)
        assert opened.value("document.getElementById('detail').hidden")
        x, y = opened.value(PLACE_OF % '.bar.aborted')
        opened.wheel(x, y, -400)
        axis, start, end, _ = opened.value(STATE)
        assert axis == 'offset' and 0 < start < 14 < end < 68
        opened.drag((x, y), (x - 100, y))
        assert opened.value(STATE)[1] > start
        assert opened.faults == []


@pytest.mark.browser
def test_the_name_of_a_lane_with_an_open_transaction_stands_out(shown):
    with OpenPage(shown(small_view())) as opened:
        names = "[...document.querySelectorAll('#lanes text.name%s')].map(name => name.firstChild.textContent)"
        assert opened.value(names % '.open') == ['payments-2']
        assert len(opened.value(names % '')) > 1


@pytest.mark.browser
def test_paper_has_every_column_of_the_tables(shown):
    with OpenPage(shown(large_view()), size=(794, 1123)) as opened:
        opened.print_preview()
        assert opened.value("[...document.querySelectorAll('table')].every(table => "
                            'table.getBoundingClientRect().right <= innerWidth)')


@pytest.mark.browser
def test_keys_alone_will_do(shown):
    with OpenPage(shown(small_view())) as opened:
        opened.value("document.getElementById('lanes').focus()")
        for key, state in (('n', ['offset', 0, 68, 4]), ('u', ['offset', 0, 68, 9]), ('p', ['offset', 0, 68, 4]),
                           ('t', ['time', START_MS, START_MS + 2100, 4]), ('t', ['offset', 0, 68, 4]),
                           ('+', ['offset', 17, 51, 4]), ('ArrowRight', ['offset', 24, 58, 4]),
                           ('0', ['offset', 0, 68, 4]), ('Escape', ['offset', 0, 68, None])):
            opened.press(key)
            assert opened.value(STATE) == state, key
        assert opened.faults == []


@pytest.mark.browser
def test_ten_thousand_transactions_tell_how_many_are_under_the_pointer(shown):
    with OpenPage(shown(large_view())) as opened:
        opened.hover(700, opened.value(PLACE_OF % 'path.many.committed')[1])
        shown_text = opened.value("document.getElementById('detail').innerText")
        assert re.search(r'\d+ transactions here\s+committed\s+\d+', shown_text)
        assert opened.faults == []


ABSURD_MS = [-2**63, -62_135_596_800_001, -1000, -1, 0, 253_402_300_800_000, 2**63 - 1, 1_700_000_000_000]


@pytest.mark.parametrize('times_ms', [(one,) for one in ABSURD_MS] + list(permutations(ABSURD_MS, 2)),
                         ids=lambda times_ms: ','.join(map(str, times_ms)))
def test_absurd_timestamps_are_shown_without_a_traceback(tmp_path, times_ms):
    """A client chooses the timestamps of its records, and its clock may be wrong by any amount."""
    log = Log(FileSystem(), str(tmp_path / 'absurd-0'), 'absurd', 0, LogConfig(Config({}), {}), ManualClock(0))
    for producer_id, timestamp_ms in enumerate(times_ms):
        log.append_batch(encode_batch([(timestamp_ms, b'', b'')], producer_id=producer_id, producer_epoch=0,
                                      base_sequence=0, transactional=True), Origin.CLIENT, 0)
        if producer_id + 1 < len(times_ms):
            log.append_batch(encode_end_txn_marker(commit=True, producer_id=producer_id, producer_epoch=0,
                                                   coordinator_epoch=0, timestamp_ms=timestamp_ms),
                             Origin.COORDINATOR, 0)
    log.close()
    for options in ([], ['--axis', 'time'], ['--json'], ['--since', '1h'], ['--html', tmp_path / 'page.html']):
        done = run_in_process('transactions', 'timeline', 'absurd:0', '--data-dir', tmp_path, *options)
        assert done.returncode == 0 and ' for -' not in done.stdout, done.stderr
    for words in (['why-stuck', 'absurd:0'], ['describe-producers', '--topic', 'absurd', '--partition', '0'],
                  ['find-hanging', '--topic', 'absurd']):
        run_in_process('transactions', *words, '--data-dir', tmp_path)
    assert run_in_process('dump-log', tmp_path / 'absurd-0', '--print-data-log').returncode == 0
