"""Cases for fetches of several partitions, some of which have an error. They show which errors end the wait of the
whole fetch.
"""

from __future__ import annotations

import base64
import uuid
from typing import Any

from cases_configs import set_all
from cases_records import case
from cases_topics import GROUP
from raw_peer import RawPeer, batch, error_codes

LONG_MS = 300_000
"""The maximum wait of a Fetch in milliseconds. A peer waits less long for an answer, so a case fails if the broker
waits for the whole time.
"""
NO_TOPIC = bytes(range(16))


class Named:
    """Builds the topics of a Fetch. It names a topic by its id if the version has ids, and otherwise by its name."""

    def __init__(self, peer: RawPeer, version: int, topic_id: bytes):
        self.peer = peer
        self.by_id = version >= 13
        self.topic_id = topic_id

    def known(self, *partitions: int, **fields: Any) -> dict[str, Any]:
        return self._topic(dict(topic_id=self.topic_id) if self.by_id else dict(topic=self.peer.topic),
                           partitions, **fields)

    def unknown(self) -> dict[str, Any]:
        return self._topic(dict(topic_id=NO_TOPIC) if self.by_id else dict(topic='no_such_topic'), (0,))

    @staticmethod
    def _topic(name: dict[str, Any], partitions: tuple[int, ...], fetch_offset: int = 0, **fields: Any) -> Any:
        return name | dict(partitions=[
            dict(partition=index, fetch_offset=fetch_offset, partition_max_bytes=1 << 20, **fields)
            for index in partitions
        ])


def produce_elsewhere(peer: RawPeer, topic: str, partition: int) -> None:
    """Append a record through another connection, on which the broker has already answered a request."""
    other = peer.another()
    other.prepare('Metadata', topics=[dict(name=topic)], allow_auto_topic_creation=False)
    other.prepare('Produce', 12, acks=-1, timeout_ms=30000, topic_data=[
        dict(name=topic, partition_data=[dict(index=partition, records=batch(b'new'))])])
    other.close()


def fetch(peer: RawPeer, version: int, *topics: dict[str, Any], wait_ms: int = LONG_MS, appended: int | None = None,
          **fields: Any) -> Any:
    """Send a Fetch, and append a record to the partition `appended` of the topic while the broker waits."""
    def append() -> None:
        if appended is not None:
            produce_elsewhere(peer, peer.topic, appended)

    return peer.ask_during(append, 'Fetch', version, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20,
                           topics=list(topics), **fields)


def member_id() -> str:
    """Return a new member id in the form that Kafka's clients use."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')


def fetches(peer: RawPeer, version: int) -> None:
    named = Named(peer, version, peer.create_topic(partitions=8))
    fetch(peer, version, named.unknown())
    fetch(peer, version, named.known(9), named.unknown())
    fetch(peer, version, named.known(0), named.unknown(), appended=0)
    fetch(peer, version, named.known(1, 9), appended=1)
    fetch(peer, version, named.unknown(), named.known(2), wait_ms=50)
    peer.note = 'other errors'
    fetch(peer, version, named.known(3), named.known(4, fetch_offset=7))
    fetch(peer, version, named.known(3), named.known(4, current_leader_epoch=9))
    fetch(peer, version, named.unknown(), named.known(3), named.known(4, fetch_offset=7))
    peer.note = 'a session'
    first = fetch(peer, version, named.known(5, 6), named.unknown(), wait_ms=50, session_epoch=0)
    session = dict(session_id=first.session_id)
    fetch(peer, version, session_epoch=1, appended=5, **session)
    fetch(peer, version, named.known(5, fetch_offset=1), session_epoch=2, appended=6, **session)
    peer.note = 'a session of unknown partitions'
    first = fetch(peer, version, named.unknown(), session_epoch=0)
    fetch(peer, version, session_epoch=1, session_id=first.session_id)


@case
def fetches_by_name_that_wait_beside_errors(peer: RawPeer) -> None:
    fetches(peer, 12)


@case
def fetches_by_id_that_wait_beside_errors(peer: RawPeer) -> None:
    fetches(peer, 17)


@case
def share_fetches_that_wait_beside_errors(peer: RawPeer) -> None:
    """The case has no unknown topic ids: Kafka 4.3.1 answers them with an internal error at the end of the wait."""
    topic_id = peer.create_topic(partitions=4)
    set_all(peer, GROUP, peer.topic, {'share.auto.offset.reset': 'earliest'})
    peer.prepare('FindCoordinator', 4, key_type=0, coordinator_keys=[peer.topic])
    member = dict(group_id=peer.topic, member_id=member_id())
    peer.prepare('ShareGroupHeartbeat', 1, **member, member_epoch=0, rack_id=None,
                 subscribed_topic_names=[peer.topic])

    def share_fetch(*partitions: int, wait_ms: int = LONG_MS) -> dict[str, Any]:
        return dict(
            group_id=peer.topic, member_id=member_id(), share_session_epoch=0, max_wait_ms=wait_ms, min_bytes=1,
            max_bytes=1 << 20, max_records=10, batch_size=10,
            topics=[dict(topic_id=topic_id, partitions=[dict(partition_index=index) for index in partitions])])

    def ask(*partitions: int, wait_ms: int = LONG_MS, appended: int | None = None) -> None:
        def append() -> None:
            if appended is not None:
                produce_elsewhere(peer, peer.topic, appended)

        peer.ask_during(append, 'ShareFetch', 2, **share_fetch(*partitions, wait_ms=wait_ms))
        peer.close()

    peer.prepare('ShareGroupHeartbeat', 1, **member, member_epoch=-1, rack_id=None, subscribed_topic_names=[])
    peer.prepare_until(
        lambda answer: error_codes(answer) == {0}, 'AlterShareGroupOffsets', 0, group_id=peer.topic,
        topics=[dict(topic_name=peer.topic, partitions=[
            dict(partition_index=index, start_offset=0) for index in range(4)])])
    ask(9)
    ask(9, 8)
    ask(0, appended=0)
    ask(9, 1, appended=1)
    ask(2, 9, wait_ms=200)
