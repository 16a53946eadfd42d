"""Reads the parts of an X.509 certificate (RFC 5280) from its DER bytes. Each length is checked against the bytes."""
from __future__ import annotations

from typing import NamedTuple

SEQUENCE, SET, OBJECT_IDENTIFIER, INTEGER, VERSION = 0x30, 0x31, 0x06, 0x02, 0xA0
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
"""The tags of the two kinds of time. The first one has two digits for the year."""
TIMES = (UTC_TIME, GENERALIZED_TIME)


class CertificateError(ValueError):
    """An error: the bytes are not a certificate, or a part of it cannot be read."""


class Reader:
    """Reads the elements of DER bytes, one after the other."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    @property
    def has_more(self) -> bool:
        return self.at < len(self.data)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise CertificateError(f'certificate: {count} bytes expected, found {len(self.data) - self.at}')
        taken, self.at = self.data[self.at:end], end
        return taken

    def element(self) -> tuple[int, bytes, bytes]:
        """Read the next element. Return its tag, its content, and all its bytes.

        Raise CertificateError if no whole element is left.
        """
        start = self.at
        tag = self.take(1)[0]
        length = self.take(1)[0]
        if length >= 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise CertificateError(f'certificate: a length of 1 to 4 bytes expected, found {count}')
            length = int.from_bytes(self.take(count), 'big')
        content = self.take(length)
        return tag, content, self.data[start:self.at]

    def content(self, wanted: int) -> bytes:
        """Read the next element, and return its content. Raise CertificateError unless its tag is `wanted`."""
        tag, content, _ = self.element()
        if tag != wanted:
            raise CertificateError(f'certificate: tag {wanted:#04x} expected, found {tag:#04x}')
        return content


class Parts(NamedTuple):
    """The contents of two elements of a certificate: its Validity, and its subject, a Name."""

    validity: bytes
    subject: bytes


def read_certificate(certificate: bytes) -> Parts:
    """Return parts of a DER certificate. Raise CertificateError if the bytes are not a certificate."""
    body = Reader(Reader(Reader(certificate).content(SEQUENCE)).content(SEQUENCE))
    tag, _, _ = body.element()              # the version, which may be absent, and the serial number
    if tag == VERSION:
        tag, _, _ = body.element()
    if tag != INTEGER:
        raise CertificateError(f'certificate: a serial number expected, found tag {tag:#04x}')
    for _ in ('signature algorithm', 'issuer'):
        body.content(SEQUENCE)
    return Parts(body.content(SEQUENCE), body.content(SEQUENCE))


def read_revocation_list(revocation_list: bytes) -> Parts:
    """Return parts of a DER revocation list: its two times as a Validity has them, without the second one if it is
    absent, and its issuer. Raise CertificateError if the bytes are not a revocation list."""
    body = Reader(Reader(Reader(revocation_list).content(SEQUENCE)).content(SEQUENCE))
    tag, _, _ = body.element()              # the version, which may be absent, and the signature algorithm
    if tag == INTEGER:
        body.content(SEQUENCE)
    issuer = body.content(SEQUENCE)
    _, _, times = body.element()
    if body.has_more:
        tag, _, element = body.element()
        if tag in TIMES:
            times += element
    return Parts(times, issuer)
