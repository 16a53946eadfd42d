"""An S3 server in its own process, with faults that a test turns on.

Run as a program, it serves until it is killed.
"""
from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from support.brokers.broker_process import ROOT, Process

ACCESS = {'aws_access_key_id': 'key', 'aws_secret_access_key': 'secret', 'region_name': 'us-east-1'}
BUCKET = 'lake'
READY = 'the store listens on '
FAULTS = '/kbroker-test-faults'
REQUESTS = '/kbroker-test-requests'


@dataclass
class Fault:
    """A fault of the requests whose `METHOD /bucket/key?query` matches a pattern.

    * `fail`: reply with `status`, and do nothing
    * `lose`: do what was asked, and reply with `status`
    * `twice`: do what was asked twice, and reply to the second
    * `slow`: wait for `seconds`, then do what was asked
    * `unconditional`: ignore the header If-None-Match
    """

    pattern: str
    kind: str
    count: int = 1
    """The number of requests that meet the fault."""
    status: str = '503 Slow Down'
    seconds: float = 0


class ObjectStore(Process):
    """The server. It has one bucket."""

    address: str
    """The host and port."""

    def start(self) -> None:
        import moto  # noqa: F401  # A test is skipped where moto has no wheels.
        program = 'from support.lake import object_store; object_store.serve()'
        self.launch([sys.executable, '-c', f'import sys; sys.path.insert(0, {str(ROOT / "tests")!r}); {program}'])
        self.address = next(line for line in self.lines if READY in line).removeprefix(READY).strip()
        self.client().create_bucket(Bucket=BUCKET)

    def is_ready_line(self, line: str) -> bool:
        return READY in line

    @property
    def url(self) -> str:
        return f'http://{self.address}'

    def client(self) -> Any:
        """Return a client of boto3."""
        import boto3
        return boto3.client('s3', endpoint_url=self.url, **ACCESS)

    def filesystem(self) -> Any:
        """Return the store as a filesystem of pyarrow."""
        from pyarrow import fs
        return fs.S3FileSystem(access_key=ACCESS['aws_access_key_id'], secret_key=ACCESS['aws_secret_access_key'],
                               region=ACCESS['region_name'], endpoint_override=self.address, scheme='http')

    def of_delta(self) -> dict[str, str]:
        """Return the settings of this store for Delta tables."""
        return {'AWS_ENDPOINT_URL': self.url, 'AWS_ACCESS_KEY_ID': ACCESS['aws_access_key_id'],
                'AWS_SECRET_ACCESS_KEY': ACCESS['aws_secret_access_key'], 'AWS_REGION': ACCESS['region_name'],
                'AWS_ALLOW_HTTP': 'true'}

    def of_iceberg(self) -> dict[str, str]:
        """Return the settings of this store for Iceberg tables."""
        return {'s3.endpoint': self.url, 's3.access-key-id': ACCESS['aws_access_key_id'],
                's3.secret-access-key': ACCESS['aws_secret_access_key'], 's3.region': ACCESS['region_name']}

    def keys(self, prefix: str = '') -> list[str]:
        """Return the names of all objects. The markers that pyarrow leaves for directories are no objects of a user.
        """
        pages = self.client().get_paginator('list_objects_v2').paginate(Bucket=BUCKET, Prefix=prefix)
        return [each['Key'] for page in pages for each in page.get('Contents', []) if not each['Key'].endswith('/')]

    def have(self, *faults: Fault) -> None:
        """Replace the faults by these."""
        self._ask(FAULTS, json.dumps([asdict(each) for each in faults]).encode())

    def requests(self) -> list[str]:
        """Return the requests since the last call, each as `METHOD /bucket/key?query`."""
        return list(json.loads(self._ask(REQUESTS, b'')))

    def _ask(self, path: str, body: bytes) -> bytes:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, body, method='PUT')) as reply:
            return bytes(reply.read())


Start = Callable[..., Any]


class FaultyApp:
    """An application of WSGI with faults, in front of another."""

    def __init__(self, app: Callable[[dict[str, Any], Start], Iterable[bytes]]):
        self._app = app
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._requests: list[str] = []

    def __call__(self, request: dict[str, Any], start: Start) -> Iterable[bytes]:
        stream = request['wsgi.input']      # pyarrow sends chunks
        body = stream.read() if request.get('wsgi.input_terminated') else stream.read(
            int(request.get('CONTENT_LENGTH') or 0))
        path = request['PATH_INFO']
        if path in (FAULTS, REQUESTS):
            return self._command(path, body, start)
        query = request.get('QUERY_STRING')
        fault = self._next_fault(f'{request["REQUEST_METHOD"]} {path}' + (f'?{query}' if query else ''))
        kind = fault.kind if fault else ''
        if kind == 'fail':
            assert fault is not None
            start(fault.status, [('Content-Length', '0')])
            return [b'']
        if kind == 'slow':
            assert fault is not None
            threading.Event().wait(fault.seconds)
        if kind == 'unconditional':
            request.pop('HTTP_IF_NONE_MATCH', None)
        if kind in ('lose', 'twice'):
            b''.join(self._app({**request, 'wsgi.input': io.BytesIO(body)}, lambda *_: None))
        if kind == 'lose':
            assert fault is not None
            start(fault.status, [('Content-Length', '0')])
            return [b'']
        return self._app({**request, 'wsgi.input': io.BytesIO(body)}, start)

    def _next_fault(self, request: str) -> Fault | None:
        with self._lock:
            self._requests.append(request)
            for fault in self._faults:
                if fault.count and re.search(fault.pattern, request):
                    fault.count -= 1
                    return fault
        return None

    def _command(self, path: str, body: bytes, start: Start) -> list[bytes]:
        with self._lock:
            reply = json.dumps(self._requests).encode()
            if path == FAULTS:
                self._faults = [Fault(**each) for each in json.loads(body)]
            self._requests = []
        start('200 OK', [('Content-Length', str(len(reply)))])
        return [reply]


def serve() -> None:
    """Serve on a free port until the process is killed."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server
    logging.getLogger('werkzeug').setLevel(logging.ERROR)
    server = make_server('127.0.0.1', 0, FaultyApp(DomainDispatcherApplication(create_backend_app)), threaded=True)
    print(f'{READY}127.0.0.1:{server.server_port}', flush=True)
    server.serve_forever()
