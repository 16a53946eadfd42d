"""Connections of HTTP with TLS. The module `ssl` is slow to import, and a server without TLS does not need it."""
from __future__ import annotations

import logging
import ssl

from kbroker.http.connection import HttpConnection

logger = logging.getLogger('kbroker.http')


class TlsConnection(HttpConnection):
    """A client's connection whose socket is an SSLSocket."""

    would_block = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def _receive(self) -> bytes:
        assert isinstance(self._socket, ssl.SSLSocket)
        data = super()._receive()
        pending = self._socket.pending()
        return data + self._socket.recv(pending) if pending else data

    def _note_failure(self, error: OSError) -> None:
        if isinstance(error, ssl.SSLError):
            logger.info('a connection to %s ended: %s', self._socket.getsockname(), error.reason)
