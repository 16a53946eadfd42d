"""The records that members of share groups hold. The status socket of a running kbroker lists them.

Kafka's protocol has no request for these records. The socket is found by the log directory of the broker. A tool that
is connected to the broker over the network can find the directory only on the same machine, and only as the broker's
user or as root.
"""
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.base.errors import KafkaError
from kbroker.base.words import words_for_duration
from kbroker.daemon.status import NoBrokerError, read_status
from kbroker_tools.base.render import Column, Output, words_for_count, words_for_time
from kbroker_tools.base.view import View

if TYPE_CHECKING:
    from kbroker_tools.cluster.live_view import LiveView

COLUMNS = [Column('group_id', 'Group'), Column('topic', 'Topic'), Column('partition', 'Partition'),
           Column('first_offset', 'FirstOffset'), Column('last_offset', 'LastOffset'),
           Column('member_id', 'Member'), Column('delivery_count', 'DeliveryCount'), Column('since_ms', 'Since'),
           Column('lock_ends_ms', 'LockEnds')]


class Wanted(NamedTuple):
    """The partitions, or the group, whose held records are wanted. A value of None means all of them."""

    topic: str | None = None
    partition: int | None = None
    group_id: str | None = None


class Holds(NamedTuple):
    """The records that share groups hold. `unseen` is the reason why this program cannot see held records, or None."""

    records: int = 0
    ranges: tuple[dict[str, Any], ...] = ()
    left_out: int = 0
    """The number of ranges that the broker has counted but not listed."""
    unseen: str | None = None


def find_holds(view: View, data_dir: Path | None, wanted: Wanted) -> Holds:
    """Return the records that share groups hold. If no broker runs on the directory, no records are held."""
    question = {'holds': wanted._asdict()}
    try:
        if data_dir is not None:
            return _holds(read_status(_log_directory(data_dir), question))
        return _holds_of_cluster(view, wanted, question)    # type: ignore[arg-type]
    except NoBrokerError:
        return Holds()
    except (KafkaError, OSError) as error:
        return Holds(unseen=str(error))


def _log_directory(data_dir: Path) -> str:
    """Return the log directory: `data_dir`, or its parent if `data_dir` is a partition directory in a log directory."""
    from kbroker.log.inventory import META_PROPERTIES_FILE
    path = os.path.abspath(data_dir)
    return path if os.path.exists(os.path.join(path, META_PROPERTIES_FILE)) else os.path.dirname(path)


def _holds_of_cluster(view: LiveView, wanted: Wanted, question: dict[str, Any]) -> Holds:
    """Return the held records of the cluster's brokers that run on this machine. Raise KafkaError or OSError if a
    broker cannot be asked."""
    if not any(group.protocol_type == 'share' and wanted.group_id in (None, group.group_id)
               for group in view.listed_groups()):
        return Holds()
    for directory in view.admin.list_log_directories():
        try:
            report = read_status(directory, question)
        except NoBrokerError:
            continue        # a broker on another machine, or another program
        if report.get('cluster_id') == view.cluster.cluster_id:
            return _holds(report)
    return Holds(unseen='no kbroker of this cluster runs on this machine')


def _holds(report: dict[str, Any]) -> Holds:
    return Holds(report['records'], tuple(report['ranges']), report['left_out'])


# ---- output

def show_holds(output: Output, holds: Holds) -> None:
    """Print the held records as a table. If they cannot be seen, print how to see them. If no records are held, print
    nothing."""
    if holds.unseen is not None:
        output.line()
        output.line(f'share groups may hold records here, which cannot be seen: {holds.unseen}')
        output.line("run the command on the broker's machine as its user, with --data-dir DIR")
    elif holds.records:
        output.line()
        output.line(f'share groups hold {words_for_count(holds.records, "record")} here:')
        now_ms = time.time_ns() // 1_000_000    # the time of the broker, which runs on this machine
        output.table(COLUMNS, [_cells(held, now_ms) for held in holds.ranges])
        if holds.left_out:
            output.line(f'and {words_for_count(holds.left_out, "range")} more: ask for one partition or one group')


def _cells(held: dict[str, Any], now_ms: int) -> list[Any]:
    since_ms, ends_ms = held['since_ms'], held['lock_ends_ms']
    since = None if since_ms is None else words_for_time(since_ms)
    if held['is_ending']:
        ends = 'its outcome is being written'
    elif ends_ms is None:
        ends = 'now'
    else:
        ends = f'{words_for_time(ends_ms)} (in {words_for_duration(max(0, ends_ms - now_ms))})'
    return [*(held[column.name] for column in COLUMNS[:-2]), since, ends]


def holds_as_json(holds: Holds) -> dict[str, Any]:
    """Return the held records as JSON values. An unknown value is null."""
    if holds.unseen is not None:
        return {'records': None, 'ranges': [], 'left_out': None, 'not_seen': holds.unseen}
    return {'records': holds.records, 'ranges': list(holds.ranges), 'left_out': holds.left_out, 'not_seen': None}
