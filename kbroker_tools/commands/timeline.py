"""`kbroker-transactions timeline TOPIC[:PARTITION]`. It draws the transactions of partitions."""
from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.base.topic_partition import named_partition, parse_topic_partition
from kbroker.settings.durations import duration_ms, time_ms
from kbroker_tools.base.command import NAMES, SETTINGS, Command, ToolError, output_options
from kbroker_tools.base.render import Output
from kbroker_tools.cluster.opening import cluster_options, note_unreadable, open_view

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kbroker_tools.base.view import View
    from kbroker_tools.timeline.layout import Timeline
    from kbroker_tools.timeline.text import Line

PIPED_COLUMNS = 100
"""The width of the picture in columns, if the output is not a terminal and COLUMNS is not set."""


class TopicPartition(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """The type of parameters such as `orders:0`, or `orders` for all partitions of a topic."""

    name = 'TOPIC[:PARTITION]'

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int | None]:
        try:
            return parse_topic_partition(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return NAMES['topic'].shell_complete(ctx, param, incomplete)


class Moment(click.ParamType):  # type: ignore[type-arg]
    """The type of parameters that are a time or an age. A time (ISO 8601, UTC by default) becomes milliseconds since
    the epoch. An age becomes a negative number of milliseconds."""

    name = 'TIME'

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        with contextlib.suppress(ValueError):
            return -duration_ms(value.strip())
        try:
            return time_ms(value)
        except ValueError:
            self.fail(f'found {value!r}, expected a time such as 2026-11-20T14:00:00Z, or an age such as 15min',
                      param, ctx)


@click.command(cls=Command, context_settings=SETTINGS)
@click.argument('topic_partition', type=TopicPartition(), metavar='TOPIC[:PARTITION]')
@click.option('--axis', type=click.Choice(['offset', 'time']), default='offset', show_default=True,
              help='The axis of the picture in the terminal.')
@click.option('--html', type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar='FILE',
              help='Write the picture as one self-contained HTML file.')
@click.option('--from-offset', type=click.IntRange(min=0), metavar='OFFSET',
              help='Leave out everything before this offset.')
@click.option('--to-offset', type=click.IntRange(min=0), metavar='OFFSET',
              help='Leave out transactions that begin at or after this offset.')
@click.option('--since', type=Moment(), metavar='TIME',
              help='Leave out transactions that ended before this time: 2026-11-20T14:00:00Z, or an age such as 15min.')
@cluster_options
@output_options
def timeline(topic_partition: tuple[str, int | None], axis: Any, html: Path | None, from_offset: int | None,
             to_offset: int | None, since: int | None, bootstrap_server: str | None, data_dir: Path | None,
             command_config: Path | None, as_json: bool) -> None:
    """Show the transactions of a partition as a picture. Without a partition, draw all partitions of the topic.

    Each producer has a lane. Each transaction has a bar from its first record to its marker, which shows whether it is
    committed, aborted or open. Lines across the lanes show the last stable offset and the high watermark.
    """
    from kbroker_tools.timeline.reading import Bounds, read_timeline
    if from_offset is not None and to_offset is not None and to_offset <= from_offset:
        raise click.UsageError(f'found --to-offset {to_offset}, expected one above --from-offset {from_offset}')
    if html is not None and not html.absolute().parent.is_dir():
        raise ToolError(f'{html}: there is no directory {html.absolute().parent}')
    view = open_view(bootstrap_server, data_dir, command_config)
    output = Output(as_json)
    topic, numbers = check_partition(view, *topic_partition)
    if html is not None and len(numbers) > 1:
        raise click.UsageError(f'--html shows one partition: found {len(numbers)} of {topic}, expected {topic}:N')
    bounds = Bounds(from_offset, to_offset, since + view.now_ms() if since is not None and since < 0 else since)
    unreadable = view.unreadable([(topic, number) for number in numbers])
    for position, number in enumerate(number for number in numbers if (topic, number) not in unreadable):
        if position and not as_json:
            output.line()
        found = read_timeline(view, topic, number, bounds, output)
        if html is not None:
            from kbroker_tools.timeline.html import page
            _write_page(html, page(found))
            output.note(f'wrote {html}: {len(found.transactions):,} transactions')
        if as_json:
            for row in json_rows(found):
                output.row(row)
        elif html is None:
            show(found, axis, output)
    if unreadable:
        note_unreadable(output, unreadable)
        raise click.exceptions.Exit(1)


def _write_page(file: Path, text: str) -> None:
    """Write the HTML page to a file. Raise ToolError, which names the file. The error of a full disk does not name
    it."""
    try:
        file.write_text(text, encoding='utf-8')
    except OSError as error:
        raise ToolError(f'{file}: {error.strerror}') from None


def check_partition(view: View, topic: str, partition: int | None) -> tuple[str, list[int]]:
    """Return the topic, and the partition in a list. If `partition` is None, return all partitions of the topic. If the
    partition does not exist, raise ToolError, which names the existing partitions."""
    topics = view.topics()
    topic, partition = named_partition(topic, partition, topics)
    if topic not in topics:
        raise ToolError(f'found no topic {topic!r} in {view.place}, expected one of its {len(topics)}'
                        if topics else f'found no topic {topic!r} in {view.place}: it has none')
    numbers = [found.partition for found in topics[topic].partitions]
    if partition is None:
        return topic, numbers
    if partition not in numbers:
        raise ToolError(f'found no partition {partition} of topic {topic!r} in {view.place}, expected one of its '
                        f'{len(numbers)}')
    return topic, [partition]


def show(found: Timeline, axis: Any, output: Output) -> None:
    """Print the picture, as wide as the terminal."""
    from kbroker_tools.timeline.text import draw, glyphs_for
    width = output.console().width if output.is_terminal else shutil.get_terminal_size((PIPED_COLUMNS, 24)).columns
    for line in draw(found, axis, width, glyphs_for(getattr(output.stream, 'encoding', None))):
        _write(line, output)


def _write(line: Line, output: Output) -> None:
    if not output.is_terminal:
        output.line(''.join(text for text, _ in line).rstrip())
        return
    from rich.text import Text
    output.console().print(Text.assemble(*((text, style or '') for text, style in line)), soft_wrap=True)


def json_rows(found: Timeline) -> Iterator[dict[str, Any]]:
    """Yield a JSON row for each transaction."""
    for one in found.transactions:
        marker = one.marker
        yield {
            'topic': found.topic, 'partition': found.partition, 'outcome': one.outcome.value,
            'transactional_id': found.transactional_ids.get(one.producer_id), 'producer_id': one.producer_id,
            'producer_epoch': one.producer_epoch, 'first_offset': one.first_offset, 'last_offset': one.last_offset,
            'records': one.records, 'size_bytes': one.size_bytes, 'begin_timestamp_ms': one.begin_timestamp_ms,
            'last_timestamp_ms': one.last_timestamp_ms, 'epoch_before': one.epoch_before,
            'marker_offset': marker and marker.offset, 'marker_timestamp_ms': marker and marker.timestamp_ms,
            'marker_epoch': marker and marker.producer_epoch, 'coordinator_epoch': marker and marker.coordinator_epoch,
            'duration_ms': one.duration_ms,
        }
