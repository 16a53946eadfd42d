"""The metrics of TLS: the ends of the certificates in use, and the failed handshakes."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kbroker.metrics.table import Metric, Sample
from kbroker.security.certificates import Certificate

EXPIRY = Metric(
    'kbroker_certificate_expiry_timestamp_seconds', 'gauge',
    'Time at which a certificate or a revocation list of a listener expires, in seconds since the Unix epoch.',
    'seconds', ('listener', 'kind', 'file', 'subject'),
    'the certificates in the files of TLS settings')
FAILED_HANDSHAKES = Metric(
    'kbroker_tls_failed_handshakes', 'counter', 'TLS handshakes of clients that failed.')


def collect_certificates(certificates: Mapping[str, Sequence[Certificate]]) -> Iterator[Sample]:
    """Yield the end of each certificate, given the certificates of each listener (`TlsContexts.certificates`).

    Several certificates of one subject in one file are one series: an authority stays trusted until the last of them
    expires.
    """
    for listener, found in certificates.items():
        ends: dict[tuple[str, str, str], int] = {}
        for certificate in found:
            if certificate.not_after_s is not None:
                labels = certificate.kind, certificate.file, certificate.subject
                ends[labels] = max(ends.get(labels, certificate.not_after_s), certificate.not_after_s)
        for labels, end_s in ends.items():
            yield EXPIRY, (listener, *labels), end_s


def collect_handshakes(failed_handshakes: int) -> Iterator[Sample]:
    """Yield the number of failed handshakes (`Commons.failed_handshakes`)."""
    yield FAILED_HANDSHAKES, (), failed_handshakes
