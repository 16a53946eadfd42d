"""Converts the subject of a certificate to the text that Java prints, which `ssl.principal.mapping.rules` match.

The text is defined by RFC 2253: the parts of the name in reverse order, joined by commas. An attribute in KEYWORDS is
written with its keyword. Any other attribute is written with its dotted number, and its value in hexadecimal. Python's
`ssl` does not return enough to build this text: it omits the string types and the numbers of the attributes.
"""
from __future__ import annotations

from kbroker.security.der import OBJECT_IDENTIFIER, SEQUENCE, SET, CertificateError, Reader, read_certificate

KEYWORDS = {
    '2.5.4.3': 'CN', '2.5.4.6': 'C', '2.5.4.7': 'L', '2.5.4.8': 'ST', '2.5.4.9': 'STREET', '2.5.4.10': 'O',
    '2.5.4.11': 'OU', '0.9.2342.19200300.100.1.1': 'UID', '0.9.2342.19200300.100.1.25': 'DC'}
MOST_OBJECT_IDENTIFIER_BYTES = 128
"""The bytes of the longest accepted object identifier. Its numbers have no bound in DER, and the time to print a number
grows with the square of its size.
"""
ESCAPED = frozenset(',=+<>#;"\\')

_TEXT_TAGS = frozenset((12, 19, 20, 22, 27, 30))
"""The tags of UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString. Java reads each as
UTF-8.
"""


def subject_text(certificate: bytes) -> str:
    """Return the subject of a DER certificate as text. Raise CertificateError if the bytes are not a certificate."""
    return name_text(read_certificate(certificate).subject)


def name_text(name: bytes) -> str:
    """Return the text for the content of a DER element of type Name."""
    parts = []
    reader = Reader(name)
    while reader.has_more:
        attributes = Reader(reader.content(SET))
        texts = []
        while attributes.has_more:
            texts.append(_attribute_text(Reader(attributes.content(SEQUENCE))))
        parts.append('+'.join(texts))
    return ','.join(reversed(parts))


def _attribute_text(attribute: Reader) -> str:
    number = _dotted(attribute.content(OBJECT_IDENTIFIER))
    tag, content, whole = attribute.element()
    keyword = KEYWORDS.get(number)
    if keyword is None or tag not in _TEXT_TAGS:
        return f'{keyword or number}=#{whole.hex()}'
    return f'{keyword}={_escaped(content.decode("utf-8", "replace"))}'


def _dotted(content: bytes) -> str:
    """Return an object identifier, given as DER content, in dotted form such as 2.5.4.3."""
    if len(content) > MOST_OBJECT_IDENTIFIER_BYTES:
        raise CertificateError(f'certificate: an object identifier of at most {MOST_OBJECT_IDENTIFIER_BYTES} bytes '
                               f'expected, found {len(content)}')
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    if not numbers or content[-1] >= 0x80:
        raise CertificateError(f'certificate: an object identifier expected, found {content.hex()}')
    first = min(numbers[0] // 40, 2)
    return '.'.join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(value: str) -> str:
    """Return a value with backslashes before special characters, and before a blank at the beginning or the end."""
    text = ''.join('\\00' if char == '\0' else f'\\{char}' if char in ESCAPED else char for char in value)
    blanks_before = len(text) - len(text.lstrip(' \r'))
    rest = text[blanks_before:]
    middle = rest.rstrip(' \r')
    return ''.join((*(f'\\{char}' for char in text[:blanks_before]), middle,
                    *(f'\\{char}' for char in rest[len(middle):])))
