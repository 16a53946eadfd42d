"""Creates long answers in parts, and bounds their size.

The handler of a request with a long answer is a generator function. It counts its work with a `Pace`, and yields
between two parts. It answers a name once even if the request repeats the name, so that repeated names cost nothing. If
the answer can be much longer than the request, the handler also counts the size of the answer, with a `ReplyRoom`.
"""
from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import PART as PART
from kbroker.base.long_work import Pace as Pace

Steps = Generator[None, None, Any]
"""The generator of a handler. It runs as long work, and returns the response."""

MOST_REPLY_BYTES = 32 * 1024 * 1024
"""The most memory that one response may take. Once it takes more, no further element is described."""

LONGEST_WAIT_MS = 30_000
"""The longest time that a request waits for the disk or a worker. It is the default of `request.timeout.ms` in Kafka's
clients."""

ELEMENT_BYTES = 128
"""The memory that an element of a response takes until it is encoded, without its strings."""


class ReplyRoom:
    """Counts the memory that one response may still take."""

    def __init__(self) -> None:
        self.left_bytes = MOST_REPLY_BYTES

    def take(self, elements: int, string_bytes: int = 0) -> None:
        """Count elements that were added to the response. `string_bytes` is the total size of their strings."""
        self.left_bytes -= elements * ELEMENT_BYTES + string_bytes

    def check(self, code: ErrorCode) -> None:
        """Raise KafkaError with `code` if the response has reached its maximum size."""
        if self.left_bytes <= 0:
            raise KafkaError(code, f'the answer has reached {MOST_REPLY_BYTES} bytes: ask for less at once')


def overdue_ms(request: Any, timeout_ms: int = 0) -> int:
    """Return the time in ms on the monotonic clock from which on a request that begins now is overdue. `timeout_ms` is
    the timeout of the request, or 0 if the request has none."""
    overdue: int = request.node.clock.monotonic_ms() + min(timeout_ms if timeout_ms > 0 else LONGEST_WAIT_MS,
                                                           LONGEST_WAIT_MS)
    return overdue


def call_handler(handle: Callable[[Any, Any], Any], request: Any, body: Any) -> Steps:
    """Call a handler and return its response. If the handler is a generator function, run its generator first."""
    response = handle(request, body)
    if isinstance(response, GeneratorType):
        response = yield from response
    return response


def in_parts(elements: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield slices of at most PART elements."""
    for start in range(0, len(elements), PART):
        yield elements[start:start + PART]


def each(elements: Iterable[Any], answer: Callable[[Any], Any], pace: Pace) -> Steps:
    """Return a list with `answer(element)` for each element. A generator."""
    answers = []
    for element in elements:
        answers.append(answer(element))
        if pace.spend():
            yield
    return answers


def each_topic(topics: Iterable[Any], partitions: str, answer_partition: Callable[[Any], Any],
               answer: Callable[[Any, list[Any]], Any], pace: Pace) -> Steps:
    """Return a list with `answer(topic, answers)` for each topic. `answers` has the result of `answer_partition` for
    each element of the topic's field `partitions`."""
    answers = []
    for topic in topics:
        answers.append(answer(topic, (yield from each(getattr(topic, partitions), answer_partition, pace))))
        if pace.spend():
            yield
    return answers


def counted(names: Iterable[Hashable], pace: Pace) -> Steps:
    """Return {name: number of its occurrences}, in the order of the first occurrences."""
    times: dict[Hashable, int] = {}
    for name in names:
        times[name] = times.get(name, 0) + 1
        if pace.spend():
            yield
    return times


def distinct_indexes(topics: Sequence[Any], key: str, indexes: str, pace: Pace) -> Steps:
    """Return {topic: {partition: None}} for the topics and partitions of a request, in the order of the request.

    `key` is the name of the field with the name or id of a topic, and `indexes` the name of the field with its
    partitions.
    """
    found: dict[Any, dict[int, None]] = {}
    yield from add_indexes(found, topics, key, indexes, pace)
    return found


def add_indexes(found: dict[Any, dict[int, None]], topics: Sequence[Any], key: str, indexes: str, pace: Pace) -> Steps:
    """Add the topics and partitions of a request to `found`, as `distinct_indexes` returns them."""
    for topic in topics:
        known = found.setdefault(getattr(topic, key), {})
        for part in in_parts(getattr(topic, indexes)):
            known.update(dict.fromkeys(part))
            if pace.spend(len(part)):
                yield
        if pace.spend():
            yield
