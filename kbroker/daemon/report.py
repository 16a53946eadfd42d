"""The numbers of a running broker in its report: rates, transactions, lags, sizes, the disk, and the certificates.

They come from the surveys of `kbroker.metrics`, as the metrics do. The report lists at most a few of many things, and
cuts long names, because a reply of the status socket has at most 64 KiB.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from kbroker.metadata.changes import Steps
from kbroker.security.certificates import Certificate

if TYPE_CHECKING:
    from kbroker.daemon.node import Node
    from kbroker.metrics.table import Metric, Sample
    from kbroker.network.connection import Commons

MOST_LISTED = 5
"""The most transactions, held partitions, groups and topics that a report lists."""
MOST_CERTIFICATES = 10
MOST_NAME = 100
"""The most characters of a name in a report. A group or a transactional id may have 32,767."""
SAMPLES_AT_ONCE = 256

Report = dict[str, Any]


def numbers_of(node: Node, commons: Commons, certificates: Mapping[str, Sequence[Certificate]]) -> Steps[Report]:
    """Return the numbers of a broker, as long work. `certificates` has those of each listener."""
    # A broker needs these modules only for its metrics. They take some milliseconds, so each import is a part of the
    # work.
    yield
    from kbroker.metrics import transactions
    yield
    from kbroker.metrics import groups, share
    yield
    from kbroker.metrics import log, partitions
    from kbroker.metrics import node as nodes
    yield
    from kbroker.metrics import requests, traffic
    yield
    found_transactions = yield from transactions.survey(node)
    found_groups = yield from groups.survey(node)
    found_partitions = yield from partitions.survey(node)
    found_share = yield from share.survey(node)
    totals = Totals()
    yield from totals.add(requests.collect(node.request_counts, commons))
    yield from totals.add(traffic.collect(commons, node.topics))
    directory = log.survey(node)
    counters = {
        'requests': totals.of(requests.REQUESTS), 'request_errors': totals.of(requests.ERRORS),
        'produced_records': totals.of(traffic.TOPIC_RECORDS_IN), 'produced_bytes': totals.of(traffic.TOPIC_BYTES_IN),
        'fetched_records': totals.of(traffic.TOPIC_RECORDS_OUT), 'fetched_bytes': totals.of(traffic.TOPIC_BYTES_OUT),
        'transactions_begun': found_transactions.begun, 'transactions_committed': found_transactions.committed,
        'transactions_aborted': found_transactions.aborted}
    return {
        'time_ms': node.clock.wall_ms(), 'node_id': node.config.node_id,
        'start': {'time_ms': node.started_ms, 'took_ms': node.start_took_ms, 'is_clean': node.logs.clean_shutdown},
        'counters': counters,
        'transactions': _transactions(found_transactions),
        'groups': _groups(found_groups),
        'share_groups': {'in_flight': sum(found_share.in_flight.values()), 'acquired': found_share.acquired,
                         'redelivered': found_share.redelivered},
        'dead_letters': found_share.dead_letters,
        'topics': {
            'topics': len(found_partitions.topics), 'partitions': found_partitions.partitions,
            'offline': found_partitions.offline, 'size_bytes': found_partitions.size_bytes,
            'segments': found_partitions.segments},
        'disk': {'free_bytes': directory.free_bytes, 'size_bytes': directory.size_bytes},
        'retention': {'segments': directory.expired_segments, 'bytes': directory.expired_bytes,
                      'last_run_ms': directory.retained_ms},
        'cleaner': {'worst_dirty_ratio': round(directory.worst_dirty_ratio, 3), 'cleanings': directory.cleanings,
                    'read_bytes': directory.cleaner_read_bytes, 'written_bytes': directory.cleaner_written_bytes,
                    'last_run_ms': directory.cleaner_ended_ms, 'failed_logs': directory.cleaner_failed_logs},
        'metadata': {'end_offset': node.metadata.end_offset, 'snapshot_age_ms': nodes.snapshot_age_ms(node)},
        'certificates': certificates_of(certificates)}


class Totals:
    """The sums of the samples of metrics, each over all of its labels."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def add(self, samples: Iterable[Sample | None]) -> Steps[None]:
        """Add all samples except histograms, as long work."""
        for number, sample in enumerate(samples, 1):
            if sample is not None and not isinstance(sample[2], tuple):
                name = sample[0].name
                self.sums[name] = self.sums.get(name, 0) + sample[2]
            if sample is None or number % SAMPLES_AT_ONCE == 0:
                yield

    def of(self, metric: Metric) -> int:
        return int(self.sums.get(metric.name, 0))


def _transactions(found: Any) -> Report:
    return {
        'by_state': found.by_state, 'open': found.open_count, 'oldest_age_ms': found.oldest_age_ms,
        'timed_out': found.timed_out, 'fenced': found.fenced, 'hanging': found.hanging,
        'oldest': [{
            'transactional_id': cut(each.transactional_id), 'state': each.state, 'producer_id': each.producer_id,
            'start_ms': each.start_ms, 'timeout_ms': each.timeout_ms,
            'partitions': [f'{topic}-{number}' for topic, number in each.partitions[:MOST_LISTED]],
            'partitions_count': each.partitions_count, 'held_offsets': each.held_offsets}
            for each in found.oldest[:MOST_LISTED]],
        'held_partitions': found.held_count, 'held_offsets': found.held_offsets,
        'held': [{
            'topic': each.topic, 'partition': each.partition, 'distance': each.distance,
            'last_stable_offset': each.last_stable_offset, 'high_watermark': each.high_watermark,
            'transactional_id': cut(each.transactional_id), 'producer_id': each.producer_id}
            for each in found.held[:MOST_LISTED]]}


def _groups(found: Any) -> Report:
    return {
        'groups': sum(found.by_kind.values()), 'members': sum(members for *_, members in found.members),
        'by_kind': [{'kind': kind, 'state': state, 'groups': count}
                    for (kind, state), count in sorted(found.by_kind.items())],
        'lags': [{
            'group': cut(each.group_id), 'kind': each.kind, 'state': each.state, 'members': each.members,
            'partitions': each.partitions, 'lag': each.to_end, 'stable_lag': each.to_stable}
            for each in found.worst()[:MOST_LISTED]]}


def certificates_of(of_listeners: Mapping[str, Sequence[Certificate]]) -> list[Report]:
    """Return the certificates that expire first."""
    found = {}
    for listener, certificates in of_listeners.items():
        for each in certificates:
            if each.not_after_s is not None:
                found[each.kind, each.place, each.subject, each.not_after_s] = listener
    soonest = nsmallest(MOST_CERTIFICATES, found, key=lambda certificate: certificate[3])
    return [{'listener': found[each], 'kind': each[0], 'place': cut(each[1]), 'subject': cut(each[2]),
             'expires_ms': 1000 * each[3]} for each in soonest]


def cut(name: str) -> str:
    """Return the first MOST_NAME characters of a name, with an ellipsis in place of the others."""
    return name if len(name) <= MOST_NAME else name[:MOST_NAME] + '…'
