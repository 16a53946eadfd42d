"""A well-behaved client that produces and fetches without a pause, and measures each operation.

    python tests/hostile/good_client.py HOST PORT BROKER_PID [USER PASSWORD]

With a user, it logs in by SCRAM-SHA-512 first.

It produces one record at a time, idempotently and with acks=all, and fetches each record over a second connection.
Between two records it waits in a Fetch at the end of the partition. From time to time it runs the reference work of
`support/runner/attempts`. When its standard input ends, it prints its measurements as JSON: the wall time and the
adjusted time of each operation in microseconds, and the processor times of the reference work.

The adjusted time excludes delays by other programs. It is the wall time minus the time in which this client or the
broker's loop waited for a processor. It is never more than the broker's processor time during the operation.
"""
from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import select
import sys
import time
from typing import Any

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[2])]

from support.brokers.in_process_broker import frame_of, read_answer  # noqa: E402
from support.clients.raw_client import RawClient  # noqa: E402
from support.messages.message_builder import batch_of  # noqa: E402
from support.runner.attempts import reference_s  # noqa: E402

from kbroker.client.sasl import conversation  # noqa: E402
from kbroker.protocol.messages import (  # noqa: E402
    CreateTopicsRequest,
    FetchRequest,
    InitProducerIdRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

MECHANISM = 'SCRAM-SHA-512'
TOPIC = f'good-{os.getpid()}'
VALUE = b'v' * 100
PAUSE_MS = 2
LEAST_OPERATIONS = 600
"""The client does at least this many operations, so that it also measures a short attack."""


REFERENCE_EVERY = 20
"""The number of operations between two runs of the reference work."""


class GoodClient:
    """A producer and a consumer of one partition."""

    def __init__(self, host: str, port: int, broker_pid: int, *user: str):
        self._producer, self._consumer = RawClient(host, port), RawClient(host, port)
        if user:
            log_in(self._producer, *user)
            log_in(self._consumer, *user)
        self._clock = (~broker_pid << 3) | 2  # the clock of another process's processor time, as clock_getcpuclockid
        # The second number of schedstat is the time in nanoseconds that a thread waited for a processor.
        self._schedstats = [os.open(f'/proc/{pid}/schedstat', os.O_RDONLY) for pid in ('self', broker_pid)]
        self.operations: list[tuple[int, int]] = []
        topic = CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        self._producer.ask(CreateTopicsRequest(timeout_ms=10_000, topics=[topic]), 7)
        found = self._producer.ask(InitProducerIdRequest(transaction_timeout_ms=60_000), 4)
        self._producer_id, self._epoch = found.producer_id, found.producer_epoch
        self._sequence = 0

    def work(self) -> None:
        """Produce a record, fetch it back, and wait a little."""
        batch = batch_of(int(time.time() * 1000), VALUE, producer_id=self._producer_id, producer_epoch=self._epoch,
                         base_sequence=self._sequence)
        partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[partition])
        produce = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
        answer = self._measure(self._producer, produce, 12).responses[0].partition_responses[0]
        if answer.error_code or answer.base_offset != self._sequence:
            raise AssertionError(f'record {self._sequence}: {answer}')
        answer = self._measure(self._consumer, self._fetch(self._sequence, 30_000), 12)
        partition = answer.responses[0].partitions[0]
        if partition.error_code or VALUE not in bytes(partition.records):
            raise AssertionError(f'record {self._sequence}: {answer}')
        self._sequence += 1
        self._consumer.ask(self._fetch(self._sequence, PAUSE_MS), 12)

    def _measure(self, client: RawClient, request: Any, version: int) -> Any:
        frame = frame_of(request, version)
        begun = self._times()
        reply = client.exchange(frame)
        wall, used, waited = (end - begin for begin, end in zip(begun, self._times(), strict=True))
        self.operations.append((wall // 1000, min(used, max(0, wall - waited)) // 1000))
        return read_answer(request, version, reply)

    def _times(self) -> tuple[int, int, int]:
        """Return (the time, the broker's processor time, the time that both processes waited for a processor), in
        nanoseconds."""
        waited = sum(int(os.pread(fd, 100, 0).split()[1]) for fd in self._schedstats)
        return time.monotonic_ns(), time.clock_gettime_ns(self._clock), waited

    @staticmethod
    def _fetch(offset: int, max_wait_ms: int) -> Any:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[partition])
        return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic])


def log_in(client: RawClient, user: str, password: str) -> None:
    """Log in by SCRAM."""
    client.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1)
    talk, answer = conversation(MECHANISM, user, password), None
    with contextlib.suppress(StopIteration):
        while True:
            found = client.ask(SaslAuthenticateRequest(auth_bytes=talk.send(answer)), 2)
            if found.error_code:
                raise AssertionError(found)
            answer = found.auth_bytes


def main() -> None:
    host, port, broker_pid, *user = sys.argv[1:]
    client = GoodClient(host, int(port), int(broker_pid), *user)
    for _ in range(20):
        client.work()  # the first calls import and allocate
    client.operations.clear()
    gc.disable()
    print('ready', flush=True)
    references_s = [reference_s()]
    while not select.select([sys.stdin], [], [], 0)[0] or len(client.operations) < LEAST_OPERATIONS:
        client.work()
        if len(client.operations) % REFERENCE_EVERY == 0:
            references_s.append(reference_s())
    print(json.dumps({'operations': client.operations, 'references_s': references_s}))


if __name__ == '__main__':
    main()
