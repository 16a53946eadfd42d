"""Directories of earlier releases, which `release_directory.py` makes, and a current broker on a copy of one."""
from __future__ import annotations

import json
import pathlib
import tarfile
from typing import Any

from support.brokers.in_process_broker import InProcessBroker
from support.clients.observed_cluster import observe
from support.messages.message_builder import batch_of, build

from kbroker.base.clock import ManualClock
from kbroker.log.fs import FileSystem

RELEASES = pathlib.Path(__file__).parents[2] / 'data' / 'releases'
SETTINGS = {
    'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
    'share.coordinator.state.topic.num.partitions': '2', 'log.index.size.max.bytes': '4096',
    'transaction.two.phase.commit.enable': 'true', 'log.cleaner.dedupe.buffer.size': '2097152',
    'authorizer.class.name': 'org.apache.kafka.metadata.authorizer.StandardAuthorizer',
    'super.users': 'User:ANONYMOUS',
}
"""The settings of the brokers that create the directories and of those that open them."""
OPEN, PREPARED = 'left-open', 'left-prepared'
"""The transactional ids with an open and with a prepared transaction. Both transactions wrote to the first partition of
`orders`.
"""
OFFSET_OF_OPEN = ['orders', 0, 999, '']
"""The offset that the open transaction commits for the group `confluent-classic`."""
MOST_TURNS, TURN_MS = 200, 10


def names_of_directories() -> list[str]:
    return sorted(path.name.removesuffix('.tar.xz') for path in RELEASES.glob('*.tar.xz'))


def unpack(name: str, destination: pathlib.Path,
           releases: pathlib.Path = RELEASES) -> tuple[pathlib.Path, dict[str, Any]]:
    """Unpack the log directory of a release. Return its path, and the state that clients saw before it was packed."""
    with tarfile.open(releases / f'{name}.tar.xz') as archive:
        archive.extractall(destination, filter='data')
    return destination / 'data', json.loads((releases / f'{name}.json').read_text())


def fields_of(known: Any, found: Any) -> Any:
    """Return `found` without the fields of its descriptions that `known` does not have. A description is a dictionary
    in a dictionary of groups or transactions: {name: {field: value}}.
    """
    if not isinstance(known, dict):
        return found
    return {name: {field: value for field, value in content.items() if field in known[name]}
            if isinstance(content, dict) and isinstance(known.get(name), dict) else content
            for name, content in found.items()}


class ReleaseBroker(InProcessBroker):
    """A broker on a directory that a release wrote. Its clock begins at the time at which the broker of the release
    stopped.
    """

    def __init__(self, directory: pathlib.Path, manifest: dict[str, Any], fs: FileSystem | None = None):
        super().__init__(directory, SETTINGS, clock=ManualClock(manifest['wall_ms']), fs=fs)
        self.manifest = manifest

    def answer(self, request: Any, version: int) -> Any:
        """Send a request, and advance the clock until the answer arrives. Return it."""
        connection = self.begin(request, version)
        for _ in range(MOST_TURNS):
            if connection.replies:
                return self.answer_to(connection, request, version)
            assert connection.closed is None, connection.closed
            self.clock.advance(TURN_MS)
            self.turn()
        raise AssertionError(f'no answer to {request}')

    def check_everything(self) -> None:
        """Compare the state that a client sees with the state that the clients of the release saw. Descriptions may
        have more fields than in the release.
        """
        found = json.loads(json.dumps(observe(self.answer)))
        for what, content in self.manifest.items():
            assert what == 'wall_ms' or fields_of(content, found[what]) == content, what

    def end_transactions(self) -> None:
        """Commit the open transaction and abort the prepared one, as their clients would. Then run a new transaction.
        """
        for transactional_id, is_commit in ((OPEN, True), (PREPARED, False)):
            self._end(transactional_id, self.manifest['transactions'][transactional_id]['producer'], is_commit)
        producer = self._producer(OPEN)
        batch = batch_of(self.clock.wall_ms(), b'after the upgrade', producer_id=producer[0],
                         producer_epoch=producer[1], base_sequence=0, transactional=True)
        answer = self.answer(build('ProduceRequest', transactional_id=OPEN, acks=-1, timeout_ms=1000, topic_data=[
            {'name': 'orders', 'partition_data': [{'index': 1, 'records': batch}]}]), 12)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer
        self._end(OPEN, producer, True)

    def _producer(self, transactional_id: str) -> tuple[int, int]:
        """Initialize a producer. Repeat the request until the markers of the last transaction of the id are written."""
        request = build('InitProducerIdRequest', transactional_id=transactional_id, transaction_timeout_ms=60_000)
        for _ in range(MOST_TURNS):
            answer = self.answer(request, 4)
            if answer.error_code == 0:
                return answer.producer_id, answer.producer_epoch
            self.clock.advance(TURN_MS)
            self.turn()
        raise AssertionError(answer)

    def _end(self, transactional_id: str, producer: tuple[int, int] | list[int], is_commit: bool) -> None:
        answer = self.answer(build('EndTxnRequest', transactional_id=transactional_id, producer_id=producer[0],
                                   producer_epoch=producer[1], committed=is_commit), 5)
        assert answer.error_code == 0, answer

    def check_ended_transactions(self) -> None:
        """Check that both transactions ended as decided, and that nothing else has changed."""
        found = json.loads(json.dumps(observe(self.answer)))
        before = self.manifest['topics']['orders']['partitions']
        after = found['topics']['orders']['partitions']
        for old, new in zip(before, after, strict=True):
            assert new['last_stable'] == new['end']
            assert new['records'][:len(old['records'])] == old['records']
        prepared = self.manifest['transactions'][PREPARED]['producer'][0]
        opened = self.manifest['transactions'][OPEN]['producer'][0]
        assert prepared in {producer for producer, _ in after[0]['aborted']}
        assert opened not in {producer for partition in after for producer, _ in partition['aborted']}
        assert after[1]['records'][-2][3] == 'after the upgrade' and after[1]['records'][-1][6]
        assert OFFSET_OF_OPEN in found['groups']['confluent-classic']['offsets']
        assert [one['state'] for one in found['transactions'].values()] == [
            'CompleteAbort', 'CompleteCommit', 'CompleteAbort']
        for what in ('configs', 'acls', 'credentials', 'quotas'):
            assert found[what] == self.manifest[what]
