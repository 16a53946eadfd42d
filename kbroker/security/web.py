"""Blocking GET and POST over HTTP, with limits of time and size. Never call these functions on the event loop."""
from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

CHUNK_BYTES = 64 * 1024
MOST_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)


class WebError(Exception):
    """An error: a request failed. The message contains neither the body nor the headers of the request."""


class Answer:
    """The status and the body of an answer."""

    def __init__(self, status: int, reason: str, body: bytes, location: str | None):
        self.status, self.reason, self.body, self.location = status, reason, body, location


def get(url: str, most_bytes: int, timeout_s: float, context: ssl.SSLContext | None = None) -> bytes:
    """Return the body of the document at `url`. All requests together may take `timeout_s`. Follow redirects, except
    from https to http.

    Raise WebError if a request fails, its status is not 200, or a redirect is refused.
    """
    deadline = time.monotonic() + timeout_s
    for _ in range(MOST_REDIRECTS + 1):
        answer = request('GET', url, most_bytes, deadline, context=context)
        if answer.status not in REDIRECTS or answer.location is None:
            if answer.status != 200:
                raise WebError(f'found status {answer.status}, expected 200')
            return answer.body
        target = urljoin(url, answer.location)
        schemes = urlsplit(url).scheme, urlsplit(target).scheme
        if schemes[1] not in ('http', 'https') or schemes == ('https', 'http'):
            raise WebError('found a redirect to another protocol')
        url = target
    raise WebError(f'found more than {MOST_REDIRECTS} redirects')


def request(method: str, url: str, most_bytes: int, deadline: float, *, body: bytes | None = None,
            headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None) -> Answer:
    """Send one request, and return its answer.

    `deadline` is a time of time.monotonic(). Raise WebError if the request fails.
    """
    parts = urlsplit(url)
    seconds = max(deadline - time.monotonic(), 0.001)
    host, port = parts.hostname or '', parts.port
    connection = (http.client.HTTPSConnection(host, port, timeout=seconds,
                                              context=context or ssl.create_default_context())
                  if parts.scheme == 'https' else http.client.HTTPConnection(host, port, timeout=seconds))
    target = (parts.path or '/') + (f'?{parts.query}' if parts.query else '')
    try:
        connection.request(method, target, body, {'Accept': 'application/json', **(headers or {})})
        response = connection.getresponse()
        found = bytearray()
        while chunk := response.read1(CHUNK_BYTES):
            found += chunk
            if len(found) > most_bytes:
                raise WebError(f'found more than {most_bytes} bytes')
            if time.monotonic() > deadline:
                raise TimeoutError
        return Answer(response.status, response.reason, bytes(found), response.getheader('Location'))
    except TimeoutError:
        raise WebError('found no answer in time') from None
    except ssl.SSLCertVerificationError as error:
        raise WebError(f'the certificate is not accepted: {error.verify_message}') from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WebError(f'no answer ({getattr(error, "strerror", None) or type(error).__name__})') from None
    finally:
        connection.close()
