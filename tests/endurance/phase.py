"""The process of a mixed load. It creates topics and runs workers until its standard input ends, and then checks the
written records.

    python phase.py HOST:PORT PREFIX DIRECTORY SEED yes|no

The last argument says whether the broker restarts during the load. The process prints `ready` when the load begins. At
the end it prints a report with a line for each kind of work, and deletes all topics and groups that it created. If the
broker broke a promise, the process ends with a traceback and exit code 1. The load runs in a separate process because
librdkafka sometimes keeps a connection open. The end of the process closes all connections.
"""
from __future__ import annotations

import pathlib
import sys
import threading
import time
from collections import Counter
from contextlib import closing

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[2])]

from endurance.groups import Member, begin_share_groups, members  # noqa: E402
from endurance.transactions import Transactions  # noqa: E402
from endurance.worker import Load, Worker  # noqa: E402
from endurance.writers import (  # noqa: E402
    ConfluentKeptWriter,
    ExpiringWriter,
    KafkaPythonKeptWriter,
    OwnKeptWriter,
    TableWriter,
    TopicChurner,
    check_kept,
    create_topics,
)
from support.clients.raw_client import RawClient  # noqa: E402

from kbroker.client import Admin  # noqa: E402
from kbroker_tools.verify import workloads as verifying  # noqa: E402

FINISH_S = 300
LOOK_AGAIN_S = 0.2
LONGEST_HALF_REQUEST = 200
READY = 'ready'


class Vandal(Worker):
    """A worker that closes its connections in the middle of a request."""

    def work(self) -> None:
        host, _, port = self.load.servers.rpartition(':')
        with closing(RawClient(host, int(port))) as client:
            client.socket.sendall((1000).to_bytes(4, 'big') + self.chance.randbytes(
                self.chance.randrange(LONGEST_HALF_REQUEST)))
            self.pause(1)
        self.done['half requests'] += 1


class Phase:
    """The load of a phase. It runs until `over` is set, and raises AssertionError if the broker broke a promise."""

    def __init__(self, load: Load, directory: pathlib.Path, seed: int):
        self.load = load
        self._transactions = Transactions(load, directory, seed)
        self._expiring, self._table = ExpiringWriter(load, seed), TableWriter(load, seed)
        self._writers: list[Worker] = [
            OwnKeptWriter('own', load, seed), ConfluentKeptWriter('confluent', load, seed),
            KafkaPythonKeptWriter('kafka-python', load, seed), self._expiring, self._table,
            TopicChurner('one', load, seed), TopicChurner('two', load, seed), Vandal('vandal', load, seed)]
        self._members = members(load, seed)

    def run(self, over: threading.Event) -> list[str]:
        """Return the report."""
        with Admin(self.load.servers) as admin:
            create_topics(admin, self.load)
            self._transactions.create(admin)
            begin_share_groups(admin, self.load)
        for worker in (*self._writers, *self._members):
            worker.start()
        self._transactions.start()
        print(READY, flush=True)
        while not over.wait(LOOK_AGAIN_S) and not self._failed():
            pass
        self._check_workers()
        self._end_writers()
        self._end_members()
        idle = [worker.name for worker in (*self._writers, *self._members) if not worker.done]
        assert not idle, f'these workers did nothing: {idle}'
        report = [check_kept(self.load), self._expiring.check(), self._table.check(), self._transactions.check(),
                  *(f'{worker.name}: {words(worker.done)}; failures: {words(worker.failures)}'
                    for worker in (*self._writers, *self._members))]
        self._delete_everything()
        return report

    def _failed(self) -> list[str]:
        return [worker.name for worker in self._workers() if worker.error is not None]

    def _workers(self) -> list[Worker | verifying.Worker]:
        return [*self._writers, *self._members, *self._transactions.workers]

    def _check_workers(self) -> None:
        failed = {worker.name: worker.error for worker in self._workers() if worker.error is not None}
        if failed:
            raise AssertionError(f'workers failed: {failed}') from next(iter(failed.values()))

    def _end_writers(self) -> None:
        self.load.stop_writing.set()
        deadline = time.monotonic() + FINISH_S
        late = [worker.name for worker in (*self._writers, *self._transactions.workers)
                if not worker.join(max(0, deadline - time.monotonic()))]
        assert not late, f'these workers do not end: {late}'
        self._check_workers()

    def _end_members(self) -> None:
        """Wait until each group has received every acknowledged record."""
        missing = self._missing()
        deadline = time.monotonic() + FINISH_S
        while missing and not self._failed():
            assert time.monotonic() < deadline, f'groups lack records: {missing}'
            time.sleep(LOOK_AGAIN_S)    # the members have no event for it
            before, missing = missing, self._missing()
            if missing != before:
                deadline = time.monotonic() + FINISH_S
        self.load.stop.set()
        late = [member.name for member in self._members if not member.join(FINISH_S)]
        assert not late, f'these members do not end: {late}'
        self._check_workers()

    def _missing(self) -> dict[str, int]:
        first: dict[str, Member] = {member.group: member for member in self._members}
        counts = {group: len(self.load.acknowledged.without(member.seen)) for group, member in first.items()}
        return {group: count for group, count in counts.items() if count}

    def _delete_everything(self) -> None:
        with Admin(self.load.servers) as admin:
            begin_share_groups(admin, self.load, None)
            delete_groups(admin, FINISH_S if self.load.survives_restarts else 0)
            topics = [topic for topic in admin.cluster.topics() if topic.startswith(self.load.prefix)]
            found = admin.delete_topics(topics)
            assert not any(found.values()), found
            assert admin.list_groups() == []


def delete_groups(admin: Admin, patience_s: float) -> None:
    """Delete all groups. Retry while a group has members: a member that could not leave because of a restart stays
    until its session times out.
    """
    deadline = time.monotonic() + patience_s
    while refused := {group_id: error for group_id, error in admin.delete_groups(
            [group.group_id for group in admin.list_groups()]).items() if error is not None}:
        assert time.monotonic() < deadline, f'groups cannot be deleted: {refused}'
        time.sleep(LOOK_AGAIN_S)    # a session that times out sends no event


def words(counts: Counter[str]) -> str:
    return ', '.join(f'{count:,} {name}' for name, count in sorted(counts.items())) or 'none'


def main(servers: str, prefix: str, directory: str, seed: str, survives_restarts: str) -> None:
    over = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    load = Load(servers, prefix, survives_restarts == 'yes')
    print(*Phase(load, pathlib.Path(directory), int(seed)).run(over), sep='\n', flush=True)


if __name__ == '__main__':
    main(*sys.argv[1:])
