"""Subject names of certificates, and rules that map them to user names. kbroker's tests and the comparison with Kafka
share them.
"""
from __future__ import annotations

UTF8, PRINTABLE, T61, IA5, GENERAL, UNIVERSAL, BMP = 12, 19, 20, 22, 27, 28, 30
CN, C, O, OU, L, ST, STREET, DC, UID = (  # noqa: E741
    '2.5.4.3', '2.5.4.6', '2.5.4.10', '2.5.4.11', '2.5.4.7', '2.5.4.8', '2.5.4.9', '0.9.2342.19200300.100.1.25',
    '0.9.2342.19200300.100.1.1')
EMAIL, SURNAME, SERIAL = '1.2.840.113549.1.9.1', '2.5.4.4', '2.5.4.5'


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, 'big')
    return bytes([tag, 0x80 | len(length)]) + length + content


def identifier(dotted: str) -> bytes:
    first, second, *others = map(int, dotted.split('.'))
    encoded = b''
    for number in (40 * first + second, *others):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        encoded += bytes(reversed(groups))
    return element(6, encoded)


def attribute(dotted: str, value: str | bytes, tag: int = UTF8) -> bytes:
    content = value if isinstance(value, bytes) else value.encode('utf-16-be' if tag == BMP else 'utf-8')
    return element(0x30, identifier(dotted) + element(tag, content))


def name(*parts: bytes | list[bytes]) -> bytes:
    """Return a Name in DER. A list is a part with several values."""
    return element(0x30, b''.join(
        element(0x31, b''.join(part) if isinstance(part, list) else part) for part in parts))


NAMES = {
    'CN=App-1,OU=x,O=Ex': name(attribute(O, 'Ex'), attribute(OU, 'x'), attribute(CN, 'App-1', PRINTABLE)),
    '': name(),
    'UID=u1,ST=S,L=L,STREET=St,DC=ex,DC=org': name(
        attribute(DC, 'org', IA5), attribute(DC, 'ex', IA5), attribute(STREET, 'St'), attribute(L, 'L'),
        attribute(ST, 'S'), attribute(UID, 'u1')),
    '1.2.840.113549.1.9.1=#16056140622e63,C=DE': name(attribute(C, 'DE', PRINTABLE), attribute(EMAIL, 'a@b.c', IA5)),
    '2.5.4.4=#0c03537572': name(attribute(SURNAME, 'Sur')), '2.5.4.5=#130131': name(attribute(SERIAL, '1', PRINTABLE)),
    'CN=Ä ü,OU=a+CN=multi,O=Ex\\, Inc,C=DE': name(
        attribute(C, 'DE', PRINTABLE), attribute(O, 'Ex, Inc'), [attribute(OU, 'a'), attribute(CN, 'multi')],
        attribute(CN, 'Ä ü')),
    'CN=\\# x\\;\\<y\\>\\"z\\\\\\ ': name(attribute(CN, '# x;<y>"z\\ ')),
    'CN=\\ \\ a b\\ \\ ': name(attribute(CN, '  a b  ')), 'CN=\\ ': name(attribute(CN, ' ')),
    'CN=': name(attribute(CN, '')),
    'CN=a\\=b\\+c': name(attribute(CN, 'a=b+c')), 'CN=a\\00b': name(attribute(CN, 'a\0b')),
    'CN=a\nb\x1b': name(attribute(CN, 'a\nb\x1b')), 'CN=\U0001f600\u202e': name(attribute(CN, '\U0001f600\u202e')),
    'CN=t61': name(attribute(CN, 't61', T61)), 'CN=general': name(attribute(CN, 'general', GENERAL)),
    'CN=ia5': name(attribute(CN, 'ia5', IA5)),
    'CN=#030200ff': name(attribute(CN, b'\0\xff', 3)),
    'CN=' + 'x' * 300: name(attribute(CN, 'x' * 300)),
    '2.999.1.16384=#0c0161': name(attribute('2.999.1.16384', 'a')),
    '1.3.6.1.4.1.1=#0c0161': name(attribute('1.3.6.1.4.1.1', 'a')),
}
"""Maps the text that Java prints for a name to the name in DER."""

APP = 'CN=App-1,OU=x,O=Ex'
MAPPINGS = [
    ('DEFAULT', APP, APP), ('', APP, None), (' , ,', APP, None), ('DEFAULT', '', ''),
    ('RULE:^CN=([^,]+),.*$/$1/L , DEFAULT', APP, 'app-1'),
    ('RULE:^CN=([^,]+),.*$/$1/L , DEFAULT', 'OU=x,O=Ex', 'OU=x,O=Ex'), ('RULE:^CN=([^,]+),.*$/$1/L', 'OU=x,O=Ex', None),
    ('RULE:a,b/c,d/U,,DEFAULT', 'a,b', 'C,D'), ('RULE:a,b/c,d/U,,DEFAULT', 'a', 'a'),
    ('RULE:^O=A\\/B$/x/', 'O=A/B', 'x'), ('RULE:(.*)/$1x/', 'a', 'axx'), ('RULE:a/b/', 'aa', None),
    ('RULE:CN=(.*?),OU=(.*?),.*/$2@$1/U', APP, 'X@APP-1'), ('RULE:CN=(.)(.*)/$12/', 'CN=ab', 'a2'),
    ('RULE:CN=(.)(.*)/$3-$01/', 'CN=ab', '$3-a'), ('RULE:CN=(?<who>.*)/${who}!/', 'CN=a', 'a!'),
    ('RULE:CN=(.*)/\\$1\\x/', 'CN=a', '$1x'), ('RULE:(?i)cn=(.*)/$1/', 'CN=ÄB', 'ÄB'),
    ('RULE:CN=(\\w+)/$1/', 'CN=ä', None),
    ('RULE:CN=(.*)/$1/L', 'CN=ÄÖ\u0130', 'äöi\u0307'), ('RULE:CN=(.*)/$1/U', 'CN=straße', 'STRASSE'),
    ('RULE:CN=.*/a/', 'CN=a\rb', None), ('RULE:CN=.*/a/', 'CN=a\u2028b', None), ('RULE:CN=(a)|(b)/[$1$2]/', 'b', '[b]'),
    ('RULE:CN=a ?/ x /', 'CN=a', ' x '), ('DEFAULT,RULE:x/y/', 'x', 'x'), ('RULE:x*+y/z/', 'xxy', 'z'),
]
"""(rules, subject, mapped name or None)"""

REFUSED = ['default', 'RULE:x/y', 'RULE:x/y/L/U', 'DEFAULT/L', 'RULE:a/b/X', 'RULE:(a/b/', 'x', 'RULE:a/b/L DEFAULT']
"""Rules with which neither kbroker nor Kafka starts."""

REFUSED_HERE = ['RULE:\\p{L}/a/', 'RULE:[a&&[b]]/a/', 'RULE:\\Qa\\E/a/', 'RULE:[[a]b]/a/', 'RULE:(?s).*/a/',
                'RULE:(?x)a/a/', 'RULE:a\\h/a/', 'RULE:a/$1/', 'RULE:(a)/${x}/', 'RULE:(a)/$x/', 'RULE:a\\Z/a/',
                'RULE:a(?i)b/a/', 'RULE:(a)\\k<x>/a/']
"""Rules that kbroker refuses at the start, but Kafka does not. Python would interpret them differently from Java, or
Kafka would refuse every login.
"""
