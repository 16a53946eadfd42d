"""The `quorum-state` file: the epoch and the vote of this voter.

The file has version 0 if kraft.version is 0, and then names the voters. It has version 1 if kraft.version is 1. The
voters are then in the log.
"""
from __future__ import annotations

import json

from kbroker.base.errors import CorruptLogError
from kbroker.base.lean_dataclasses import dataclass

FILE_NAME = 'quorum-state'
NO_DIRECTORY = 'A' * 22
"""The text form of the uuid whose bytes are all zero: 22 characters of URL-safe base64."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The content of `quorum-state`. In version 1, `voters` is empty."""

    leader_epoch: int
    leader_id: int = -1
    voters: tuple[int, ...] = ()
    data_version: int = 1

    def encode(self) -> bytes:
        """Return the only line of the file. It contains no vote, because a quorum with a single voter needs none."""
        state: dict[str, object] = {'leaderId': self.leader_id, 'leaderEpoch': self.leader_epoch, 'votedId': -1}
        if self.data_version == 0:
            state = {'clusterId': '', **state, 'appliedOffset': 0,
                     'currentVoters': [{'voterId': voter} for voter in self.voters]}
        else:
            state['votedDirectoryId'] = NO_DIRECTORY
        return json.dumps({**state, 'data_version': self.data_version}, separators=(',', ':')).encode()


def parse_quorum_state(data: bytes, path: str) -> QuorumState:
    """Return the state that `data` contains. `path` is the path of the file.

    Raise CorruptLogError if the file is not of version 0 or 1.
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
