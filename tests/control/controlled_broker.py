"""A controlled broker in the test's process, with a client, and the rules that the test adds."""
from __future__ import annotations

import pathlib
import signal
from collections.abc import Callable
from typing import Any

from apis.api_client import ApiClient, Parked, TransactionalClient
from support.brokers.in_process_broker import InProcessBroker

from kbroker.base.clock import Clock, Timers
from kbroker.control.rules import Rule, Rules

SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'group.initial.rebalance.delay.ms': '0'}
SECOND_MS = 1000


def report_synced(files: Any, done: Callable[[OSError | None], None]) -> None:
    """Report that the files are synced. No test here ends the machine, so nothing has to reach the disk."""
    done(None)


class ControlledBroker(InProcessBroker):
    """A broker whose operations pass points. `signals` has the signals that rules have sent, instead of this process.
    """

    def __init__(self, directory: pathlib.Path | str, **options: Any):
        self.signals: list[signal.Signals] = []
        super().__init__(directory, SETTINGS, make_steps=self._make_rules, sync=report_synced, **options)
        self.client = ApiClient(self)

    def _make_rules(self, clock: Clock, timers: Timers) -> Rules:
        self.rules = Rules(clock, timers, lambda number: self.signals.append(signal.Signals(number)))
        return self.rules

    def hold(self, point: str, **select: Any) -> Rule:
        return self.rules.add({'point': point, 'action': 'hold', 'select': select})

    def release(self, rule: Rule) -> None:
        self.rules.release(rule.id)
        self.client.settle()

    def steps_at(self, point: str) -> list[dict[str, Any]]:
        """Return the recorded steps at a point."""
        return [step for step in self.rules.steps_since(0)[0] if step['point'] == point]

    def end_offset(self, topic: str, partition: int = 0) -> int:
        offset: int = self.topics.topic(topic).partitions[partition].log_end_offset
        return offset

    def high_watermark(self, topic: str, partition: int = 0) -> int:
        offset: int = self.topics.topic(topic).partitions[partition].high_watermark
        return offset

    def stable_offset(self, topic: str, partition: int = 0) -> int:
        offset: int = self.topics.topic(topic).partitions[partition].last_stable_offset
        return offset

    def open_transaction(self, partitions: int = 1, topic: str = 'orders') -> TransactionalClient:
        """Return a producer with an open transaction that has one record in each partition."""
        producer = TransactionalClient(self)
        for partition in range(partitions):
            assert producer.add_partition(topic, partition) == 0
            assert producer.produce(producer.batch(b'paid'), topic=topic, partition=partition).error_code == 0
        return producer

    def begin_commit(self, producer: TransactionalClient) -> Parked:
        return producer.begin('EndTxn', 4, transactional_id=producer.transactional_id,
                              producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
                              committed=True)
