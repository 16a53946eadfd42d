"""The hash of the metadata of a group's subscribed topics. If the hash has changed, the group needs a new epoch.

The hash of a group is XXH3-64 over the hashes of its topics, sorted by the topics' names. The hash of a topic has 8
bytes: it is XXH3-64 over these fields:

    int8    0, the version of this layout
    int64   the most significant half of the topic's id, then the other half
    string  name, and its length as int32
    int32   number of partitions
    then for each partition
        int32   index
        string  the rack of a replica, with its length as int32 before and after; for each rack, sorted

Integers are little-endian. A string is UTF-16LE, and its length counts code units.
"""
from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from kbroker.base.long_work import Pace
from kbroker.group.modern.sorted_names import sorted_in_parts

INT32 = Struct('<i')
INT64 = Struct('<q')
UNSIGNED_INT64 = Struct('<Q')
LAYOUT = b'\0'


class HashedTopic(NamedTuple):
    topic_id: bytes
    name: str
    partitions: int
    racks: Sequence[str] = ()
    """The racks of the replicas. All partitions of the topic have the same racks."""


def metadata_hash(topics: Iterable[tuple[bytes, str, int, Sequence[str]]]) -> Generator[None, None, int]:
    """Return the hash of topics as a signed 64-bit integer. `topics` yields the fields of a `HashedTopic` for each
    topic. Without topics, the hash is 0."""
    pace = Pace()
    hashes = {}
    for topic_id, name, partitions, racks in topics:
        hashes[name] = UNSIGNED_INT64.pack(topic_hash(HashedTopic(topic_id, name, partitions, racks)))
        if pace.spend(partitions // 8 + 4):
            yield
    if not hashes:
        return 0
    digest = xxh3_64()
    for name in (yield from sorted_in_parts(hashes)):
        digest.update(hashes.pop(name))     # freeing all hashes together would take milliseconds
        if pace.spend():
            yield
    signed: int = INT64.unpack(UNSIGNED_INT64.pack(digest.intdigest()))[0]
    return signed


def topic_hash(topic: HashedTopic) -> int:
    name = topic.name.encode('utf-16-le')
    racks = b''.join(_counted(rack) for rack in sorted(topic.racks))
    return xxh3_64_intdigest(b''.join((
        LAYOUT, topic.topic_id[7::-1], topic.topic_id[:7:-1], name, INT32.pack(len(name) // 2),
        INT32.pack(topic.partitions), *(INT32.pack(index) + racks for index in range(topic.partitions)))))


def _counted(text: str) -> bytes:
    units = text.encode('utf-16-le')
    length = INT32.pack(len(units) // 2)
    return length + units + length
