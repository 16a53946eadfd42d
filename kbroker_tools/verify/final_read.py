"""The final read of the logs, from their starts to their ends. The reader continues after failures of its client."""
from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from kbroker_tools.verify.clients.face import ClientFailure, Getter
from kbroker_tools.verify.recorder import Recorder

POLL_S = 0.3
PAUSE_AFTER_FAILURE_S = 0.2


class PositionedGetter(Getter, Protocol):
    """A consumer that can also return its position in a partition."""

    def position(self, partition: int) -> int:
        """Return the offset at which the next fetch begins. It is after all markers and hidden records that were
        skipped."""


def read_to_ends(recorder: Recorder, reader: int, getter: PositionedGetter, ends: Mapping[int, int],
                 patience_s: float) -> dict[int, int]:
    """Read each partition from its start to its end. Record the polls, and the offsets that they reached. Return
    {partition: number of records}.

    After a failed poll, the next poll begins where the last successful poll ended. If no record arrives for
    `patience_s` seconds, the error of the last failed poll is raised. If no poll has failed, no error is raised: the
    broker has answered, but the end cannot be reached.
    """
    counts = dict.fromkeys(ends, 0)
    reached = dict.fromkeys(ends, 0)
    failure: ClientFailure | None = ClientFailure('no poll was made')
    sought: list[int] = []
    deadline = time.monotonic() + patience_s
    try:
        while any(reached[index] < end for index, end in ends.items()) and time.monotonic() < deadline:
            try:
                if failure is not None:
                    sought = [number for pair in reached.items() for number in pair]
                    getter.seek(reached)
                    failure = None
                at = recorder.now()
                reads = getter.poll(POLL_S)
                if reads:
                    for index, offsets, _ in reads:
                        counts[index] += len(offsets)
                    reached |= {index: offsets[-1] + 1 for index, offsets, _ in reads}
                    recorder.poll(reader, at, reads, seek=sought)
                    sought = []
                    deadline = time.monotonic() + patience_s
                reached |= {index: getter.position(index) for index in ends}
            except ClientFailure as error:
                failure = error
                time.sleep(PAUSE_AFTER_FAILURE_S)   # a broker sends no event when it can answer again
    finally:
        recorder.end(reader, [number for index, end in ends.items() for number in (index, reached[index], end)])
    if failure is not None and any(reached[index] < end for index, end in ends.items()):
        raise failure
    return counts
