"""kbroker-dump-log: its output, its errors and its exit codes.

Covers KIP-31 and KIP-32.
"""
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from support.disk.segment_corpus import RECORDS, T, corpus, damaged, patched, transactions
from support.disk.segment_files import two_segments
from support.runner.command_runner import ROOT, command_line, run_command

from kbroker.record.batch import encode_batch
from kbroker_tools.dump.options import BY_NAME, OPTIONS, DumpOptions, read_plainly
from kbroker_tools.dump.run import dump

NAME = f'{0:020d}.log'


def segment(directory, *batches, base_offset=0):
    directory.mkdir(exist_ok=True)
    path = directory / f'{base_offset:020d}.log'
    path.write_bytes(b''.join(batches))
    return path


def dumped(tmp_path, *paths, wait=None, **options):
    """Dump in this process. Return the exit code and the text."""
    file = tmp_path / 'dumped'
    with open(file, 'wb') as out:
        code = dump(DumpOptions([str(path) for path in paths], **options), out.fileno(), wait)
    return code, file.read_text()


def offsets(text):
    return [int(line.split()[2]) for line in text.splitlines() if line.startswith('| offset: ')]


# ---- output

def test_a_batch_and_its_records_are_kafkas_lines(tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS[:2], producer_id=7, producer_epoch=1, base_sequence=3))
    code, text = dumped(tmp_path, path, print_data_log=True)
    batch, *records = text.splitlines()[2:]
    assert code == 0
    assert text.startswith(f'Dumping {path}\nLog starting offset: 0\n')
    assert batch.startswith('baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 3 lastSequence: 4 producerId: 7 '
                            'producerEpoch: 1 partitionLeaderEpoch: -1 isTransactional: false isControl: false '
                            'deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1700000000005 size: ')
    assert records == [
        f'| offset: 0 CreateTime: {T} keySize: 3 valueSize: 5 sequence: 3 headerKeys: [] key: key payload: value',
        f'| offset: 1 CreateTime: {T + 5} keySize: -1 valueSize: -1 sequence: 4 headerKeys: []']


def test_a_directory_stands_for_its_segments_in_order(tmp_path):
    for base_offset in (6, 0, 100):
        segment(tmp_path / 't-10', encode_batch(RECORDS, base_offset=base_offset), base_offset=base_offset)
    segment(tmp_path / 't-9', encode_batch(RECORDS))
    _, text = dumped(tmp_path, tmp_path)
    assert [line.rpartition(str(tmp_path))[2] for line in text.splitlines() if line.startswith('Dumping')] == [
        f'/t-9/{NAME}', f'/t-10/{NAME}', f'/t-10/{6:020d}.log', f'/t-10/{100:020d}.log']
    assert dumped(tmp_path, tmp_path / 't-1*' / '*.log')[1].count('Dumping') == 3
    assert dumped(tmp_path, files=f'{tmp_path}/t-9,{tmp_path}/t-9')[1].count('Dumping') == 2


def test_options_of_indexes_take_the_indexes_of_a_directory(tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS))
    path.with_suffix('.index').write_bytes(b'')
    assert dumped(tmp_path, tmp_path / 't-0', index_sanity_check=True)[1].splitlines()[-1].endswith('.index is empty.')


def test_a_pattern_or_directory_without_files_is_an_error(tmp_path):
    (tmp_path / 'nothing').mkdir()
    for path in ('*.none', 'nothing'):
        done = run_command('dump-log', tmp_path / path)
        assert done.returncode == 1
        assert done.stderr.startswith(f'kbroker-dump-log: {tmp_path / path}: no ')


@pytest.mark.parametrize('text', ['-1 is followed by 41', None])
def test_a_segment_that_does_not_begin_at_zero_has_a_gap_to_the_letter_only(text, tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS, base_offset=41), base_offset=41)
    done = run_command('dump-log', path, '--deep-iteration', *(['--compat', '4.3'] if text else []))
    assert (done.stderr == f'Non-consecutive offsets in {path}\n  {text}\n') if text else not done.stderr
    assert done.returncode == 0
    assert not run_command('dump-log', path, '--deep-iteration', '--compat', '4.2').stderr


# ---- JSON

def test_json_has_an_object_for_each_record(tmp_path):
    path = segment(tmp_path / 't-0', *transactions()[:2])
    rows = [json.loads(line) for line in dumped(tmp_path, path, json=True)[1].splitlines()]
    assert [row['offset'] for row in rows] == list(range(7))
    first, last = rows[0], rows[-1]
    assert first['key'] == 'key' and first['value'] == 'value' and first['timestamp_ms'] == T
    assert first['producer_id'] == 1000 and first['sequence'] == 0 and first['is_transactional']
    assert rows[1]['key'] is None and rows[1]['value'] is None
    assert rows[2]['headers'] == [['h1', 'x'], ['', None], ['h\u00e4', '']]
    assert last['is_control'] and last['control'] == 'COMMIT'
    assert all(row['file'] == str(path) and row['batch_is_valid'] for row in rows)


@pytest.mark.parametrize(('payload', 'expected'), [
    ('utf8', '\ufffd\ufffd'), ('base64', '/4A='), ('hex', 'ff80')])
def test_json_shows_bytes_as_asked(payload, expected, tmp_path):
    path = segment(tmp_path / 't-0', encode_batch([(T, None, b'\xff\x80')]))
    assert json.loads(dumped(tmp_path, path, json=True, payload=payload)[1])['value'] == expected


def test_json_and_text_tell_of_the_same_records(tmp_path):
    files = corpus(tmp_path)
    text = dumped(tmp_path, *files, deep_iteration=True)[1]
    rows = [json.loads(line) for line in dumped(tmp_path, *files, json=True)[1].splitlines()]
    assert offsets(text) == [row['offset'] for row in rows]


def test_json_holds_what_a_decoder_makes_of_a_row(tmp_path):
    key = bytes.fromhex('0000000474782d31')
    value = bytes.fromhex('000000000000000003e800000000ea6000ffffffff0000018bcfe56800ffffffffffffffff')
    path = segment(tmp_path / 't-0', encode_batch([(T, key, value), (T, key, None)]))
    row, tombstone = map(json.loads, dumped(tmp_path, path, json=True, transaction_log_decoder=True)[1].splitlines())
    assert row['key'] == {'type': '0', 'data': {'transactionalId': 'tx-1'}}
    assert row['value']['data']['producerId'] == 1000
    assert tombstone['value'] == '<DELETE>'


def test_json_has_an_object_for_each_entry_of_an_index(tmp_path):
    directory = two_segments(tmp_path)
    for path in sorted(directory.iterdir()):
        if path.suffix in ('.index', '.timeindex', '.txnindex', '.snapshot'):
            lines = dumped(tmp_path, path)[1].splitlines()[1:]
            rows = [json.loads(line) for line in dumped(tmp_path, path, json=True)[1].splitlines()]
            assert len(rows) == len(lines) > 0 or lines[0].endswith('is empty.'), path
            assert all(row['file'] == str(path) for row in rows)
    assert {'producer_id', 'last_batch'} <= rows[-1].keys() or 'timestamp_ms' in rows[-1]


def test_json_replaces_what_is_not_utf8_in_a_header_key(tmp_path):
    batch = encode_batch([(T, None, None, [('abc', b'x')])])
    path = segment(tmp_path / 't-0', batch.replace(b'abc', b'a\xff\xc3'))
    assert json.loads(dumped(tmp_path, path, json=True)[1])['headers'] == [['a\ufffd\ufffd', 'x']]


def test_a_file_name_that_is_not_utf8_is_shown_as_it_is(tmp_path):
    path = segment(tmp_path / 't\udcff-0', encode_batch(RECORDS))
    done = subprocess.run(command_line('dump-log', tmp_path), cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.startswith(b'Dumping ' + os.fsencode(path) + b'\n')


def test_statistics_of_a_file_name_that_is_not_utf8_are_shown(tmp_path):
    path = segment(tmp_path / 't\udcff-0', encode_batch(RECORDS))
    done = subprocess.run(command_line('dump_log_start', tmp_path, '--stats'), cwd=ROOT, capture_output=True,
                          check=True, env=os.environ | {'PYTHONIOENCODING': 'utf-8:strict'})
    assert str(path).replace('\udcff', '\ufffd').encode() in done.stdout


@pytest.mark.parametrize('options', [('--json',), ('--json', '--stats')])
def test_json_is_utf8_whatever_the_file_name_is(options, tmp_path):
    segment(tmp_path / 't\udcff-0', encode_batch(RECORDS))
    done = subprocess.run(command_line('dump_log_start', tmp_path, *options), cwd=ROOT, capture_output=True, check=True,
                          env=os.environ | {'PYTHONIOENCODING': 'utf-8:strict'})
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert rows and {row['file'] for row in rows} == {f'{tmp_path}/t\ufffd-0/{NAME}'}


# ---- errors

def test_damage_costs_a_batch_and_the_rest_follows(tmp_path):
    cut = patched(encode_batch(RECORDS), 57, b'\x00\x00\x00\x09')
    path = segment(tmp_path / 't-0', cut, encode_batch(RECORDS, base_offset=6))
    done = run_command('dump-log', path, '--print-data-log')
    assert done.returncode == 1
    assert offsets(done.stdout) == list(range(12))
    assert done.stderr.splitlines() == [f'kbroker-dump-log: {path}: position 0, batch of offset 0: record 6 of 9: '
                                        'varint without an end: 5 bytes expected, 0 left']


def test_a_line_that_cannot_be_finished_is_ended(tmp_path):
    control = encode_batch([(T, b'\x00\x00\x00\x01', b'short')], control=True)
    done = run_command('dump-log', '--deep-iteration', segment(tmp_path / 't-0', control, control))
    assert [line.partition(':')[0] for line in done.stdout.splitlines()[2:]] == ['baseOffset', '| offset'] * 2
    assert len(done.stderr.splitlines()) == 4 and 'found a marker of 5 bytes, expected 6' in done.stderr


def test_damaged_files_end_with_a_line_each(tmp_path):
    files = damaged(tmp_path)
    for options in ((), ('--json',)):
        done = run_command('dump-log', '--print-data-log', *options, *files)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == len(files)
        assert all(line.startswith('kbroker-dump-log: ') for line in done.stderr.splitlines())


def test_files_that_cannot_be_opened_or_are_no_segments_are_reported_and_skipped(tmp_path):
    good = segment(tmp_path / 't-0', encode_batch(RECORDS))
    (tmp_path / 'x.log').touch()
    (tmp_path / 'x.checkpoint').touch()
    for name, message in ((f'{7:020d}.log', 'No such file or directory'), ('x.log', "found 'x' before the suffix"),
                          ('x.checkpoint', "found 'x' before the suffix"), (f'{7:020d}.index', 'No such file'),
                          ('none', 'No such file or directory')):
        done = run_command('dump-log', tmp_path / name, good)
        assert done.returncode == 1
        assert message in done.stderr and len(done.stderr.splitlines()) == 1
        assert 'baseOffset: 0' in done.stdout
    (tmp_path / 'notes.txt').touch()
    done = run_command('dump-log', tmp_path / 'notes.txt')
    assert (done.returncode, done.stderr) == (0, f'Ignoring unknown file {tmp_path / "notes.txt"}\n')


def test_statistics_end_where_max_bytes_says(tmp_path):
    batch = encode_batch(RECORDS)
    path = segment(tmp_path / 't-0', batch, encode_batch(RECORDS, base_offset=6))
    for max_bytes, batches in ((len(batch) + 1, 1), (2 * len(batch), 2)):
        row = json.loads(run_command('dump-log', '--stats', '--json', '--max-bytes', max_bytes, path).stdout)
        assert (row['batches'], row['unreadable']) == (batches, 0)


def test_a_pipe_is_not_waited_for(tmp_path):
    good = segment(tmp_path / 't-0', encode_batch(RECORDS))
    for name in (f'{7:020d}.log', f'{7:020d}.index', f'{7:020d}.snapshot'):
        os.mkfifo(tmp_path / name)
        for options in ((), ('--stats',), ('--json',)):
            done = run_command('dump-log', tmp_path / name, good, *options)
            assert done.returncode == 1 and good.name in done.stdout
            assert done.stderr == f'kbroker-dump-log: {tmp_path / name}: found no regular file\n'
    assert run_command('dump-log', '--follow', tmp_path / f'{7:020d}.log').returncode == 1


def test_statistics_say_what_they_leave_out(tmp_path):
    good = segment(tmp_path / 't-0', encode_batch(RECORDS))
    other = good.with_suffix('.index')
    other.touch()
    done = run_command('dump-log', '--stats', tmp_path / NAME, other, good)
    assert done.returncode == 1 and str(good) in done.stdout
    assert done.stderr.splitlines() == [f'kbroker-dump-log: {tmp_path / NAME}: No such file or directory',
                                        f'Ignoring {other}: --stats is for .log and .checkpoint files']


@pytest.mark.parametrize('options', [(), ('--json',)])
def test_a_torn_end_is_reported(options, tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS), b'torn')
    done = run_command('dump-log', path, *options)
    message = f'Found 4 invalid bytes at the end of {NAME}\n'
    assert done.returncode == 0
    assert (done.stderr == message and message not in done.stdout) if options else done.stdout.endswith(message)


def test_a_truncated_snapshot_is_reported_and_skipped(tmp_path):
    path = tmp_path / f'{5:020d}.snapshot'
    path.write_bytes(bytes.fromhex('0001c54d00f200000001000000'))
    good = segment(tmp_path / 't-0', encode_batch(RECORDS))
    for options, code in (((), 1), (('--compat', '4.3'), 0)):
        done = run_command('dump-log', path, good, *options)
        assert done.returncode == code
        assert done.stderr.startswith('Snapshot failed' if options else f'kbroker-dump-log: {path}: Snapshot failed')
        assert len(done.stderr.splitlines()) == 1
        assert 'baseOffset: 0' in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason='root may read everything')
def test_a_file_that_may_not_be_read_is_reported(tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS))
    path.chmod(0)
    done = run_command('dump-log', path)
    assert done.returncode == 1
    assert 'Permission denied' in done.stderr


@pytest.mark.parametrize('arguments', [
    (), ('--bogus', 'x.log'), ('--max-bytes', 'many', 'x.log'), ('--where', 'ofset>3', 'x.log'), ('--files',),
    ('--value-decoder-class', 'com.example.Decoder', 'x.log'), ('--payload', 'xml', 'x.log'),
    ('--compat', '3.9', 'x.log'), ('--files', ','), ('--max-bytes', '9' * 5000, 'x.log'),
    ('--max-bytes', str(1 << 31), 'x.log'), ('--follow', '--stats', 'x.log'), ('--follow', 'x.index'),
    ('--json', '--verify-index-only', 'x.index')])
def test_wrong_usage_ends_with_2(arguments):
    for name in ('dump-log', 'dump_log_start'):
        done = run_command(name, *arguments)
        assert done.returncode == 2, done
        assert 'Traceback' not in done.stderr


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path):
    path = segment(tmp_path / 't-0', *[encode_batch(RECORDS * 100, base_offset=600 * i) for i in range(200)])
    for name in ('dump-log', 'dump_log_start'):
        process = subprocess.Popen(command_line(name, '--print-data-log', path), cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(120) == 141
        assert process.stderr.read() == b''
        process.stderr.close()


def test_interrupted_it_ends_with_130(tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS))
    for name in ('dump-log', 'dump_log_start'):
        process = subprocess.Popen(command_line(name, '--follow', path), cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stderr.read() == b''
        process.stdout.close()
        process.stderr.close()


def test_a_full_disk_is_reported(tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS))
    with open('/dev/full', 'wb') as full:
        done = subprocess.run(command_line('dump_log_start', path), cwd=ROOT, stdout=full, stderr=subprocess.PIPE,
                              text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith('No space left on device\n') and len(done.stderr.splitlines()) == 1


BAR = """
import sys
from kbroker_tools.dump import run as dumping
from kbroker_tools.commands.dump_log_start import start
dumping.PROGRESS_LEAST_BYTES = 1
start()
"""


@pytest.mark.parametrize(('shown', 'stdout'), [(True, 'pipe'), (False, 'terminal')])
def test_a_bar_is_shown_on_a_terminal_unless_the_result_is(shown, stdout, tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS))
    ours, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, '-c', BAR, path], cwd=ROOT, stderr=theirs,
                               env={**os.environ, 'TERM': 'xterm'},
                               stdout=subprocess.DEVNULL if stdout == 'pipe' else theirs)
    assert process.wait(120) == 0
    os.close(theirs)
    text = os.read(ours, 65536)
    os.close(ours)
    assert (b'dumping' in text) is shown
    assert (b'baseOffset: 0' in text) is not shown


def test_a_closed_output_is_reported(tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS))
    for command in (command_line('dump_log_start', path), command_line('dump_log', path),
                    command_line('dump_log_start', '--stats', path)):
        done = subprocess.run(['sh', '-c', f'{shlex.join(command)} >&-'], cwd=ROOT, capture_output=True, text=True,
                              check=False)
        assert (done.returncode, done.stderr.partition(': ')[2]) == (1, 'the output is closed\n')


# ---- start

def test_a_plain_call_is_read_without_the_command():
    options = read_plainly(['--files', 'a,b', '--max-bytes=12', '--print-data-log', 'c', '--compat', '4.2'])
    assert options is not None
    assert (options.files, options.paths, options.max_bytes, options.compat) == ('a,b', ('c',), 12, '4.2')
    assert options.prints_contents and not options.json


@pytest.mark.parametrize('arguments', [
    [], ['--help'], ['-h', 'x'], ['--version'], ['--json'], ['x', '--bogus'], ['x', '--max-bytes', '-1'],
    ['x', '--files'], ['x', '--json=1'], ['x', '--compat', '1'], ['x', '--value-decoder-class'], ['--', 'x'],
    ['-json', 'x'], ['--files', ',,'], ['x', '--stats'], ['x', '--max-bytes', str(1 << 31)]])
def test_what_is_less_plain_is_left_to_the_command(arguments):
    assert read_plainly(arguments) is None


def test_the_command_has_just_the_options_of_the_table():
    from kbroker_tools.commands.dump_log import main
    names = {name for parameter in main.params for name in parameter.opts if name.startswith('--')}
    assert names - {'--version', '--help'} == {f'--{name}' for name in BY_NAME}
    assert len(BY_NAME) == len(OPTIONS)


def test_the_short_way_does_without_the_library_of_the_command(tmp_path):
    path = segment(tmp_path / 't-0', encode_batch(RECORDS))
    code = f"import sys; sys.argv[1:] = ['{path}']\n" \
           'from kbroker_tools.commands.dump_log_start import start\ntry: start()\n' \
           "except SystemExit: print(sorted({'click', 'rich', 'typing', 're', 'json'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, '-S', '-c', code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith('\n[]\n')


def test_the_sound_batches_of_what_a_recovery_has_cut_off_are_shown(tmp_path):
    """No tool once read a `.cut` file, because it begins with invalid bytes."""
    batches = [encode_batch(RECORDS, base_offset=offset) for offset in (0, 6, 12, 18)]
    batches[0][70] ^= 1
    cut = tmp_path / f'{0:020d}.log.300.cut'
    cut.write_bytes(batches[0] + batches[1] + b'no batch' + batches[2] + batches[3][:-1])
    done = run_command('dump-log', cut)
    assert (done.returncode, done.stderr) == (0, '')
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith('baseOffset')] == ['6', '12']
    assert done.stdout.count('isvalid: true') == 2
    assert [line for line in done.stdout.splitlines() if 'Skipped' in line] == [
        f'Skipped {size} bytes at position {position}, which are no sound batch'
        for size, position in ((len(batches[0]), 0), (8, 2 * len(batches[0])),
                               (len(batches[3]) - 1, 3 * len(batches[0]) + 8))]
    rows = [json.loads(line) for line in run_command('dump-log', '--json', cut).stdout.splitlines()]
    assert {row['offset'] for row in rows} == {*range(6, 18)}
    assert 'Ignoring unknown file' in run_command('dump-log', '--compat', '4.3', '--files', cut).stderr
