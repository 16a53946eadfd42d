"""The ledger of memory. It lists each structure that a client can grow, with its current size and its bound."""
from __future__ import annotations

from kbroker.base.ledger import Line
from kbroker.daemon.node import Node
from kbroker.network.server import Server


def ledger_of(node: Node, server: Server) -> list[Line]:
    """Return the lines of the ledger of a running broker."""
    return [
        *server.ledger(), *node.authentication.token_checks.ledger(), *node.authentication.failed_logins.ledger(),
        *node.metadata.ledger(), *node.fetch_sessions.ledger(), *node.groups.ledger(), *node.share_sessions.ledger(),
        Line('waiting fetches', '', lambda: len(node.waiting_room), lambda: server.max_connections,
             'one a connection'),
        Line('long work', '', lambda: len(node.long_work) + node.long_work.paused, lambda: server.max_connections,
             'one a connection'),
        *node.topics.ledger(), *node.logs.ledger(), *node.transactions.store.ledger(), *node.audit.ledger(),
        *node.quotas.ledger(), *([] if node.authorizer is None else [*node.authorizer.ledger(), *node.acls.ledger()]),
    ]
