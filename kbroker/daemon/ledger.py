"""The ledger of memory: every structure that a client can grow, its present size and its bound."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.apis.fetch.sessions import MOST_HELD_PARTITIONS
from kbroker.apis.serving.token_checks import MOST_WAITING
from kbroker.daemon.node import Node
from kbroker.group.classic.pending_members import MOST_PENDING_MEMBERS
from kbroker.group.share.sessions import MOST_HELD as MOST_SHARED_PARTITIONS
from kbroker.group.share.sessions import MOST_NAME_BYTES
from kbroker.log.fs import shared_open_files
from kbroker.metadata.batches import MAX_RECORDS
from kbroker.metadata.scram_records import MOST_CREDENTIALS
from kbroker.network.newcomers import MAX_HANDSHAKES
from kbroker.network.server import MOST_HELD, Server
from kbroker.security.acl_index import MOST_ACL_BYTES
from kbroker.security.audit import QUEUE_BYTES
from kbroker.security.failed_logins import MOST_ADDRESSES
from kbroker.security.quotas import MOST_COUNTER_BYTES, MOST_METER_BYTES
from kbroker.transaction.store import ID_OVERHEAD_BYTES


class Line(NamedTuple):
    """A structure: `now` returns its size, `bound` the largest size, or None if only the disk bounds it.

    `limit` is the name of the setting or of the rule behind the bound.
    """

    what: str
    unit: str
    now: Callable[[], int]
    bound: Callable[[], int | None]
    limit: str


def ledger_of(node: Node, server: Server) -> list[Line]:
    """Return the ledger of a running broker."""
    config = node.config
    traffic, newcomers = server.traffic, server.traffic.newcomers
    return [
        Line('connections', '', lambda: len(server.connections), lambda: server.max_connections, 'max.connections'),
        Line('TLS handshakes', '', lambda: newcomers.handshakes, lambda: MAX_HANDSHAKES, 'the oldest gives way'),
        Line('logins in progress', '', lambda: newcomers.logins, lambda: newcomers.max_logins, 'the oldest gives way'),
        Line('tokens that wait for a check', '', lambda: len(node.authentication.token_checks),
             lambda: MOST_WAITING, 'more are refused'),
        Line('addresses of failed logins', '', lambda: len(node.authentication.failed_logins),
             lambda: MOST_ADDRESSES, 'the oldest is forgotten'),
        Line('SCRAM credentials', '', lambda: len(node.metadata.image.scram_credentials), lambda: MOST_CREDENTIALS,
             'fixed'),
        Line('requests and replies', 'bytes', lambda: traffic.memory.held_bytes,
             lambda: config.queued_max_request_bytes if config.queued_max_request_bytes > 0 else None,
             'queued.max.request.bytes'),
        Line('fetch sessions', '', lambda: len(node.fetch_sessions.sessions),
             lambda: config.max_incremental_fetch_session_cache_slots, 'max.incremental.fetch.session.cache.slots'),
        Line('partitions of fetch sessions and waiting fetches', '', lambda: node.fetch_sessions.held,
             lambda: MOST_HELD_PARTITIONS, 'fixed'),
        Line('waiting fetches', '', lambda: len(node.waiting_room), lambda: server.max_connections,
             'one a connection'),
        Line('groups with members and offsets', 'bytes', lambda: node.groups.memory.held_bytes,
             lambda: node.groups.memory.most_bytes, 'kbroker.group.memory.max.bytes'),
        Line('member ids not used yet', '', lambda: len(node.groups.pending_members), lambda: MOST_PENDING_MEMBERS,
             'the oldest is forgotten'),
        Line('deadlines of members', '', lambda: node.groups.deadlines_count, lambda: node.groups.most_deadlines,
             'one a group and four a member'),
        Line('groups whose regular expressions are resolved', '', lambda: len(node.groups.regexes),
             lambda: len(node.groups.list_groups()), 'one at a time'),
        Line('share sessions', '', lambda: len(node.share_sessions), lambda: node.share_sessions.most,
             'group.share.max.share.sessions'),
        Line('group and member ids of share sessions', 'bytes', lambda: node.share_sessions.name_bytes,
             lambda: MOST_NAME_BYTES, 'fixed'),
        Line('partitions of share sessions', '', lambda: node.share_sessions.held, lambda: MOST_SHARED_PARTITIONS,
             'fixed'),
        Line('long work', '', lambda: len(node.long_work) + node.long_work.paused, lambda: server.max_connections,
             'one a connection'),
        Line('partitions', '', lambda: len(node.logs.logs), lambda: node.topics.most_partitions, '10 KB each'),
        Line('transactional ids and open transactions', 'bytes', lambda: node.transactions.store.id_bytes,
             lambda: node.transactions.store.most_id_bytes, 'transactional.id.expiration.ms makes room'),
        Line('transactions that a client keeps as prepared', '', lambda: node.transactions.store.kept_count,
             lambda: node.transactions.store.most_id_bytes // ID_OVERHEAD_BYTES, 'one a transactional id'),
        Line('groups of transactional producers', '', lambda: node.transactions.store.stale_requests.groups_count,
             lambda: node.transactions.store.stale_requests.most_groups, 'the least recently used is forgotten'),
        Line('producers of partitions', '', lambda: node.logs.producer_room.held, lambda: node.logs.producer_room.most,
             '100,000 a partition; producer.id.expiration.ms makes room'),
        Line('lines of the audit that wait', 'bytes', lambda: node.audit.waiting_bytes, lambda: QUEUE_BYTES,
             'later lines are counted'),
        Line('connections held for a quota', '', lambda: len(server.held), lambda: MOST_HELD,
             'more are closed at once'),
        Line('counters of quotas', 'bytes', lambda: node.quotas.counters.held_bytes, lambda: MOST_COUNTER_BYTES,
             'the one used longest ago is forgotten'),
        Line('clients with quotas', 'bytes', lambda: node.quotas.meters_bytes, lambda: MOST_METER_BYTES,
             'the one used longest ago is looked up again'),
        Line('open files', '', lambda: len(shared_open_files()), lambda: None, 'three quarters of the descriptors'),
        *access_lines(node),
    ]


def access_lines(node: Node) -> list[Line]:
    """Return the lines of a broker with access control."""
    authorizer = node.authorizer
    if authorizer is None:
        return []
    from kbroker.security.decision_log import MOST_DENIAL_BYTES

    return [
        Line('ACLs', 'bytes', lambda: authorizer.index.held_bytes, lambda: MOST_ACL_BYTES, 'fixed'),
        Line('changes of ACLs that are not in force yet', '', lambda: len(node.acls), lambda: MAX_RECORDS,
             'one request at a time'),
        Line('remembered decisions', 'bytes', lambda: authorizer.caches.held_bytes,
             lambda: authorizer.caches.most_bytes, 'the oldest client\'s are forgotten'),
        Line('different denials in the log', 'bytes', lambda: authorizer.log.held_bytes, lambda: 2 * MOST_DENIAL_BYTES,
             'later ones are counted together'),
    ]
