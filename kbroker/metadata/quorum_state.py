"""The `quorum-state` file: this voter's epoch and vote.

Version 0 belongs to kraft.version 0 and names the voters; version 1 belongs to kraft.version 1, whose voters are in the
log.
"""
from __future__ import annotations

import json

from kbroker.base.errors import CorruptLogError
from kbroker.base.lean_dataclasses import dataclass

FILE_NAME = 'quorum-state'
NO_DIRECTORY = 'A' * 22
"""The zero uuid in Kafka's text form: 22 characters of URL-safe base64."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The content of `quorum-state`; `voters` is empty in version 1."""

    leader_epoch: int
    leader_id: int = -1
    voters: tuple[int, ...] = ()
    data_version: int = 1

    def encode(self) -> bytes:
        """Return the file's only line. It contains no vote, because a single voter needs none."""
        state: dict[str, object] = {'leaderId': self.leader_id, 'leaderEpoch': self.leader_epoch, 'votedId': -1}
        if self.data_version == 0:
            state = {'clusterId': '', **state, 'appliedOffset': 0,
                     'currentVoters': [{'voterId': voter} for voter in self.voters]}
        else:
            state['votedDirectoryId'] = NO_DIRECTORY
        return json.dumps({**state, 'data_version': self.data_version}, separators=(',', ':')).encode()


def parse_quorum_state(data: bytes, path: str) -> QuorumState:
    """Return the quorum state in `data`, the content of `path`.

    Raise CorruptLogError unless it is of version 0 or 1.
    """
    try:
        state = json.loads(data.split(b'\n', 1)[0])
        parsed = QuorumState(int(state['leaderEpoch']), int(state['leaderId']),
                             tuple(int(voter['voterId']) for voter in state.get('currentVoters') or ()),
                             int(state['data_version']))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLogError(f'{path}: found {data[:80]!r}, expected a quorum state in JSON ({error!r})') from error
    if parsed.data_version not in (0, 1):
        raise CorruptLogError(f'{path}: found data_version {parsed.data_version}, expected 0 or 1')
    return parsed
