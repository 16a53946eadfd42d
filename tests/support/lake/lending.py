"""An S3 store that accepts lent credentials for a while, and a catalog that lends them."""
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from support.lake.catalog_proxy import CatalogProxy, Reply
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = 'lake'
LENT_KEY = 'lent'
EXPIRED = b'<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>'


@dataclass
class LendingStore:
    """The store. Requests with the lent key need a token that is valid; other keys are those of the catalog."""

    address: str = ''
    valid: set[str] = field(default_factory=set)
    lent: int = 0
    refused: int = 0

    def lend(self, expires_at_ms: int | None) -> dict[str, str]:
        """Return the properties of a new credential. Older ones stay valid until `expire`."""
        self.lent += 1
        self.valid.add(token := f'token-{self.lent}')
        found = {'s3.access-key-id': LENT_KEY, 's3.secret-access-key': 'secret', 's3.session-token': token,
                 's3.endpoint': self.address, 's3.region': 'us-east-1'}
        return found if expires_at_ms is None else found | {'s3.session-token-expires-at-ms': str(expires_at_ms)}

    def expire(self) -> None:
        self.valid.clear()


class _Silent(WSGIRequestHandler):
    def log(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def lending_store() -> Iterator[LendingStore]:
    store = LendingStore()
    moto = DomainDispatcherApplication(create_backend_app)

    def gate(environ, start_response):
        if f'Credential={LENT_KEY}/' in environ.get('HTTP_AUTHORIZATION', '') \
                and environ.get('HTTP_X_AMZ_SECURITY_TOKEN') not in store.valid:
            store.refused += 1
            start_response('400 Bad Request', [('Content-Type', 'application/xml')])
            return [EXPIRED]
        return moto(environ, start_response)

    server = make_server('127.0.0.1', 0, gate, threaded=True, request_handler=_Silent)
    store.address = f'http://127.0.0.1:{server.server_port}'
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    boto3.client('s3', endpoint_url=store.address, aws_access_key_id='key', aws_secret_access_key='secret',
                 region_name='us-east-1').create_bucket(Bucket=BUCKET)
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()


def lend_with_tables(proxy: CatalogProxy, store: LendingStore, expires_at_ms: int | None) -> None:
    """Let the catalog lend a credential with each table that it returns."""
    def answer(method, path, forward):
        reply = forward()
        if reply.status != 200 or '/tables' not in path or method == 'HEAD':
            return reply
        found = json.loads(reply.body)
        if 'metadata' in found:
            found['config'] = found.get('config', {}) | store.lend(expires_at_ms)
        return Reply(200, json.dumps(found).encode())
    proxy.answer = answer
