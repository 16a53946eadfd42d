"""The sessions of kbroker-verify: a client that drops records makes no skip of the broker."""
import io
import json

import pytest

from kbroker_tools.verifying.clients.face import ClientFailure
from kbroker_tools.verifying.lines import READ_COMMITTED
from kbroker_tools.verifying.recorder import Recorder
from kbroker_tools.verifying.workloads import Session


class DroppingGetter:
    """A client that reads a record of each partition in a poll. Its second poll drops them, and fails."""

    def __init__(self):
        self.positions = {}
        self.polls = 0

    def seek(self, positions):
        self.positions = dict(positions)

    def poll(self, timeout_s):
        self.polls += 1
        reads = [(partition, [offset], [offset]) for partition, offset in self.positions.items()]
        self.positions = {partition: offset + 1 for partition, offset in self.positions.items()}
        if self.polls == 2:
            raise ClientFailure('dropped')
        return reads


class DroppingMaker:
    name = 'dropping'

    def getter(self, isolation):
        return DroppingGetter()


def test_a_poll_after_one_that_failed_begins_behind_the_last_record_that_was_returned():
    out = io.StringIO()
    session = Session(Recorder(out, [], {}), DroppingMaker(), READ_COMMITTED)
    session.seek({0: 3, 1: 7})
    session.poll(0)
    with pytest.raises(ClientFailure):
        session.poll(0)
    session.poll(0)
    session.poll(0)
    polls = [row for row in map(json.loads, out.getvalue().splitlines()) if row['type'] == 'poll']
    assert [row['seek'] for row in polls] == [[0, 3, 1, 7], [0, 4, 1, 8], []]
    assert [row['reads'] for row in polls] == [
        [[0, [offset], [offset]], [1, [offset + 4], [offset + 4]]] for offset in (3, 4, 5)]
