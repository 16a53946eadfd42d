"""The cost of a request is bounded, in instructions of the broker's process and in system calls.

Counts vary less than times, so a bound is slightly above the count that was measured when it was set. The comment next
to a bound has the measured count. `make gates` prints the current counts.
"""
import itertools
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from callgrind import COUNTS_LATER, LIMIT_S, callgrind, read_total, run_program
from request_work import SETTINGS, WORKS, Work, assert_answered
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import frame_of, read_answer
from support.runner.machine_requirements import do_without

COUNT = 200
SYSTEM_CALL_COUNT = 200
BURST = 20
ATTEMPTS = 3
"""The largest number of attempts to count the system calls of a burst. A turn of the loop ends after a millisecond. On
a busy machine this can divide a burst between two turns, which need more calls.
"""
PEER_LIMIT_S = 120
BETWEEN_MARKS = (COUNTS_LATER, '--dump-before=getsid')
"""The options of callgrind for `served_in_process.py`. The docstring of that program describes the start of counting
and the marks.
"""

INSTRUCTIONS = {
    (3, 11): {
        'Produce of 300 B': 13_600,  # 12,351
        'Produce of 16 KiB': 65_400,  # 59,512
        'Fetch of 64 KiB': 18_900,  # 17,200
        'Fetch of 64 KiB behind the last one': 20_200,  # 18,318
        'Fetch of the last 64 KiB': 19_000,  # 17,246
        'first Produce of a transaction': 25_300,  # 22,949
        'AddPartitionsToTxn of one partition': 22_300,  # 20,212
        'EndTxn of one record': 20_900,  # 18,969
        'OffsetCommit of one partition': 49_800,  # 45,296
        'idle heartbeat of a consumer': 26_200,  # 23,815
        'idle heartbeat of a share consumer': 26_700,  # 24,248
        'idle heartbeat of a streams member': 37_900,  # 34,445
        'TxnOffsetCommit of one partition': 80_700,  # 73,335
    },
}
"""Maps each version of Python to the bounds on the instructions of a request without the network."""

MIDDLE_TO_END = 1.15  # 1.06
"""The bound on the ratio of instructions of a Fetch from the middle of a partition to those of a Fetch from its end."""

GUARDED = {
    'Produce of 300 B': 450,  # 341 to 365
    'Fetch of 64 KiB': 2_000,  # 605 to 1,229
    'OffsetCommit of one partition': 1_700,  # 1,243
}
"""The bounds on the additional instructions of a request if the client's rights come from ACLs, among 10,000 ACLs. A
figure is the difference between a run with ACLs and a run without, divided by their COUNT requests. An event that
happens once in a run therefore adds a COUNTth of its cost.
"""

SYSTEM_CALLS = {
    ('Produce of 300 B', 1): 4.4,  # 4.06
    ('Produce of 16 KiB', 1): 4.4,  # 4.08
    ('Fetch of 64 KiB', 1): 4.4,  # 4.00
    ('Fetch of 64 KiB behind the last one', 1): 5.4,  # 5.00
    ('first Produce of a transaction', 1): 5.4,  # 5.07
    ('EndTxn of one record', 1): 5.4,  # 5.02
    ('OffsetCommit of one partition', 1): 4.4,  # 4.07
    ('idle heartbeat of a consumer', 1): 3.4,  # 3.00
    ('TxnOffsetCommit of one partition', 1): 5.4,  # 5.00
    ('Produce of 300 B', BURST): 0.5,  # 0.21
    ('Produce of 16 KiB', BURST): 1.3,  # 0.65, more if it arrives in smaller pieces
    ('Fetch of 64 KiB', BURST): 2.5,  # 1.15, more if it arrives in smaller pieces
    ('first Produce of a transaction', BURST): 2.5,  # 2.15
    ('EndTxn of one record', BURST): 2.5,  # 2.19
    ('OffsetCommit of one partition', BURST): 1.5,  # 1.15
    ('idle heartbeat of a consumer', BURST): 0.5,  # 0.15
    ('TxnOffsetCommit of one partition', BURST): 2.5,  # 2.15
}
"""The bounds on the system calls for a request: sent by itself (1), and sent together with BURST - 1 other requests
(BURST).
"""


@pytest.fixture(scope='module')
def bytecode(tmp_path_factory):
    """Run served_in_process.py once. Return the directory with its bytecode. Under callgrind, the compilation would
    take longer than the run.
    """
    directory = tmp_path_factory.mktemp('bytecode')
    run_program('served_in_process.py', 1, directory / 'data', *GUARDED, bytecode=directory)
    return directory


@pytest.fixture(scope='module')
def instructions(bytecode, tmp_path_factory):
    """Count the instructions of one request of each kind in one run of callgrind. A count is that of a loop of COUNT
    requests minus that of an empty loop, divided by COUNT.
    """
    directory = tmp_path_factory.mktemp('callgrind')
    run_program('served_in_process.py', COUNT, directory / 'data', bytecode=bytecode,
                under=callgrind(directory / 'out', *BETWEEN_MARKS))
    found = {}
    for number, name in enumerate(WORKS):
        none, all_of_them = (read_total(directory / f'out.{3 * number + part}') for part in (2, 3))
        found[name] = (all_of_them - none) // COUNT
    return found


@pytest.mark.valgrind
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.version_info[:2] not in INSTRUCTIONS,
                    reason='gates: bounds on instructions were measured with other versions of Python')
@pytest.mark.parametrize('name', WORKS)
def test_a_request_takes_no_more_instructions(instructions, name, verdict):
    verdict(f'{name}, in instructions', instructions[name], most=INSTRUCTIONS[sys.version_info[:2]][name])


@pytest.mark.valgrind
@pytest.mark.timeout(LIMIT_S)
def test_a_fetch_from_the_middle_of_a_partition_takes_what_one_from_its_end_takes(instructions, verdict):
    middle, end = instructions['Fetch of 64 KiB behind the last one'], instructions['Fetch of the last 64 KiB']
    verdict('Fetch from the middle of a partition, divided by one from its end', middle / end, most=MIDDLE_TO_END)


@pytest.mark.valgrind
@pytest.mark.timeout(LIMIT_S)
def test_rights_among_ten_thousand_acls_take_few_instructions(instructions, bytecode, tmp_path, verdict):
    run_program('served_in_process.py', COUNT, tmp_path / 'data', *GUARDED, bytecode=bytecode,
                under=callgrind(tmp_path / 'out', *BETWEEN_MARKS))
    for number, (name, bound) in enumerate(GUARDED.items()):
        none, all_of_them = (read_total(tmp_path / f'out.{3 * number + part}') for part in (2, 3))
        more = (all_of_them - none) // COUNT - instructions[name]
        verdict(f'rights of a {name}, in instructions', more, most=bound)


class Peer:
    """A connection that sends requests and waits for the answers."""

    def __init__(self, address):
        host, _, port = address.rpartition(':')
        self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(PEER_LIMIT_S)
        self.file = self.socket.makefile('rb')

    def exchange(self, frames):
        """Send all frames in one call, and receive their answers. Return the last answer."""
        self.socket.sendall(b''.join(len(frame).to_bytes(4, 'big') + frame for frame in frames))
        return [self.file.read(int.from_bytes(self.file.read(4), 'big')) for _ in frames][-1]

    def ask(self, request, version):
        return read_answer(request, version, self.exchange([frame_of(request, version)]))

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture(scope='module')
def system_calls(tmp_path_factory):
    """Count the system calls of a broker process for one request of each kind, sent alone and in bursts. Return {(kind
    of request, 1 or BURST): {system call: count}}.
    """
    directory = tmp_path_factory.mktemp('strace')
    broker = BrokerProcess(directory / 'data', SETTINGS)
    broker.start()
    try:
        peer = Peer(broker.address)
        work = Work(peer.ask, time.time_ns() // 1_000_000)
        found = {}
        for (name, make), size in itertools.product(WORKS.items(), (1, BURST)):
            for _ in range(ATTEMPTS):
                requests = make(work, SYSTEM_CALL_COUNT)
                frames = [frame_of(request, version) for request, version in requests]
                with traced(broker.pid, directory / 'calls') as calls:
                    reply = [peer.exchange(frames[start:start + size]) for start in range(0, len(frames), size)][-1]
                assert_answered(*requests[-1], reply)
                each = {call: number / SYSTEM_CALL_COUNT for call, number in calls.items()}
                found[name, size] = min(found.get((name, size), each), each, key=lambda calls: sum(calls.values()))
                if sum(each.values()) <= SYSTEM_CALLS.get((name, size), 0):
                    break
        peer.close()
        broker.stop()
        return found
    finally:
        broker.kill9()


@contextmanager
def traced(pid, output):
    """Count the system calls of a process. Yield a dict that is filled when the context ends."""
    calls = {}
    tracer = subprocess.Popen(['strace', '-c', '-f', '-p', str(pid), '-o', str(output)], stderr=subprocess.PIPE,
                              text=True)
    with tracer.stderr:
        said = tracer.stderr.readline()
        if 'attached' not in said:
            tracer.wait(PEER_LIMIT_S)
            do_without('strace', said.strip())
        yield calls
        tracer.send_signal(signal.SIGINT)
        tracer.stderr.read()
    tracer.wait(PEER_LIMIT_S)
    for line in output.read_text().splitlines()[2:-2]:
        _, _, _, number, *_, name = line.split()
        calls[name] = int(number)


@pytest.mark.strace
@pytest.mark.parametrize(('name', 'size'), SYSTEM_CALLS)
def test_a_request_takes_no_more_system_calls(system_calls, name, size, verdict):
    calls = system_calls[name, size]
    print(calls)
    verdict(f'{name}, {size} at once, in system calls', sum(calls.values()), most=SYSTEM_CALLS[name, size])
