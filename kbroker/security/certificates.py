"""The certificates that the TLS settings of a listener name: their subjects, and the times from and until which each is
valid.

A certificate that is not valid now is a problem of level ERROR: clients refuse the key of the listener, or the listener
refuses its clients. A truststore may hold certificates of former authorities, so there a certificate that has expired
is an error only if no other one is valid. A certificate that expires within 30 days is a problem of level WARNING.
"""
from __future__ import annotations

import binascii
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from kbroker.security.der import (
    GENERALIZED_TIME,
    UTC_TIME,
    CertificateError,
    Parts,
    Reader,
    read_certificate,
    read_revocation_list,
)
from kbroker.security.distinguished_names import name_text
from kbroker.security.escape import shown
from kbroker.settings.tls import PEM_BLOCK, take_inline_pem, take_pem_file, take_store

WARNED_DAYS = 30
DAY_S = 24 * 60 * 60
MOST_LINES = 10
"""The most problems of one setting that are reported. A truststore may hold hundreds of certificates."""
KEYSTORE, TRUSTSTORE, CRL = 'keystore', 'truststore', 'crl'
CERTIFICATE_LABELS = ('CERTIFICATE', 'X509 CERTIFICATE', 'TRUSTED CERTIFICATE')
CRL_LABEL = 'X509 CRL'


class Certificate(NamedTuple):
    """One certificate, or one revocation list, whose subject is its issuer.

    `file` is empty if the certificate is in the setting itself. The times are in seconds since the Unix epoch.
    `not_after_s` is None for a revocation list without an end.
    """

    setting: str
    file: str
    kind: str
    subject: str
    not_before_s: int
    not_after_s: int | None

    @property
    def place(self) -> str:
        return f'{self.setting}: {self.file}' if self.file else self.setting


class Problem(NamedTuple):
    """A line about a certificate that is not valid, or soon is not. `level` is one of `logging`."""

    level: int
    setting: str
    text: str


def certificates_of(settings: Mapping[str, str]) -> tuple[list[Certificate], list[Problem]]:
    """Return the certificates that the `ssl.` settings of a listener name, and problems about unreadable ones.

    The first certificate of a keystore is the listener's own one. Raise ConfigError if a setting is not valid, OSError
    if a file cannot be read.
    """
    left = dict(settings)
    files = {name: left.get(f'ssl.{name}.location', '') for name in (KEYSTORE, TRUSTSTORE, CRL)}
    key = take_store(left, 'ssl.keystore', 'ssl.keystore.key')
    chain = take_inline_pem(left, 'ssl.keystore.certificate.chain')
    trusted = take_store(left, 'ssl.truststore', 'ssl.truststore.certificates')
    in_file = 'ssl.keystore.location' if files[KEYSTORE] else 'ssl.keystore.key'
    texts = (
        (KEYSTORE, in_file, files[KEYSTORE], key) if chain is None
        else (KEYSTORE, 'ssl.keystore.certificate.chain', '', chain),
        (TRUSTSTORE, 'ssl.truststore.location' if files[TRUSTSTORE] else 'ssl.truststore.certificates',
         files[TRUSTSTORE], trusted),
        (CRL, 'ssl.crl.location', files[CRL], take_pem_file(left, 'ssl.crl.location')))
    found: list[Certificate] = []
    unreadable: list[Problem] = []
    for kind, setting, file, text in texts:
        for read in _read_all(text or '', kind):
            if isinstance(read, CertificateError):
                place = f'{setting}: {file}' if file else setting
                unreadable.append(Problem(logging.WARNING, setting,
                                          f'{place}: the time until which a certificate is valid is unknown: {read}'))
            else:
                found.append(Certificate(setting, file, kind, *read))
    return found, unreadable


def _read_all(text: str, kind: str) -> Iterator[tuple[str, int, int | None] | CertificateError]:
    """Yield (subject, not_before_s, not_after_s) for each certificate in a PEM text, or for each revocation list if
    `kind` is CRL. Yield a CertificateError for each one that cannot be read."""
    for label, body in re.findall(PEM_BLOCK, text, re.ASCII):
        if label == CRL_LABEL if kind == CRL else label in CERTIFICATE_LABELS:
            try:
                data = binascii.a2b_base64(body)
                yield validity_of(read_revocation_list(data) if kind == CRL else read_certificate(data))
            except CertificateError as error:
                yield error
            except binascii.Error as error:
                yield CertificateError(f'certificate: {error}')


def validity_of(parts: Parts) -> tuple[str, int, int | None]:
    """Return the subject of a certificate, and the times from and until which it is valid, in seconds since the Unix
    epoch. Raise CertificateError if one of them cannot be read."""
    times = Reader(parts.validity)
    not_before_s = _seconds(*times.element()[:2])
    return (shown(name_text(parts.subject)), not_before_s,
            _seconds(*times.element()[:2]) if times.has_more else None)


def _seconds(tag: int, content: bytes) -> int:
    """Return the seconds since the Unix epoch for a UTCTime or a GeneralizedTime in the forms that RFC 5280 allows."""
    digits = content[:-1]
    expected = {UTC_TIME: 12, GENERALIZED_TIME: 14}.get(tag)
    if len(digits) != expected or not digits.isdigit() or content[-1:] != b'Z':
        raise CertificateError(f'certificate: a time such as 20270131120000Z expected, found {content[:32]!r} with tag '
                               f'{tag:#04x}')
    text = digits.decode('ascii')
    if tag == UTC_TIME:
        text = ('19' if text >= '50' else '20') + text
    try:
        month, day, hour, minute, second = (int(text[at:at + 2]) for at in range(4, 14, 2))
        moment = datetime(int(text[:4]), month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise CertificateError(f'certificate: a time expected, found {text} ({error})') from None
    return int(moment.timestamp())


def problems_of(certificates: Iterable[Certificate], now_s: int) -> list[Problem]:
    """Return the problems of certificates at a time: errors first, and at most MOST_LINES for each setting."""
    found: list[Problem] = []
    of_settings: dict[tuple[str, str], list[Certificate]] = {}
    for certificate in certificates:
        of_settings.setdefault((certificate.setting, certificate.file), []).append(certificate)
    for group in of_settings.values():
        has_valid = group[0].kind == CRL or (group[0].kind == TRUSTSTORE
                                             and any(_is_valid(certificate, now_s) for certificate in group))
        problems = [problem for certificate in group
                    if (problem := _problem_of(certificate, now_s, logging.WARNING if has_valid else logging.ERROR))]
        problems.sort(key=lambda problem: -problem.level)
        left_out = problems[MOST_LINES:]
        found += problems[:MOST_LINES]
        if left_out:
            found.append(left_out[0]._replace(text=f'{group[0].place}: {len(left_out)} more certificates are not '
                                                   'valid, or soon are not'))
    return sorted(found, key=lambda problem: -problem.level)


def _is_valid(certificate: Certificate, now_s: int) -> bool:
    return certificate.not_before_s <= now_s and (certificate.not_after_s is None or now_s <= certificate.not_after_s)


def _problem_of(certificate: Certificate, now_s: int, level: int) -> Problem | None:
    setting, _, kind, subject, not_before_s, not_after_s = certificate
    what = f'{certificate.place}: the ' + (f'revocation list of {subject}' if kind == CRL else f'certificate {subject}')
    now = moment_text(now_s)
    if not_before_s > now_s:
        return Problem(level, setting, f'{what} is not valid before {moment_text(not_before_s)}, and the clock of this '
                                       f'machine says {now}: check the clock, or take a certificate that is valid now')
    if not_after_s is None:
        return None
    if not_after_s < now_s:
        return Problem(level, setting, f'{what} expired at {moment_text(not_after_s)}, and the clock of this machine '
                                       f'says {now}: {_REMEDIES[kind]}')
    if kind != CRL and not_after_s - now_s < WARNED_DAYS * DAY_S:
        return Problem(logging.WARNING, setting, f'{what} expires at {moment_text(not_after_s)}, in '
                                                 f'{_days(not_after_s - now_s)}: {_REMEDIES[kind]}')
    return None


_REMEDIES = {
    KEYSTORE: 'replace it; a running broker reads the new one without a restart',
    TRUSTSTORE: 'replace or remove it; a running broker reads the new file without a restart',
    CRL: 'replace it by a newer list'}


def moment_text(moment_s: int) -> str:
    """Return a time such as `2027-01-31 12:00:00 UTC`."""
    return datetime.fromtimestamp(moment_s, UTC).strftime('%Y-%m-%d %H:%M:%S UTC')


def _days(span_s: int) -> str:
    days = span_s // DAY_S
    return 'less than a day' if not days else '1 day' if days == 1 else f'{days} days'


def next_change_s(certificates: Iterable[Certificate], now_s: int) -> int | None:
    """Return the seconds until the next certificate expires, or None if none does."""
    ends = [certificate.not_after_s - now_s for certificate in certificates if certificate.not_after_s is not None]
    later = [end_s for end_s in ends if end_s >= 0]
    return min(later) + 1 if later else None
