"""Answers whose length a client chooses. They are created in parts, and bounded.

A handler of such an answer is a generator function. It counts its work with a `Pace` and yields between two parts. If a
request repeats a name, the handler answers it once, so the request costs only as much as its distinct names. A handler
whose answer can be much longer than its request counts the answer with a `ReplyRoom`, too.
"""
from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import PART as PART
from kbroker.base.long_work import Pace as Pace

Steps = Generator[None, None, Any]
"""A handler that runs as long work, and returns the response."""

MOST_REPLY_BYTES = 32 * 1024 * 1024
"""The bound of the memory of one response. Once it is reached, no further element is described."""

LONGEST_WAIT_MS = 30_000
"""The longest that a request waits for the disk or a worker: the default of `request.timeout.ms` in Kafka's clients."""

ELEMENT_BYTES = 128
"""The bytes that an element of a response takes until it is encoded, besides its strings."""


class ReplyRoom:
    """The bytes that are left for one response."""

    def __init__(self) -> None:
        self.left_bytes = MOST_REPLY_BYTES

    def take(self, elements: int, string_bytes: int = 0) -> None:
        """Count what was added to the response."""
        self.left_bytes -= elements * ELEMENT_BYTES + string_bytes

    def check(self, code: ErrorCode) -> None:
        """Raise KafkaError with `code` if the response is full."""
        if self.left_bytes <= 0:
            raise KafkaError(code, f'the answer has reached {MOST_REPLY_BYTES} bytes: ask for less at once')


def overdue_ms(request: Any, timeout_ms: int = 0) -> int:
    """Return the time on the monotonic clock at which a request that begins now is overdue. `timeout_ms` 0 means that
    the request has no timeout."""
    overdue: int = request.node.clock.monotonic_ms() + min(timeout_ms if timeout_ms > 0 else LONGEST_WAIT_MS,
                                                           LONGEST_WAIT_MS)
    return overdue


def call_handler(handle: Callable[[Any, Any], Any], request: Any, body: Any) -> Steps:
    """Return what a handler returns, or what its generator returns."""
    response = handle(request, body)
    if isinstance(response, GeneratorType):
        response = yield from response
    return response


def in_parts(elements: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield slices of at most PART elements."""
    for start in range(0, len(elements), PART):
        yield elements[start:start + PART]


def each(elements: Iterable[Any], answer: Callable[[Any], Any], pace: Pace) -> Steps:
    """Return `answer(element)` for each element."""
    answers = []
    for element in elements:
        answers.append(answer(element))
        if pace.spend():
            yield
    return answers


def each_topic(topics: Iterable[Any], partitions: str, answer_partition: Callable[[Any], Any],
               answer: Callable[[Any, list[Any]], Any], pace: Pace) -> Steps:
    """Return `answer(topic, answers of its partitions)` for each topic. `partitions` names their field."""
    answers = []
    for topic in topics:
        answers.append(answer(topic, (yield from each(getattr(topic, partitions), answer_partition, pace))))
        if pace.spend():
            yield
    return answers


def counted(names: Iterable[Hashable], pace: Pace) -> Steps:
    """Return how many times each name occurs, in the order of the first occurrences."""
    times: dict[Hashable, int] = {}
    for name in names:
        times[name] = times.get(name, 0) + 1
        if pace.spend():
            yield
    return times


def distinct_indexes(topics: Sequence[Any], key: str, indexes: str, pace: Pace) -> Steps:
    """Return {topic: {partition: None}} of a request, in its order.

    `key` and `indexes` name the fields of a topic with its name or id and with its partitions.
    """
    found: dict[Any, dict[int, None]] = {}
    yield from add_indexes(found, topics, key, indexes, pace)
    return found


def add_indexes(found: dict[Any, dict[int, None]], topics: Sequence[Any], key: str, indexes: str, pace: Pace) -> Steps:
    """Add the topics and partitions of a request to `found`."""
    for topic in topics:
        known = found.setdefault(getattr(topic, key), {})
        for part in in_parts(getattr(topic, indexes)):
            known.update(dict.fromkeys(part))
            if pace.spend(len(part)):
                yield
        if pace.spend():
            yield
