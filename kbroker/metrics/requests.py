"""Requests: their number by API and version, the errors in their answers, and their times."""
from __future__ import annotations

import functools
from collections.abc import Iterator

from kbroker.apis.serving.request import RequestCounts
from kbroker.base.errors import ErrorCode
from kbroker.metrics.table import Distribution, Metric, Sample
from kbroker.network.connection import Commons
from kbroker.protocol.api_keys import ApiKey

REQUESTS = Metric(
    'kbroker_requests', 'counter', 'Requests served, without tokens of logins that have no request header.',
    labels=('api', 'version'), series='APIs and versions that clients have used')
ERRORS = Metric(
    'kbroker_request_errors', 'counter',
    'Error codes other than NONE in answers. Each code in an answer counts: an answer with errors of three partitions '
    'counts three times.',
    labels=('api', 'version', 'error'), series='errors that clients have got, by API and version')
QUEUE = Metric(
    'kbroker_request_queue_seconds', 'histogram',
    'Time between the tick of the loop in which a request arrived, and the beginning of its work: it waits for other '
    'connections, for earlier requests of its connection, and for a quota.',
    'seconds', ('api',), 'APIs that clients have used')
WORK = Metric(
    'kbroker_request_work_seconds', 'histogram',
    'Time for which a request has occupied the loop until its answer.',
    'seconds', ('api',), 'APIs that clients have used')
WAIT = Metric(
    'kbroker_request_wait_seconds', 'histogram',
    'Time until the answer without the queue and the work: a Produce or a commit waits for the disk, a Fetch for '
    'records, a JoinGroup for other members, long work for its next turn.',
    'seconds', ('api',), 'APIs that clients have used')
SEND = Metric(
    'kbroker_response_send_seconds', 'histogram',
    'Time between an answer and its last byte in the socket, including reads of the disk and a slow peer. Of the '
    'answers that a connection sends together, only the first counts.',
    'seconds')

METRICS = (REQUESTS, ERRORS, QUEUE, WORK, WAIT, SEND)
ERROR_NAMES = {int(code): code.name for code in ErrorCode}


@functools.cache
def api_name(key: int) -> str:
    """Return the name of an API as in Kafka's messages."""
    return ApiKey(key).name.title().replace('_', '')


def error_name(code: int) -> str:
    return ERROR_NAMES.get(code, str(code))


def collect(counts: RequestCounts, commons: Commons) -> Iterator[Sample | None]:
    """Yield the samples of requests. The histograms are empty unless `Reactor.takes_times` is set."""
    for key, version, number in counts.requests():
        yield REQUESTS, (api_name(key), str(version)), number
    for (key, version, code), number in list(counts.errors.items()):
        yield ERRORS, (api_name(key), str(version), error_name(code)), number
    timed = [(api_name(key), tuple(Distribution(*times) for times in stages)) for key, *stages in counts.timed()]
    for stage, metric in enumerate((QUEUE, WORK, WAIT)):
        for name, stages in timed:
            yield metric, (name,), stages[stage]
    yield SEND, (), Distribution(*commons.sent_times())
