"""Plans for the reset of a group's offsets, by the rules of kafka-consumer-groups."""
from __future__ import annotations

import csv
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kbroker.base.topic_partition import TopicPartition, named_partition
from kbroker.settings.durations import java_duration_ms, time_ms

LONGEST_WITHOUT_QUOTES = 24
"""The longest text that Kafka's tool searches for special characters. A longer text is always put in quotes."""


class Offsets(Protocol):
    """The offsets of a cluster that are needed to plan a reset."""

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def at_time(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        """Return {partition: the first offset at or after the time}. The offset is -1 if no record is that new."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A description of a reset. `kind` is the name of the option, and `value` is its argument."""

    kind: str
    value: int = 0


class CannotReset(ValueError):
    """The group does not allow this reset."""


def plan(reset: Reset, partitions: Collection[TopicPartition], committed: Mapping[TopicPartition, int],
         offsets: Offsets) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the new offset of each partition, and notes for the user. New offsets are limited to the range of the log.
    Raise CannotReset if the group does not allow the reset."""
    partitions = sorted(partitions)
    if reset.kind == 'to_earliest':
        return dict(offsets.earliest(partitions)), []
    if reset.kind == 'to_latest':
        return dict(offsets.latest(partitions)), []
    if reset.kind == 'to_time':
        return _at_time(partitions, reset.value, offsets)
    if reset.kind == 'to_current':
        missing = [at for at in partitions if at not in committed]
        ends = offsets.latest(missing) if missing else {}
        return {at: committed[at] if at in committed else ends[at] for at in partitions}, []
    if reset.kind == 'shift_by':
        for topic, partition in partitions:
            if (topic, partition) not in committed:
                raise CannotReset(f'{topic}-{partition} has no committed offset to shift; leave it out of --topic')
        return within_log({at: committed[at] + reset.value for at in partitions}, offsets)
    return within_log(dict.fromkeys(partitions, reset.value), offsets)


def _at_time(partitions: list[TopicPartition], timestamp_ms: int,
             offsets: Offsets) -> tuple[dict[TopicPartition, int], list[str]]:
    found = dict(offsets.at_time(partitions, timestamp_ms))
    later = [at for at in partitions if found[at] < 0]
    ends = offsets.latest(later) if later else {}
    return {**found, **ends}, [f'{topic}-{partition} has no record of that time or later: using the end of the log'
                          for topic, partition in later]


def within_log(wanted: Mapping[TopicPartition, int], offsets: Offsets) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the wanted offsets and notes. An offset outside the log is moved to the nearest offset in the log, and a
    note reports this."""
    starts, ends = offsets.earliest(list(wanted)), offsets.latest(list(wanted))
    found, notes = {}, []
    for (topic, partition), offset in wanted.items():
        at = (topic, partition)
        found[at] = min(max(offset, starts[at]), ends[at])
        if found[at] != offset:
            where = 'above the end' if offset > ends[at] else 'below the start'
            notes.append(f'{topic}-{partition}: {offset} is {where} of the log, using {found[at]}')
    return found, notes


# ---- values on the command line

def parse_scope(texts: Iterable[str], topics: Container[str] = ()) -> dict[str, list[int] | None]:
    """Parse texts such as `orders` or `orders:0,2` to {topic: partitions}. None means all partitions. Raise ValueError
    if a text has another form. `orders-0` is partition 0 if `topics` has only `orders`."""
    found: dict[str, list[int] | None] = {}
    for text in texts:
        topic, separator, numbers = text.rpartition(':')
        if not separator:
            topic, partition = named_partition(text, None, topics)
            if partition is None:
                found[topic] = None
                continue
            numbers = str(partition)
        if topic in found and found[topic] is None:
            continue
        try:
            partitions = [int(number) for number in numbers.split(',')]
        except ValueError:
            raise ValueError(f'found {text!r}, expected TOPIC or TOPIC:PARTITION,...') from None
        found[topic] = [*(found.get(topic) or ()), *partitions]
    return found


def parse_duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration in days and smaller units, such as `PT1H30M`, `P2D` or `PT0.5S`, to milliseconds.
    Raise ValueError if the text is not one."""
    try:
        return java_duration_ms(text)
    except ValueError:
        raise ValueError(f'found {text!r}, expected a duration as PnDTnHnMnS') from None


def parse_datetime_ms(text: str) -> int:
    """Parse a time such as `2026-01-31T23:59:59.000` to milliseconds since the epoch. The time is in UTC unless the
    text ends with an offset such as +02:00. Raise ValueError if the text is not a time."""
    try:
        found_ms = time_ms(text)
    except ValueError:
        found_ms = None
    if found_ms is None or 'T' not in text:
        raise ValueError(f'found {text!r}, expected a time as YYYY-MM-DDThh:mm:ss.sss')
    if found_ms < 0:        # in the protocol, a negative time means the end, the start or the like
        raise ValueError(f'found {text!r}, expected a time from 1970 on')
    return found_ms


def read_plan(text: str, groups: Collection[str]) -> dict[str, dict[TopicPartition, int]]:
    """Parse the output of --export. A row has a topic, a partition and an offset. If there are several groups, the
    group precedes them.

    Raise ValueError, which names the line, if a row has another form.
    """
    found: dict[str, dict[TopicPartition, int]] = {}
    only = next(iter(groups)) if len(groups) == 1 else None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = next(csv.reader([line]))
        if len(cells) == 3 and only is not None:
            cells = [only, *cells]
        try:
            group, topic, partition, offset = cells
            found.setdefault(group, {})[topic, int(partition)] = int(offset)
        except ValueError:
            expected = 'topic,partition,offset' if only is not None else 'group,topic,partition,offset'
            raise ValueError(f'line {number}: found {line!r}, expected {expected}') from None
        if group not in groups:
            raise ValueError(f'line {number}: group {group} is not among those of --group')
    return found


def csv_row(cells: Iterable[str | int]) -> str:
    """Return a row in the form of --export. Long cells, and cells with special characters, are in quotes."""
    return ','.join('"' + str(cell).replace('"', '""') + '"' if _needs_quotes(str(cell)) else str(cell)
                    for cell in cells)


def _needs_quotes(text: str) -> bool:
    return len(text) > LONGEST_WITHOUT_QUOTES or any(character in text for character in '",\r\n')
