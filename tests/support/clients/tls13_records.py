"""Creates the TLS 1.3 records of a client, without a TLS library. No library sends many of these handshake messages."""
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

APPLICATION_DATA = 23
HANDSHAKE = 22
KEY_UPDATE = 24


class ClientRecords:
    """Encrypts the records that a client sends after the handshake, with TLS_AES_256_GCM_SHA384."""

    def __init__(self, keylog):
        """Read the client's first traffic secret from a key log in the format of NSS."""
        lines = [line.split() for line in keylog.read_text().splitlines()]
        self._adopt(next(bytes.fromhex(line[2]) for line in lines if line[0] == 'CLIENT_TRAFFIC_SECRET_0'))

    def _adopt(self, secret):
        self._secret = secret
        self._key, self._iv = AESGCM(expand(secret, b'key', 32)), expand(secret, b'iv', 12)
        self._sequence = 0

    def _encrypt(self, kind, content):
        header = bytes([APPLICATION_DATA, 3, 3]) + (len(content) + 17).to_bytes(2, 'big')
        nonce = (int.from_bytes(self._iv, 'big') ^ self._sequence).to_bytes(12, 'big')
        self._sequence += 1
        return header + self._key.encrypt(nonce, content + bytes([kind]), header)

    def data(self, content):
        """Return a record of application data."""
        return self._encrypt(APPLICATION_DATA, content)

    def key_update(self, *, requested):
        """Return a record with a KeyUpdate. With `requested`, the server must answer with a KeyUpdate of its own."""
        record = self._encrypt(HANDSHAKE, bytes([KEY_UPDATE, 0, 0, 1, requested]))
        self._adopt(expand(self._secret, b'traffic upd', 48))
        return record


def expand(secret, label, length):
    """Return HKDF-Expand-Label of RFC 8446, with an empty context."""
    label = b'tls13 ' + label
    return HKDFExpand(SHA384(), length, length.to_bytes(2, 'big') + bytes([len(label)]) + label + b'\0').derive(secret)
