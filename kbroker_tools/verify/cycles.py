"""The search for cycles of dependencies between transactions.

`T1 -> T2` is a read dependency if T2 read a record of T1. It is a write dependency if a record of T2 follows a record
of T1 in a partition. Kafka may order the records of concurrent transactions freely. It therefore permits cycles that
include a write dependency (G0, and G1c with both kinds). They are counted, but they are not anomalies.

A cycle of read dependencies only (G1c) is an anomaly. It cannot occur with read_committed, because each transaction in
the cycle would have to be committed before itself.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kbroker_tools.verify.anomalies import Collector, Evidence, Kind
from kbroker_tools.verify.audit import Audit
from kbroker_tools.verify.history import NONE, History
from kbroker_tools.verify.wording import Wording

Graph = dict[int, set[int]]


@dataclass(frozen=True)
class Cycles:
    """The groups of transactions that depend on each other in a way that Kafka permits. It has the number of groups and
    the size of the largest group."""

    writes: int = 0
    largest_of_writes: int = 0
    mixed: int = 0


def check_cycles(history: History, ends: Audit, found: Collector, words: Wording) -> Cycles:
    """Report cycles that have only read dependencies. Return the cycles that Kafka permits."""
    reads, writes = _read_graph(history), _write_graph(history, ends)
    for group in components(reads):
        transactions = tuple(_cycle_in(reads, group))
        chain = '; '.join(f'{words.transaction(after)}, which read a record of transaction {before}'
                          for before, after in zip(transactions, (*transactions[1:], transactions[0]), strict=True))
        found.add(Kind.READ_CYCLE, Evidence(chain, transactions), len(transactions))
    of_writes = [len(group) for group in components(writes)]
    both = {transaction: writes.get(transaction, set()) | reads.get(transaction, set())
            for transaction in {*writes, *reads}}
    mixed = sum(1 for _ in components(both)) if reads else 0
    return Cycles(len(of_writes), max(of_writes, default=0), mixed)


def _read_graph(history: History) -> Graph:
    graph: Graph = {}
    transaction_of, size = history.writes.transaction, len(history.writes)
    for poll in history.polls:
        if poll.transaction == NONE:
            continue
        for chunk in poll.chunks:
            for number in chunk.numbers:
                before = transaction_of[number] if 0 <= number < size else NONE
                if before not in (NONE, poll.transaction):
                    graph.setdefault(before, set()).add(poll.transaction)
    return graph


def _write_graph(history: History, ends: Audit) -> Graph:
    graph: Graph = {}
    transaction_of, size = history.writes.transaction, len(history.writes)
    for log in ends.committed:
        before = NONE
        for number in log.numbers:
            transaction = transaction_of[number] if 0 <= number < size else NONE
            if transaction not in (NONE, before):
                if before != NONE:
                    graph.setdefault(before, set()).add(transaction)
                before = transaction
    return graph


def components(graph: Graph) -> Iterator[list[int]]:
    """Yield the strongly connected components of the graph that have at least two transactions. The algorithm is
    Tarjan's, without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        path = [(root, iter(graph[root]))]
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    path.append((successor, iter(graph.get(successor, ()))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component = _pop_to(stack, node)
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        yield component


def _pop_to(stack: list[int], node: int) -> list[int]:
    component = [stack.pop()]
    while component[-1] != node:
        component.append(stack.pop())
    return component


def _cycle_in(graph: Graph, component: list[int]) -> list[int]:
    """Return a shortest cycle in the component that contains its first transaction."""
    inside, start = set(component), component[0]
    came_from: dict[int, int] = {}
    border = [start]
    while border:
        following = []
        for node in border:
            for successor in graph.get(node, ()):
                if successor == start:
                    cycle = [node]
                    while cycle[-1] != start:
                        cycle.append(came_from[cycle[-1]])
                    return cycle[::-1]
                if successor in inside and successor not in came_from:
                    came_from[successor] = node
                    following.append(successor)
        border = following
    raise AssertionError(f'transaction {start} is in no cycle of its component')
