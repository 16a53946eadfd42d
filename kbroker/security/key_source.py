"""Loads the keys of signed tokens from a file, or from an endpoint of the identity provider.

The keys are first loaded before the broker starts. Later they are refreshed on a separate thread, so that the event
loop never waits for them. If a key set cannot be read, the old key set remains in force.
"""
from __future__ import annotations

import logging
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kbroker.base.clock import Clock, Timer
from kbroker.security.jwks import Key, KeySetError, parse_keys
from kbroker.security.oauthbearer import TokenRefused
from kbroker.security.surroundings import Background
from kbroker.security.web import WebError, get
from kbroker.settings.tls import bad_setting, take_store

logger = logging.getLogger(__name__)

LARGEST_SET_BYTES = 1024 * 1024
KEY_ID_PAUSE_MS = 60_000
"""The time after which an unknown key id may cause a refresh again."""
REFRESH_PAUSE_MS = 5_000
"""The shortest time between two refreshes for unknown key ids. Clients choose the ids, and could cause many
refreshes.
"""
MOST_UNKNOWN_KEY_IDS = 16
LONGEST_KEY_ID = 1000
FILE_CHECK_MS = 5_000
"""The time between two checks of a file's modification time."""
FETCH_TIMEOUT_S = 10.0


class Place:
    """A file or an endpoint that holds a key set. `read` runs on a worker thread.

    `tls` has the `ssl.` options of the login module, whose trusted certificates verify an https: endpoint.
    """

    def __init__(self, url: str, tls: Mapping[str, str]):
        parts = urlsplit(url)
        self.url = url
        self.is_file = parts.scheme == 'file'
        self._path = Path(unquote(parts.path))
        self._read_version: tuple[int, int, int] | None = None
        if parts.scheme not in ('file', 'http', 'https') or (not self.is_file and not parts.hostname) or (
                self.is_file and (parts.netloc not in ('', 'localhost') or not self._path.is_absolute())):
            raise bad_setting('sasl.oauthbearer.jwks.endpoint.url',
                              'found something else, expected https://HOST/PATH, http://HOST/PATH or file:///PATH')
        if parts.username is not None or parts.password is not None:
            raise bad_setting('sasl.oauthbearer.jwks.endpoint.url', 'found a user in the address, expected none')
        self._context = _tls_context(tls) if parts.scheme == 'https' else None

    @property
    def is_plain_http(self) -> bool:
        return self.url.startswith('http:')

    def read(self, *, always: bool = True) -> bytes | None:
        """Return the bytes of the key set. Unless `always` is true, return None for a file that has not changed.

        Raise KeySetError if the key set cannot be read.
        """
        try:
            return self._read_file(always) if self.is_file else get(
                self.url, LARGEST_SET_BYTES, FETCH_TIMEOUT_S, self._context)
        except (OSError, WebError) as error:
            raise KeySetError(f'{self.url}: {error.strerror if isinstance(error, OSError) else error}') from None

    def _read_file(self, always: bool) -> bytes | None:
        status = self._path.stat()
        version = status.st_mtime_ns, status.st_size, status.st_ino
        if version == self._read_version and not always:
            return None
        with self._path.open('rb') as file:
            text = file.read(LARGEST_SET_BYTES + 1)
        if len(text) > LARGEST_SET_BYTES:
            raise WebError(f'found more than {LARGEST_SET_BYTES} bytes')
        self._read_version = version
        return text


def _tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    rest = dict(options)
    try:
        certificates = take_store(rest, 'ssl.truststore', 'ssl.truststore.certificates')
        context = ssl.create_default_context(cadata=certificates)
    except (OSError, ssl.SSLError) as error:
        raise bad_setting('ssl.truststore.location', f'the certificates cannot be read ({error.strerror})') from None
    if rest:
        raise bad_setting(min(rest), 'this option of the login module is not served for the address of the key set')
    return context


@dataclass(frozen=True, slots=True)
class RefreshSettings:
    """The intervals at which the key set is refreshed."""

    refresh_ms: int = 3_600_000
    backoff_ms: int = 100
    most_backoff_ms: int = 10_000


class KeySet:
    """The keys in force. `load` fills the set before the broker starts; later only the event loop uses the object."""

    def __init__(self, place: Place, clock: Clock, background: Background, settings: RefreshSettings):
        self._place = place
        self._clock = clock
        self._background = background
        self._settings = settings
        self._keys: list[Key] = []
        self._unknown: OrderedDict[str, int] = OrderedDict()
        """The time at which the last refresh for an unknown key id began, in ms of the monotonic clock."""
        self._last_search_ms: int | None = None
        self._is_fetching = False
        self._is_closed = False
        self._failures = 0
        self._timer: Timer | None = None

    def load(self) -> None:
        """Load the key set for the first time. The call may block. Raise ConfigError if the key set cannot be
        loaded.
        """
        try:
            keys, left_out = parse_keys(self._place.read() or b'')
        except KeySetError as error:
            raise bad_setting('sasl.oauthbearer.jwks.endpoint.url', f'the key set cannot be loaded: {error}') from None
        self._adopt(keys, left_out)

    def find(self, key_id: str | None, algorithm: str) -> Key:
        """Return the one key that fits the key id and the algorithm of a token. For an unknown key id, begin a refresh.

        Raise TokenRefused unless exactly one key fits.
        """
        with_id = [key for key in self._keys if key_id is None or key.key_id == key_id]
        if key_id is not None and not with_id:
            self._look_for(key_id)
            raise TokenRefused('found an unknown key id; the key set is loaded again')
        fitting = [key for key in with_id if key.fits(algorithm)]
        if len(fitting) != 1:
            raise TokenRefused(f'found {len(fitting)} keys for the key id and algorithm {algorithm}, expected one')
        return fitting[0]

    def start(self) -> None:
        """Start the regular refreshes."""
        self._schedule(self._regular_pause_ms)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _regular_pause_ms(self) -> int:
        return min(FILE_CHECK_MS, self._settings.refresh_ms) if self._place.is_file else self._settings.refresh_ms

    def _schedule(self, pause_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._background.timers.after(pause_ms, self._refresh)

    def _look_for(self, key_id: str) -> None:
        """Begin a refresh because of an unknown key id, unless such a refresh began recently."""
        now_ms = self._clock.monotonic_ms()
        looked_ms = self._unknown.get(key_id)
        if len(key_id) > LONGEST_KEY_ID or (looked_ms is not None and now_ms - looked_ms < KEY_ID_PAUSE_MS):
            return
        if self._last_search_ms is not None and now_ms - self._last_search_ms < REFRESH_PAUSE_MS:
            return
        self._last_search_ms = self._unknown[key_id] = now_ms
        self._unknown.move_to_end(key_id)
        if len(self._unknown) > MOST_UNKNOWN_KEY_IDS:
            self._unknown.popitem(last=False)
        self._refresh()

    def _refresh(self) -> None:
        if self._is_fetching or self._is_closed:
            return
        self._is_fetching = True
        place = self._place

        def job() -> tuple[list[Key], list[str]] | None:
            text = place.read(always=False)
            return None if text is None else parse_keys(text)

        self._background.submit(job, self._refreshed)

    def _refreshed(self, result: Any) -> None:
        self._is_fetching = False
        if self._is_closed:
            return
        if isinstance(result, Exception):
            self._failed(result)
            return
        if self._failures:
            logger.info('%s: the key set is loaded again', self._place.url)
        self._failures = 0
        if result is not None:
            self._adopt(*result)
        self._schedule(self._regular_pause_ms)

    def _failed(self, error: Exception) -> None:
        pause_ms = min(self._settings.backoff_ms << min(self._failures, 20), self._settings.most_backoff_ms)
        if not self._failures:
            logger.warning('the key set cannot be loaded again; the old keys stay in force: %s', error,
                           exc_info=None if isinstance(error, KeySetError) else error)
        self._failures += 1
        self._schedule(pause_ms)

    def _adopt(self, keys: list[Key], left_out: list[str]) -> None:
        self._keys = keys
        for reason in left_out:
            logger.warning('%s: left out %s', self._place.url, reason)
