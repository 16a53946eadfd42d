"""A stopped log directory with all kinds of data, random damage to it, and the records that its consumers read."""
from __future__ import annotations

import pathlib
import random
import shutil
from collections.abc import Callable, Collection
from typing import Any

from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import GROUP, READ_COMMITTED, READ_UNCOMMITTED, Client, Promises

from kbroker.base.errors import ErrorCode
from kbroker.log.append import Origin
from kbroker.log.batch_walk import read_batches
from kbroker.log.fs import FileSystem
from kbroker.protocol.messages import FetchRequest, OffsetFetchRequest
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import check_crc, encode_batch, iter_batches
from kbroker.record.records import decode_records

SETTINGS = {'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
            'log.index.size.max.bytes': '4096', 'log.index.interval.bytes': '256'}
PLAIN, TRANSACTIONS, COMPACTED, TRIMMED = 'orders', 'tx', 'compacted', 'trimmed'
CLEANER_BACKOFF_MS = 15_000

View = dict[Any, Any]


def build(directory: pathlib.Path, old: pathlib.Path) -> None:
    """Write `directory` in two runs of a broker, each ended by a clean stop. Copy it to `old` between the runs."""
    promises = Promises()
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, promises)
        for name, partitions in ((PLAIN, 2), (TRANSACTIONS, 2), (TRIMMED, 1), ('empty', 1)):
            client.create_topic(name, partitions)
        broker.topics.create(COMPACTED, 1, {'cleanup.policy': 'compact', 'min.cleanable.dirty.ratio': '0.01'})
        client.find_coordinators()
        client.init_idempotent()
        client.init_transactions()
        _write(client, 'first')
        client.delete_records((TRIMMED, 0), 3)
    shutil.copytree(directory, old)
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, promises)
        _write(client, 'second')
        broker.logs.logs[TRIMMED, 0].roll()
        client.delete_records((TRIMMED, 0), 7)
        client.let_pass(CLEANER_BACKOFF_MS)
        client.let_pass(CLEANER_BACKOFF_MS)


def _write(client: Client, run: str) -> None:
    broker = client.broker
    for part in range(3):
        value = f'{run} {part} {"v" * 300}'
        client.produce({(PLAIN, 1): [value]})
        for number in range(4):
            for _ in range(4):
                client.produce({(PLAIN, 1): [f'{number} {value}']})
            client.produce({(PLAIN, 0): [f'{value} {number}'], (PLAIN, 1): [f'{value} {number}'] * 2,
                            (TRIMMED, 0): [f'{value} {number}']})
            batch = encode_batch([(0, b'key %d' % (number % 3), value.encode())])
            broker.topics.get(COMPACTED, 0).append_batch(batch, Origin.CLIENT)
            broker.turn()
        client.commit_offsets({(PLAIN, 0): 1 + part})
        for committed in (True, False):
            client.begin()
            client.produce_in_transaction({(TRANSACTIONS, 0): [f'{value} {committed}'] * 2})
            client.produce_in_transaction({(TRANSACTIONS, 1): [f'{value} {committed}']})
            client.send_offsets({(PLAIN, 1): 10 * part + committed})
            client.end(committed)
        for log in list(broker.logs.logs.values()):
            log.roll()
        client.let_pass(10)


# ---- the view of consumers ----

class Loud(Exception):
    """Raised if a read fails or a consumer refuses the data: the damage is not silent."""


def view_of(broker: InProcessBroker, rng: random.Random) -> View:
    """Return everything that consumers read. Raise Loud if a read fails."""
    view: View = {}
    for topic in sorted(broker.topics.topics(), key=lambda each: each.name):
        view[topic.name] = topic.topic_id
        if topic.is_internal:
            continue
        for partition in topic.partitions:
            where = topic.name, partition.partition
            if partition.is_offline:
                raise Loud(f'{where} is offline')
            view[where] = partition.log_start_offset, partition.high_watermark
            offsets = range(partition.log_start_offset, partition.high_watermark)
            for offset in rng.sample(offsets, min(len(offsets), 4)):     # before a reader leaves traces of its path
                view[where, offset] = _fetch(broker, where, offset, READ_UNCOMMITTED)[:1]
            for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
                view[where, 'all', isolation] = _read(broker, where, partition.log_start_offset, isolation)
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    answer = broker.ask(request, 8).groups[0]
    if answer.error_code:
        raise Loud(f'offsets: {ErrorCode(answer.error_code)!r}')
    view['offsets'] = {(topic.name, partition.partition_index): partition.committed_offset
                       for topic in answer.topics for partition in topic.partitions}
    return view


def _read(broker: InProcessBroker, where: tuple[str, int], offset: int, isolation: int) -> list[Any]:
    records: list[Any] = []
    while batch_records := _fetch(broker, where, offset, isolation):
        for next_offset, visible in batch_records:
            records += visible
            offset = next_offset
    return records


def _fetch(broker: InProcessBroker, where: tuple[str, int], offset: int, isolation: int) -> list[Any]:
    """Return (next offset, visible records) for each batch that a Fetch returns."""
    answer = broker.ask(FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=[
        FetchRequest.FetchTopic(topic=where[0], partitions=[FetchRequest.FetchPartition(
            partition=where[1], fetch_offset=offset, partition_max_bytes=2000)])]), 12)
    data = answer.responses[0].partitions[0]
    if data.error_code:
        raise Loud(f'{where} at {offset}: {ErrorCode(data.error_code)!r}')
    abort_filter = AbortFilter([(row.producer_id, row.first_offset) for row in data.aborted_transactions or ()])
    found = []
    try:
        for header, batch in iter_batches(bytes(data.records or b'')):
            check_crc(batch, header)
            visible = []
            if abort_filter.admits(header, batch) and not header.is_control:
                visible = [(record.offset, bytes(record.key or b''), bytes(record.value or b''), record.timestamp_ms)
                           for record in decode_records(batch) if record.offset >= offset]
            found.append((header.last_offset + 1, visible))
    except Exception as error:
        raise Loud(f'{where} at {offset}: {error}') from error
    return found


# ---- damage ----

def damage(directory: pathlib.Path, old: pathlib.Path, rng: random.Random,
           kinds: Collection[str] = ()) -> tuple[str, pathlib.Path] | None:
    """Damage the directory at random. Return (the kind of damage, the file), or None if nothing changed."""
    files = sorted(path for path in directory.rglob('*')
                   if path.is_file() and path.name != '.lock' and path.suffix != '.deleted')
    path = rng.choice(files)
    kind = rng.choice(sorted(kinds or KINDS))
    before = path.read_bytes()
    what = KINDS[kind](path, files, directory, old, rng)
    if path.exists() and path.read_bytes() == before:
        return None
    return f'{kind} {path.relative_to(directory)} {what}', path


def _truncate(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
              rng: random.Random) -> str:
    content = path.read_bytes()
    size = rng.randrange(len(content)) if content else 0
    path.write_bytes(content[:size])
    return f'to {size} of {len(content)}'


def _cut_at_a_batch(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
                    rng: random.Random) -> str:
    path = path if path.suffix == '.log' else rng.choice([each for each in files if each.suffix == '.log'])
    file = FileSystem().open(str(path))
    walk = read_batches(file, 0, file.size())
    positions = [walk.position for _ in walk]
    if positions:
        position = rng.choice(positions)
        path.write_bytes(path.read_bytes()[:position])
        return f'{path.relative_to(directory)} to {position}'
    return ''


def _flip(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
          rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    if not content:
        return ''
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f'bit {bit}'


def _remove(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
            rng: random.Random) -> str:
    path.unlink()
    return ''


def _empty(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
           rng: random.Random) -> str:
    path.write_bytes(b'')
    return ''


def _swap(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
          rng: random.Random) -> str:
    alike = [each for each in files if each.suffix == path.suffix]
    other = rng.choice(alike if rng.random() < 0.7 else files)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f'with {other.relative_to(directory)}'


def _restore_old(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
                 rng: random.Random) -> str:
    earlier = old / path.relative_to(directory)
    if earlier.exists():
        path.write_bytes(earlier.read_bytes())
    return ''


def _lose_directory(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
                    rng: random.Random) -> str:
    if path.parent != directory:
        shutil.rmtree(path.parent)
    return ''


def _append(path: pathlib.Path, files: list[pathlib.Path], directory: pathlib.Path, old: pathlib.Path,
            rng: random.Random) -> str:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 100)))
    return ''


KINDS: dict[str, Callable[[pathlib.Path, list[pathlib.Path], pathlib.Path, pathlib.Path, random.Random], str]] = {
    'truncate': _truncate, 'cut at a batch': _cut_at_a_batch, 'flip': _flip, 'remove': _remove, 'empty': _empty,
    'swap': _swap, 'old': _restore_old, 'lose the directory of': _lose_directory, 'append to': _append}
