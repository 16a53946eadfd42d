"""The client of a schema registry: schemas by id, by guid and by subject, over HTTP."""
from __future__ import annotations

import http.client
import json
import random
import ssl
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from kbroker.base.errors import ConfigError
from kbroker.client.tls import make_context
from kbroker.security.tls_failures import why_the_broker_is_refused, why_the_handshake_failed
from kbroker_tools.registry.errors import RegistryError, RegistryUnavailable
from kbroker_tools.registry.settings import RegistrySettings

MOST_ANSWER_BYTES = 16 << 20
MOST_CACHED_BYTES = 16 << 20
MOST_UNKNOWN = 10_000
"""The most ids that the cache remembers as unknown. Values with random bytes have many."""
UNKNOWN_S = 30.0
"""The time for which an unknown id is not asked again."""
MOST_REDIRECTS = 3
MOST_REFERENCES, DEEPEST_REFERENCES = 1000, 50
UNKNOWN_CODES = (40401, 40402, 40403)
"""The codes of a registry for an unknown subject, version and schema. Another server's 404 has none of them."""
WORTH_A_RETRY = (408, 429)
KINDS = {'AVRO': 'avro', 'PROTOBUF': 'protobuf', 'JSON': 'json'}

Key = int | uuid.UUID
"""The id of a schema in the prefix of a value, or its guid in a header."""


@dataclass(frozen=True)
class Reference:
    """A schema that another schema uses by `name`: the name of a type, or of an imported file."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """A schema as the registry has it. `kind` is avro, protobuf or json."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    id: int | None = None
    """The id, if the registry has named it in its answer."""

    @property
    def size_bytes(self) -> int:
        return len(self.text) + sum(len(each.name) + len(each.subject) + 100 for each in self.references) + 500


class RegistryClient:
    """The client of one registry. Its answers about ids never change, so it keeps them in a bounded cache.

    Methods raise RegistryUnavailable if the registry fails after retries, and RegistryError if it refuses the request
    or is not a registry. Threads may share a client. A pickled client has the settings and an empty cache.
    """

    def __init__(self, settings: RegistrySettings, clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep):
        self.settings = settings
        self._clock, self._sleep = clock, sleep
        self._lock = Lock()
        self._known: OrderedDict[Key, Schema] = OrderedDict()
        self._known_bytes = 0
        self._unknown: OrderedDict[Key, float] = OrderedDict()
        self._first = 0
        self._context: ssl.SSLContext | None = None

    def __reduce__(self) -> tuple[type[RegistryClient], tuple[RegistrySettings]]:
        return type(self), (self.settings,)

    @property
    def name(self) -> str:
        """The address of the registry, as messages name it."""
        return self.settings.urls[self._first]

    def schema(self, key: Key) -> Schema | None:
        """Return the schema with an id or a guid. Return None if the registry does not know it."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            if self._unknown.get(key, -UNKNOWN_S) > self._clock() - UNKNOWN_S:
                return None
        path = f'/schemas/ids/{key}' if isinstance(key, int) else f'/schemas/guids/{key}'
        found = self._ask('GET', path)
        schema = None if found is None else self._schema_of(path, found)
        with self._lock:
            self._remember(key, schema)
        return schema

    def newest(self, subject: str) -> Schema | None:
        """Return the newest version of a subject. Return None if the registry does not know the subject."""
        return self.version(subject, 'latest')

    def version(self, subject: str, version: int | str) -> Schema | None:
        """Return one version of a subject. Return None if the registry does not know it."""
        path = f'/subjects/{quote(subject, safe="")}/versions/{version}'
        found = self._ask('GET', path)
        return None if found is None else self._schema_of(path, found)

    def references(self, schema: Schema) -> dict[str, Schema]:
        """Return the schemas that a schema uses, also indirectly, by their names. A schema comes after those that it
        uses. Raise RegistryError if one is missing or if there are too many."""
        found: dict[str, Schema] = {}
        self._collect(schema, found, ())
        return found

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema under a subject, unless the subject has it. Return its id."""
        path = f'/subjects/{quote(subject, safe="")}/versions'
        body: dict[str, Any] = {'schema': schema.text}
        if schema.kind != 'avro':
            body['schemaType'] = schema.kind.upper()
        if schema.references:
            body['references'] = [{'name': each.name, 'subject': each.subject, 'version': each.version}
                                  for each in schema.references]
        found = self._ask('POST', path, json.dumps(body).encode())
        if not isinstance(found, dict) or not isinstance(found.get('id'), int):
            raise self._not_a_registry(path, 'an answer without an id')
        return int(found['id'])

    # ---- the cache

    def _remember(self, key: Key, schema: Schema | None) -> None:
        if schema is None:
            self._unknown[key] = self._clock()
            if len(self._unknown) > MOST_UNKNOWN:
                self._unknown.popitem(last=False)
            return
        self._unknown.pop(key, None)
        if key not in self._known:
            self._known[key] = schema
            self._known_bytes += schema.size_bytes
        while self._known_bytes > MOST_CACHED_BYTES and len(self._known) > 1:
            self._known_bytes -= self._known.popitem(last=False)[1].size_bytes

    def _collect(self, schema: Schema, found: dict[str, Schema], path: tuple[str, ...]) -> None:
        for each in schema.references:
            if each.name in path:
                raise RegistryError(f'{self.name}: the schema that {each.name} names uses itself: '
                                    f'{" -> ".join([*path, each.name])}')
            if each.name in found:
                continue
            if len(found) >= MOST_REFERENCES or len(path) >= DEEPEST_REFERENCES:
                raise RegistryError(f'{self.name}: found more than {MOST_REFERENCES} references, or more than '
                                    f'{DEEPEST_REFERENCES} levels of them, expected fewer')
            used = self.version(each.subject, each.version)
            if used is None:
                raise RegistryError(f'{self.name}: a schema refers to version {each.version} of subject '
                                    f'{each.subject}, which the registry does not have')
            self._collect(used, found, (*path, each.name))
            found[each.name] = used

    # ---- HTTP

    def _schema_of(self, path: str, found: Any) -> Schema:
        try:
            kind = KINDS.get(found.get('schemaType', 'AVRO'), str(found.get('schemaType')))
            references = tuple(Reference(str(each['name']), str(each['subject']), int(each['version']))
                               for each in found.get('references') or ())
            if not isinstance(found['schema'], str):
                raise TypeError
            id = found.get('id')
            return Schema(kind, found['schema'], references, id if isinstance(id, int) else None)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._not_a_registry(path, 'an answer without a schema') from None

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON of an answer. Return None for 404 with a registry's code. Try each URL, several times."""
        failure = ''
        for attempt in range(self.settings.max_retries + 1):
            if attempt:
                longest = min(self.settings.retry_wait_s * 2 ** (attempt - 1), self.settings.retry_max_wait_s)
                self._sleep(longest * (0.5 + random.random() / 2))
            for number in self._turns():
                url = self.settings.urls[number] + path
                try:
                    status, answer = self._exchange(method, url, body)
                except RegistryError:
                    raise
                except (OSError, http.client.HTTPException) as error:
                    failure = f'{url}: {_why(error, urlsplit(url).hostname or "")}'
                    if isinstance(error, ssl.SSLCertVerificationError):
                        raise RegistryError(failure) from None
                    continue
                if status >= 500 or status in WORTH_A_RETRY:
                    failure = f'{url}: found HTTP status {status}{_message(answer)}, expected 200'
                    continue
                self._first = number
                return self._judge(url, status, answer)
        raise RegistryUnavailable(f'{failure}; the client gave up after {self.settings.max_retries} retries')

    def _turns(self) -> Iterator[int]:
        """Yield the numbers of the URLs. The one that answered last comes first."""
        first, count = self._first, len(self.settings.urls)
        return ((first + each) % count for each in range(count))

    def _exchange(self, method: str, url: str, body: bytes | None) -> tuple[int, bytes]:
        """Return the status and the body of an answer. Follow redirects only on the same server, because the request
        has credentials."""
        for _ in range(MOST_REDIRECTS + 1):
            status, answer, location = self._one_exchange(method, url, body)
            if status not in (301, 302, 303, 307, 308):
                return status, answer
            there = urljoin(url, location or '')
            here, other = urlsplit(url), urlsplit(there)
            if (here.scheme, here.netloc) != (other.scheme, other.netloc):
                raise RegistryError(f'{url}: found a redirect to {other.scheme}://{other.hostname}, which does not get '
                                    'the credentials; expected an answer: set schema.registry.url to the URL there')
            url = there
        raise RegistryError(f'{url}: found more than {MOST_REDIRECTS} redirects, expected an answer')

    def _one_exchange(self, method: str, url: str, body: bytes | None) -> tuple[int, bytes, str | None]:
        parts = urlsplit(url)
        connection = self._connection(parts.scheme, parts.hostname or '', parts.port)
        try:
            connection.connect()
            connection.sock.settimeout(self.settings.read_timeout_s or None)
            headers = {'Accept': 'application/vnd.schemaregistry.v1+json, application/json', 'Connection': 'close',
                       **dict(self.settings.headers)}
            if body is not None:
                headers['Content-Type'] = 'application/vnd.schemaregistry.v1+json'
            connection.request(method, parts.path, body, headers)
            answer = connection.getresponse()
            content = answer.read(MOST_ANSWER_BYTES + 1)
            if len(content) > MOST_ANSWER_BYTES:
                raise RegistryError(f'{url}: found more than {MOST_ANSWER_BYTES} bytes, expected a schema')
            return answer.status, content, answer.getheader('Location')
        finally:
            connection.close()

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        timeout = self.settings.connect_timeout_s or None
        if scheme == 'http':
            return http.client.HTTPConnection(host, port, timeout=timeout)
        if self._context is None:
            try:
                self._context = make_context(self.settings.tls)
            except ConfigError as error:
                raise RegistryError(str(error), error.name) from None
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context)

    def _judge(self, url: str, status: int, answer: bytes) -> Any:
        found = _parsed(answer)
        if status == 200 and found is not None:
            return found
        if status == 404 and isinstance(found, dict) and found.get('error_code') in UNKNOWN_CODES:
            return None
        if status in (401, 403):
            raise RegistryError(f'{url}: found HTTP status {status}{_message(answer)}: the registry refuses the login; '
                                'expected basic.auth.user.info or bearer.auth.token of a user with the right to read '
                                'schemas')
        if status in (200, 404):
            raise self._not_a_registry(url, f'HTTP status {status} and {len(answer)} bytes that are not its answer')
        raise RegistryError(f'{url}: found HTTP status {status}{_message(answer)}, expected 200')

    def _not_a_registry(self, where: str, found: str) -> RegistryError:
        where = where if '://' in where else self.name + where
        return RegistryError(f'{where}: found {found}, expected the API of a schema registry; does schema.registry.url '
                             'lack a path, such as /apis/ccompat/v7?')


def _parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return None


def _message(answer: bytes) -> str:
    """Return the message of a registry's error in one line, with a blank before it."""
    found = _parsed(answer)
    text = found.get('message') if isinstance(found, dict) else None
    return f' ({" ".join(text.split())[:300]})' if isinstance(text, str) else ''


def _why(error: Exception, host: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f'the certificate is not accepted: {why_the_broker_is_refused(error, host)}'
    if isinstance(error, ssl.SSLError):
        return f'the TLS handshake failed: {why_the_handshake_failed(error, False)}'
    if isinstance(error, TimeoutError):
        return 'it did not answer in time'
    if isinstance(error, http.client.HTTPException):
        return f'found no HTTP answer ({type(error).__name__})'
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
