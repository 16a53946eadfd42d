"""Connections by listener and software, refusals, logins, denials and quotas."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.metrics.table import Metric, Sample
from kbroker.network.server import Server
from kbroker.security.acl_codes import Operation

if TYPE_CHECKING:
    from kbroker.apis.serving.authentication import Authentication
    from kbroker.apis.serving.client_software import ClientSoftware
    from kbroker.security.authorizer import Authorizer
    from kbroker.security.quotas import ClientQuotas

OPEN = Metric(
    'kbroker_connections', 'gauge',
    'Open connections. The software is what the client names in ApiVersions: unknown before that and for old clients, '
    'other for a name that is too long or one of too many.',
    labels=('listener', 'client_software', 'client_version'), series='200, and two a listener')
ACCEPTED = Metric('kbroker_connections_accepted', 'counter', 'Connections accepted.', labels=('listener',),
                  series='listeners')
CLOSED = Metric('kbroker_connections_closed', 'counter', 'Accepted connections that have ended.')
REFUSED = Metric(
    'kbroker_connections_refused', 'counter',
    'Connections refused because of a limit on connections of the broker, the listener or the address, or because of '
    'the quota of an address.', labels=('reason',), series='4')
LOGINS = Metric('kbroker_logins', 'counter', 'Logins and re-authentications that succeeded.', labels=('mechanism',),
                series='mechanisms, and TLS for certificates')
FAILED_LOGINS = Metric(
    'kbroker_failed_logins', 'counter',
    'Logins and re-authentications that failed. The mechanism is unknown if the client asked for one that is not '
    'enabled.', labels=('mechanism',), series='mechanisms, TLS, and unknown')
DENIALS = Metric(
    'kbroker_authorization_denials', 'counter',
    'Denials of requests, without those that only leave something out of an answer.', labels=('operation',),
    series='operations of ACLs')
THROTTLES = Metric(
    'kbroker_quota_throttles', 'counter', 'Requests and connections that a quota has delayed or refused.',
    labels=('quota',), series='5')

METRICS = (OPEN, ACCEPTED, CLOSED, REFUSED, LOGINS, FAILED_LOGINS, DENIALS, THROTTLES)
UNKNOWN = 'unknown'


def collect(server: Server, software: ClientSoftware, authentication: Authentication, authorizer: Authorizer | None,
            quotas: ClientQuotas) -> Iterator[Sample]:
    """Yield the samples of connections and of what the broker refuses to their clients."""
    kinds = software.counts()
    named: Counter[str] = Counter()
    for kind, number in kinds:
        named[kind[0]] += number
        yield OPEN, kind, number
    for listener, number in server.admission.open_connections():
        if number > named[listener]:
            yield OPEN, (listener, UNKNOWN, UNKNOWN), number - named[listener]
    yield from _counted(ACCEPTED, server.admission.accepted)
    yield CLOSED, (), server.traffic.closed
    yield from _counted(REFUSED, server.refusals)
    yield from _counted(LOGINS, authentication.logins)
    yield from _counted(FAILED_LOGINS, authentication.failures)
    if authorizer is not None:
        yield from _counted(DENIALS, Counter({
            Operation(operation).name: number for operation, number in authorizer.log.denials.items()}))
    yield from _counted(THROTTLES, quotas.throttled)


def _counted(metric: Metric, counts: Counter[str]) -> Iterator[Sample]:
    for label, number in list(counts.items()):
        yield metric, (label,), number
