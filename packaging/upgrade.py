"""Upgrades a broker and rolls it back, with the wheels of two releases on one log directory.

    python packaging/upgrade.py OLD [NEW]

OLD and NEW are wheels, or commits of this repository, whose wheels it builds. NEW is the working tree by default. Each
release runs in an environment of its own. Brokers of both releases run by turns on one directory. Each of them serves
transactions until a SIGTERM or a SIGKILL ends it, so that each release starts after both ends of the other one.

After each start, all records of committed transactions must be readable, in their order, and none of aborted ones. The
offset that the last committed transaction committed must be in force. After each end, `kbroker-check` of the newer
release must find no error.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = pathlib.Path(__file__).resolve()
OLD, NEW = 'old', 'new'
ROUNDS = [(OLD, signal.SIGKILL), (NEW, signal.SIGTERM), (OLD, signal.SIGTERM), (NEW, signal.SIGKILL),
          (OLD, signal.SIGTERM), (NEW, signal.SIGTERM)]
"""The release and the end of each round: both ends of one release precede a start of the other."""
SETTINGS = {'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
            'log.segment.bytes': '1048576', 'group.initial.rebalance.delay.ms': '0'}
TOPIC, PARTITIONS, GROUP, TRANSACTIONAL_IDS = 'orders', 3, 'readers', 4
CLIENT = 'client'
"""The first argument with which this program runs itself in the environment of the newer release."""
LIMIT_S = 120
LOAD_S = 4
IMPATIENT = {'delivery_timeout_ms': 2000, 'request_timeout_ms': 1000, 'max_block_ms': 2000}
"""Settings with which a producer soon notices that its broker has ended."""


# -- the environments

def wheel_of(source: str, directory: pathlib.Path) -> pathlib.Path:
    """Return the wheel that `source` is, or build the wheel of that commit. An empty source is the working tree."""
    if source.endswith('.whl'):
        return pathlib.Path(source).resolve()
    tree = ROOT
    if source:
        tree = directory / 'tree'
        tree.mkdir(parents=True)
        archive = subprocess.run(['git', 'archive', source], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(['tar', '-x', '-C', tree], input=archive.stdout, check=True)
    print(f'building the wheel of {source or "the working tree"}', flush=True)
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--wheel-dir', directory / 'wheel',
                    tree], check=True)
    wheel, = (directory / 'wheel').glob('*.whl')
    return wheel


def environment_of(wheel: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Install a wheel into a new environment. Return its folder of programs."""
    venv.create(directory, with_pip=True)
    subprocess.run([directory / 'bin' / 'pip', 'install', '--quiet', '--disable-pip-version-check', wheel], check=True)
    return directory / 'bin'


# -- one round

class Broker:
    """A broker of one of the releases. `lines` has its log."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path):
        settings = [word for name, value in SETTINGS.items() for word in ('--set', f'{name}={value}')]
        self._log = tempfile.TemporaryFile('w+')      # noqa: SIM115  (open until the process has ended)
        self.process = subprocess.Popen([programs / 'kbroker', 'serve', '--listen', '127.0.0.1:0', '--data-dir',
                                         directory, *settings], stderr=self._log)

    @property
    def lines(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def address(self) -> str:
        """Return the address as soon as the broker is ready."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.search(r'ready on ([^\s,]+)', self.lines)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f'the broker does not start:\n{self.lines}')
            time.sleep(0.05)
        return found[1]

    def end(self, by: signal.Signals) -> None:
        self.process.send_signal(by)
        status = self.process.wait(LIMIT_S)
        expected = 0 if by == signal.SIGTERM else -by
        if status != expected or 'Traceback' in self.lines:
            sys.exit(f'found exit status {status} after {by.name}, expected {expected}. The broker printed:\n'
                     f'{self.lines}')


def run_round(programs: pathlib.Path, newest: pathlib.Path, place: pathlib.Path, number: int,
              end: signal.Signals) -> str:
    """Check the records of the earlier rounds, write more, and end the broker. Return a sentence about the round."""
    broker = Broker(programs, place / 'data')
    try:
        address = broker.address()
        client = [newest / 'python', PROGRAM, CLIENT, address, place / 'ledger']
        subprocess.run([*client, 'check'], cwd=place, check=True)
        with subprocess.Popen([*client, 'load'], cwd=place, stdin=subprocess.PIPE) as load:
            time.sleep(LOAD_S)      # the time for which the broker has load
            broker.end(end)
        if load.returncode:
            sys.exit(f'the load of round {number} failed')
    finally:
        broker.process.kill()
        broker.process.wait()
    checked = subprocess.run([newest / 'kbroker-check', place / 'data'], capture_output=True, text=True, check=False)
    if checked.returncode:
        sys.exit(f'kbroker-check failed after round {number}:\n{checked.stdout}{checked.stderr}')
    warnings = [line for line in broker.lines.splitlines() if re.search('WARNING|ERROR|CRITICAL', line)]
    for line in warnings:
        print(f'    {line}')
    return f'{len(Ledger(place / "ledger").committed):,} transactions are committed so far'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('old', help='the earlier release: a wheel or a commit')
    parser.add_argument('new', nargs='?', default='', help='the later release (default: the working tree)')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        programs = {}
        for release, source in ((OLD, arguments.old), (NEW, arguments.new)):
            wheel = wheel_of(source, place / release)
            programs[release] = environment_of(wheel, place / release / 'environment')
        names = {release: subprocess.run([path / 'kbroker', '--version'], capture_output=True, text=True,
                                         check=True).stdout.strip() for release, path in programs.items()}
        print('\n'.join(f'{release}: {text}' for release, text in names.items()), flush=True)
        for number, (release, end) in enumerate([*ROUNDS, (NEW, signal.SIGTERM)]):
            text = run_round(programs[release], programs[NEW], place, number, end)
            print(f'round {number}: {release}, {end.name}: {text}', flush=True)
    print('no acknowledged record is lost, and kbroker-check is clean')


# -- the clients, which run in the environment of the newer release

class Ledger:
    """A file with one line of JSON for each attempted transaction: its number and its outcome, as far as known."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.outcomes: dict[str, str] = {}
        """Maps the value of each transaction's records to `begun`, `committed` or `aborted`. The order is that of the
        transactions.
        """
        if path.exists():
            for line in path.read_text().splitlines():
                value, outcome = json.loads(line)
                self.outcomes[value] = outcome

    @property
    def committed(self) -> list[str]:
        return [value for value, outcome in self.outcomes.items() if outcome == 'committed']

    def note(self, value: str, outcome: str) -> None:
        self.outcomes[value] = outcome
        with self._path.open('a') as file:
            print(json.dumps([value, outcome]), file=file)


def load(address: str, ledger: Ledger) -> None:
    """Commit two of three transactions and abort the third, until the broker ends.

    Each transaction writes to each partition, and commits an offset of a group. A transaction whose outcome the broker
    did not acknowledge stays `begun`.
    """
    from kbroker.client import Admin, Consumer, KafkaError, Producer

    with Admin(address) as admin:
        admin.create_topics({TOPIC: PARTITIONS})
    with Consumer(address, group_id=GROUP) as consumer:
        group = consumer.group_metadata
    count, producers = len(ledger.outcomes), []
    try:
        for index in range(TRANSACTIONAL_IDS):
            producers.append(Producer(address, transactional_id=f'writer-{index}', linger_ms=0, **IMPATIENT))
            producers[-1].init_transactions()
        while True:
            producer, value, count = producers[count % TRANSACTIONAL_IDS], f'{count}', count + 1
            ledger.note(value, 'begun')
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.send(TOPIC, value.encode(), partition=partition)
            if count % 3:
                producer.send_offsets_to_transaction({(TOPIC, 0): count}, group)
                producer.commit_transaction()
                ledger.note(value, 'committed')
            else:
                producer.flush()
                producer.abort_transaction()
                ledger.note(value, 'aborted')
    except (KafkaError, OSError) as error:
        print(f'    the load ends: {error}')


def check(address: str, ledger: Ledger) -> None:
    """Compare the records and the committed offset with the ledger. End the program if they differ."""
    from kbroker.client import Consumer, Producer

    if not ledger.outcomes:
        return
    for index in range(TRANSACTIONAL_IDS):      # ends the transactions that a killed load has left open
        with Producer(address, transactional_id=f'writer-{index}') as producer:
            producer.init_transactions()
    partitions = [(TOPIC, number) for number in range(PARTITIONS)]
    found: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    with Consumer(address, group_id=GROUP, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign(partitions)
        offset = consumer.committed([(TOPIC, 0)])[TOPIC, 0].offset
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + LIMIT_S
        while any((consumer.position(*partition) or 0) < ends[partition] for partition in partitions):
            if time.monotonic() > deadline:
                sys.exit(f'the records up to {ends} cannot be read within {LIMIT_S} s')
            for batch in consumer.poll(1000):
                found[batch.partition] += [bytes(value).decode() for value in batch.values]
    for number, values in found.items():
        seen = set(values)
        lost = [value for value in ledger.committed if value not in seen]
        aborted = [value for value in values if ledger.outcomes[value] == 'aborted']
        is_ordered = values == [value for value in ledger.outcomes if value in seen]
        if lost or aborted or not is_ordered:
            sys.exit(f'partition {number}: found {len(lost)} lost records {lost[:5]}, {len(aborted)} of aborted '
                     f'transactions {aborted[:5]}, order kept: {is_ordered}')
    if offset != int(found[0][-1]) + 1:
        sys.exit(f'found the committed offset {offset}, expected {int(found[0][-1]) + 1}')


def run_client(address: str, ledger: str, task: str) -> None:
    {'check': check, 'load': load}[task](address, Ledger(pathlib.Path(ledger)))


if __name__ == '__main__':
    if sys.argv[1:2] == [CLIENT]:
        run_client(*sys.argv[2:])
    else:
        main()
