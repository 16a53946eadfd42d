"""An HTTP proxy before a REST catalog, which fails requests as the test wants."""
import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Reply:
    status: int
    body: bytes


@dataclass
class CatalogProxy:
    """The proxy. `answer` receives (method, path, forward) and returns a reply, or None to close the connection without
    one. `forward` sends the request to the catalog, and returns its reply."""

    address: str
    answer: Callable[[str, str, Callable[[], Reply]], Reply | None] | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)


def refusal(status: int, kind: str = 'Refused', message: str = 'as the test wants') -> Reply:
    """Return an error in the form of the REST protocol."""
    return Reply(status, json.dumps({'error': {'message': message, 'type': kind, 'code': status}}).encode())


@contextlib.contextmanager
def catalog_proxy(uri: str) -> Iterator[CatalogProxy]:
    target = urlsplit(uri).netloc

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get('Content-Length') or 0))

            def forward() -> Reply:
                connection = http.client.HTTPConnection(target)
                headers = {name: value for name, value in self.headers.items() if name.lower() != 'host'}
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                reply = Reply(response.status, response.read())
                connection.close()
                return reply

            proxy.requests.append((self.command, self.path))
            reply = proxy.answer(self.command, self.path, forward) if proxy.answer else forward()
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(reply.body)))
            self.end_headers()
            if self.command != 'HEAD':
                self.wfile.write(reply.body)

        do_POST = do_HEAD = do_DELETE = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    proxy = CatalogProxy(f'http://127.0.0.1:{server.server_port}')
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
