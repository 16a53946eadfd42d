"""Common parts of the tests that compare kbroker with Apache Kafka: functions that start both brokers, the options of
the tests, and a filter of known differences.
"""
from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess

from kbroker.log.fs import FileSystem
from kbroker.metadata.directory import format_directory
from kbroker.metadata.features import RELEASES

Given = TypeVar('Given')
Done = TypeVar('Done')
PHASES = (Phase.explicit, Phase.generate)
OPTIONS: dict[str, Any] = dict(deadline=None, database=None, suppress_health_check=[
    HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])


@contextlib.contextmanager
def both_brokers(directory: pathlib.Path, chosen: Mapping[str, str]) -> Iterator[list[KafkaProcess | BrokerProcess]]:
    """Start Kafka and kbroker with these settings. Yield [Kafka, kbroker]."""
    with running(KafkaProcess(directory / 'kafka', chosen), BrokerProcess(directory / 'kbroker', chosen)) as brokers:
        yield brokers


@contextlib.contextmanager
def running(kafka: KafkaProcess, ours: BrokerProcess) -> Iterator[list[KafkaProcess | BrokerProcess]]:
    """Start the brokers, and yield them. If the directory of kbroker is new, it gets the feature levels of Kafka's.
    At the end, raise AssertionError if kbroker logged a traceback.
    """
    if not (ours.directory / 'meta.properties').exists():
        format_directory(FileSystem(), str(ours.directory), 1, 0, features=RELEASES[kafka.release])
    with kafka, ours:
        yield [kafka, ours]


def at_once(work: Callable[[Given], Done], given: Sequence[Given]) -> list[Done]:
    """Call `work` for both brokers at the same time, because a call mostly waits for its broker. Return the results.

    Raise an exception only when both calls have ended.
    """
    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(work, given))


def repeated(examples: int) -> settings:
    """Return the options of a Hypothesis test that runs the same histories every time."""
    return settings(max_examples=examples, derandomize=True, phases=PHASES, **OPTIONS)


def unexplained_lines(lines: Iterable[str], reasons: Iterable[str]) -> list[str]:
    """Return the differences that no pattern of `reasons` matches."""
    return [line for line in lines if not any(re.search(pattern, line, re.DOTALL) for pattern in reasons)]


def unexplained_step(lines: list[str], reasons: Iterable[str]) -> list[str]:
    """Return the differences of a step. Return none if a pattern explains one of them, because the other differences
    then follow from it.
    """
    return lines if len(unexplained_lines(lines, reasons)) == len(lines) else []
