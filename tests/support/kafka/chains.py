"""Chains of programs on one log directory, with clients that work on each program and a model of what they wrote.

Each program starts on the directory that the one before it left. The data then have to equal the model, and the clients
work again. Before a kill of Kafka, the chain waits until all decided transactions have their markers: a start of Kafka
after a kill may complete a transaction without them, if a partition has no leader yet. A killed kbroker goes to
Kafka by `kbroker hand-over`, or after all markers are written. It goes to kbroker as the kill left it.
"""
from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path

from support.brokers.broker_process import PROMPT, BrokerProcess, killed_at_the_end
from support.clients.markers import await_markers
from support.clients.raw_client import RawClient
from support.kafka.apache_kafka import CLUSTER_ID, KafkaProcess, dump_log, java
from support.kafka.chain_clients import REPEATED, Clients, Companion
from support.kafka.chain_plans import KBROKER, LEVELS, Birth, Link, Plan
from support.kafka.shown_metadata import await_shown_metadata
from support.messages.message_builder import build
from support.runner.command_runner import run_command
from support.runner.free_ports import free_port

from kbroker.metadata.features import METADATA_VERSION, RELEASES, SHARE_VERSION

SETTINGS = {**PROMPT, 'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
            'log.cleaner.backoff.ms': '500'}
FORMAT_LIMIT_S = 300
LAST_LINES = 40
REFUSED = re.compile(f'Error processing append operation on partition .*{REPEATED}-0')
"""An error that Kafka logs when it refuses a batch that it has forgotten."""
WITHOUT_INDEX = re.compile('Could not find offset index file corresponding to log file .*, recovering segment')
"""An error that Kafka logs when it rebuilds the index files of a segment below the recovery point. A killed kbroker may
leave the recovery point, but creates the index files of a small segment only at a clean stop.
"""
WITHOUT_EPOCHS = re.compile('epochs 0 is not equal to partitions')
"""An error that Kafka 4.3 and later log for rows of consumer groups that Kafka 4.2 wrote, because Kafka 4.2 knows no
assignment epochs.
"""

Program = BrokerProcess | KafkaProcess


def run_chain(plan: Plan, place: Path, companion: Companion | None = None) -> int:
    """Run a chain in the directory `place`. Return the number of hand-overs. Raise AssertionError, with a note about
    the program, if the data do not equal the model.
    """
    directory, address = place / 'data', f'127.0.0.1:{free_port()}'
    settings = {**SETTINGS, **(companion.settings if companion else {})}
    prepare(plan.birth, directory)
    with ExitStack() as stack:
        clients = Clients(address, plan.has_lasting_clients, LEVELS[plan.birth.release], companion)
        stack.callback(clients.close)
        for number, (link, following) in enumerate(zip_longest(plan.links, plan.links[1:])):
            program = program_of(link, address, directory, settings, plan.birth.is_dynamic)
            with noted(f'program {number}, {link.program}, of a directory {plan}', program):
                run_link(number, program, link, following, clients)
        check_files(directory)
    return len(plan.links) - 1


def run_link(number: int, program: Program, link: Link, following: Link | None, clients: Clients) -> None:
    """Start a program, check the data, let the clients work, and end the program."""
    directory = program.directory
    with killed_at_the_end(program):
        program.start()
        if number:
            clients.check()
        else:
            clients.begin()
        clients.work(number)
        if link.raised_to:
            raise_levels(clients.address, link.raised_to)
            clients.level = LEVELS[link.raised_to]
        await_shown_metadata(clients.address)
        if must_have_markers(link, following):
            await_markers(clients.address)
        if clients.companion is not None:
            clients.companion.leave()
        if not link.is_killed:
            program.stop()
        elif link.program == KBROKER and not must_have_markers(link, following):
            clients.race(program.kill9)
        else:
            program.kill9()
    check_output(program, clients.ended)
    clients.ended.append(link)
    clients.knows_all_batches = keeps_batches(link, following)
    if link.is_handed_over:
        run_kbroker('hand-over', '--data-dir', str(directory))
    if not link.is_killed or link.is_handed_over:
        done = run_command('check', directory)
        errors = [line for line in done.stdout.splitlines() if line.startswith('error')]
        assert errors == [] and done.returncode != 1, done.stdout + done.stderr
    assert not list(directory.glob('*-stray'))


def must_have_markers(link: Link, following: Link | None) -> bool:
    """Return whether all decided transactions must have their markers before this link ends. See the module."""
    if link.program == KBROKER:
        return link.is_killed and not link.is_handed_over and following is not None and following.program != KBROKER
    return link.is_killed


def keeps_batches(link: Link, following: Link | None) -> bool:
    """Return whether the following program knows the last batches of each producer, and not only the last one.

    Kafka writes a producer snapshot at the end of the log, at a clean stop and after the recovery of a log. Its rows
    have only the last batch of each producer. kbroker's snapshot at a clean stop is below its last batches.
    """
    if link.program != KBROKER or following is None:
        return False
    return not link.is_killed or link.is_handed_over or following.program == KBROKER


@contextmanager
def noted(note: str, program: Program) -> Iterator[None]:
    """Add a note, and the end of the program's output, to an exception of the `with` block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f'{note}. Its last lines:\n{"".join(program.lines[-LAST_LINES:])}')
        raise


# -- programs

def prepare(birth: Birth, directory: Path) -> None:
    """Format the log directory."""
    if birth.program == KBROKER:
        run_kbroker('storage', 'format', '--data-dir', str(directory), '--cluster-id', CLUSTER_ID, '--release-version',
                    birth.release)
        return
    program = KafkaProcess(directory, SETTINGS, birth.program, dynamic=birth.is_dynamic)
    options = [*(['--standalone'] if birth.is_dynamic else []),
               *(['--release-version', birth.release] if birth.release != birth.program else [])]
    run(java('kafka.tools.StorageTool', 'format', '--cluster-id', CLUSTER_ID, *options, '--config',
             str(program.write_settings()), release=birth.program))


def program_of(link: Link, address: str, directory: Path, settings: Mapping[str, str], is_dynamic: bool) -> Program:
    if link.program == KBROKER:
        broker = BrokerProcess(directory, settings)
        broker.address = address
        return broker
    return KafkaProcess(directory, settings, link.program, address=address, dynamic=is_dynamic)


def run_kbroker(*arguments: str) -> None:
    run([sys.executable, '-m', 'kbroker', *arguments])


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FORMAT_LIMIT_S,
                          check=False)
    assert done.returncode == 0, f'exit code {done.returncode}:\n{done.stdout}{done.stderr}'


def check_output(program: Program, before: Sequence[Link]) -> None:
    """Check that the program logged no traceback, and no error that it does not log after the programs before it."""
    assert program.tracebacks() == []
    if not isinstance(program, KafkaProcess):
        return
    known = [REFUSED]
    if before and before[-1].program == KBROKER and before[-1].is_killed and not before[-1].is_handed_over:
        known.append(WITHOUT_INDEX)
    if '4.2' in {link.program for link in before}:
        known.append(WITHOUT_EPOCHS)
    assert [line for line in program.errors() if not any(each.search(line) for each in known)] == []


def check_files(directory: Path) -> None:
    """Let kafka-dump-log read all logs of topics."""
    text = dump_log(*sorted(path for path in directory.glob('*-[0-9]*/*.log')
                            if not path.parent.name.startswith('__cluster_metadata')))
    assert not (found := re.search('.*(?:corrupt|Exception).*', text)), found[0]


def raise_levels(address: str, release: str) -> None:
    """Finalize the levels of a release of Kafka. Other features than these two have the same level in all releases."""
    levels = {METADATA_VERSION: LEVELS[release]}
    if SHARE_VERSION in (known := RELEASES.get(release, {})):
        levels[SHARE_VERSION] = known[SHARE_VERSION]
    with RawClient.at(address) as client:
        answer = client.ask(build('UpdateFeaturesRequest', feature_updates=[
            dict(feature=name, max_version_level=level) for name, level in levels.items()]), 1)
    assert answer.error_code == 0, answer
