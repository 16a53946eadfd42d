"""Compares the sizes of a broker before and after a load."""
from __future__ import annotations

from collections.abc import Iterator

from support.brokers.counted_broker import Count

MORE_OBJECTS = 100
"""The number of additional objects of a type that do not count as a leak: fetch sessions remain, and the number of
their partitions varies. A leak adds more objects, because thousands of members, transactions and topics come and go in
an hour.
"""
MORE_OBJECTS_SHARE = 0.02
MORE_BLOCKS_SHARE = 0.05
MORE_RESIDENT_KB = 16 * 1024
"""The freed memory in KiB that the C library may keep. A leak of 100 bytes for each request is larger after two hours.
"""
MORE_DESCRIPTORS = 8
"""The allowed growth of the number of open files, not counting those of segments. Open segment files are a cache, whose
size varies by chance.
"""
OPEN_FILES = 'open files'
NOT_COMPARED = (OPEN_FILES, 'partitions of fetch sessions and waiting fetches', 'processes that ask for the status')
"""Lines of the ledger that are not compared: a cache, the partitions of fetch sessions (the number of fetch sessions is
compared), and the process that asks for the status.
"""
EMPTY_AFTERWARDS = (
    'connections', 'requests and replies', 'waiting fetches', 'groups with members and offsets',
    'member ids not used yet', 'deadlines of members', 'groups whose regular expressions are resolved',
    'share sessions', 'partitions of share sessions', 'long work', 'transactional ids and open transactions',
    'transactions that a client keeps as prepared', 'producers of partitions', 'connections held for a quota')
"""Lines of the ledger that must be 0 when the clients are gone, the groups and topics are deleted, and the producer and
transactional ids have expired.
"""


def is_drained(ledger: dict[str, int]) -> bool:
    return not any(ledger[what] for what in EMPTY_AFTERWARDS)


def growth(before: Count, after: Count) -> Iterator[str]:
    """Yield a line for each count whose growth from `before` to `after` is above its bound."""
    garbage = {name: count for name, count in after.garbage.items()
               if name.startswith('kbroker.') or count > MORE_OBJECTS}   # a module of Python leaves some at its import
    if garbage:
        yield f'objects that only cycles hold, which are never freed: {garbage}'
    for what, found, expected in (
            ('KiB of resident memory', after.resident_kb, before.resident_kb + MORE_RESIDENT_KB),
            ('descriptors besides open files', after.descriptors - after.ledger[OPEN_FILES],
             before.descriptors - before.ledger[OPEN_FILES] + MORE_DESCRIPTORS),
            ('threads', after.threads, before.threads),
            ('blocks of memory', after.blocks, round(before.blocks * (1 + MORE_BLOCKS_SHARE)))):
        if found > expected:
            yield f'found {found} {what}, expected at most {expected}'
    for what, now in after.ledger.items():
        if now > before.ledger[what] and what not in NOT_COMPARED:
            yield f'{what}: found {now}, expected at most {before.ledger[what]}'
    for name, count in after.objects.items():
        most = before.objects.get(name, 0) * (1 + MORE_OBJECTS_SHARE) + MORE_OBJECTS
        if count > most:
            yield f'found {count} objects of the type {name}, expected at most {most:.0f}'
