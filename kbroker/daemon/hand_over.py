"""`kbroker hand-over` brings the log directory of a stopped broker to rest, so that Apache Kafka can take it over.

A kill can leave transactions that are decided but whose markers are not all written. Apache Kafka may complete such a
transaction without its markers, if a partition has no leader yet when Kafka starts. A kill also leaves the broker
registered, and the logs without the mark of a clean stop. The hand-over is a start and a clean stop of a broker that
serves no client. Between them it writes the missing markers.

A kill can also leave records of share groups that wait for dead letters. Apache Kafka writes these dead letters, also
those that the queue already has. The hand-over archives the records whose dead letters it finds. It writes no dead
letter: it may run without the settings of the broker, which decide about the queues.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kbroker.base.clock import Clock, Timers
from kbroker.base.errors import LogDirectoryError
from kbroker.base.words import words_for_duration
from kbroker.daemon.node import Node
from kbroker.daemon.stopping import StopProgress
from kbroker.log.directory_names import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from kbroker.log.fs import FileSystem
from kbroker.log.log_directory import contains
from kbroker.metadata.directory import META_PROPERTIES_FILE
from kbroker.metadata.features import METADATA_VERSION, RELEASES
from kbroker.security.escape import shown
from kbroker.settings.config import Config
from kbroker.settings.exposure import addresses_for_clients
from kbroker.transaction.state import NEVER_TIMES_OUT_MS, TransactionRow

Report = dict[str, Any]
Wait = Callable[[int], object]

A_YEAR_MS = 365 * 86_400_000
WITHOUT_DELETIONS = {'log.retention.check.interval.ms': str(A_YEAR_MS), 'log.cleaner.enable': 'false',
                     'offsets.retention.check.interval.ms': str(A_YEAR_MS)}
"""Settings that keep a hand-over from deleting records: it may be run without the settings file of the broker."""
STALL_LIMIT_MS = 60_000
"""The milliseconds without a new marker after which the hand-over gives up."""
LONGEST_WAIT_MS = 100
MOST_NAMED = 20
"""The most partitions or transactions that a message names."""


def _sleep(delay_ms: int) -> None:
    """Wait for the next timer. A hand-over has no sockets, so nothing else can wake it."""
    time.sleep(delay_ms / 1000)


def hand_over(config: Config, *, fs: FileSystem | None = None) -> Report:
    """Complete the decided transactions in the log directory, stop it cleanly, and return the report.

    Raise LogDirectoryError if the directory is in use, is not formatted, or cannot be brought to rest. Raise the errors
    of `Node.take_directory`, too.
    """
    clock = Clock()
    node = Node(config, clock, Timers(clock), fs or FileSystem())
    check_stopped(node)
    try:
        node.take_directory()
        node.open(addresses_for_clients(config)[0])
        node.share_partitions.dead_letters().only_searches = True
        if not node.logs.verification.offline():
            complete_transactions(node)
            find_dead_letters(node)
        report = report_on(node)
    except BaseException:
        node.abandon()
        raise
    stop(node)
    return report


def check_stopped(node: Node) -> None:
    """Raise LogDirectoryError if the directory is not formatted, or if another process uses it. Raise OSError."""
    if not contains(node.fs, node.directory, META_PROPERTIES_FILE):
        raise LogDirectoryError(f'{node.directory}: found no {META_PROPERTIES_FILE}, expected the log directory of a '
                                'broker')
    lock = os.path.join(node.directory, LOCK_FILE)
    holder = node.fs.lock_holder(lock) if node.fs.exists(lock) else None
    if holder is not None:
        process = f'process {holder}' if holder else 'a process that is not visible here'
        raise LogDirectoryError(f'a broker runs on {node.directory} ({process}): stop it first')


def complete_transactions(node: Node, wait: Wait = _sleep, stall_limit_ms: int = STALL_LIMIT_MS) -> None:
    """Run the node until each decided transaction is complete.

    `wait` waits for the given milliseconds. Raise LogDirectoryError if the log directory fails, or if no marker can be
    written for `stall_limit_ms`.
    """
    transactions = node.transactions

    def missing_markers() -> tuple[bool, int]:
        return transactions.store.is_loading, sum(map(len, transactions.unfinished.values()))

    run_until(lambda: not transactions.store.is_loading and not transactions.unfinished, missing_markers,
              lambda: _stall(transactions.unfinished), node, wait, stall_limit_ms)


def find_dead_letters(node: Node, wait: Wait = _sleep, stall_limit_ms: int = STALL_LIMIT_MS) -> None:
    """Run the node until it has searched for the dead letters of all records that wait for one.

    `wait` waits for the given milliseconds. Raise LogDirectoryError if the log directory fails, or if share partitions
    cannot be loaded for `stall_limit_ms`.
    """
    run_until(lambda: not node.share_partitions.is_resuming,
              lambda: node.clock.monotonic_ms() if len(node.long_work) else None,     # a search is long work
              lambda: 'share partitions with records that wait for dead letters cannot be loaded', node, wait,
              stall_limit_ms)


def run_until(is_done: Callable[[], bool], progress: Callable[[], object], stall: Callable[[], str], node: Node,
              wait: Wait, stall_limit_ms: int) -> None:
    """Run the node until `is_done` returns True. Raise LogDirectoryError if the log directory fails, or, with the text
    of `stall`, if `progress` returns the same value for `stall_limit_ms`.
    """
    seen, seen_ms = progress(), node.clock.monotonic_ms()
    while True:
        node.timers.run_due()
        node.end_tick()
        if node.logs.failure is not None:
            raise LogDirectoryError(f'{node.directory}: {node.logs.failure}')
        if is_done():
            return
        now, now_ms = progress(), node.clock.monotonic_ms()
        if now != seen:
            seen, seen_ms = now, now_ms
        elif now_ms - seen_ms >= stall_limit_ms:
            raise LogDirectoryError(f'{node.directory}: {stall()}: no progress for {stall_limit_ms // 1000} s. The '
                                    'directory is left as after a kill')
        delay_ms = node.timers.next_delay_ms()
        wait(LONGEST_WAIT_MS if delay_ms is None else min(delay_ms, LONGEST_WAIT_MS))


def _stall(unfinished: dict[str, list[tuple[str, int]]]) -> str:
    if not unfinished:
        return 'the state of the transactions cannot be loaded'
    named = '; '.join(f'{shown(transactional_id)} on {_named([f"{topic}-{index}" for topic, index in partitions])}'
                      for transactional_id, partitions in list(unfinished.items())[:MOST_NAMED])
    return f'{len(unfinished)} of the decided transactions cannot be completed: they lack the markers of {named}'


def _named(names: list[str]) -> str:
    more = f' and {len(names) - MOST_NAMED} more' if len(names) > MOST_NAMED else ''
    return ', '.join(names[:MOST_NAMED]) + more


def stop(node: Node) -> None:
    """Stop the node cleanly. Raise LogDirectoryError if that fails, or if a damaged partition is out of service.

    Apache Kafka does not know that the partition is damaged, and would shorten its log.
    """
    offline = [f'{note.key[0]}-{note.key[1]}' for note in node.logs.verification.offline()]
    progress = StopProgress()
    node.on_progress = progress.note
    try:
        node.close()
    finally:
        progress.end()
    if not node.fs.exists(os.path.join(node.directory, CLEAN_SHUTDOWN_FILE)):
        raise LogDirectoryError(f'{node.directory} could not be stopped cleanly: '
                                f'{node.logs.failure or "a log has failed"}')
    if offline:
        raise LogDirectoryError(f'{node.directory}: found damage that keeps {_named(offline)} out of service. Run '
                                f'kbroker-check {node.directory} before Apache Kafka opens the directory')


# -- the report

def report_on(node: Node) -> Report:
    """Return the facts that an operator needs before Apache Kafka opens the directory. Times are in milliseconds."""
    image = node.metadata.image
    return {
        'directory': node.directory, 'cluster_id': node.metadata.cluster_id, 'node_id': node.metadata.node_id,
        'features': image.finalized_features, 'releases': releases_that_open(image.features),
        'kraft_version': image.kraft_version,
        'quorum_setting': 'controller.quorum.bootstrap.servers' if image.kraft_version else 'controller.quorum.voters',
        'open_transactions': [_open_transaction(transactional_id, row, node.clock.wall_ms())
                              for transactional_id, row in node.transactions.list_transactions(only_open=True)]}


def releases_that_open(levels: Mapping[str, int]) -> list[str]:
    """Return the known releases of Apache Kafka that open a directory with these levels, the oldest first."""
    return [release for release, known in RELEASES.items()
            if all(level <= known.get(name, 0) for name, level in levels.items())]


def _open_transaction(transactional_id: str, row: TransactionRow, now_ms: int) -> Report:
    is_two_phase = row.timeout_ms == NEVER_TIMES_OUT_MS
    return {'transactional_id': transactional_id, 'producer_id': row.producer_id, 'producer_epoch': row.producer_epoch,
            'open_ms': max(0, now_ms - row.start_timestamp_ms), 'timeout_ms': None if is_two_phase else row.timeout_ms,
            'is_two_phase': is_two_phase, 'is_kept': row.is_kept}


def lines_of(report: Report) -> Iterator[str]:
    """Yield the lines of a report for a person."""
    oldest_release, node_id = (report['releases'] or ['of a later release'])[0], report['node_id']
    quorum = 'HOST:PORT' if report['kraft_version'] else f'{node_id}@HOST:PORT'
    yield f'{report["directory"]} is at rest: Apache Kafka can open it'
    yield f'cluster       {report["cluster_id"]}, node.id={node_id}'
    yield f'level         metadata.version {report["features"][METADATA_VERSION]}, for Kafka {oldest_release} or newer'
    yield f'quorum        kraft.version {report["kraft_version"]}: set {report["quorum_setting"]}={quorum}'
    yield from _lines_of_timed([each for each in report['open_transactions'] if not _waits(each)])
    yield from _lines_of_waiting([each for each in report['open_transactions'] if _waits(each)])


def _waits(transaction: Report) -> bool:
    """Return whether a transaction waits for the decision of another system (KIP-939)."""
    return bool(transaction['is_two_phase'] or transaction['is_kept'])


def _lines_of_timed(timed: list[Report]) -> Iterator[str]:
    if timed:
        oldest = max(timed, key=lambda each: each['open_ms'])
        yield (f'open          transactions with a timeout: {len(timed)}. The oldest is '
               f'{shown(oldest["transactional_id"])}: open for {words_for_duration(oldest["open_ms"])}, with a '
               f'timeout of {words_for_duration(oldest["timeout_ms"])}')


def _lines_of_waiting(waiting: list[Report]) -> Iterator[str]:
    if waiting:
        yield (f'two-phase     transactions that wait for another system: {len(waiting)}. Let their producers complete '
               'them on kbroker first')
        yield ('              To abort one on Apache Kafka: kafka-transactions.sh forceTerminateTransaction '
               '--transactionalId ID')
        for each in waiting[:MOST_NAMED]:
            kept = ', kept' if each['is_kept'] else ''
            yield (f'              {shown(each["transactional_id"])}: producer {each["producer_id"]} epoch '
                   f'{each["producer_epoch"]}{kept}')
        if len(waiting) > MOST_NAMED:
            yield f'              and {len(waiting) - MOST_NAMED} more, which --json lists'
