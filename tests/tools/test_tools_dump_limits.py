"""No file content makes a dump exceed its memory bound or crash."""
import random
import resource
import subprocess
import sys

import pytest
from support.disk.segment_corpus import T, corpus, damaged, patched
from support.runner.command_runner import ROOT, run_command
from test_tools_dump_log import dumped, segment

from kbroker.record.batch import encode_batch
from kbroker.record.compression import compress

MIB = 1024 * 1024
MUTATIONS = 400

MEASURE = """
import os, re, sys
from kbroker_tools.dump.options import DumpOptions
from kbroker_tools.dump.run import dump
code = dump(DumpOptions(sys.argv[1:2], **dict.fromkeys(sys.argv[2:], True)), os.open(os.devnull, os.O_WRONLY))
print(code, int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) * 1024)
"""


def peak_bytes(path, *flags):
    """Dump in another process. Return the exit code and the peak memory."""
    done = subprocess.run([sys.executable, '-c', MEASURE, str(path), *flags], cwd=ROOT, capture_output=True, text=True,
                          check=True)
    code, peak = done.stdout.split()
    return int(code), int(peak)


def test_memory_does_not_grow_with_the_file(tmp_path):
    batch = encode_batch([(T, b'k', b'v' * 1000)] * 100)
    small = segment(tmp_path / 'small-0', *[batch] * 40)
    large = segment(tmp_path / 'large-0', *[batch] * 2000)
    for flags in ((), ('deep_iteration',)):
        grown = peak_bytes(large, *flags)[1] - peak_bytes(small, *flags)[1]
        assert grown < 4 * MIB, grown


def test_a_length_that_the_file_does_not_have_is_not_allocated(tmp_path):
    path = segment(tmp_path / 't-0', patched(encode_batch([(T, b'k', b'v')]), 8, b'\x7f\xff\xff\xf0'))
    code, peak = peak_bytes(path, 'print_data_log')
    assert (code, peak < 64 * MIB) == (0, True)
    assert 'invalid bytes at the end' in dumped(tmp_path, path)[1]


def test_a_batch_too_large_to_hold_is_checksummed_in_pieces(tmp_path):
    size = 300 * MIB
    path = segment(tmp_path / 't-0', patched(encode_batch([(T, b'k', b'v')]), 8, (size - 12).to_bytes(4, 'big')))
    with open(path, 'ab') as file:
        file.truncate(size)
    assert peak_bytes(path)[1] < 64 * MIB
    code, peak = peak_bytes(path, 'deep_iteration')
    assert (code, peak < 64 * MIB) == (1, True)
    assert f'size: {size} magic: 2' in dumped(tmp_path, path)[1]


@pytest.mark.parametrize('codec', [1, 4])
def test_what_would_expand_without_end_is_refused(codec, tmp_path):
    bomb = compress(codec, bytes(512 * MIB))
    batch = encode_batch([(T, b'k', b'v')])
    head = patched(batch[:61], 8, (49 + len(bomb)).to_bytes(4, 'big'))
    path = segment(tmp_path / 't-0', patched(head, 22, bytes([codec])) + bomb)
    for flags in (('deep_iteration',), ('json',)):
        code, peak = peak_bytes(path, *flags)
        assert code == 1
        assert peak < 450 * MIB


def test_no_bytes_bring_it_down(tmp_path, capfd):
    generator = random.Random(7)
    (tmp_path / 'good').mkdir()
    good = [path.read_bytes()[:20_000] for path in corpus(tmp_path / 'good') if path.parent.name != 'large-0']
    variants = ({'print_data_log': True}, {'json': True}, {'stats': True},
                {'where': 'offset>=2', 'deep_iteration': True}, {'offsets_decoder': True},
                {'skip_record_metadata': True, 'print_data_log': True})
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (16 * 1024 * MIB, limits[1]))
    try:
        for number in range(MUTATIONS):
            data = bytearray(generator.choice(good) or b'\x00')
            for _ in range(generator.choice((1, 1, 3, 20))):
                value = generator.choice((0, 1, 0x7f, 0x80, 0xff, generator.randrange(256)))
                data[generator.randrange(len(data))] = value
            if generator.random() < 0.3:
                del data[generator.randrange(len(data)):]
            path = segment(tmp_path / 't-0', data)
            code, _ = dumped(tmp_path, path, **variants[number % len(variants)])
            assert code in (0, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert 'Traceback' not in capfd.readouterr().err


def test_damaged_and_sound_files_have_statistics(tmp_path):
    done = run_command('dump-log', '--stats', *corpus(tmp_path))
    assert (done.returncode, done.stderr) == (0, '')
    rows = {line.split('\t')[0].split('/')[-2]: [cell.strip() for cell in line.split('\t')[1:-1]]
            for line in done.stdout.splitlines()[1:]}
    batches, records, _, _, _, producers, committed, aborted, still_open, unreadable = range(10)
    transactional = rows['transactions-0']
    assert [transactional[i] for i in (batches, records, producers, committed, aborted, still_open)] == [
        '7', '30', '2', '1', '1', '1']
    assert [name for name, row in rows.items() if row[unreadable] != '0'] == [
        'torn-header-0', 'torn-early-0', 'torn-records-0', 'wrong-crc-0', 'old-0']
    assert not run_command('dump-log', '--stats', *damaged(tmp_path)).stderr
